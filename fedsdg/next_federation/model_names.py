"""The names of `fedsdg.models` that a federation uses; the one place that imports them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from fedsdg.models.adapters import apart as separate_gates
from fedsdg.models.fast import adam
from fedsdg.models.fast.model import CompiledModel
from fedsdg.models.interface import ClientModel as ClientModel
from fedsdg.models.interface import HasLosses
from fedsdg.models.mixture import MixedModel as MixedModel
from fedsdg.models.parameters import Layout as Layout
from fedsdg.models.parameters import ParameterSpec as ParameterSpec
from fedsdg.models.parameters import leaves as _leaves
from fedsdg.models.parameters import offsets as offsets
from fedsdg.models.parameters import only_trained as only_trained
from fedsdg.models.parameters import views as block_views
from fedsdg.models.parameters import views as views
from fedsdg.models.portable import Portable as Portable
from fedsdg.models.products import even_pays as even_pays
from fedsdg.models.rounding import independent, processor_independent
from fedsdg.models.rounding import root as root
from fedsdg.models.rounding import sigmoid as sigmoid

__all__ = ["block_views", "separate_gates"]


def adam_step_suits(rows: Tensor) -> bool:
    """Return whether the compiled step of Adam takes these rows."""
    return independent() and rows.device.type == "cpu" and rows.dtype == torch.float32


def adam_step(*arguments: Any) -> None:
    """Take the compiled step."""
    adam.step(*arguments)


def training_context(model: ClientModel) -> AbstractContextManager[None]:
    """Return the context in which a model trains."""
    return processor_independent(isinstance(model, HasLosses))


def leaves(
    matrix: Tensor, gradients: Tensor | None, specs: Sequence[ParameterSpec]
) -> dict[str, Tensor]:
    """Return named leaf tensors that share the storage of a matrix and of its gradients."""
    return _leaves(matrix, gradients, specs, by_kind=independent())


def model_losses(
    model: ClientModel,
    images: Tensor,
    labels: Tensor,
    masses: Tensor,
    counts: Sequence[int],
    parameters: dict[str, Tensor],
    loss: Callable[..., Tensor],
    private: bool = True,
) -> Tensor:
    """Return the loss of each image over its mass, [B], for the gradient of their sum."""
    if isinstance(model, HasLosses):
        return model.losses(images, labels, masses, counts, parameters, loss, private=private)
    logits = model.logits(images, counts, parameters, private=private)
    losses: Tensor = loss(logits, labels, reduction="none")
    return losses / masses.to(losses.dtype)


def bytes_of_a_prefix(model: Any) -> int:
    """Return the bytes of what is computed once of an image; 0: nothing is."""
    inner = getattr(model, "inner", model)
    return inner.bytes_of_a_prefix if isinstance(inner, CompiledModel) else 0


def prefixes(model: Any, images: Tensor) -> Tensor:
    """Return what is computed once of each image."""
    return getattr(model, "inner", model).prefixes(images)
