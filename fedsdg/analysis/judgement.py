"""Whether seeds support what is claimed of a number: thresholds, verdicts, and what they could see.

A verdict compares the 95 % Student-t interval of a mean over seeds with the side that the claim
names. It is never drawn from fewer than five seeds, unless the number cannot vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import nctdtrinc, stdtrit

from fedsdg.analysis.statistics import CONFIDENCE, Interval, mean_interval

SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"
#: Fewer seeds give points and no verdict.
LEAST_SEEDS = 5
#: The chance with which the smallest visible difference would have been seen.
POWER = 0.8


@dataclass(frozen=True)
class Threshold:
    """The claimed side of a number: between ``low`` and ``high``, None where that side is open.

    A number on a boundary of a range is inside; on that of an open side it is on neither side.
    """

    low: float | None
    high: float | None

    @classmethod
    def read(cls, given: Any, where: str) -> Threshold:
        """From ``{above: x}``, ``{below: x}``, ``{between: [x, y]}`` or ``{equal: x, within: y}``.

        Raises ``ValueError`` naming ``where`` for anything else.
        """
        match given:
            case {"above": int() | float() as low, **rest} if not rest:
                return cls(float(low), None)
            case {"below": int() | float() as high, **rest} if not rest:
                return cls(None, float(high))
            case {"between": [int() | float() as low, int() | float() as high], **rest} if (
                not rest and low <= high
            ):
                return cls(float(low), float(high))
            case {
                "equal": int() | float() as value,
                "within": int() | float() as margin,
                **rest,
            } if not rest and margin >= 0:
                return cls(float(value - margin), float(value + margin))
        raise ValueError(
            f"{where} is {given!r}; write {{above: x}}, {{below: x}}, {{between: [x, y]}} or "
            "{equal: x, within: y}"
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The boundaries there are."""
        return tuple(bound for bound in (self.low, self.high) if bound is not None)

    def holds(self, low: float, high: float) -> bool:
        """Whether all of [low, high] is on the claimed side."""
        if self.low is not None and self.high is not None:
            return self.low <= low and high <= self.high
        return low > self.low if self.low is not None else high < self._high

    def fails(self, low: float, high: float) -> bool:
        """Whether none of [low, high] is on the claimed side."""
        if self.low is not None and self.high is not None:
            return high < self.low or low > self.high
        return high < self.low if self.low is not None else low > self._high

    @property
    def _high(self) -> float:
        assert self.high is not None
        return self.high


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the numbers it rests on in the unit of the values.

    ``low`` and ``high`` are None below five seeds; ``visible`` is the smallest distance of the true
    mean from the threshold that these seeds would have decided with a chance of 80 %.
    """

    verdict: str
    n: int
    effect: float
    low: float | None
    high: float | None
    visible: float | None


def judge(
    values: Sequence[float],
    threshold: Threshold,
    *,
    exact: bool = False,
    correlation: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Judgement:
    """Judge one value per seed [n].

    exact: the number is counted and not measured, so that any number of seeds decides: all of them
    on the claimed side, or none. correlation: the interval is that of Fisher's z = artanh r over
    the seeds, transformed back. bounds: where the number can lie; the interval is cut there.
    Raises ``ValueError`` for no values or values that are not finite.
    """
    judged = _correlation(values, threshold) if correlation else _mean(values, threshold)
    if exact:
        lowest, highest = min(values), max(values)
        verdict = _verdict(threshold, lowest, highest)
        return Judgement(verdict, judged.n, judged.effect, lowest, highest, None)
    if bounds is None or judged.low is None or judged.high is None:
        return judged
    low, high = max(judged.low, bounds[0]), min(judged.high, bounds[1])
    return Judgement(judged.verdict, judged.n, judged.effect, low, high, judged.visible)


def smallest_visible(n: int, std: float, power: float = POWER) -> float:
    """δ such that a t-test of n values with standard deviation ``std`` finds δ with this power.

    The test is the one behind the interval, P(T' > t_{(1+c)/2, n−1}) = power for T' non-central
    with n − 1 degrees of freedom and ncp = δ√n/s. n ≥ 2.
    """
    critical = stdtrit(n - 1, 0.5 + CONFIDENCE / 2)
    return float(nctdtrinc(n - 1, 1.0 - power, critical)) * std / math.sqrt(n)


def _mean(values: Sequence[float], threshold: Threshold) -> Judgement:
    interval = mean_interval(values)
    if interval.n < LEAST_SEEDS:
        return Judgement(UNDECIDED, interval.n, interval.mean, None, None, None)
    low, high, std = _known(interval)
    visible = smallest_visible(interval.n, std)
    verdict = _verdict(threshold, low, high)
    return Judgement(verdict, interval.n, interval.mean, low, high, visible)


def _correlation(values: Sequence[float], threshold: Threshold) -> Judgement:
    # A correlation of exactly 1 has no finite z; this is beyond any that a record can tell.
    z = np.arctanh(np.clip(np.asarray(values, dtype=float), -0.999999, 0.999999))
    judged = _mean(z.tolist(), Threshold(None, math.inf))
    effect = math.tanh(judged.effect)
    if judged.low is None or judged.high is None or judged.visible is None:
        return Judgement(UNDECIDED, judged.n, effect, None, None, None)
    low, high = math.tanh(judged.low), math.tanh(judged.high)
    visible = math.tanh(judged.visible)
    return Judgement(_verdict(threshold, low, high), judged.n, effect, low, high, visible)


def _verdict(threshold: Threshold, low: float, high: float) -> str:
    if threshold.holds(low, high):
        return SUPPORTED
    return REFUTED if threshold.fails(low, high) else UNDECIDED


def _known(interval: Interval) -> tuple[float, float, float]:
    assert interval.low is not None and interval.high is not None and interval.std is not None
    return interval.low, interval.high, interval.std
