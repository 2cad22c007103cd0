"""Judged claims: the numbers that a claim asks for, looked up in the records, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
    reason: str
    experiment: str | None
    cell: str
    measure: str
    compared: str
    threshold: str
    bounds: tuple[float, ...]
    unit: str
    n: int
    effect: float | None
    low: float | None
    high: float | None
    visible: float | None
    means: Mapping[str, float]
    horizon: str
    setting: Mapping[str, float]
    note: str
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


@dataclass(frozen=True)
class Sides:
    """The numbers that decide a claim: one for each seed, and the two sides it is made of.

    It is the difference or ratio of ``own`` and ``theirs``. ``rival`` is the row on the other side;
    "" where there is none, and ``theirs`` is empty. ``others`` are the numbers against each rival,
    where there are several and ``rival`` is the best of them.
    """

    values: Values
    own: Values
    rival: str
    theirs: Values
    others: tuple[Values, ...] = ()


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


def judged_entries(claims: Sequence[Claim], opened: Mapping[str, Record | None]) -> list[Entry]:
    """Judge claims by their records, in the order given.

    Args:
        claims: What is claimed. A family is a specification, or a study (a section of the source
            "study"): its specified and hypothesised claims that have a test are adjusted for one
            another.
        opened: The records of all experiments that are named; None stands for one that is not
            there.

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


def entry_of(claim: Claim, opened: Mapping[str, Record | None]) -> Entry:
    """A claim judged by itself, as if it were the only one of its family.

    Args:
        claim: What is claimed.
        opened: The records of the experiments that the claim names; None stands for one that is not
            there.
    """
    return judged_entries([claim], opened)[0]


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
            reason = "not after the adjustment for the other claims of its family"
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


def _draft(claim: Claim, opened: Mapping[str, Record | None]) -> _Draft:
    if claim.proof is not None:
        assert claim.verdict is not None
        return _Draft(_without_number(claim, claim.verdict, f"by the test {claim.proof}"))
    if claim.needs is not None:
        return _Draft(_without_number(claim, OPEN, f"needs {claim.needs}"))
    lacking = [name for name in claim.experiments if opened[name] is None]
    if lacking and claim.origin == HYPOTHESIS and not claim.cells:
        return _Draft(_without_number(claim, OPEN, "declared, not yet run"))
    if lacking:
        names = " and ".join(filter(None, (", ".join(lacking[:-1]), lacking[-1])))
        return _Draft(_without_number(claim, OPEN, f"there is no record of {names} yet"))
    try:
        return _in_every_cell(claim, opened)
    except LackingError as error:
        return _Draft(_without_number(claim, OPEN, str(error.args[0])))


def _in_every_cell(claim: Claim, opened: Mapping[str, Record | None]) -> _Draft:
    """A measured claim, which must hold in each of its cells; the numbers are of the narrowest."""
    assert claim.threshold is not None
    drafts, lacking = [], []
    for part in claim.parts:
        try:
            drafts.append(_measured(part, *_records(part, opened)))
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


def _alone(claim: Claim, opened: Mapping[str, Record | None], draft: _Draft) -> _Draft:
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


def _other_rows(claim: Claim, opened: Mapping[str, Record | None], at: str) -> dict[str, Judgement]:
    """Row → whether the threshold holds for it in every cell in which it has enough seeds."""
    assert claim.threshold is not None
    found: dict[str, list[Judgement]] = {}
    for part in claim.parts:
        record, _ = _records(part, opened)
        for row in other_rows(record, _case(part)):
            with suppress(LackingError):
                one = _judged(replace(part, method=row), record, record, at)
                found.setdefault(row, []).append(one)
    return {
        row: _narrowest([one for one in each if one.low is not None] or each, claim.threshold)
        for row, each in found.items()
    }


def _narrowest(judged: Sequence[Judgement], threshold: Threshold) -> Judgement:
    """The judgement that all hold, with the numbers of the one nearest to failing."""
    return every(judged, min(judged, key=lambda one: threshold.room(one.effect)))


def _records(claim: Claim, opened: Mapping[str, Record | None]) -> tuple[Record, Record]:
    """The records of the claim and of the other side."""
    record, other = opened[str(claim.experiment)], opened[claim.other_experiment]
    assert record is not None and other is not None
    return record, other


def _case(claim: Claim, at: str = "") -> Case:
    return Case(claim.cell, claim.method, claim.arguments, claim.dataset, at=at)


def sides(claim: Claim, record: Record, other: Record, at: str = "") -> Sides:
    """Look up the numbers of a measured claim.

    Args:
        claim: A claim with an experiment.
        record: The record of that experiment.
        other: The record of the other side; the same where another argument changes.
        at: A reported round; "": the first.

    Returns:
        The numbers by seed. Of several rivals the one with the smallest mean difference counts.

    Raises:
        LackingError: A record has no such number.
    """
    measure = MEASURES[claim.measure]
    own = measure.function(record, _case(claim, at))
    if claim.other is None:
        return Sides(own, own, "", {})
    options = {**claim.arguments, **claim.changes}
    cell, dataset = claim.other_cell, claim.other_dataset
    theirs = {
        name: measure.function(other, Case(cell, name, options, dataset, at=at))
        for name in claim.others
    }
    values = {name: _paired(claim, own, numbers) for name, numbers in theirs.items()}
    if lacking := [name for name, numbers in values.items() if not numbers]:
        raise LackingError(f"{claim.method} and {lacking[0]} share no seed yet")
    best = min(values, key=lambda name: _mean(values[name].values()))
    others = tuple(values.values()) if len(values) > 1 else ()
    return Sides(values[best], own, best, theirs[best], others)


def _paired(claim: Claim, own: Values, theirs: Values) -> Values:
    """Difference or ratio over the seeds that both have."""
    seeds = sorted(set(own) & set(theirs))
    if claim.minus is not None:
        return {seed: own[seed] - theirs[seed] for seed in seeds}
    return {seed: own[seed] / theirs[seed] for seed in seeds}


def _measured(claim: Claim, record: Record, other: Record) -> _Draft:
    assert claim.threshold is not None
    measure = MEASURES[claim.measure]
    rounds = [record.summary.reported]
    if measure.rounds and claim.arguments.get("metric") not in (
        "val_accuracy",
        "global_val_accuracy",
    ):
        rounds = [*record.summary.rounds, BEFORE]
    judged: dict[str, Judgement] = {}
    for at in rounds:
        try:
            judged[at] = _judged(claim, record, other, at)
        except LackingError:
            if at == rounds[0]:
                raise
    found = sides(claim, record, other, rounds[0])
    values, means = found.values, {}
    if claim.other is not None:
        means = {
            "subject": _mean([found.own[seed] for seed in values]),
            "compared": _mean([found.theirs[seed] for seed in values]),
        }
    mine = judged[rounds[0]]
    rounded: dict[str, Any] = {
        name: _round(getattr(mine, name)) for name in ("effect", "low", "high", "visible")
    }
    decided = claim.origin != POST_HOC
    entry = Entry(
        **_texts(claim),
        verdict=mine.verdict if decided else NO_VERDICT,
        reason=_fixed_gates(claim, record, other) if decided else "",
        experiment=claim.experiment,
        cell=claim.cell,
        measure=_described(claim),
        compared=_compared(claim, found.rival),
        threshold=_threshold(claim),
        bounds=claim.threshold.numbers,
        unit=claim.unit,
        n=mine.n,
        **rounded,
        means={name: float(_round(value) or 0.0) for name, value in means.items()},
        horizon=_horizon(claim, record, other, found.rival),
        setting=_setting(claim, record),
    )
    family = claim.source if claim.source != "study" else f"study: {claim.section}"
    return _Draft(entry, family if decided and not entry.reason else "", judged)


def _judged(claim: Claim, record: Record, other: Record, at: str) -> Judgement:
    """A claim judged by one of the reported rounds."""
    assert claim.threshold is not None
    measure = MEASURES[claim.measure]
    found = sides(claim, record, other, at)
    alone = claim.other is None
    interval = None
    if alone and measure.level and at == "selected":
        images = answers_by_image(record, _case(claim), list(found.values))
        if images is not None:
            interval = crossed_interval([*found.values.values()], 100 * images)
    several = [
        judge(
            list(values.values()),
            claim.threshold,
            exact=measure.exact,
            correlation=measure.correlation and alone,
            bounds=measure.bounds if alone else None,
            interval=interval,
        )
        for values in found.others or (found.values,)
    ]
    return every(several, min(several, key=lambda one: one.effect))


def _fixed_gates(claim: Claim, record: Record, other: Record) -> str:
    """Return why a claim about gates is undecided: gates of a row it names cannot have moved.

    Returns "" for a claim that can be decided or is about something else.
    """
    if not MEASURES[claim.measure].gates:
        return ""
    cases = [(record, _case(claim))]
    if claim.other is not None:
        names = claim.others
        cases += [(other, Case(claim.other_cell, n, {}, claim.other_dataset)) for n in names]
    for there, case in cases:
        moves = gate_moves(there.summary)
        here = moves[there.place(case).matches(moves) & (moves["method"] == case.method)]
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


def _without_number(claim: Claim, verdict: str, reason: str) -> Entry:
    measured = claim.threshold is not None
    return Entry(
        **_texts(claim),
        verdict=verdict,
        reason=reason,
        experiment=claim.experiment,
        cell=claim.cell,
        measure=_described(claim) if measured else "",
        compared=_compared(claim, " or ".join(claim.others)) if measured else "",
        threshold=_threshold(claim) if measured else "",
        bounds=claim.threshold.numbers if claim.threshold is not None else (),
        unit=claim.unit if measured else "",
        n=0,
        effect=None,
        low=None,
        high=None,
        visible=None,
        means={},
        horizon="",
        setting={},
    )


def _texts(claim: Claim) -> dict[str, Any]:
    names = ("id", "source", "section", "sentence", "origin", "seen_in")
    return {name: getattr(claim, name) for name in names} | {"note": claim.note or ""}


def _described(claim: Claim) -> str:
    given = {**claim.arguments, **({"dataset": claim.dataset} if claim.dataset else {})}
    options = ", ".join(f"{name} {value}" for name, value in given.items())
    where = f" in each of {', '.join(map(':'.join, claim.cells))}" if claim.cells else ""
    return (f"{claim.measure} ({options})" if options else claim.measure) + where


def _compared(claim: Claim, rival: str) -> str:
    """The row, and what it is compared with: ``fedsdg − fedavg``."""
    if claim.other is None:
        return claim.method
    named = {name: value for name, value in claim.other.items() if name != "method"}
    details = ", ".join(f"{name} {value}" for name, value in named.items())
    sign = "−" if claim.minus is not None else "over"
    named_rival = rival if rival != claim.method else "the same"
    return f"{claim.method} {sign} {named_rival}{f' ({details})' if details else ''}"


def _threshold(claim: Claim) -> str:
    assert claim.threshold is not None
    low, high = claim.threshold.low, claim.threshold.high
    if low is not None and high is not None:
        return f"{_plain(low)} to {_plain(high)}"
    return f"> {_plain(low)}" if low is not None else f"< {_plain(high)}"


def _plain(value: float | None) -> str:
    return f"{value:g}".replace("-", "−")


def _horizon(claim: Claim, record: Record, other: Record, rival: str) -> str:
    """The horizon words of both sides; empty for numbers that do not depend on training."""
    if not MEASURES[claim.measure].learned:
        return ""
    cases = [(record, _case(claim))]
    if claim.other is not None:
        cases.append((other, Case(claim.other_cell, rival, {}, claim.other_dataset)))
    metric = claim.arguments.get("metric")
    words = []
    for there, case in cases:
        cell = there.place(case)
        words.append(
            horizon_of(there.summary, cell, case.method, metric)
            or horizon_of(there.summary, cell, case.method)
        )
    known = dict.fromkeys(word for word in words if word)
    if not known:
        return "not judged"
    return words[0] if len(known) == 1 else " − ".join(word or "not judged" for word in words)


def _setting(claim: Claim, record: Record) -> dict[str, float]:
    """Facts of the runs: clients, cohort, rounds, epochs, and the number in the skew's name."""
    settings = record.settings(_case(claim))
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
