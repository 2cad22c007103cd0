"""What is said of a handful of seeds: means with Student-t intervals, paired differences, Holm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

#: Confidence of every interval of the suite.
CONFIDENCE = 0.95
_LARGEST = 1 - 1e-6  # of a correlation, before Fisher's z
#: Seeds from which on tables show an interval; of fewer they show the mean alone.
SHOWN_FROM = 5


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` seeds with its confidence interval, all in the unit of the values.

    ``std`` (ddof = 1), ``half_width``, ``low`` and ``high`` are None where one seed allows none.
    """

    n: int
    mean: float
    std: float | None
    half_width: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Mean of subject − rival over common seeds, its interval, and the two-sided p of the t-test.

    ``subject_mean`` and ``rival_mean`` are taken over the same seeds, so they differ by ``mean``.
    """

    interval: Interval
    p: float | None
    subject_mean: float
    rival_mean: float


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """Student-t interval of a mean: x̄ ± t_{(1+c)/2, n−1} · s/√n, with s of ddof = 1.

    With n = 1 there is a mean and no interval. Raises ``ValueError`` for no values, and for
    values that are not finite: a run that failed has to be left out by name, not by accident.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"a mean needs at least one value in one dimension, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"values must be finite, got {x.tolist()}; leave failed runs out first")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    mean = float(x.mean())
    if x.size == 1:
        return Interval(1, mean, None, None, None, None)
    std = float(x.std(ddof=1))
    quantile = float(stdtrit(x.size - 1, 0.5 + confidence / 2))
    half_width = quantile * std / math.sqrt(x.size)
    return Interval(int(x.size), mean, std, half_width, mean - half_width, mean + half_width)


def paired_difference(
    subject: Mapping[int, float], rival: Mapping[int, float], confidence: float = CONFIDENCE
) -> PairedDifference | None:
    """Differences subject − rival over the seeds both have, as a paired t-test.

    The same seed means the same partition, cohorts and initial values, which is why the
    difference of two methods varies far less than either of them.
    Returns None where the two share no seed. p is None for one seed; for differences that are
    all equal it is 0, or 1 if they are all zero (the limits of the test).
    """
    seeds = sorted(set(subject) & set(rival))
    if not seeds:
        return None
    ours = np.array([subject[seed] for seed in seeds], dtype=np.float64)
    theirs = np.array([rival[seed] for seed in seeds], dtype=np.float64)
    interval = mean_interval(ours - theirs, confidence)
    if interval.std is None:
        p = None
    elif interval.std == 0.0:
        p = 1.0 if interval.mean == 0.0 else 0.0
    else:
        statistic = interval.mean / (interval.std / math.sqrt(interval.n))
        p = float(2.0 * stdtr(interval.n - 1, -abs(statistic)))
    return PairedDifference(interval, p, float(ours.mean()), float(theirs.mean()))


def shown_half_width(interval: Interval) -> float | None:
    """The half-width that tables show: None for fewer than ``SHOWN_FROM`` seeds.

    The t interval of two to four seeds is an exact statement about normal values, and for anything
    else one about the assumption: at n = 2 it is 12.7 standard errors wide.
    """
    return interval.half_width if interval.n >= SHOWN_FROM else None


def equivalence(interval: Interval, margin: float) -> float | None:
    """p of two one-sided t-tests that a mean difference lies within ±``margin``.

    The larger of P(T ≥ (x̄ + δ)/se) and P(T ≤ (x̄ − δ)/se), T of n − 1 degrees of freedom
    (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15). ``margin`` has the unit of the values and
    must be positive. None for one seed; for values that are all equal 0 within the margin, else 1.
    """
    if not margin > 0:
        raise ValueError(f"the margin of an equivalence is {margin}, but must be greater than 0")
    if interval.std is None:
        return None
    if interval.std == 0.0:
        return 0.0 if abs(interval.mean) < margin else 1.0
    error = interval.std / math.sqrt(interval.n)
    below = stdtr(interval.n - 1, -(interval.mean + margin) / error)
    above = stdtr(interval.n - 1, (interval.mean - margin) / error)
    return float(max(below, above))


def smallest_visible(interval: Interval, power: float = 0.8) -> float | None:
    """The smallest true difference that a two-sided t-test of this spread would have seen.

    (t_{.975} + t_{power}) · s/√n with n − 1 degrees of freedom: the usual formula for the 5 % level
    and 80 % power, with t for the normal quantiles and the observed s for the true one. The level
    is that of one test: of several that are adjusted for one another it is a lower bound. None for
    one seed.
    """
    if interval.std is None:
        return None
    quantiles = stdtrit(interval.n - 1, 0.5 + CONFIDENCE / 2) + stdtrit(interval.n - 1, power)
    return float(quantiles * interval.std / math.sqrt(interval.n))


def correlation_interval(
    correlations: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> Interval:
    """Mean of correlations over seeds: of Fisher's z = artanh ρ, brought back by tanh.

    The t interval is that of the z (``mean_interval``), whose distribution is near normal while
    that of ρ is skewed and bounded; so it never leaves (−1, 1) and has no single half-width:
    ``std`` and ``half_width`` are None. |ρ| is clipped at 1 − 1e-6, where z would be infinite.
    Raises ``ValueError`` as ``mean_interval``, and for a ρ outside [−1, 1].
    """
    rho = np.asarray(correlations, dtype=np.float64)
    if (np.abs(rho) > 1).any():
        raise ValueError(f"correlations lie between -1 and 1, got {rho.tolist()}")
    z = mean_interval(np.arctanh(np.clip(rho, -_LARGEST, _LARGEST)), confidence)
    low, high = (None if end is None else math.tanh(end) for end in (z.low, z.high))
    return Interval(z.n, math.tanh(z.mean), None, None, low, high)


def worst_decile(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the ⌈K/10⌉ lowest of K clients' values.

    Raises ``ValueError`` for no clients and for values that are not finite.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"worst decile needs at least one client, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("worst decile needs a finite value for every client")
    return float(np.sort(x)[: math.ceil(x.size / 10)].mean())


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p: p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) · p_(j)), m tests.

    Controls the probability of one or more false rejections (Holm 1979, Scand. J. Statist. 6).
    Entries that are None (no test was possible) stay None and do not count into m.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(tested):
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p-value {p} at position {index} is not between 0 and 1")
        running = max(running, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = running
    return adjusted


def pearson(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Pearson's correlation of the pairs in which both numbers are finite.

    None for fewer than three pairs, and where one side does not vary.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if a.size < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a @ b) / math.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, equal numbers sharing their mean rank.

    None as for ``pearson``.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    return pearson(_ranks(a[both]), _ranks(b[both]))


def _ranks(x: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
