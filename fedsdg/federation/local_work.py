"""What local training works with: a model, samples, and how clients take their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.optimisers.mover import kept_widths
from fedsdg.federation.optimisers.optimiser import RowOptimiser
from fedsdg.federation.step_rows import ROWS
from fedsdg.models.interface import HasLosses
from fedsdg.models.parameters import Layout

if TYPE_CHECKING:
    from fedsdg.federation.stopping import Inexactness


class Model(Protocol):
    """What is trained: predictions for samples that stand client by client (see CohortModel)."""

    def logits(
        self, images: Tensor, counts: Sequence[int], parameters: Mapping[str, Tensor]
    ) -> Tensor:
        """Predictions [B, ...] of ``images`` [B, ...], ``counts[k]`` of them of client k.

        ``private=False``, where ``LocalWork.shared_alone`` asks for it, leaves out what is private.
        """


@dataclass(frozen=True)
class LocalWork:
    """How clients train: optimiser, learning rates of Eq. 6-8, clipping, objective terms.

    ``loss(logits, labels, reduction="none")`` is the task loss per sample; a ``Loss`` may weigh the
    samples of a batch. ``private_first``: epochs in which the private row alone moves, before the
    usual ones, in which the shared row alone does (FedRep); 0 moves both at once. ``interleaved``:
    with every batch the private row alone takes a step, then the shared row alone does, each with a
    gradient and a clipping of its own (APFL). ``shared_alone``: where the shared row moves alone,
    predictions leave out the private one; with ``balanced`` its loss is then the balanced softmax,
    scores plus the logarithms of the client's class shares (Ren et al. 2020). ``stopping``: when a
    client stops before its batches are used up. ``moves``: which of the rows train at all.
    ``private_optimiser``: ``keep`` lets what the optimiser remembers of parameters that never leave
    the client live on from round to round, ``restart`` begins it anew. These are the private row
    or, with ``own_model``, the shared row, which then holds the client's own model; otherwise that
    of the shared row always begins anew, for another model arrives.
    """

    optimiser: RowOptimiser
    eta_g: float
    eta_p: float
    eta_m: float
    clip_norm: float
    terms: tuple[Term, ...] = ()
    trace_every: int = 0
    loss: Callable[..., Tensor] = cross_entropy
    private_first: int = 0
    interleaved: bool = False
    shared_alone: bool = False
    balanced: bool = False
    stopping: Inexactness | None = None
    moves: tuple[str, ...] = ROWS
    private_optimiser: str = "restart"
    own_model: bool = False

    def private_alone(self) -> LocalWork:
        """The same work on the private row alone, in plain epochs, with the shared row fixed."""
        return replace(
            self,
            moves=("private",),
            private_first=0,
            interleaved=False,
            stopping=None,
            trace_every=0,
        )

    @property
    def kept_row(self) -> str:
        """The row whose optimiser state is the client's own."""
        return "shared" if self.own_model else "private"

    def moments(self, layout: Layout) -> dict[str, int]:
        """Return how many numbers a client keeps of its optimiser, by name.

        Names are ``private.`` or ``own.`` before the optimiser's; none where it restarts.
        """
        if self.private_optimiser != "keep" or not (self.own_model or layout.trains_private):
            return {}
        width = layout.d if self.own_model else layout.d_private
        prefix = "own" if self.own_model else "private"
        widths = kept_widths(self.optimiser, width)
        return {f"{prefix}.{name}": size for name, size in widths.items()}

    def __post_init__(self) -> None:
        if sum((self.private_first > 0, self.interleaved, self.stopping is not None)) > 1:
            raise ValueError(
                "private_first, interleaved and a stopping rule cannot be combined; choose one"
            )

    def epochs(self, usual: int) -> int:
        """How many epochs of batches a client is given where ``usual`` are asked for."""
        return self.private_first + (usual if self.stopping is None else self.stopping.most_epochs)


@dataclass(frozen=True)
class Samples:
    """The samples all clients draw from: ``images`` [n, C, H, W], ``labels`` [n] int64.

    ``for_gates`` [n] bool: the samples that teach gates and no gated private part, all others
    teaching no gate; None: every sample teaches both.
    """

    images: Tensor
    labels: Tensor
    for_gates: Tensor | None = None


def shares_of(
    model: Model,
    loss: Callable[..., Tensor],
    images: Tensor,
    labels: Tensor,
    divisors: Tensor,
    counts: Sequence[int],
    parameters: Mapping[str, Tensor],
    **which: bool,
) -> Tensor:
    """Return the loss of every image over its divisor, [B], for the gradient of their sum.

    Args:
        model: The model of the clients, each with ``counts[k]`` images.
        loss: As in ``LocalWork``.
        images: [B, …], client by client.
        labels: int64 [B].
        divisors: [B]; infinite where an image does not count.
        counts: Images of each client.
        parameters: Tensors [M, …] by name.
        which: As in ``model.logits``.
    """
    if isinstance(model, HasLosses):
        return model.losses(images, labels, divisors, counts, parameters, loss, **which)
    each = loss(model.logits(images, counts, parameters, **which), labels, reduction="none")
    return each / divisors.to(each.dtype)
