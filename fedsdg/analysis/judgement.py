"""Whether seeds support what is claimed of a number: thresholds, verdicts, and what they could see.

A verdict compares the 95 % Student-t interval of a mean over seeds with the side that the claim
names. It is never drawn from fewer than five seeds, unless the number cannot vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsdg.analysis.inference import (
    SHOWN_FROM,
    correlation_interval,
    mean_interval,
    smallest_visible,
)

SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"
#: Fewer seeds give points and no verdict.
LEAST_SEEDS = SHOWN_FROM


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
    mean from the threshold that these seeds would have decided with a chance of 80 %, None for a
    correlation, which has no unit of distance.
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
    interval = correlation_interval(values) if correlation else mean_interval(values)
    n, effect = interval.n, interval.mean
    if exact:
        lowest, highest = min(values), max(values)
        return Judgement(_verdict(threshold, lowest, highest), n, effect, lowest, highest, None)
    if n < LEAST_SEEDS or interval.low is None or interval.high is None:
        return Judgement(UNDECIDED, n, effect, None, None, None)
    low, high = interval.low, interval.high
    verdict = _verdict(threshold, low, high)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Judgement(verdict, n, effect, low, high, smallest_visible(interval))


def _verdict(threshold: Threshold, low: float, high: float) -> str:
    if threshold.holds(low, high):
        return SUPPORTED
    return REFUTED if threshold.fails(low, high) else UNDECIDED
