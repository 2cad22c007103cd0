"""The ledger: every verdict with its numbers, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger import Entry, judge_claims, read_claims
from fedsdg.analysis.ledger.frozen import changed_origins
from fedsdg.analysis.ledger.page import page
from fedsdg.analysis.recomputing.faults import FACTORS, Fault, json_faults, text_faults
from fedsdg.analysis.recomputing.nudged import summary_of
from fedsdg.files import canonical_json, read_json
from fedsdg.files.places import RECORDS

CLAIMS, CONFIGS = "claims.yaml", "config"
LEDGER, PAGE = f"{RECORDS}/ledger.json", "docs/claims.md"


def judged(root: Path) -> tuple[list[Entry], list[Fault]]:
    """The recomputed entries, and what of the committed ledger and its page differs from them.

    A claim that has changed since it was frozen and run is a fault, too. Of a folder without a
    ledger there are neither.
    """
    if not (root / LEDGER).is_file():
        return [], []
    claims = read_claims(root / CLAIMS, published_grids(root / CONFIGS))
    version: Callable[[float], list[Entry]] = cache(
        lambda factor: judge_claims(
            claims, root / RECORDS, lambda folder: summary_of(folder, factor)
        )
    )
    found = json_faults(
        LEDGER, _by_id(read_json(root / LEDGER)), lambda factor: _by_id(_rows(version(factor)))
    )
    found += [
        Fault(CLAIMS, name, "", "", because)
        for name, because in changed_origins(claims, root / RECORDS)
    ]
    shown = root / PAGE
    if not shown.is_file():
        found.append(Fault(PAGE, "", "", "", "it is not there; fedsdg render ledger writes it"))
    else:
        text = shown.read_text(encoding="utf-8")
        found += text_faults(PAGE, text, lambda factor: page(version(factor)))
    return version(FACTORS[0]), found


def _rows(entries: list[Entry]) -> Any:
    """As they stand in a file."""
    return json.loads(canonical_json([entry.to_dict() for entry in entries]))


def _by_id(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The order is that of the claims; a place is more easily found by its id."""
    return {str(row.get("id")): row for row in rows}
