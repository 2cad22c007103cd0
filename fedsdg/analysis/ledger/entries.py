"""Judged claims: the numbers that a claim asks for, looked up in the records, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedsdg.analysis.horizon import SETTLED, horizons
from fedsdg.analysis.judgement import OPEN, REFUTED, SUPPORTED, UNDECIDED, judge
from fedsdg.analysis.ledger.claims import HYPOTHESIS, Claim
from fedsdg.analysis.measures import MEASURES
from fedsdg.analysis.measures.records import Case, LackingError, Record, Values
from fedsdg.files.places import split_setting

#: In the order of the page: what is refuted is not to be looked for.
VERDICTS = (REFUTED, SUPPORTED, UNDECIDED, OPEN)


@dataclass(frozen=True)
class Entry:
    """A judged claim. Numbers are in ``unit``, None where there are none.

    ``means`` are those of the two sides of a difference or ratio, by the name of the side;
    ``setting`` are facts of the runs that a sentence about them may state.
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

    def to_dict(self) -> dict[str, Any]:
        """Return what the ledger's file holds of it; an origin only where there is one."""
        found = asdict(self)
        return {
            name: value
            for name, value in found.items()
            if value or name not in ("origin", "seen_in")
        }


def entry_of(claim: Claim, opened: Mapping[str, Record | None]) -> Entry:
    """A claim judged by its record, of all that are ``opened``; None stands for one not there."""
    if claim.proof is not None:
        assert claim.verdict is not None
        return _without_number(claim, claim.verdict, f"by the test {claim.proof}")
    if claim.experiment is None:
        return _without_number(claim, OPEN, f"needs {claim.needs}")
    record, other = opened[claim.experiment], opened[claim.other_experiment]
    if record is None or other is None:
        if claim.origin == HYPOTHESIS:
            return _without_number(claim, OPEN, "declared, not yet run")
        lacking = claim.experiment if record is None else claim.other_experiment
        return _without_number(claim, OPEN, f"there is no record of {lacking} yet")
    try:
        return _measured(claim, record, other)
    except LackingError as error:
        return _without_number(claim, OPEN, str(error.args[0]))


@dataclass(frozen=True)
class Sides:
    """What a claim is decided by: a number for each seed, and the two that it is made of.

    It is the difference or ratio of ``own`` and ``theirs``. ``rival`` is the row on the other side;
    "" where there is none, and ``theirs`` is empty.
    """

    values: Values
    own: Values
    rival: str
    theirs: Values


def sides(claim: Claim, record: Record, other: Record) -> Sides:
    """Look up the numbers of a measured claim; raises ``LackingError`` where a record has none."""
    measure = MEASURES[claim.measure]
    own = measure.function(record, Case(claim.cell, claim.method, claim.arguments, claim.dataset))
    if claim.other is None:
        return Sides(own, own, "", {})
    rival, theirs = _rival(claim, other)
    seeds = sorted(set(own) & set(theirs))
    if not seeds:
        raise LackingError(f"{claim.method} and {rival} share no seed yet")
    join = _difference if claim.minus is not None else _ratio
    values = {seed: join(own[seed], theirs[seed]) for seed in seeds}
    return Sides(values, own, rival, theirs)


def _measured(claim: Claim, record: Record, other: Record) -> Entry:
    measure = MEASURES[claim.measure]
    found = sides(claim, record, other)
    values, rival, means = found.values, found.rival, {}
    if claim.other is not None:
        means = {
            "subject": _mean([found.own[seed] for seed in values]),
            "compared": _mean([found.theirs[seed] for seed in values]),
        }
    assert claim.threshold is not None
    judged = judge(
        list(values.values()),
        claim.threshold,
        exact=measure.exact,
        correlation=measure.correlation and claim.other is None,
        bounds=measure.bounds if claim.other is None else None,
    )
    reason = ""
    if judged.verdict == UNDECIDED:
        reason = "too few seeds" if judged.low is None else "the interval straddles the threshold"
    rounded: dict[str, Any] = {
        name: _round(value)
        for name, value in asdict(judged).items()
        if name in ("effect", "low", "high", "visible")
    }
    return Entry(
        **_texts(claim),
        verdict=judged.verdict,
        reason=reason,
        experiment=claim.experiment,
        cell=claim.cell,
        measure=_described(claim),
        compared=_compared(claim, rival),
        threshold=_threshold(claim),
        bounds=claim.threshold.numbers,
        unit=claim.unit,
        n=judged.n,
        **rounded,
        means={name: float(_round(value) or 0.0) for name, value in means.items()},
        horizon=_horizon(claim, record, other, rival),
        setting=_setting(claim, record),
    )


def _rival(claim: Claim, record: Record) -> tuple[str, Values]:
    """The other side of the comparison: of several methods the one with the highest mean."""
    options = {**claim.arguments, **claim.changes}
    function = MEASURES[claim.measure].function
    cell, dataset = claim.other_cell, claim.other_dataset
    found = {name: function(record, Case(cell, name, options, dataset)) for name in claim.others}
    best = max(found, key=lambda name: _mean(found[name].values()))
    return best, found[best]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


def _difference(own: float, theirs: float) -> float:
    return own - theirs


def _ratio(own: float, theirs: float) -> float:
    return own / theirs


def _round(value: float | None) -> float | None:
    """To five significant digits, which print the same on every machine."""
    return None if value is None else float(f"{value:.5g}")


def _without_number(claim: Claim, verdict: str, reason: str) -> Entry:
    measured = claim.experiment is not None
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
    return f"{claim.measure} ({options})" if options else claim.measure


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
    """How far training had come on both sides; empty where it does not matter to the number."""
    if not MEASURES[claim.measure].learned:
        return ""
    sides = [(record, claim.cell, claim.method, claim.dataset)]
    if claim.other is not None:
        sides.append((other, claim.other_cell, rival, claim.other_dataset))
    found = [
        one
        for there, cell, method, dataset in sides
        for one in horizons(there.summary)
        if (one.cell.skew, one.method) == (cell, method)
        and dataset in (None, one.cell.setting.dataset)
    ]
    phrases = dict.fromkeys(one.phrase for one in found if one.phrase)
    return "; ".join(phrases) if phrases else SETTLED if found else "not judged"


def _setting(claim: Claim, record: Record) -> dict[str, float]:
    """Facts of the runs: clients, cohort, rounds, epochs, and the number in the skew's name."""
    settings = record.settings(Case(claim.cell, claim.method, {}, claim.dataset))
    federation = settings["federation"]
    facts = {
        "clients": federation["clients"],
        "clients_per_round": federation["clients_per_round"],
        "rounds": federation["rounds"],
        "epochs": settings["training"]["epochs"],
    }
    number = split_setting(claim.cell)[0].partition("~")[2]
    return facts | ({"skew": float(number)} if number else {})
