"""The judge: what seeds decide about a number, for comparisons, claims and checks alike.

Every question is put as a threshold: is the true mean over seeds on the claimed side? Two one-sided
t-tests answer it, one for the claimed side and one against it. Which questions form a family, and
how their p-values are adjusted for one another, is the caller's rule:

| questions                       | family                     | adjusted by        | from seeds |
|---------------------------------|----------------------------|--------------------|------------|
| primary comparisons             | those of one config        | Holm               | 10         |
| a newcomer and the record       | all of its comparisons     | Holm               | 5          |
| claims of the ledger            | a specification or a study | Benjamini–Hochberg | 5          |
| run-time checks (verification)  | none                       | –                  | 5          |

Post hoc claims have an interval and no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsdg.analysis.inference import (
    SHOWN_FROM,
    Interval,
    correlation_interval,
    fisher_z,
    mean_interval,
    smallest_visible,
    two_sided,
)

SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"
#: Level of every test of the suite, two-sided.
LEVEL = 0.05
#: Fewer seeds give a mean and no verdict.
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

        Args:
            given: The threshold as a claim states it, in the unit of its effect.
            where: The entry and the key, with which the error message begins.

        Raises:
            ValueError: It has none of these forms.
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

    @property
    def is_range(self) -> bool:
        """Return whether both sides are closed."""
        return len(self.numbers) == 2

    def tests(self, interval: Interval) -> tuple[float, float]:
        """One-sided p-values that the true mean is on the claimed side, and that it is not.

        Inside a range means above its low end and below its high end (Schuirmann's two tests);
        outside means beyond either.
        """
        above = [interval.p_above(bound) for bound in self.numbers]
        below = [interval.p_below(bound) for bound in self.numbers]
        if not self.is_range:
            return (above[0], below[0]) if self.low is not None else (below[0], above[0])
        if interval.error == 0.0 and interval.mean in self.numbers:
            return 0.0, 1.0
        return max(above[0], below[1]), min(below[0], above[1])

    def holds(self, low: float, high: float) -> bool:
        """Return whether all of [low, high] is on the claimed side.

        Args:
            low: The low end, in the unit of the threshold.
            high: The high end.
        """
        inside = self.low is None or low > self.low or (self.is_range and low == self.low)
        return inside and (
            self.high is None or high < self.high or (self.is_range and high == self.high)
        )

    def room(self, value: float) -> float:
        """How far a number is from the nearest boundary; negative on the side not claimed."""
        room = [] if self.low is None else [value - self.low]
        return min(room + ([] if self.high is None else [self.high - value]))

    def fails(self, low: float, high: float) -> bool:
        """Return whether none of [low, high] is on the claimed side.

        Args:
            low: The low end, in the unit of the threshold.
            high: The high end.
        """
        below = self.low is not None and high < self.low
        return below or (self.high is not None and low > self.high)


@dataclass(frozen=True)
class Judgement:
    """The verdict of seeds on a threshold, in the unit of the values.

    ``low`` and ``high`` are None below the least number of seeds. ``support`` and ``against`` are
    the one-sided p-values for and against the claim, None where nothing is tested: there, and for
    what is counted. ``visible`` is the smallest distance of the true mean from the threshold that
    these seeds would have decided with a chance of 80 %, None for a correlation, which has no unit
    of distance. ``p`` is two-sided, after the adjustment within a family if there was one.
    """

    verdict: str
    n: int
    effect: float
    low: float | None
    high: float | None
    visible: float | None
    support: float | None = None
    against: float | None = None
    p: float | None = None

    @property
    def denied(self) -> Judgement:
        """The judgement of the opposite claim."""
        words = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
        opposite = words.get(self.verdict, self.verdict)
        return replace(self, verdict=opposite, support=self.against, against=self.support)

    def decided(self, p: float | None) -> Judgement:
        """The same judgement with an adjusted ``p``, which decides; None leaves it as it is."""
        if p is None or self.support is None or self.against is None:
            return self
        side = SUPPORTED if self.support <= self.against else REFUTED
        return replace(self, p=p, verdict=side if p < LEVEL else UNDECIDED)


def judge(
    values: Sequence[float],
    threshold: Threshold,
    *,
    exact: bool = False,
    correlation: bool = False,
    bounds: tuple[float, float] | None = None,
    interval: Interval | None = None,
    least: int = LEAST_SEEDS,
) -> Judgement:
    """Judge one value per seed [n], as the only member of its family.

    Args:
        values: A value for each seed.
        threshold: What is claimed, in the unit of the values.
        exact: The number is counted and not measured, so that any number of seeds decides: all of
            them on the claimed side, or none.
        correlation: The interval and the tests are those of Fisher's z = artanh r.
        bounds: Where the number can lie; the interval is cut there.
        interval: The interval of the mean, where it is not that over seeds alone.
        least: From so many seeds on there is an interval and a test.

    Returns:
        The judgement; its verdict is that at the 5 % level without any adjustment.

    Raises:
        ValueError: There are no values, or some are not finite.
    """
    if exact:
        lowest, highest = min(values), max(values)
        mean = mean_interval(values).mean
        verdict = UNDECIDED
        if threshold.holds(lowest, highest):
            verdict = SUPPORTED
        elif threshold.fails(lowest, highest):
            verdict = REFUTED
        return Judgement(verdict, len(values), mean, lowest, highest, None)
    shown = correlation_interval(values) if correlation else interval or mean_interval(values)
    if shown.n < least or shown.low is None or shown.high is None:
        return Judgement(UNDECIDED, shown.n, shown.mean, None, None, None)
    low, high = shown.low, shown.high
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    if correlation:
        ends = (threshold.low, threshold.high)
        scaled = Threshold(*(None if end is None else fisher_z(end) for end in ends))
        support, against = scaled.tests(mean_interval([fisher_z(value) for value in values]))
    else:
        support, against = threshold.tests(shown)
    visible = None if correlation else smallest_visible(shown)
    found = Judgement(UNDECIDED, shown.n, shown.mean, low, high, visible, support, against)
    return found.decided(two_sided(support, against))


def every(judged: Sequence[Judgement], decisive: Judgement) -> Judgement:
    """One judgement of the claim that all of several hold.

    The largest p for the claim stands without correction (intersection-union test; Berger 1982,
    Technometrics 24). Any of them refutes it; that one is picked by its result, so its p counts
    times their number. One with too few seeds for an interval leaves the claim undecided.

    Args:
        judged: The judgements, at least one.
        decisive: The one whose numbers are those of the whole.

    Returns:
        The decisive judgement, with the p-values of the whole.
    """
    fewest = min(judged, key=lambda one: one.n)
    if fewest.low is None:
        return replace(fewest, effect=decisive.effect)
    supports = [one.support for one in judged if one.support is not None]
    againsts = [one.against for one in judged if one.against is not None]
    if len(judged) == 1 or not supports:
        return decisive
    support, against = max(supports), min(1.0, len(judged) * min(againsts))
    return replace(decisive, support=support, against=against).decided(two_sided(support, against))


def adjust(
    judged: Sequence[Judgement],
    method: Callable[[Sequence[float | None]], list[float | None]],
) -> list[Judgement]:
    """The judgements of one family, their p-values adjusted for one another.

    Args:
        judged: The members; those without a test keep their verdicts and do not count.
        method: ``holm`` or ``benjamini_hochberg``.

    Returns:
        The judgements in their order.
    """
    adjusted = method([one.p for one in judged])
    return [one.decided(p) for one, p in zip(judged, adjusted, strict=True)]
