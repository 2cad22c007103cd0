"""Primary comparisons: paired over seeds, tested for difference and equivalence, with a verdict.

Every other difference is described (``differences``) and not tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsdg.analysis.inference import (
    Interval,
    equivalence,
    holm,
    paired_difference,
    smallest_visible,
)
from fedsdg.analysis.names import Metric, metric_named
from fedsdg.analysis.summary import Cell, Setting, Summary

#: Differences below this, in shares of 1, are as good as none.
MARGIN = 0.01
LEVEL = 0.05
#: Seeds from which on there is a verdict.
SEEDS = 10

HIGHER, LOWER, UNDECIDED = "higher", "lower", "undecided"
EQUIVALENT = "equivalent within ±1 point"
#: In place of the verdict of a comparison that is declared and not judged yet.
LATER = "declared, judged later"
HIGHER_WITHIN, LOWER_WITHIN = "higher, within the margin", "lower, within the margin"


@dataclass(frozen=True)
class Named:
    """A comparison as the config named it: the subject minus each rival, in a metric and cell."""

    id: str
    subject: str
    rivals: tuple[str, ...]
    metric: Metric
    cell: Cell


@dataclass(frozen=True)
class Difference:
    """Subject minus one rival over the seeds that both have; None where they share none.

    ``p`` is that of the two-sided paired t-test, ``p_equivalent`` that of two one-sided tests
    against ±``MARGIN``, ``visible`` the smallest difference that would have been seen with 80 %
    power; all three are None for one seed.
    """

    rival: str
    interval: Interval | None
    p: float | None
    p_equivalent: float | None
    visible: float | None

    @property
    def n(self) -> int:
        return 0 if self.interval is None else self.interval.n


@dataclass(frozen=True)
class Comparison:
    """A primary comparison with its tests; p-values are those before and after Holm.

    ``decisive`` is the difference that decides: of several rivals the smallest. See ``compare``.
    """

    named: Named
    differences: tuple[Difference, ...]
    decisive: Difference
    n: int
    p: float | None
    p_equivalent: float | None
    p_holm: float | None = None
    p_equivalent_holm: float | None = None

    @property
    def verdict(self) -> str:
        """What ten seeds or more decide; with fewer "n seeds, no verdict"."""
        return self.decided()

    def decided(self, least: int = SEEDS) -> str:
        """What ``least`` seeds or more decide; with fewer "n seeds, no verdict"."""
        interval = self.decisive.interval
        if self.n < least or interval is None:
            return f"{self.n} seed{'s' * (self.n != 1)}, no verdict"
        differs = self.p_holm is not None and self.p_holm < LEVEL
        equivalent = self.p_equivalent_holm is not None and self.p_equivalent_holm < LEVEL
        if differs and equivalent:
            return HIGHER_WITHIN if interval.mean > 0 else LOWER_WITHIN
        if differs:
            return HIGHER if interval.mean > 0 else LOWER
        return EQUIVALENT if equivalent else UNDECIDED


def named(summary: Summary) -> list[Named]:
    """Comparisons named beforehand, as ``fedsdg summarise`` kept them, without those of ``later``.

    An older record has none.
    """
    found = []
    for one in summary.primary():
        if _judged_later(one):
            continue
        cell = Cell(Setting(one["dataset"], one["clients"]), one["skew"])
        metric = metric_named(one["metric"], summary.metrics)
        found.append(Named(one["id"], one["subject"], tuple(one["rivals"]), metric, cell))
    return found


def _judged_later(one: Mapping[str, Any]) -> bool:
    return any(key in one for key in ("kind", "margin", "cells", "seeds"))


@dataclass(frozen=True)
class Later:
    """A comparison that was named beforehand and is not judged yet, in print.

    ``claim``: "not below by 3 points, seeds 3–12"; ``where``: a cell, or the cells of a regret.
    """

    id: str
    subject: str
    rivals: tuple[str, ...]
    metric: Metric
    where: str
    claim: str


def later(summary: Summary) -> list[Later]:
    """Comparisons named beforehand whose judgement is left to a later version."""
    found = []
    for one in filter(_judged_later, summary.primary()):
        where = ", ".join(one.get("cells", ()))
        if not where:
            where = summary.cell_name(Cell(Setting(one["dataset"], one["clients"]), one["skew"]))
        metric = metric_named(one["metric"], summary.metrics)
        rivals = tuple(one["rivals"])
        found.append(Later(one["id"], one["subject"], rivals, metric, where, _claim(one)))
    return found


def _claim(one: Mapping[str, Any]) -> str:
    """What is claimed of the subject, and on which seeds."""
    words = {"above": "above", "not-below": "not below", "regret": "lower regret"}
    claim = words.get(one.get("kind", ""), "compared")
    if "margin" in one:
        claim += f" by {one['margin']:g} point{'s' * (one['margin'] != 1)}"
    seeds = sorted(one.get("seeds", ()))
    if len(seeds) > 2 and seeds == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{claim}, seeds {seeds[0]}–{seeds[-1]}"
    return f"{claim}, seeds {', '.join(map(str, seeds))}" if seeds else claim


def comparisons(summary: Summary) -> list[Comparison]:
    """The primary comparisons of an experiment, adjusted for one another.

    Holm's correction runs over all that were named, over the tests of difference and those of
    equivalence each; a comparison that cannot be tested yet counts as one with p = 1, so that
    completing a grid never makes a former verdict weaker.
    """
    found = []
    for one in named(summary):
        values = summary.values(one.cell, f"{summary.reported}_{one.metric.key}")
        found.append(compare(one, values))
    return adjusted(found)


def adjusted(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one family with their p-values after Holm, of each kind of test apart."""
    differ = _adjusted([one.p for one in found])
    equal = _adjusted([one.p_equivalent for one in found])
    return [
        replace(one, p_holm=p, p_equivalent_holm=p_equivalent)
        for one, p, p_equivalent in zip(found, differ, equal, strict=True)
    ]


def _adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    adjusted = holm([1.0 if p is None else p for p in p_values])
    return [None if p is None else a for p, a in zip(p_values, adjusted, strict=True)]


def compare(named: Named, values: Mapping[str, Mapping[int, float]]) -> Comparison:
    """One comparison before Holm, from values by method and seed.

    With one rival it is the paired t-test. "Ahead of each" of several is decided by the smallest
    difference d:

    - d > 0: higher than each, with the largest p (intersection-union test: all of them must
      hold, so no correction is needed; Berger 1982, Technometrics 24);
    - d < 0: behind at least one, with p of d times the number of rivals (Bonferroni, because the
      rival was picked by its result);
    - equivalent to each, with the largest p of the equivalence tests.

    ``n`` is the smallest number of common seeds. Without a common seed with one of the rivals there
    is no test.
    """
    ours = values.get(named.subject, {})
    differences = tuple(_difference(ours, values.get(rival, {}), rival) for rival in named.rivals)
    known = [(one.interval.mean, one) for one in differences if one.interval is not None]
    decisive = min(known, key=lambda pair: pair[0])[1] if known else differences[0]
    p = p_equivalent = None
    if all(one.p is not None for one in differences):
        p = max(one.p for one in differences if one.p is not None)
        if decisive.interval is not None and decisive.interval.mean <= 0:
            p = min(1.0, len(differences) * (decisive.p or 0.0))
        p_equivalent = max(one.p_equivalent or 0.0 for one in differences)
    n = min(one.n for one in differences)
    return Comparison(named, differences, decisive, n, p, p_equivalent)


def _difference(ours: Mapping[int, float], theirs: Mapping[int, float], rival: str) -> Difference:
    found = paired_difference(ours, theirs)
    if found is None:
        return Difference(rival, None, None, None, None)
    interval = found.interval
    return Difference(
        rival, interval, found.p, equivalence(interval, MARGIN), smallest_visible(interval)
    )


def facts(one: Comparison) -> dict[str, Any]:
    """A comparison as plain values; differences in percentage points."""

    def of(difference: Difference) -> dict[str, Any]:
        interval = difference.interval
        ends: tuple[float | None, ...] = (None, None, None)
        if interval is not None:
            ends = (interval.mean, interval.low, interval.high)
        names = ("mean", "low", "high")
        return {
            "rival": difference.rival,
            "n": difference.n,
            **dict(zip(names, map(_points, ends), strict=True)),
            "p": difference.p,
            "p_equivalent": difference.p_equivalent,
            "smallest_visible": _points(difference.visible),
        }

    cell = one.named.cell
    return {
        "id": one.named.id,
        "dataset": cell.setting.dataset,
        "clients": cell.setting.clients,
        "skew": cell.skew,
        "metric": one.named.metric.key,
        "subject": one.named.subject,
        "differences": [of(difference) for difference in one.differences],
        "decisive": one.decisive.rival,
        "n": one.n,
        "p": one.p,
        "p_holm": one.p_holm,
        "p_equivalent": one.p_equivalent,
        "p_equivalent_holm": one.p_equivalent_holm,
        "verdict": one.verdict,
    }


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share
