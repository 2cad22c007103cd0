"""Judged claims: the numbers that a claim asks for, looked up in the records, and the verdict."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedsdg.analysis.horizon import (
    BEFORE,
    FIXED_BY_TUNING,
    GATES_MOVE,
    gate_moves,
    horizon_of,
)
from fedsdg.analysis.inference import benjamini_hochberg, crossed_interval, two_sided
from fedsdg.analysis.judge import (
    LEVEL,
    OPEN,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    Judgement,
    Threshold,
    adjust,
    every,
    judge,
)
from fedsdg.analysis.ledger.claims import HYPOTHESIS, POST_HOC, Claim
from fedsdg.analysis.measures import (
    MEASURES,
    Case,
    LackingError,
    Record,
    Values,
    answers_by_image,
    other_rows,
)
from fedsdg.analysis.names import BESIDE
from fedsdg.files.places import split_setting

#: Post hoc claims have an interval and no verdict.
NO_VERDICT = "no verdict"
#: Why a claim is undecided whose interval alone would decide it.
ADJUSTED = "not after the adjustment for the other claims of its family"
#: In the order of the page: refuted claims come first.
VERDICTS = (REFUTED, SUPPORTED, UNDECIDED, NO_VERDICT, OPEN)
#: Fields that stand in the ledger's file only where they say something.
_OPTIONAL = ("origin", "seen_in", "p", "quarter", "remark")


@dataclass(frozen=True)
class Entry:
    """A judged claim. Numbers are in ``unit``, None where there are none.

    ``means`` are those of the two sides of a difference or ratio, by the name of the side;
    ``setting`` are facts of the runs that a sentence about them may state. ``p`` is two-sided and
    adjusted within the claim's family. ``quarter`` is the verdict by the last quarter of the
    rounds, and ``remark`` what the quarter before says, where they differ from the selected round.
    """

    id: str
    source: str
    section: str
    sentence: str
    verdict: str
    note: str
    reason: str = ""
    experiment: str | None = None
    cell: str = ""
    measure: str = ""
    compared: str = ""
    threshold: str = ""
    bounds: tuple[float, ...] = ()
    unit: str = ""
    n: int = 0
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    visible: float | None = None
    means: Mapping[str, float] = field(default_factory=dict)
    horizon: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)
    origin: str = ""
    seen_in: str = ""
    p: float | None = None
    quarter: str = ""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what the ledger's file holds of it."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _OPTIONAL or value not in ("", None)
        }


#: Experiment → its record, of those that are there.
Records = Mapping[str, Record]


class _Pair(NamedTuple):
    """The number that a claim is about, by seed, and the two sides that it is made of.

    ``rival`` is the other side; None, without ``theirs``, for a claim that compares with nothing.
    """

    values: Values
    own: Values
    rival: Claim | None
    theirs: Values


@dataclass(frozen=True)
class _Draft:
    """A claim with what decides it, before the claims of its family are adjusted for one another.

    ``judged`` are the judgements by the reported round and those aside; an entry that needs no
    number has none. ``doubt`` is the reason of one that its own numbers leave undecided.
    """

    entry: Entry
    family: str = ""
    judged: Mapping[str, Judgement] = field(default_factory=dict)
    doubt: str = "the interval straddles the threshold"


def judged_entries(claims: Sequence[Claim], opened: Records) -> list[Entry]:
    """Judge claims by their records, in the order given.

    Args:
        claims: What is claimed. A family is a specification, or a study (a section of the source
            "study"): its specified and hypothesised claims that have a test are adjusted for one
            another.
        opened: The records of the experiments that are named, as far as they are there.

    Returns:
        An entry for each claim.
    """
    drafts = [_draft(claim, opened) for claim in claims]
    adjusted: dict[tuple[int, str], Judgement] = {}
    for family in dict.fromkeys(draft.family for draft in drafts if draft.family):
        members = [i for i, draft in enumerate(drafts) if draft.family == family]
        rounds = dict.fromkeys(at for i in members for at in drafts[i].judged)
        for at in rounds:
            found = [drafts[i].judged.get(at) or _first(drafts[i]) for i in members]
            for i, judgement in zip(members, adjust(found, benjamini_hochberg), strict=True):
                adjusted[i, at] = judgement
    return [
        _finished(draft, {at: adjusted.get((i, at), one) for at, one in draft.judged.items()})
        for i, draft in enumerate(drafts)
    ]


def _first(draft: _Draft) -> Judgement:
    return next(iter(draft.judged.values()))


def _finished(draft: _Draft, judged: Mapping[str, Judgement]) -> Entry:
    """The entry with its verdict, from the adjusted judgements."""
    entry = draft.entry
    if not judged:
        return entry
    mine, *others = judged.items()
    verdict, reason = mine[1].verdict, ""
    words = {at: one.verdict for at, one in others}
    beside, quarter = next(((at, w) for at, w in words.items() if at != BEFORE), ("", verdict))
    if entry.verdict == NO_VERDICT:
        return entry
    if entry.reason:  # gates that cannot have moved
        return replace(entry, verdict=UNDECIDED)
    if verdict == UNDECIDED:
        few = mine[1].low is None
        reason = "too few seeds" if few else draft.doubt
        if not few and mine[1].p is not None and not _straddles(mine[1]):
            reason = ADJUSTED
    remark = ""
    if quarter != verdict:
        reason = f"selected round: {verdict}; {BESIDE[beside]}: {quarter}"
    elif words.get(BEFORE, verdict) != verdict != UNDECIDED:
        remark = f"in the quarter before the last: {words[BEFORE]}"
    return replace(
        entry,
        verdict=verdict if quarter == verdict else UNDECIDED,
        reason=reason,
        p=_round(mine[1].p),
        quarter=quarter if quarter != verdict else "",
        remark=remark,
    )


def _straddles(one: Judgement) -> bool:
    """Return whether the interval alone, at the level of one test, decides nothing."""
    return (
        one.support is None or one.against is None or two_sided(one.support, one.against) >= LEVEL
    )


def _draft(claim: Claim, opened: Records) -> _Draft:
    entry = _entry(claim)
    if claim.proof is not None:
        return _Draft(replace(entry, reason=f"by the test {claim.proof}"))
    lacking = [name for name in claim.experiments if name not in opened]
    if claim.needs is not None:
        reason = f"needs {claim.needs}"
    elif lacking and claim.origin == HYPOTHESIS and not claim.cells:
        reason = "declared, not yet run"
    elif lacking:
        names = " and ".join(filter(None, (", ".join(lacking[:-1]), lacking[-1])))
        reason = f"there is no record of {names} yet"
    else:
        try:
            return _in_every_cell(claim, opened)
        except LackingError as error:
            reason = str(error.args[0])
    return _Draft(replace(entry, reason=reason))


def _in_every_cell(claim: Claim, opened: Records) -> _Draft:
    """A measured claim, which must hold in each of its cells; the numbers are of the narrowest."""
    assert claim.threshold is not None
    drafts, lacking = [], []
    for part in claim.parts:
        try:
            drafts.append(_measured(part, opened))
        except LackingError as error:
            where = f"{part.experiment}: " if claim.cells else ""
            lacking.append(f"{where}{error.args[0]}")
    if lacking:
        raise LackingError("; ".join(lacking))
    room = claim.threshold.room
    draft = min(drafts, key=lambda one: room(_first(one).effect))
    if claim.cells:
        rounds = set.intersection(*(set(one.judged) for one in drafts))
        judged = {
            at: _narrowest([one.judged[at] for one in drafts], claim.threshold)
            for at in draft.judged
            if at in rounds
        }
        draft = replace(draft, entry=replace(draft.entry, measure=_described(claim)), judged=judged)
    return _alone(claim, opened, draft) if claim.arguments.get("others") == "none" else draft


def _alone(claim: Claim, opened: Records, draft: _Draft) -> _Draft:
    """The claim that the threshold holds for the row, as drafted, and for no other row.

    It holds for no other row if each fails in some cell. The nearest is the row that fails least.
    """
    assert claim.threshold is not None
    room, mine = claim.threshold.room, _first(draft)
    others = {at: _other_rows(claim, opened, at) for at in draft.judged}
    judged = {
        at: every([one, *(row.denied for row in others[at].values())], one)
        for at, one in draft.judged.items()
    }
    rows = next(iter(others.values()))
    nearest = max(rows, key=lambda row: room(rows[row].effect), default=None)
    if nearest is None:
        return draft
    effects = {"subject": mine.effect, "compared": rows[nearest].effect}
    entry = replace(
        draft.entry,
        compared=f"{claim.method} and no other row, the nearest {nearest}",
        means={name: float(_round(value) or 0.0) for name, value in effects.items()},
    )
    doubt = draft.doubt
    if mine.verdict == SUPPORTED:
        doubt = "it may hold of " + ", ".join(r for r in rows if rows[r].verdict != REFUTED)
    return replace(draft, entry=entry, judged=judged, doubt=doubt)


def _other_rows(claim: Claim, opened: Records, at: str) -> dict[str, Judgement]:
    """Row → whether the threshold holds for it in every cell in which it has enough seeds."""
    assert claim.threshold is not None
    found: dict[str, list[Judgement]] = {}
    for part in claim.parts:
        for row in other_rows(opened[str(part.experiment)], _case(part)):
            with suppress(LackingError):
                one = _judged(replace(part, method=row), opened, at)
                found.setdefault(row, []).append(one)
    return {
        row: _narrowest([one for one in each if one.low is not None] or each, claim.threshold)
        for row, each in found.items()
    }


def _narrowest(judged: Sequence[Judgement], threshold: Threshold) -> Judgement:
    """The judgement that all hold, with the numbers of the one nearest to failing."""
    return every(judged, min(judged, key=lambda one: threshold.room(one.effect)))


def _case(claim: Claim, at: str = "") -> Case:
    return Case(claim.cell, claim.method, claim.arguments, claim.dataset, at=at)


def _pairs(claim: Claim, opened: Records, at: str) -> list[_Pair]:
    """The numbers of a claim in a reported round, against each of its rivals."""
    sides = [
        MEASURES[side.measure].function(opened[str(side.experiment)], _case(side, at))
        for side in (claim, *claim.rivals)
    ]
    own, *theirs = sides
    if not theirs:
        return [_Pair(own, own, None, {})]
    pairs = []
    for rival, numbers in zip(claim.rivals, theirs, strict=True):
        seeds = sorted(set(own) & set(numbers))
        if not seeds:
            raise LackingError(f"{claim.method} and {rival.method} share no seed yet")
        combined = operator.sub if claim.minus is not None else operator.truediv
        values = {seed: combined(own[seed], numbers[seed]) for seed in seeds}
        pairs.append(_Pair(values, own, rival, numbers))
    return pairs


def _measured(claim: Claim, opened: Records) -> _Draft:
    """A claim about one cell; of several rivals the one with the smallest difference is shown."""
    measure, summary = MEASURES[claim.measure], opened[str(claim.experiment)].summary
    rounds = [summary.reported]
    if measure.rounds and claim.arguments.get("metric") not in (
        "val_accuracy",
        "global_val_accuracy",
    ):
        rounds = [*summary.rounds, BEFORE]
    judged = {rounds[0]: _judged(claim, opened, rounds[0])}
    for at in rounds[1:]:
        with suppress(LackingError):
            judged[at] = _judged(claim, opened, at)
    mine = judged[rounds[0]]
    shown = min(_pairs(claim, opened, rounds[0]), key=lambda pair: _mean(pair.values.values()))
    means = {}
    if shown.rival is not None:
        means = {
            name: float(_round(_mean([side[seed] for seed in shown.values])) or 0.0)
            for name, side in (("subject", shown.own), ("compared", shown.theirs))
        }
    numbers: dict[str, Any] = {
        name: _round(getattr(mine, name)) for name in ("effect", "low", "high", "visible")
    }
    decided = claim.origin != POST_HOC
    entry = replace(
        _entry(claim),
        verdict=mine.verdict if decided else NO_VERDICT,
        reason=_fixed_gates(claim, opened) if decided else "",
        compared=_compared(claim, shown.rival.method if shown.rival else ""),
        n=mine.n,
        **numbers,
        means=means,
        horizon=_horizon(claim, opened, shown.rival),
        setting=_setting(claim, opened),
    )
    family = claim.source if claim.source != "study" else f"study: {claim.section}"
    return _Draft(entry, family if decided and not entry.reason else "", judged)


def _judged(claim: Claim, opened: Records, at: str) -> Judgement:
    """A claim about one cell, judged by one of the reported rounds."""
    assert claim.threshold is not None
    measure, pairs = MEASURES[claim.measure], _pairs(claim, opened, at)
    alone = not claim.rivals
    interval = None
    if alone and measure.level and at == "selected":
        values = pairs[0].values
        images = answers_by_image(opened[str(claim.experiment)], _case(claim), list(values))
        if images is not None:
            interval = crossed_interval([*values.values()], 100 * images)
    several = [
        judge(
            list(pair.values.values()),
            claim.threshold,
            exact=measure.exact,
            correlation=measure.correlation and alone,
            bounds=measure.bounds if alone else None,
            interval=interval,
        )
        for pair in pairs
    ]
    return every(several, min(several, key=lambda one: one.effect))


def _fixed_gates(claim: Claim, opened: Records) -> str:
    """Return why a claim about gates is undecided: gates of a row it names cannot have moved.

    Returns "" for a claim that can be decided or is about something else.
    """
    if not MEASURES[claim.measure].gates:
        return ""
    for side in (claim, *claim.rivals):
        record = opened[str(side.experiment)]
        moves = gate_moves(record.summary)
        here = moves[record.place(_case(side)).matches(moves) & (moves["method"] == side.method)]
        travel = here["travel"].dropna()
        if len(travel) and travel.iloc[0] < GATES_MOVE:
            return f"{FIXED_BY_TUNING}: η_m × steps is {travel.iloc[0]:.1f}, below {GATES_MOVE:g}"
    return ""


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _round(value: float | None) -> float | None:
    """To five significant digits, which print the same on every machine."""
    return None if value is None else float(f"{value:.5g}")


def _entry(claim: Claim) -> Entry:
    """The entry of a claim before anything is measured: open, or decided by a proof."""
    names = ("id", "source", "section", "sentence", "origin", "seen_in", "experiment", "cell")
    entry = Entry(
        **{name: getattr(claim, name) for name in names},
        verdict=claim.verdict or OPEN,
        note=claim.note or "",
    )
    if claim.threshold is None:
        return entry
    return replace(
        entry,
        measure=_described(claim),
        compared=_compared(claim, " or ".join(rival.method for rival in claim.rivals)),
        threshold=_threshold(claim.threshold),
        bounds=claim.threshold.numbers,
        unit=claim.unit,
    )


def _described(claim: Claim) -> str:
    given = {**claim.arguments, **({"dataset": claim.dataset} if claim.dataset else {})}
    options = ", ".join(f"{name} {value}" for name, value in given.items())
    where = f" in each of {', '.join(map(':'.join, claim.cells))}" if claim.cells else ""
    return (f"{claim.measure} ({options})" if options else claim.measure) + where


def _compared(claim: Claim, rival: str) -> str:
    """The row, and what it is compared with: ``fedsdg − fedavg``."""
    if not claim.rivals:
        return claim.method
    changes = {**(claim.minus or {}), **(claim.over or {})}
    details = ", ".join(f"{name} {value}" for name, value in changes.items() if name != "method")
    sign = "−" if claim.minus is not None else "over"
    named_rival = rival if rival != claim.method else "the same"
    return f"{claim.method} {sign} {named_rival}{f' ({details})' if details else ''}"


def _threshold(threshold: Threshold) -> str:
    low, high = threshold.low, threshold.high
    if low is not None and high is not None:
        return f"{_plain(low)} to {_plain(high)}"
    return f"> {_plain(low)}" if low is not None else f"< {_plain(high)}"


def _plain(value: float | None) -> str:
    return f"{value:g}".replace("-", "−")


def _horizon(claim: Claim, opened: Records, rival: Claim | None) -> str:
    """The horizon words of both sides; empty for numbers that do not depend on training."""
    measure = MEASURES[claim.measure]
    if measure.exact or not measure.learned:
        return ""
    metric = claim.arguments.get("metric")
    words = []
    for side in filter(None, (claim, rival)):
        record = opened[str(side.experiment)]
        where = record.summary, record.place(_case(side)), side.method
        words.append(horizon_of(*where, metric) or horizon_of(*where))
    known = dict.fromkeys(word for word in words if word)
    if not known:
        return "not judged"
    return words[0] if len(known) == 1 else " − ".join(word or "not judged" for word in words)


def _setting(claim: Claim, opened: Records) -> dict[str, float]:
    """Facts of the runs: clients, cohort, rounds, epochs, and the number in the skew's name."""
    settings = opened[str(claim.experiment)].settings(_case(claim))
    federation, training = settings.get("federation", {}), settings.get("training", {})
    facts = {
        name: section[name]
        for section, names in (
            (federation, ("clients", "clients_per_round", "rounds")),
            (training, ("epochs",)),
        )
        for name in names
        if name in section
    }
    number = split_setting(claim.cell)[0].partition("~")[2]
    return facts | ({"skew": float(number)} if number.replace(".", "", 1).isdigit() else {})
