"""Origins of claims, frozen before their runs: what was declared, and whether it has changed since.

An entry is frozen with its origin and a hash of its substance. Until one of its experiments has a
record it may be changed and frozen anew; from then on a change is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsdg.analysis.ledger.claims import Claim
from fedsdg.files import git, read_json, sha256_json, write_json

#: The file beside the records.
FROZEN = "origins.json"
#: Fields that decide nothing, and those that are kept in plain sight.
_APART = ("section", "note", "origin", "seen_in")


def freeze(claims: Sequence[Claim], records: Path) -> int:
    """Freeze the origins that are not frozen as they stand; entries without an origin are left out.

    Args:
        claims: All entries of ``claims.yaml``.
        records: The folder of the records, where ``origins.json`` is written.

    Returns:
        How many entries were frozen.

    Raises:
        ValueError: An entry has changed since its experiment was run.
    """
    if changes := [*changed_origins(claims, records)]:
        raise ValueError(changes[0][1])
    before = read_frozen(records)
    when = {"commit": git("rev-parse", "HEAD"), "date": datetime.now(UTC).date().isoformat()}
    now = {claim.id: _declared(claim) for claim in claims if claim.origin}
    fresh = {
        name: {**one, **when} for name, one in now.items() if _content(before.get(name)) != one
    }
    # An entry that was dropped before its run is forgotten.
    kept = {name: one for name, one in before.items() if name in now}
    write_json(records / FROZEN, kept | fresh)
    return len(fresh)


def read_frozen(records: Path) -> dict[str, dict[str, Any]]:
    """Return the frozen entries by id; none where nothing was frozen yet."""
    file = records / FROZEN
    found: dict[str, dict[str, Any]] = read_json(file) if file.is_file() else {}
    return found


def changed_origins(claims: Sequence[Claim], records: Path) -> Iterator[tuple[str, str]]:
    """Yield the id of every entry that has changed since it was frozen and run, and a sentence.

    Args:
        claims: All entries of ``claims.yaml``; a frozen entry that is not among them was removed.
        records: The folder of the records, with ``origins.json``. An entry has been run where one
            of its experiments has a record.
    """
    now = {claim.id: claim for claim in claims}
    for name, frozen in read_frozen(records).items():
        claim = now.get(name)
        experiments = list(frozen["experiments"])
        if experiments and claim is not None:  # Moved to a run that is known already.
            experiments += sorted(claim.experiments)
        run = [one for one in experiments if (records / one / "runs.parquet").is_file()]
        if not run:
            continue
        since = f"since it was frozen on {frozen['date']}, and {run[0]} has been run"
        remedy = "restore it, and declare what is new as another entry, post hoc"
        if claim is None:
            yield name, f"claim {name} was removed {since}; restore it"
            continue
        mine = _declared(claim)
        for key in ("origin", "seen_in"):
            if mine.get(key) != frozen.get(key):
                there, here = (one.get(key, "none") for one in (frozen, mine))
                word = key.replace("_", " ")
                yield (
                    name,
                    f"claim {name}: its {word} was changed from {there!r} to {here!r} {since}; "
                    f"{remedy}",
                )
                break
        else:
            if mine["substance"] != frozen["substance"]:
                yield name, f"claim {name}: what it claims was changed {since}; {remedy}"


def _declared(claim: Claim) -> dict[str, Any]:
    """The frozen form of an entry; its substance is a hash of the fields that are set."""
    given = {name: value for name, value in asdict(claim).items() if name not in _APART and value}
    given["sentence"] = " ".join(claim.sentence.split())
    seen = {"seen_in": claim.seen_in} if claim.seen_in else {}
    return {
        "origin": claim.origin,
        **seen,
        "experiments": sorted(claim.experiments),
        "substance": sha256_json(given),
    }


def _content(frozen: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A frozen entry without when it was frozen."""
    if frozen is None:
        return None
    return {name: value for name, value in frozen.items() if name not in ("commit", "date")}
