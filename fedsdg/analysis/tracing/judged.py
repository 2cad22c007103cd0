"""From a claim of the ledger to the runs that decide it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger import read_claims, read_ledger
from fedsdg.analysis.ledger.entries import Entry, entry_of, sides
from fedsdg.analysis.measures import Case, Record
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tracing.found import Trace
from fedsdg.analysis.tracing.runs import facts_of
from fedsdg.files import hint
from fedsdg.files.places import RECORDS

#: The ledger and its page: the names of the file and of its folder.
CLAIMS = (("ledger.json", "reference"), ("claims.md", "docs"))


def trace_claim(file: Path, row: str, column: str) -> Trace:
    """The effect of the claim whose id is ``row``.

    Raises ``ValueError`` for an id that is none, for another column than the effect, and for a
    claim that no run decides.
    """
    above = (folder for folder in file.resolve().parents if (folder / RECORDS).is_dir())
    if (root := next(above, None)) is None:
        raise ValueError(f"{file} is no ledger of records: there is no {RECORDS} above it")
    entries = {entry.id: entry for entry in read_ledger(root / RECORDS / "ledger.json")}
    if row not in entries:
        raise ValueError(f"{file} has no claim {row!r}{hint(row, entries)}")
    if column not in ("", "effect"):
        raise ValueError(f"{file} has no column {column!r} to trace{hint(column, ['effect'])}")
    committed = entries[row]
    if committed.effect is None:
        raise ValueError(f"{file}: no run stands behind {row!r}, which is {_undecided(committed)}")
    known = read_claims(root / "claims.yaml", published_grids(root / "config"))
    claim = next(one for one in known if one.id == row)
    names = (str(claim.experiment), claim.other_experiment)
    records = {name: Record(Summary(root / RECORDS / name)) for name in names}
    record, other = (records[name] for name in names)
    found = sides(claim, record, other)
    places = [(record, Case(claim.cell, claim.method, {}, claim.dataset))]
    if found.rival:
        places.append((other, Case(claim.other_cell, found.rival, {}, claim.other_dataset)))
    now = entry_of(claim, records)
    return Trace(
        file=file.as_posix(),
        line=row,
        experiment=names[0],
        committed=_effect(committed),
        recomputed=_effect(now),
        of=f"{committed.measure}: {committed.compared}",
        where={"id": row, "cell": claim.cell, "threshold": committed.threshold},
        unrounded=math.fsum(found.values.values()) / len(found.values),
        seeds=dict(found.values),
        runs=[fact for place in places for fact in _facts(*place, [*found.values])],
    )


def _facts(record: Record, case: Case, seeds: list[int]) -> list[dict[str, Any]]:
    runs = record.runs(case)
    return [facts_of(record.summary, runs[seed]) for seed in seeds]


def _effect(entry: Entry) -> str:
    """ "3.4321 points [1.2, 5.6], supported"."""
    ends = "" if entry.low is None else f" [{entry.low}, {entry.high}]"
    return f"{entry.effect} {entry.unit}".strip() + f"{ends}, {entry.verdict}"


def _undecided(entry: Entry) -> str:
    return f"{entry.verdict}: {entry.reason}" if entry.reason else entry.verdict
