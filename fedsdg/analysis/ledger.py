"""The ledger: what the specifications claim, and what the record says of it.

``claims.yaml`` holds the claims, one entry each; nothing in it is measured. The ledger looks up the
numbers of every entry in the committed records and judges them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedsdg.analysis.grids import Grid, published_grids
from fedsdg.analysis.horizon import SETTLED, horizons
from fedsdg.analysis.judgement import OPEN, REFUTED, SUPPORTED, UNDECIDED, Threshold, judge
from fedsdg.analysis.measures import MEASURES
from fedsdg.analysis.measures.records import Case, LackingError, Record, Values
from fedsdg.analysis.summary import Summary
from fedsdg.files import hint, read_json, write_json
from fedsdg.files.places import split_setting

#: In the order of the page: what is refuted is not to be looked for.
VERDICTS = (REFUTED, SUPPORTED, UNDECIDED, OPEN)

_TEXTS = ("id", "source", "section", "sentence")
_MEASURED = ("experiment", "cell", "method", "measure", "threshold")
_OPTIONAL = ("arguments", "minus", "over", "note")


@dataclass(frozen=True)
class Claim:
    """One entry of ``claims.yaml``.

    Of the three kinds of entry one is measured (``experiment`` and what belongs to it), one rests
    on a test of this repository (``proof`` and ``verdict``), and one is open (``needs``).
    ``minus`` and ``over`` change some of the arguments, or ``experiment``, ``cell`` or ``method``;
    the effect is then a difference or a ratio paired over seeds. Several methods there mean the one
    with the highest mean.
    """

    id: str
    source: str
    section: str
    sentence: str
    experiment: str | None = None
    cell: str = ""
    method: str = ""
    measure: str = ""
    threshold: Threshold | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    minus: Mapping[str, Any] | None = None
    over: Mapping[str, Any] | None = None
    needs: str | None = None
    proof: str | None = None
    verdict: str | None = None
    note: str | None = None

    @property
    def other(self) -> Mapping[str, Any] | None:
        """What the number is compared with, as changes to its own arguments."""
        return self.minus if self.minus is not None else self.over

    @property
    def others(self) -> tuple[str, ...]:
        """The methods compared with; the claim's own where another argument changes."""
        methods = (self.other or {}).get("method", self.method)
        return (methods,) if isinstance(methods, str) else tuple(methods)

    @property
    def other_experiment(self) -> str:
        """The experiment that it is compared with: its own, unless another is named."""
        return str((self.other or {}).get("experiment", self.experiment))

    @property
    def other_cell(self) -> str:
        """The cell that it is compared with."""
        return str((self.other or {}).get("cell", self.cell))

    @property
    def changes(self) -> dict[str, Any]:
        """The arguments of the measure that differ on the other side."""
        places = ("experiment", "cell", "method")
        return {name: value for name, value in (self.other or {}).items() if name not in places}

    @property
    def unit(self) -> str:
        """What stands behind the effect in print."""
        unit = MEASURES[self.measure].unit
        if self.over is not None:
            return "times"
        return "points" if self.minus is not None and unit == "%" else unit


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


def read_claims(file: str | Path, grids: Mapping[str, Grid]) -> tuple[Claim, ...]:
    """The entries of ``claims.yaml``, checked against the published grids.

    Raises ``ValueError`` with one sentence that names the entry and the remedy.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; name the file of the claims with --claims")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path} holds no list of claims")
    claims = tuple(_claim(given, number, grids) for number, given in enumerate(content, start=1))
    for name, times in Counter(claim.id for claim in claims).items():
        if times > 1:
            raise ValueError(f"{path}: {times} claims have the id {name!r}; rename all but one")
    return claims


def _claim(given: Any, number: int, grids: Mapping[str, Grid]) -> Claim:
    if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
        raise ValueError(f"claim {number} has no id; give it one")
    where = f"claim {given['id']}"
    kind = "proof" if "proof" in given else "needs" if given.get("experiment") is None else ""
    own = {"proof": ("proof", "verdict"), "needs": ("experiment", "needs")}.get(kind, _MEASURED)
    for key in (*_TEXTS, *(name for name in own if name != "experiment")):
        if given.get(key) in (None, ""):
            raise ValueError(f"{where} lacks {key!r}; add it{_remedy(kind, key)}")
    allowed = (*_TEXTS, *own, "note", *(_OPTIONAL if not kind else ()))
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where} has an unknown key {key!r}{hint(key, allowed)}")
    texts: dict[str, Any] = {
        name: str(given[name]).strip() for name in (*_TEXTS, "note") if given.get(name)
    }
    if kind == "needs":
        return Claim(**texts, needs=str(given["needs"]))
    if kind == "proof":
        if given["verdict"] not in (SUPPORTED, REFUTED):
            raise ValueError(
                f"{where}: the verdict of a proof is {given['verdict']!r}; write {SUPPORTED} or "
                f"{REFUTED}"
            )
        return Claim(**texts, proof=str(given["proof"]), verdict=given["verdict"])
    options: dict[str, Any] = {
        name: dict(given[name]) for name in ("arguments", "minus", "over") if name in given
    }
    options |= {name: str(given[name]) for name in ("experiment", "cell", "method", "measure")}
    claim = Claim(
        **texts,
        **options,
        threshold=Threshold.read(given["threshold"], f"{where}: the threshold"),
    )
    _check(claim, where, grids)
    return claim


def _remedy(kind: str, key: str) -> str:
    if kind == "needs" and key == "needs":
        return ": what it would take to test it, or name an experiment"
    return ""


def _check(claim: Claim, where: str, grids: Mapping[str, Grid]) -> None:
    """That the experiment, the cells, the rows, the measure and its options exist."""
    if claim.minus is not None and claim.over is not None:
        raise ValueError(f"{where} has both 'minus' and 'over'; remove one")
    for experiment in (str(claim.experiment), claim.other_experiment):
        if experiment not in grids:
            raise ValueError(
                f"{where} names the unknown experiment {experiment!r}; set it to null and say what "
                f"it needs, or correct it{hint(experiment, grids)}"
            )
    if claim.measure not in MEASURES:
        raise ValueError(
            f"{where} names the unknown measure {claim.measure!r}{hint(claim.measure, MEASURES)}"
        )
    _check_place(where, grids[str(claim.experiment)], claim.cell, (claim.method,))
    _check_place(where, grids[claim.other_experiment], claim.other_cell, claim.others)
    measure = MEASURES[claim.measure]
    for name, value in (*claim.arguments.items(), *claim.changes.items()):
        if name not in measure.options:
            raise ValueError(
                f"{where}: the measure {claim.measure!r} has no argument {name!r}; it takes "
                f"{', '.join(measure.options) or 'none'}"
            )
        choices = measure.options[name]
        if choices is not None and value not in choices:
            raise ValueError(
                f"{where}: the argument {name!r} is {value!r}, but must be one of "
                f"{', '.join(choices)}"
            )
    if lacking := [name for name in measure.needs if name not in claim.arguments]:
        raise ValueError(
            f"{where}: the measure {claim.measure!r} needs the argument {lacking[0]!r}"
        )


def _check_place(where: str, grid: Grid, cell: str, methods: Sequence[str]) -> None:
    """That the experiment has this cell and these rows."""
    if cell not in grid.cells:
        raise ValueError(
            f"{where}: {grid.experiment} has no cell {cell!r}; its cells are "
            f"{', '.join(grid.cells)}"
        )
    for method in methods:
        if method not in grid.rows:
            raise ValueError(
                f"{where}: {grid.experiment} has no row {method!r}{hint(method, grid.rows)}"
            )


def judge_claims(claims: Sequence[Claim], records: str | Path) -> list[Entry]:
    """Judge every claim by the records in ``records/{experiment}``, in the order given."""
    opened: dict[str, Record | None] = {}
    measured = [claim for claim in claims if claim.experiment]
    sides = [(str(claim.experiment), claim.other_experiment) for claim in measured]
    for experiment in {name for side in sides for name in side}:
        folder = Path(records) / experiment
        there = (folder / "runs.parquet").is_file()
        opened[experiment] = Record(Summary(folder)) if there else None
    return [_entry(claim, opened) for claim in claims]


def _entry(claim: Claim, opened: Mapping[str, Record | None]) -> Entry:
    if claim.proof is not None:
        assert claim.verdict is not None
        return _without_number(claim, claim.verdict, f"by the test {claim.proof}")
    if claim.experiment is None:
        return _without_number(claim, OPEN, f"needs {claim.needs}")
    record, other = opened[claim.experiment], opened[claim.other_experiment]
    if record is None or other is None:
        lacking = claim.experiment if record is None else claim.other_experiment
        return _without_number(claim, OPEN, f"there is no record of {lacking} yet")
    try:
        return _measured(claim, record, other)
    except LackingError as error:
        return _without_number(claim, OPEN, str(error.args[0]))


def _measured(claim: Claim, record: Record, other: Record) -> Entry:
    measure = MEASURES[claim.measure]
    own = measure.function(record, Case(claim.cell, claim.method, claim.arguments))
    values, means, rival = own, {}, ""
    if claim.other is not None:
        rival, theirs = _rival(claim, other)
        seeds = sorted(set(own) & set(theirs))
        if not seeds:
            raise LackingError(f"{claim.method} and {rival} share no seed yet")
        join = _difference if claim.minus is not None else _ratio
        values = {seed: join(own[seed], theirs[seed]) for seed in seeds}
        means = {
            "subject": _mean([own[seed] for seed in seeds]),
            "compared": _mean([theirs[seed] for seed in seeds]),
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
    found = {name: function(record, Case(claim.other_cell, name, options)) for name in claim.others}
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
    names = ("id", "source", "section", "sentence")
    return {name: getattr(claim, name) for name in names} | {"note": claim.note or ""}


def _described(claim: Claim) -> str:
    options = ", ".join(f"{name} {value}" for name, value in claim.arguments.items())
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
    sides = [(record, claim.cell, claim.method)]
    if claim.other is not None:
        sides.append((other, claim.other_cell, rival))
    found = [
        one
        for there, cell, method in sides
        for one in horizons(there.summary)
        if (one.cell.skew, one.method) == (cell, method)
    ]
    phrases = dict.fromkeys(one.phrase for one in found if one.phrase)
    return "; ".join(phrases) if phrases else SETTLED if found else "not judged"


def _setting(claim: Claim, record: Record) -> dict[str, float]:
    """Facts of the runs: clients, cohort, rounds, epochs, and the number in the skew's name."""
    settings = record.settings(Case(claim.cell, claim.method, {}))
    federation = settings["federation"]
    facts = {
        "clients": federation["clients"],
        "clients_per_round": federation["clients_per_round"],
        "rounds": federation["rounds"],
        "epochs": settings["training"]["epochs"],
    }
    number = split_setting(claim.cell)[0].partition("~")[2]
    return facts | ({"skew": float(number)} if number else {})


def write_ledger(
    claims_file: str | Path, configs: str | Path, records: str | Path, page: str | Path
) -> list[Entry]:
    """Judge the claims and write ``{records}/ledger.json`` and the page; returns the entries."""
    from fedsdg.analysis.ledger_page import write_page

    entries = judge_claims(read_claims(claims_file, published_grids(configs)), records)
    write_json(Path(records) / "ledger.json", [asdict(entry) for entry in entries])
    write_page(entries, page)
    return entries


def read_ledger(file: str | Path) -> list[Entry]:
    """The entries of ``ledger.json``."""
    return [Entry(**{**row, "bounds": tuple(row["bounds"])}) for row in read_json(file)]
