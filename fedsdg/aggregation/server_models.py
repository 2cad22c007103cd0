"""What rules that serve several models look at beside the updates."""

from collections.abc import Mapping

import numpy as np
import torch

from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import checked_upload


def server_models(context: Context, count: int, updates: torch.Tensor) -> torch.Tensor:
    """[C, d] the server's models before the round, in the dtype of the updates [M, d].

    ValueError where the context does not hold `count` models of d numbers.
    """
    models, expected = context.models, (count, updates.shape[1])
    if models is None or tuple(models.shape) != expected:
        found = "no models" if models is None else f"models of shape {list(models.shape)}"
        raise ValueError(
            f"the context holds {found}, but the rule serves {list(expected)}; pass the server's "
            f"models before the round as Context.models"
        )
    return models.detach().to(updates)


def checked_scores(uploads: Mapping[str, torch.Tensor], context: Context, count: int) -> np.ndarray:
    """[M, C] float64: loss of model c on client k's data, NaN where it was not measured.

    ValueError when the upload `scores` is missing or of another shape.
    """
    scores = checked_upload(uploads, context, "scores", finite=False)
    if scores.shape[1] != count:
        raise ValueError(
            f"upload 'scores' has shape {list(scores.shape)}; expected one score for each of the "
            f"{count} models"
        )
    losses: np.ndarray = scores.double().numpy(force=True)
    return losses
