"""Statistics of a handful of seeds: Student-t intervals, paired differences, adjusted p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
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
    ``error`` is the standard error of the mean and ``freedom`` its degrees of freedom.
    """

    n: int
    mean: float
    std: float | None
    half_width: float | None
    low: float | None
    high: float | None
    error: float | None = None
    freedom: float | None = None

    def p_above(self, bound: float) -> float:
        """One-sided p of "the true mean is above ``bound``": P(T ≥ (mean − bound) / error).

        1 where one seed allows no test. Without any spread it is 0 or 1, the limits of the test.
        """
        if self.error is None or self.freedom is None:
            return 1.0
        if self.error == 0.0:
            return 0.0 if self.mean > bound else 1.0
        return float(stdtr(self.freedom, (bound - self.mean) / self.error))

    def p_below(self, bound: float) -> float:
        """One-sided p of "the true mean is below ``bound``"; see ``p_above``."""
        if self.error is None or self.freedom is None:
            return 1.0
        if self.error == 0.0:
            return 0.0 if self.mean < bound else 1.0
        return float(stdtr(self.freedom, (self.mean - bound) / self.error))


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

    Args:
        values: One value per seed [n], all finite: a run that failed has to be left out by name,
            not by accident.
        confidence: c, between 0 and 1.

    Returns:
        The interval in the unit of the values; with n = 1 there is a mean and no interval.

    Raises:
        ValueError: There are no values, they have several dimensions or are not finite, or the
            confidence is not between 0 and 1.
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
    return _interval(x.size, mean, std, std / math.sqrt(x.size), x.size - 1, confidence)


def _interval(
    n: int, mean: float, std: float, error: float, freedom: float, confidence: float
) -> Interval:
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    return Interval(int(n), mean, std, half, mean - half, mean + half, error, freedom)


def crossed_interval(
    levels: Sequence[float] | np.ndarray, images: np.ndarray, confidence: float = CONFIDENCE
) -> Interval:
    """Interval of a level that would hold for other seeds and other test images.

    Seeds and images are crossed random factors: every seed is tested on the same images. The
    variance of the mean is s²/S + max(0, MS_I − MS_E) / (S · I): the spread of the levels over S
    seeds, which holds the interaction as well, and the component of the I images, estimated by the
    mean squares of a two-way layout. Degrees of freedom are Satterthwaite's.

    Args:
        levels: A level for each seed [S], shares of 1.
        images: The share of clients that are right, by seed and image [S, I].
        confidence: Between 0 and 1.

    Returns:
        The interval around the mean of the levels; that of ``mean_interval`` where one seed or one
        image allows no second component.

    Raises:
        ValueError: The two have different numbers of seeds, or values that are not finite.
    """
    plain = mean_interval(levels, confidence)
    x = np.asarray(images, dtype=np.float64)
    if x.ndim != 2 or len(x) != plain.n or not np.isfinite(x).all():
        raise ValueError(f"{plain.n} levels need finite images [{plain.n}, I], got {x.shape}")
    seeds, count = x.shape
    if plain.std is None or plain.error is None or count < 2:
        return plain
    by_image = x.mean(axis=0)
    rest = x - by_image - x.mean(axis=1, keepdims=True) + x.mean()
    squares = seeds * float(by_image.var(ddof=1))
    residual = float((rest**2).sum()) / ((seeds - 1) * (count - 1))
    component = max(0.0, squares - residual) / (seeds * count)
    variance = plain.error**2 + component
    if variance == 0.0:
        return plain
    parts = plain.error**4 / (seeds - 1) + (squares / (seeds * count)) ** 2 / (count - 1)
    parts += (residual / (seeds * count)) ** 2 / ((seeds - 1) * (count - 1))
    freedom = max(variance**2 / parts, seeds - 1.0)
    error = math.sqrt(variance)
    return _interval(plain.n, plain.mean, plain.std, error, freedom, confidence)


def paired_difference(
    subject: Mapping[int, float], rival: Mapping[int, float], confidence: float = CONFIDENCE
) -> PairedDifference | None:
    """Differences subject − rival over the seeds both have, as a paired t-test.

    The same seed means the same partition, cohorts and initial values, which is why the
    difference of two methods varies far less than either of them.

    Args:
        subject: Seed → value of the subject.
        rival: Seed → value of the rival, in the same unit.
        confidence: Of the interval, between 0 and 1.

    Returns:
        The difference, or None where the two share no seed. p is None for one seed; for differences
        that are all equal it is 0, or 1 if they are all zero (the limits of the test).
    """
    seeds = sorted(set(subject) & set(rival))
    if not seeds:
        return None
    ours = np.array([subject[seed] for seed in seeds], dtype=np.float64)
    theirs = np.array([rival[seed] for seed in seeds], dtype=np.float64)
    interval = mean_interval(ours - theirs, confidence)
    p = None if interval.std is None else two_sided(interval.p_above(0.0), interval.p_below(0.0))
    return PairedDifference(interval, p, float(ours.mean()), float(theirs.mean()))


def shown_half_width(interval: Interval) -> float | None:
    """The half-width that tables show: None for fewer than ``SHOWN_FROM`` seeds.

    The t interval of two to four seeds is an exact statement about normal values, and for anything
    else one about the assumption: at n = 2 it is 12.7 standard errors wide.
    """
    return interval.half_width if interval.n >= SHOWN_FROM else None


def two_sided(*one_sided: float) -> float:
    """The two-sided p of two one-sided tests in opposite directions: min(1, 2 · the smaller)."""
    return min(1.0, 2.0 * min(one_sided))


def smallest_visible(interval: Interval, power: float = 0.8) -> float | None:
    """The smallest true difference that a two-sided t-test of this spread would have seen.

    (t_{.975} + t_{power}) · s/√n with n − 1 degrees of freedom: the usual formula for the 5 % level
    and 80 % power, with t for the normal quantiles and the observed s for the true one. The level
    is that of one test: of several that are adjusted for one another it is a lower bound.

    Args:
        interval: The observed mean, with its standard error s/√n and degrees of freedom.
        power: The probability of seeing the difference, between 0 and 1.

    Returns:
        The difference in the unit of the values, or None for one seed.
    """
    if interval.error is None or interval.freedom is None:
        return None
    ends = stdtrit(interval.freedom, [0.5 + CONFIDENCE / 2, power])
    return float(ends.sum() * interval.error)


def correlation_interval(
    correlations: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> Interval:
    """Mean of correlations over seeds: of Fisher's z = artanh ρ, brought back by tanh.

    The t interval is that of the z (``mean_interval``), whose distribution is near normal while
    that of ρ is skewed and bounded; so it never leaves (−1, 1) and has no single half-width.
    |ρ| is clipped at 1 − 1e-6, where z would be infinite.

    Args:
        correlations: One ρ per seed [n]; ``ValueError`` for none, and for a ρ that is not finite or
            outside [−1, 1].
        confidence: Of the interval, between 0 and 1.

    Returns:
        The interval of ρ; its ``std``, ``half_width``, ``error`` and ``freedom`` are None.
    """
    z = mean_interval([fisher_z(rho) for rho in correlations], confidence)
    low, high = (None if end is None else math.tanh(end) for end in (z.low, z.high))
    return Interval(z.n, math.tanh(z.mean), None, None, low, high)


def fisher_z(rho: float) -> float:
    """Fisher's z: artanh ρ, |ρ| clipped at 1 − 1e-6; ``ValueError`` for a ρ outside [−1, 1]."""
    if abs(rho) > 1:
        raise ValueError(f"correlations lie between -1 and 1, got {rho}")
    return math.atanh(min(max(rho, -_LARGEST), _LARGEST))


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


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p: p̃_(i) = min_{j ≥ i} min(1, m · p_(j) / j), m tests.

    Calling everything with p̃ < q true keeps the expected share of errors among the calls below q
    (Benjamini and Hochberg 1995, J. R. Statist. Soc. B 57). Entries that are None stay None and do
    not count into m.
    """
    from scipy.stats import false_discovery_control  # half a second, needed by few commands

    where = [index for index, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    if where:
        values = false_discovery_control([p_values[index] for index in where])
        for index, value in zip(where, values, strict=True):
            adjusted[index] = float(value)
    return adjusted


def pearson(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Pearson's correlation of the pairs in which both numbers are finite.

    Args:
        x: The first number of each pair [n].
        y: The second number of each pair [n].

    Returns:
        The correlation; None for fewer than three pairs, and where one side does not vary.
    """
    return _correlation(_pairs(x, y))


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, equal numbers sharing their mean rank.

    Args:
        x: The first number of each pair [n]; pairs that are not finite are left out.
        y: The second number of each pair [n].

    Returns:
        The correlation; None as for ``pearson``.
    """
    return _correlation(_pairs(x, y).rank())


def _pairs(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> pd.DataFrame:
    pairs = pd.DataFrame({"x": x, "y": y}, dtype=float)
    return pairs.replace([math.inf, -math.inf], math.nan).dropna()


def _correlation(pairs: pd.DataFrame) -> float | None:
    r = float(pairs.corr(min_periods=3).to_numpy()[0, 1])
    return None if math.isnan(r) else r
