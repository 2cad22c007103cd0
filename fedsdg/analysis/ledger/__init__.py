"""The ledger: the claims of the specifications, judged by the record.

``claims.yaml`` holds the claims, one entry each; nothing in it is measured. The ledger looks up the
numbers of every entry in the committed records and judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger.claims import Claim, read_claims
from fedsdg.analysis.ledger.entries import VERDICTS, Entry, judged_entries
from fedsdg.analysis.ledger.page import write_page
from fedsdg.analysis.measures import Record
from fedsdg.analysis.summary import Summary
from fedsdg.files import read_json, write_json

__all__ = [
    "VERDICTS",
    "Claim",
    "Entry",
    "judge_claims",
    "read_claims",
    "read_ledger",
    "write_ledger",
]


def judge_claims(
    claims: Sequence[Claim],
    records: str | Path,
    read: Callable[[Path], Summary] = Summary,
) -> list[Entry]:
    """Judge every claim by the records in ``records/{experiment}``, in the order given.

    Args:
        claims: Claims as ``read_claims`` returns them.
        records: The folder of the records; an experiment without runs.parquet has no record yet.
        read: Opens the summary in a folder.

    Returns:
        One entry per claim.
    """
    named = {name for claim in claims for name in claim.experiments}
    opened = {
        name: Record(read(Path(records) / name))
        for name in named
        if (Path(records) / name / "runs.parquet").is_file()
    }
    return judged_entries(claims, opened)


def write_ledger(
    claims_file: str | Path, configs: str | Path, records: str | Path, page: str | Path
) -> list[Entry]:
    """Judge the claims and write ``{records}/ledger.json`` and the page; returns the entries.

    Args:
        claims_file: The path of ``claims.yaml``.
        configs: The folder of the published configs, against which the claims are checked.
        records: The folder of the records.
        page: The path of the Markdown page.
    """
    entries = judge_claims(read_claims(claims_file, published_grids(configs)), records)
    write_json(Path(records) / "ledger.json", [entry.to_dict() for entry in entries])
    write_page(entries, page)
    return entries


def read_ledger(file: str | Path) -> list[Entry]:
    """The entries of ``ledger.json``."""
    return [Entry(**{**row, "bounds": tuple(row["bounds"])}) for row in read_json(file)]
