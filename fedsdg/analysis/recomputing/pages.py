"""The pages of a record: its tables and claims, and the sidecars of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedsdg.analysis.claims import claims_page
from fedsdg.analysis.plots import FIGURES, figure_facts, known_figure
from fedsdg.analysis.recomputing.faults import Fault, json_faults, text_faults
from fedsdg.analysis.recomputing.nudged import summary_of
from fedsdg.analysis.speed import Measurements, kernels, throughput
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, to_csv, to_latex, to_markdown
from fedsdg.analysis.tables.layout import Table
from fedsdg.files import read_json, sha256_file
from fedsdg.files.places import PAPER_FIGURE, RECORDS, filled

#: How a table is written, by the ending of its file.
FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}
)
#: The tables of how fast training and aggregation are, and the file of measurements beside them.
_MEASURED = {"kernels": kernels, "throughput": throughput}
_MEASUREMENTS = "performance/measured.json"
#: What a sidecar says of the day on which its figure was drawn.
OF_THE_DAY = ("source_sha256", "version")


class Record:
    """A committed record: the summary of its experiment, as it is and nudged, each read once."""

    def __init__(self, root: Path, experiment: str) -> None:
        self.root, self.experiment = root, experiment
        self.folder = root / RECORDS / experiment
        self.summary: Callable[[float], Summary] = cache(partial(summary_of, self.folder))
        self.table: Callable[[str, float], Table] = cache(
            lambda name, factor: TABLES[name](self.summary(factor))
        )

    def tables(self) -> Iterator[tuple[str, list[Fault]]]:
        """(name, faults) of every table of the record, in all of the formats that are there."""
        known = [file for file in sorted(self.folder.iterdir()) if file.suffix in FORMATS]
        stems = {file.stem for file in known} - {"claims"}
        for name in sorted({*stems, *self._listed("tables")}):
            files = [file for file in known if file.stem == name]
            yield name, self._table(name, files)

    def _table(self, name: str, files: list[Path]) -> list[Fault]:
        if name not in TABLES:
            because = f"there is no table {name!r}, so nothing says what should stand in it"
            return [Fault(self._shown(files[0]), "", "", "", because)]
        if not files:
            because = f"it names the table {name!r}, which is not there"
            return [Fault(self._shown(self.folder / "pages.json"), "tables", "", "", because)]
        return of_files(self.root, files, partial(self.table, name))

    def markdown(self) -> list[str]:
        """The recomputed Markdown of the tables that are there as such."""
        names = [file.stem for file in sorted(self.folder.glob("*.md"))]
        return [to_markdown(self.table(name, 1.0)) for name in names if name in TABLES]

    def claims(self) -> list[Fault]:
        """Faults of the record's ``claims.md``."""
        file = self.folder / "claims.md"
        if not file.is_file():
            return [Fault(self._shown(file), "", "", "", "it is not there")]
        return text_faults(
            self._shown(file),
            file.read_text(encoding="utf-8"),
            lambda factor: claims_page(self.summary(factor)),
        )

    def sidecars(self) -> Iterator[tuple[str, list[Fault]]]:
        """(name, faults) of the sidecar of every figure.

        Nothing is drawn: compared are the caption, the numbers that are drawn, and the hash of
        every file that the figure was drawn from.
        """
        folder = (self.root / filled(PAPER_FIGURE, experiment=self.experiment, figure="x")).parent
        there = {file.stem for file in folder.glob("*.json")}
        for name in sorted({*there, *self._listed("figures")}):
            yield name, self._sidecar(name, folder / f"{name}.json")

    def _sidecar(self, name: str, file: Path) -> list[Fault]:
        shown = self._shown(file)
        if name not in FIGURES or not file.is_file():
            known = "it is not there" if name in FIGURES else f"there is no figure {name!r}"
            return [Fault(shown, "", "", "", known)]
        facts = read_json(file)
        found = list(input_faults(self.root, shown, facts.pop("inputs", {})))
        for key in OF_THE_DAY:
            facts.pop(key, None)
        return found + json_faults(shown, facts, partial(self._facts, name))

    def _facts(self, name: str, factor: float) -> dict[str, Any]:
        summary = self.summary(factor)
        return figure_facts(name, summary, known_figure(name).frame(summary))

    def _listed(self, kind: str) -> list[str]:
        file = self.folder / "pages.json"
        return list(read_json(file).get(kind, [])) if file.is_file() else []

    def _shown(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


def input_faults(root: Path, shown: str, inputs: Mapping[str, str]) -> Iterator[Fault]:
    """Faults of the files, and their hashes, that a sidecar says its figure was drawn from."""
    if not inputs:
        yield Fault(shown, "inputs", "", "", "it names no file that it was drawn from")
    for name, digest in inputs.items():
        place = f"inputs.{name}"
        if not (root / name).is_file():
            because = "the figure was drawn from this file, which is not there"
            yield Fault(shown, place, "", "", because)
        elif (now := sha256_file(root / name)) != digest:
            yield Fault(shown, place, digest, f"a file with the hash {now}")


def measured_tables(root: Path) -> Iterator[tuple[str, list[Fault]]]:
    """(name, faults) of the tables of measured speed, from the measurements beside them."""
    measured = root / RECORDS / _MEASUREMENTS
    if not measured.is_file():
        return
    read = Measurements.read(measured)
    for name, function in _MEASURED.items():
        files = [f for s in FORMATS if (f := measured.with_name(f"{name}{s}")).is_file()]
        if files:
            # What was measured is printed as it stands: there is no sum to round.
            made = function(read)
            yield name, of_files(root, files, partial(_always, made))


def _always(table: Table, _: float) -> Table:
    return table


def of_files(root: Path, files: list[Path], table: Callable[[float], Table]) -> list[Fault]:
    """Faults of a table in its files; ``table`` makes it of records nudged by a factor."""
    found = []
    for file in files:
        written = FORMATS[file.suffix]
        found += text_faults(
            file.relative_to(root).as_posix(),
            file.read_text(encoding="utf-8"),
            partial(_written, written, table),
        )
    return found


def _written(write: Callable[[Table], str], table: Callable[[float], Table], factor: float) -> str:
    return write(table(factor))
