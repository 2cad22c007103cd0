"""What a rule may return, asked right after the rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.errors import NonFiniteError, RuleFault, nonfinite_sentence
from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.types import Aggregate


def check_aggregate(
    rule: Any,
    found: Any,
    count: int,
    update: Tensor,
    clients: np.ndarray,
    by_client: Collection[str],
) -> Aggregate:
    """Return the outcome of a rule, if it has the form of one and its numbers are finite.

    A diagnostic of clients may hold NaN, for clients that the rule did not look at.

    Args:
        rule: The rule, for its name.
        found: What it returned.
        count: C, the server's models.
        update: [M, d] the updates.
        clients: [M] the ids of the clients that sent them.
        by_client: The diagnostics that are recorded for each client.

    Raises:
        RuleFault: Steps are not [C, d] finite real numbers, a diagnostic of clients is not M
            numbers, or one of the round is not finite.
        NonFiniteError: The updates are not finite.
    """
    who = f"the rule {type(rule).__name__} returned"
    if not isinstance(found, Aggregate):
        raise RuleFault(f"{who} {type(found).__name__}; return an Aggregate")
    steps, shape = found.steps, (count, update.shape[1])
    if not isinstance(steps, Tensor) or not steps.is_floating_point() or steps.shape != shape:
        kind = getattr(steps, "dtype", type(steps).__name__)
        raise RuleFault(
            f"{who} steps of {kind}, {list(getattr(steps, 'shape', ()))}; return real numbers "
            f"{list(shape)}, a row for each model of the server"
        )
    if not bool(torch.isfinite(steps).all()):
        for row, counts in sorted(MemoryRows.of_matrix(update).nonfinite().items()):
            raise NonFiniteError(nonfinite_sentence(f"client {clients[row]}", counts))
        raise RuleFault(f"{who} steps with numbers that are not finite; return finite numbers")
    for name, given in found.diagnostics.items():
        value = np.asarray(given)
        if name in by_client and value.shape != (len(clients),):
            raise RuleFault(
                f"{who} the diagnostic {name!r} of shape {list(value.shape)}; it is recorded with "
                f"the clients: return {[len(clients)]}"
            )
        if value.ndim == 0 and not np.isfinite(value):
            raise RuleFault(f"{who} {value} as its diagnostic {name!r}; return a finite number")
    return found
