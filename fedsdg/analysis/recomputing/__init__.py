"""Everything that is committed and says a number, made again from the records and compared.

Tables in each format, claims, the sidecars of figures, the ledger with its page, and the numbers in
README and findings; and that the backbones, partitions and origins of a record are those of its
runs. What depends on the day, the sources that drew a figure and its pixels, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedsdg.analysis.recomputing.faults import Fault
from fedsdg.analysis.recomputing.judgements import document_faults, judged
from fedsdg.analysis.recomputing.pages import Record, measured_tables
from fedsdg.analysis.recomputing.sources import source_faults
from fedsdg.analysis.recomputing.spanning import spanning_faults
from fedsdg.files import changed_file
from fedsdg.files.places import RECORDS

__all__ = ["Fault", "Recomputed", "recompute"]


@dataclass
class Recomputed:
    """How much was compared, and every place that differs."""

    tables: int = 0
    claims: int = 0
    sidecars: int = 0
    verdicts: int = 0
    documents: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """ "129 tables, 26 pages of claims, 75 sidecars, 96 verdicts, 2 documents"."""
        return (
            f"{self.tables} tables, {self.claims} pages of claims, {self.sidecars} sidecars of "
            f"figures, {self.verdicts} verdicts, {self.documents} documents with findings"
        )


def recorded(root: Path) -> list[str]:
    """The experiments that have a record below this folder."""
    return sorted(file.parent.name for file in (root / RECORDS).glob("*/runs.parquet"))


def recompute(root: Path, say: Callable[[str], None] = lambda _: None) -> Recomputed:
    """Compare everything committed below ``root`` with what its records give.

    ``say`` is told what is looked at. Raises ``FileNotFoundError`` where there is no record, and
    ``ValueError`` where a record cannot be read.
    """
    if not (experiments := recorded(root)):
        raise FileNotFoundError(
            f"there is no record in {root / RECORDS}: call this in the root of the repository"
        )
    found = Recomputed()
    for experiment in experiments:
        say(experiment)
        place = Path(RECORDS) / experiment
        if because := changed_file(root / place):
            found.faults.append(Fault(place.as_posix(), "", "", "", because))
        record = Record(root, experiment)
        for _, faults in record.tables():
            found.tables += 1
            found.faults += faults
        found.claims += 1
        found.faults += record.claims()
        for _, faults in record.sidecars():
            found.sidecars += 1
            found.faults += faults
        found.faults += source_faults(root, record.summary(1.0))
    for _, faults in measured_tables(root):
        found.tables += 1
        found.faults += faults
    say("what spans arenas")
    count, faults = spanning_faults(root)
    found.tables += count
    found.sidecars += count > 0
    found.faults += faults
    say("ledger, README and findings")
    entries, faults = judged(root)
    found.verdicts += len(entries)
    found.faults += faults
    for _, faults in document_faults(root, entries):
        found.documents += 1
        found.faults += faults
    return found
