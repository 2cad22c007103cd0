"""Primary comparisons: named in a config before its runs, paired over seeds, with a verdict.

Every other difference is described and not tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedsdg.analysis.horizon import BEFORE, reported_values
from fedsdg.analysis.inference import holm
from fedsdg.analysis.judge import LEVEL, Judgement, Threshold, every, judge
from fedsdg.analysis.names import BESIDE, Metric, metric_named
from fedsdg.analysis.summary import Cell, Summary

#: Differences below this, in shares of 1, are as good as none.
MARGIN = 0.01
#: Seeds from which on there is a verdict.
SEEDS = 10

HIGHER, LOWER, UNDECIDED = "higher", "lower", "undecided"
EQUIVALENT = "equivalent within ±1 point"
HIGHER_WITHIN, LOWER_WITHIN = "higher, within the margin", "lower, within the margin"


@dataclass(frozen=True)
class Named:
    """A comparison as the config named it: the subject minus each rival, in a metric.

    ``kind`` is "compare", "above", "not-below" (by no more than ``margin``, a share of 1) or
    "regret" (the sum over ``cells``, as experiment and skew, in place of ``cell``). ``seeds`` are
    those that count; none named: all.
    """

    id: str
    subject: str
    rivals: tuple[str, ...]
    metric: Metric
    cell: Cell
    kind: str = "compare"
    margin: float = 0.0
    cells: tuple[tuple[str, str], ...] = ()
    seeds: frozenset[int] = frozenset()

    @property
    def where(self) -> str:
        """The cells of a regret: "cross-needs:iid@half, cross-views:iid@invert"; "" otherwise."""
        return ", ".join(map(":".join, self.cells))


@dataclass(frozen=True)
class Difference:
    """Subject minus one rival over the seeds that both have; None where they share none.

    It is judged against −margin, 0 unless a comparison is "not-below". ``p_equivalent`` is that of
    two one-sided tests against ±``MARGIN``, None for one seed.
    """

    rival: str
    judged: Judgement | None
    p_equivalent: float | None

    @property
    def n(self) -> int:
        """The number of common seeds."""
        return 0 if self.judged is None else self.judged.n


@dataclass(frozen=True)
class Comparison:
    """A primary comparison with its tests; p-values are those before and after Holm.

    ``decisive`` is the difference that decides: of several rivals the smallest. See ``compare``.
    ``aside``: the same comparison by the last quarter of the rounds and by the quarter before it.
    """

    named: Named
    differences: tuple[Difference, ...]
    decisive: Difference
    n: int
    p: float | None
    p_equivalent: float | None
    p_holm: float | None = None
    p_equivalent_holm: float | None = None
    aside: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict of ten seeds or more; of fewer "n seeds, no verdict"."""
        return self.decided()

    def decided(self, least: int = SEEDS) -> str:
        """Return the verdict of ``least`` seeds or more; of fewer "n seeds, no verdict".

        Where the words of the selected round and of the last quarter differ, the verdict is
        undecided and shows both.
        """
        mine = self.word(least)
        for at, other in self.aside.items():
            if at != BEFORE and other.word(least) != mine:
                return f"{UNDECIDED} (selected round: {mine}; {BESIDE[at]}: {other.word(least)})"
        return mine

    @property
    def remark(self) -> str:
        """The word of the quarter before the last where it is not that of the selected round.

        Else "", and where the selected round decides nothing that another word could weaken.
        """
        before, mine = self.aside.get(BEFORE), self.word()
        if before is None or self.n < SEEDS or mine == UNDECIDED or before.word() == mine:
            return ""
        return f"in the quarter before the last: {before.word()}"

    def word(self, least: int = SEEDS) -> str:
        """The verdict by the reported round alone."""
        judged = self.decisive.judged
        if self.n < least or judged is None:
            return f"{self.n} seed{'s' * (self.n != 1)}, no verdict"
        differs = self.p_holm is not None and self.p_holm < LEVEL
        if self.named.kind in ("not-below", "regret"):
            return self._one_sided(judged.effect > -self.named.margin) if differs else UNDECIDED
        equivalent = self.p_equivalent_holm is not None and self.p_equivalent_holm < LEVEL
        if differs and equivalent:
            return HIGHER_WITHIN if judged.effect > 0 else LOWER_WITHIN
        if differs:
            return HIGHER if judged.effect > 0 else LOWER
        return EQUIVALENT if equivalent else UNDECIDED

    def _one_sided(self, holds: bool) -> str:
        if self.named.kind == "regret":
            return "lower regret" if holds else "higher regret"
        margin = 100 * self.named.margin
        points = f"by {margin:g} point{'s' * (margin != 1)}"
        return f"not below {points}" if holds else f"below {points}"


def named(summary: Summary) -> list[Named]:
    """Comparisons named beforehand, as ``fedsdg summarise`` kept them; an older record has none."""
    return [_named(one, summary) for one in summary.primary()]


def _named(one: Mapping[str, Any], summary: Summary) -> Named:
    pairs = (cell.partition(":") for cell in one.get("cells", ()))
    cells = tuple((experiment, skew) for experiment, _, skew in pairs)
    # A regret names cells of its own; where it is declared is as good a place as any.
    cell = summary.cells()[0]
    if not cells:
        cell = Cell.of(one)
    return Named(
        one["id"],
        one["subject"],
        tuple(one["rivals"]),
        metric_named(one["metric"], summary.metrics),
        cell,
        one.get("kind", "compare"),
        one.get("margin", 0.0) / 100,
        cells,
        frozenset(one.get("seeds", ())),
    )


def comparisons(summary: Summary) -> list[Comparison]:
    """The primary comparisons of an experiment, judged as one family."""
    return family(summary, named(summary))


def family(summary: Summary, members: Sequence[Named]) -> list[Comparison]:
    """Comparisons that are adjusted for one another.

    Holm's correction runs over all members, over the tests of difference and those of equivalence
    each; a comparison that cannot be tested yet counts as one with p = 1, so that completing a grid
    never makes a former verdict weaker.

    Args:
        summary: The runs.
        members: What is compared.

    Returns:
        The comparisons by the reported round, each with the same one by the last quarter of the
        rounds and by the quarter before it aside.
    """
    by_round = {
        at: adjusted([compare(one, _values(summary, one, at)) for one in members])
        for at in (*summary.rounds, BEFORE)
    }
    first, *others = by_round
    return [
        replace(one, aside={at: by_round[at][i] for at in others if by_round[at][i].n})
        for i, one in enumerate(by_round[first])
    ]


def _values(summary: Summary, one: Named, at: str) -> dict[str, dict[int, float]]:
    """Method → seed → value of what is compared, of the seeds that count."""
    if not one.cells:
        values = reported_values(summary, one.cell, one.metric.key, at)
    else:
        values = _sums(summary, one, at)
    if not one.seeds:
        return values
    return {
        method: {seed: value for seed, value in own.items() if seed in one.seeds}
        for method, own in values.items()
    }


def _sums(summary: Summary, one: Named, at: str) -> dict[str, dict[int, float]]:
    """Method → seed → sum over the cells of a regret, of seeds that all cells have.

    Regret is the best row minus this one; the best is the same for both sides of the difference, so
    that the sum of accuracies is what is compared.
    """
    parts = []
    for experiment, skew in one.cells:
        folder = summary.folder.parent / experiment
        if experiment == summary.experiment:
            there = summary
        elif (folder / "runs.parquet").is_file():
            there = Summary(folder, summary.seed)
        else:
            return {}
        cells = [cell for cell in there.cells() if cell.skew == skew]
        parts.append(reported_values(there, cells[0], one.metric.key, at) if cells else {})
    methods = set.intersection(*map(set, parts))
    sums = {}
    for method in methods:
        seeds = set.intersection(*(set(part[method]) for part in parts))
        sums[method] = {seed: sum(part[method][seed] for part in parts) for seed in seeds}
    return sums


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

    Args:
        named: The subject, the rivals and the margin m, a share of 1; d is compared with −m, which
            is 0 unless the config allows a margin.
        values: Method → seed → value, shares of 1. Methods without values may be absent.

    Returns:
        The comparison, without p-values after Holm and without those by other rounds.
    """
    ours = values.get(named.subject, {})
    differences = tuple(
        _difference(ours, values.get(rival, {}), rival, named.margin) for rival in named.rivals
    )
    known = [(one.judged, one) for one in differences if one.judged is not None]
    p = p_equivalent = None
    if not known:
        return Comparison(named, differences, differences[0], 0, None, None)
    judged, decisive = min(known, key=lambda pair: pair[0].effect)
    if len(known) == len(differences):
        p = every([each for each, _ in known], judged).p
    if p is not None:
        p_equivalent = max(one.p_equivalent or 0.0 for one in differences)
    return Comparison(
        named, differences, decisive, min(one.n for one in differences), p, p_equivalent
    )


def _difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], rival: str, margin: float
) -> Difference:
    gaps = [ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))]
    if not gaps:
        return Difference(rival, None, None)
    judged = judge(gaps, Threshold(-margin, None), least=2)
    return Difference(rival, judged, judge(gaps, Threshold(-MARGIN, MARGIN), least=2).support)


def facts(one: Comparison) -> dict[str, Any]:
    """A comparison as plain values; differences in percentage points."""

    def of(difference: Difference) -> dict[str, Any]:
        judged = difference.judged
        ends = {"mean": "effect", "low": "low", "high": "high"}
        return {
            "rival": difference.rival,
            "n": difference.n,
            **{name: _points(getattr(judged, key, None)) for name, key in ends.items()},
            "p": getattr(judged, "p", None),
            "p_equivalent": difference.p_equivalent,
            "smallest_visible": _points(getattr(judged, "visible", None)),
        }

    place = {"cells": one.named.where} if one.named.cells else one.named.cell.place
    return {
        "id": one.named.id,
        **place,
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
        "remark": one.remark,
    }


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share
