"""`bound` in a search space: the least rate with which gates can move within a run.

Adam moves a gate's logit by about η_m a step. From m = 1/2 (logit 0) to m = 0.1 or 0.9 it has
ln 9 ≈ 2.2 to go, and not every step points the same way, so η_m · steps must be at least 3.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedsdg.config.run import Run
from fedsdg.config.search import Axis, Interval

GATE_STEPS = 3.0
DIGITS = 4
"""Significant digits of a bound, which is rounded up."""


def bounded_space(
    space: Mapping[str, Axis], cells: Mapping[str, tuple[Run, np.ndarray]]
) -> dict[str, Axis]:
    """Return a search space with `bound` as a number, the largest over the cells of the search.

    Args:
        space: The axis of each parameter.
        cells: By name, a run in each cell, and the training samples [K] of its clients.

    Raises:
        ValueError: A range ends below its bound.
    """
    bounded = dict(space)
    for name, axis in space.items():
        if not isinstance(axis, Interval) or axis.low is not None:
            continue
        rates = {
            cell: GATE_STEPS / median_steps(sizes, run) for cell, (run, sizes) in cells.items()
        }
        cell = max(rates, key=rates.__getitem__)
        least = rounded_up(rates[cell])
        if least >= axis.high:
            raise ValueError(
                f"search.space: {name} ends at {axis.high:g}, but gates need {least:g} to move by "
                f"{GATE_STEPS:g} in the steps of a median client ({cell}); raise the end, or "
                "federation.rounds"
            )
        bounded[name] = replace(axis, low=least)
    return bounded


def median_steps(sizes: np.ndarray, run: Run) -> float:
    """Return the expected local steps of a median client in a run: R · M/K · E · ⌈n_k/B⌉.

    Args:
        sizes: Training samples n_k [K] of every client.
        run: Its rounds R, clients per round M, epochs E and batch size B count (null: all samples
            at once). K are the clients that train, who alone are drawn.
    """
    federation = run.federation
    clients = int(federation.clients) - federation.kept_out
    drawn = federation.rounds * federation.clients_per_round / clients
    batches = np.ceil(sizes / (run.training.batch_size or sizes))
    return drawn * run.training.epochs * float(np.median(batches))


def rounded_up(value: float) -> float:
    """Return the least number of ``DIGITS`` significant digits that is not below a value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / unit) * unit:.{DIGITS}g}")
