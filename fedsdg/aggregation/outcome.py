"""What a rule returned, checked in one place right after the rule."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.types import Aggregate

LEAST_WEIGHT = -1e-9
"""A weight below this is negative by more than rounding."""


class RuleFault(ValueError):
    """A rule returned something else than the outcome of a round."""


def name_of(rule: Any) -> str:
    """Return the name of a rule's class, without what is wrapped around the rule."""
    while hasattr(rule, "inner"):
        rule = rule.inner
    return f"rule {type(rule).__name__!r}"


def check_numbers(rule: Any, what: str, given: Any, clients: np.ndarray) -> np.ndarray:
    """Return what a rule gave for the clients [M] as an array.

    Raises:
        RuleFault: It is not one finite real number for each; the sentence names the rule, what it
            gave and the client.
    """
    found = _array(rule, what, given)
    if found.shape != clients.shape:
        raise RuleFault(
            f"{name_of(rule)} returned {what} of shape {list(found.shape)}; return {[len(clients)]}"
        )
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise RuleFault(
            f"{name_of(rule)} returned {_word(found[bad[0]])} in its {what} for client "
            f"{clients[bad[0]]}; return finite numbers"
        )
    return found


def check_weights(rule: Any, weights: Any, clients: np.ndarray) -> None:
    """Raise ``RuleFault`` unless weights are None or shares of the clients [M], none below 0."""
    if weights is None:
        return
    found = check_numbers(rule, "weights", weights, clients)
    if (found < LEAST_WEIGHT).any():
        least = int(found.argmin())
        raise RuleFault(
            f"{name_of(rule)} returned the weight {found[least]:.6g} for client {clients[least]}; "
            "weights are shares >= 0 that sum to 1 (coefficients of a step may be below 0)"
        )


def check_aggregate(
    rule: Any,
    found: Any,
    count: int,
    like: torch.Tensor,
    clients: np.ndarray,
    by_client: Collection[str] | None = None,
) -> Aggregate:
    """Return the outcome of a rule, if it has the form of one and its numbers are finite.

    Diagnostics of clients may hold NaN, for clients that the rule did not look at, and infinity.

    Args:
        rule: The rule, for its name.
        found: What it returned.
        count: C, the server's models.
        like: The updates [M, d].
        clients: [M] the ids of the clients that sent them.
        by_client: The diagnostics that are recorded for each client; None where none is recorded,
            and diagnostics are not checked.

    Raises:
        RuleFault: Steps are not [C, d] finite real numbers, weights are not M shares, a diagnostic
            of clients is not M numbers, or one of the round is not finite.
    """
    if not isinstance(found, Aggregate):
        raise RuleFault(f"{name_of(rule)} returned {type(found).__name__}; return an Aggregate")
    d = like.shape[1]
    steps = found.steps
    if not isinstance(steps, torch.Tensor) or steps.is_complex() or steps.dtype == torch.bool:
        kind = steps.dtype if isinstance(steps, torch.Tensor) else type(steps).__name__
        raise RuleFault(f"{name_of(rule)} returned steps of {kind}; return real numbers")
    if tuple(steps.shape) != (count, d):
        raise RuleFault(
            f"{name_of(rule)} returned steps of shape {list(steps.shape)}; return {[count, d]}, a "
            "row for each model of the server"
        )
    check_weights(rule, found.weights, clients)
    if by_client is not None:
        _check_diagnostics(rule, found.diagnostics, len(clients), by_client)
    if not bool(torch.isfinite(steps).all()):
        bad = ~torch.isfinite(steps)
        model = int(bad.any(dim=1).nonzero()[0])
        first = steps[model][bad[model]][0].item()
        raise RuleFault(
            f"{name_of(rule)} returned {_word(first)} in its step of model {model} "
            f"({int(bad[model].sum())} of {d} numbers); return finite numbers"
        )
    return found


def _check_diagnostics(rule: Any, diagnostics: Any, size: int, by_client: Collection[str]) -> None:
    if not isinstance(diagnostics, Mapping):
        raise RuleFault(
            f"{name_of(rule)} returned diagnostics that are {type(diagnostics).__name__}; return "
            "a dict"
        )
    for name, given in diagnostics.items():
        found = _array(rule, f"the diagnostic {name!r}", given)
        if found.shape == () and name not in by_client and not np.isfinite(found):
            raise RuleFault(
                f"{name_of(rule)} returned {_word(found)} in its diagnostic {name!r}; return a "
                "finite number"
            )
        if name in by_client and found.shape != (size,):
            raise RuleFault(
                f"{name_of(rule)} returned the diagnostic {name!r} of shape {list(found.shape)}; "
                f"it is recorded with the clients: return {[size]}"
            )


def _array(rule: Any, what: str, given: Any) -> np.ndarray:
    """What was given as an array of real numbers."""
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    found = np.asarray(given)
    if found.dtype.kind not in "biuf":
        raise RuleFault(f"{name_of(rule)} returned {what} of {found.dtype}; return real numbers")
    return found


def _word(value: Any) -> str:
    return "NaN" if np.isnan(value) else "infinity"
