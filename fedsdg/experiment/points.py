"""The points of a hyper-parameter search: a scrambled Sobol sequence over named parameters.

Coordinate p of trial t depends on p and t alone (Sobol 1967; scrambled by SciPy). Rows that share a
parameter therefore try it at the same places, whatever they are called and whatever else they have.

A range may begin at `bound`, the least rate with which gates can move within a run. Adam moves a
gate's logit by about η_m a step. From m = 1/2 (logit 0) to m = 0.1 or 0.9 it has ln 9 ≈ 2.2 to go,
and not every step points the same way, so η_m · steps must be at least 3.
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedsdg.config.run import Run
from fedsdg.config.search import Axis, Interval
from fedsdg.rng import stream

FIRST = (
    *("eta_g", "eta_p", "eta_m", "lambda1", "lambda2", "weight", "strength", "mu"),
    *("personal_epochs", "head_epochs", "gamma0", "gate_fixed"),
)
"""Parameters with a dimension of the sequence of their own, the most common first: planes of early
dimensions are the most even. Append to it only."""
OTHERS = 1024
"""Any other parameter has one of this number of further dimensions, by the hash of its name."""
DIGITS = 4
"""Significant digits of a value: enough to tell points apart, few enough to copy."""
GATE_STEPS = 3.0
EDGE = 0.05
"""A value nearer than this share of a range to one of its ends lies at an edge."""


def points(space: Mapping[str, Axis], trials: int | None) -> list[dict[str, Any]]:
    """Return the points of a space, each as parameter → value.

    Args:
        space: The axis of each parameter.
        trials: The number of points; None: every combination of choices.

    Raises:
        ValueError: There are intervals, but no number of points; or two parameters would always
            have the same coordinate.
    """
    if trials is None:
        for name, axis in space.items():
            if isinstance(axis, Interval):
                raise ValueError(
                    f"search.space: {name} is a range; say in search.trials how many points are "
                    "tried"
                )
        combinations = itertools.product(*space.values())  # type: ignore[arg-type]
        return [dict(zip(space, values, strict=True)) for values in combinations]
    dimensions = {name: dimension(name) for name in space}
    for one, other in itertools.combinations(space, 2):
        if dimensions[one] == dimensions[other]:
            raise ValueError(
                f"the parameters {one} and {other} would be tried along a diagonal, because their "
                "names have the same hash; rename one of them"
            )
    # The sequence is balanced after a power of two.
    shares = _sobol(math.ceil(math.log2(trials)))
    return [
        {name: value_at(axis, shares[t, dimensions[name]]) for name, axis in space.items()}
        for t in range(trials)
    ]


def dimension(name: str) -> int:
    """Return the dimension of the Sobol sequence that belongs to a parameter."""
    if name in FIRST:
        return FIRST.index(name)
    digest = hashlib.sha256(name.encode()).digest()
    # The first dimensions are left free, so that `FIRST` can grow.
    return 64 + int.from_bytes(digest[:4], "big") % OTHERS


@cache
def _sobol(power: int) -> np.ndarray:
    """Return the first 2^power points in all dimensions, in [0, 1)."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(64 + OTHERS, scramble=True, rng=stream("search", 0))
    return np.asarray(sequence.random_base2(power))


def value_at(axis: Axis, share: float) -> Any:
    """Return the value at a place of an axis.

    Choices, and whole numbers on a linear scale, have equal parts of it.

    Args:
        axis: The axis.
        share: The place, in [0, 1).
    """
    if not isinstance(axis, Interval):
        return axis[math.floor(share * len(axis))]
    assert axis.low is not None  # `bound` is a number by now.
    if axis.whole and not axis.log:
        return int(axis.low + math.floor(share * (axis.high - axis.low + 1)))
    low, high = _scaled(axis, axis.low, axis.high)
    value = low + share * (high - low)
    value = math.exp(value) if axis.log else value
    if axis.whole:
        return round(value)
    return min(max(float(f"{value:.{DIGITS}g}"), axis.low), axis.high)


def edge(axis: Axis, value: Any) -> str | None:
    """Return `low` or `high` if a value lies at an end of its axis.

    Args:
        axis: The axis; of choices, at least three numbers have ends.
        value: One of its values.
    """
    if isinstance(axis, Interval):
        assert axis.low is not None
        low, high, place = _scaled(axis, axis.low, axis.high, value)
        share = (place - low) / (high - low)
        if share <= EDGE:
            return "low"
        return "high" if share >= 1 - EDGE else None
    numbers = [one for one in axis if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) < max(3, len(axis)):
        return None
    return {min(numbers): "low", max(numbers): "high"}.get(value)


def _scaled(axis: Interval, *values: float) -> list[float]:
    return [math.log(value) if axis.log else value for value in values]


def expected_best(scores: Sequence[float]) -> list[float]:
    """Return for k = 1 … n the mean of the best of k of n scores, over all choices of k.

    With the scores in ascending order, the i-th is the best of C(i − 1, k − 1) of the C(n, k)
    choices.
    """
    ascending = sorted(scores)
    n = len(ascending)
    return [
        sum(math.comb(i, k - 1) * score for i, score in enumerate(ascending)) / math.comb(n, k)
        for k in range(1, n + 1)
    ]


def bounded(axis: Interval, cells: Mapping[str, tuple[Run, np.ndarray]]) -> Interval:
    """Return a range of eta_m with `bound` as a number, the largest over the cells of the search.

    Args:
        axis: The range.
        cells: By name, a run in each cell, and the training samples [K] of its clients.

    Raises:
        ValueError: The range ends below its bound.
    """
    rates = {cell: GATE_STEPS / median_steps(sizes, run) for cell, (run, sizes) in cells.items()}
    cell = max(rates, key=rates.__getitem__)
    least = rounded_up(rates[cell])
    if least >= axis.high:
        raise ValueError(
            f"search.space: eta_m ends at {axis.high:g}, but gates need {least:g} to move by "
            f"{GATE_STEPS:g} in the steps of a median client ({cell}); raise the end, or "
            "federation.rounds"
        )
    return replace(axis, low=least)


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
