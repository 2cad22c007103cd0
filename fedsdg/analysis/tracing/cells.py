"""The numbers of a committed table or sidecar, each with the names that it can be asked for by."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.names import method_title, metric_named, skew_title
from fedsdg.analysis.tables import to_csv, to_latex, to_markdown
from fedsdg.analysis.tables.layout import Raw, Table
from fedsdg.files import hint, read_json

#: Columns of unrounded numbers that tell their rows; all others are what was computed.
_TELLING = (
    *("id", "dataset", "clients", "skew", "scenario", "attack", "share", "method", "type"),
    *("key", "others", "metric", "at", "subject", "rival", "measure", "yardstick", "check"),
    *("seed", "group", "client", "kind", "step"),
)
_METHODS = ("method", "type", "subject", "rival")


@dataclass(frozen=True)
class Cell:
    """A number as it is committed and as the records give it now, the names of its row and column,
    and where it stands unrounded; ``raw`` is None for text."""

    committed: str
    recomputed: str
    line: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    raw: Raw | None


def telling(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row of unrounded numbers: the columns that tell it from the others."""
    names = [name for name in _TELLING if name in row]
    # The same word is a place in one table and a result in another.
    names += ["value"] if "key" in row and "value" in row else []
    names += ["round"] if "round" in row and "target (share)" not in row else []
    names += ["seconds"] if "seconds" in row and "mean" in row else []
    return {name: row[name] for name in names}


def _names(row: Mapping[str, Any]) -> list[str]:
    """What a row can be called: its words, their titles in print, and "seed 3" for its numbers."""
    found: list[str] = []
    for name, value in row.items():
        if not isinstance(value, str):
            found.append(f"{name} {value:g}" if isinstance(value, int | float) else "")
            continue
        found.append(value)
        if name in _METHODS:
            found.append(method_title(value))
        elif name == "skew":
            found.append(skew_title(value))
        elif name == "metric":
            found += [metric_named(value).title, metric_named(value).short]
    return [name for name in dict.fromkeys(found) if name]


def _of_csv(text: str, table: Table) -> Iterator[Cell]:
    lines = [*csv.reader(text.splitlines())]
    made = [*csv.reader(to_csv(table).splitlines())]
    rows = table.raw.to_dict("records")
    _same_shape([len(line) for line in lines], [len(line) for line in made])
    for number, (line, new, row) in enumerate(zip(lines[1:], made[1:], rows, strict=True), start=2):
        place = telling({str(name): value for name, value in row.items()})
        for name, committed, recomputed in zip(lines[0], line, new, strict=True):
            if name not in place:
                plain = name.partition(" (")[0]
                names = (name, plain, *_names(place))
                raw = Raw(name, place)
                yield Cell(committed, recomputed, f"line {number}", (*names[2:],), names, raw)


def _printed_cells(
    rows: Callable[[str], Iterator[tuple[int, list[str]]]], write: Callable[[Table], str]
) -> Callable[[str, Table], Iterator[Cell]]:
    """The reader of a table in print: its rows stand in the order of the table's blocks."""

    def read(text: str, table: Table) -> Iterator[Cell]:
        lines, made = [*rows(text)], [*rows(write(table))]
        _same_shape([len(line) for _, line in lines], [len(line) for _, line in made])
        entries = [(one, row) for one in table.blocks for row in one.rows]
        for (number, line), (_, new), (one, row) in zip(lines, made, entries, strict=True):
            labels = [entry.text for entry in row if entry.raw is None and entry.text]
            told = [entry.raw.row for entry in row if entry.raw is not None]
            same = {n: v for n, v in _common(told).items() if isinstance(v, str)}
            names = (*labels, *_names(same), one.title)
            for entry, head, mine, theirs in zip(row, one.columns, line, new, strict=True):
                own = [] if entry.raw is None else [entry.raw.column, *_names(entry.raw.row)]
                columns = (", ".join(filter(None, head)), *filter(None, head), *own, one.title)
                yield Cell(mine, theirs, f"line {number}", names, columns, entry.raw)

    return read


def _common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of the rows say alike."""
    first = rows[0] if rows else {}
    return {n: v for n, v in first.items() if all(row.get(n) == v for row in rows)}


def _markdown_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows below every head of a table in Markdown, without its marks."""
    lines = enumerate(text.splitlines(), start=1)
    for piped, group in groupby(lines, key=lambda pair: pair[1].startswith("|")):
        if piped:
            for number, line in [*group][2:]:
                cells = re.split(r"(?<!\\)\|", line)[1:-1]
                yield number, [re.sub(r"\\(.)|\*\*", r"\1", cell).strip() for cell in cells]


def _latex_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows between the rules of every tabular."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() in (r"\midrule", r"\bottomrule"):
            inside = line.strip() == r"\midrule"
        elif inside:
            cells = re.split(r"(?<!\\)&", line.strip().removesuffix("\\\\"))
            bare = (re.sub(r"\\textbf\{(.*)\}", r"\1", cell.strip()) for cell in cells)
            yield number, [*bare]


def _same_shape(committed: list[int], recomputed: list[int]) -> None:
    if committed != recomputed:
        raise ValueError("it has other rows or columns than its record gives; run fedsdg verify")


_READERS: Mapping[str, Callable[[str, Table], Iterator[Cell]]] = MappingProxyType(
    {
        ".csv": _of_csv,
        ".md": _printed_cells(_markdown_rows, to_markdown),
        ".tex": _printed_cells(_latex_rows, to_latex),
    }
)


def cells_of_table(file: Path, table: Table) -> list[Cell]:
    """The cells of a committed table, which ``table`` is again; ValueError where it cannot be."""
    try:
        return [*_READERS[file.suffix](file.read_text(encoding="utf-8"), table)]
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def cells_of_sidecar(file: Path, frame: pd.DataFrame) -> list[Cell]:
    """The numbers of a figure's sidecar, whose numbers ``frame`` gives again."""
    numbers, rows = read_json(file).get("numbers", []), frame.to_dict("records")
    if len(numbers) != len(rows):
        raise ValueError(f"{file}: it has other rows than its record gives; run fedsdg verify")
    found = []
    for i, (line, row) in enumerate(zip(numbers, rows, strict=True)):
        place = telling({str(name): value for name, value in row.items()})
        for name in (name for name in line if name not in place):
            texts = (f"{line[name]}", f"{_plain(row[name])}")
            raw = Raw(name, place)
            names = tuple(_names(place))
            found.append(Cell(*texts, f"numbers[{i}]", names, (name, *names), raw))
    return found


def _plain(value: Any) -> Any:
    return printed(value) if isinstance(value, float) else value


def chosen(cells: Sequence[Cell], row: str, column: str, experiment: str, file: Path) -> Cell:
    """The one cell that the names ask for.

    Words may be joined by commas: all must be names of the cell's row or column, in which a name
    with a comma counts as its parts as well. Raises ``ValueError`` where no cell is meant, naming
    the closest word, and where several are, naming what tells them apart.
    """
    here = [cell for cell in cells if _meant(row, cell.rows)]
    if not here:
        known = dict.fromkeys(name for cell in cells for name in cell.rows)
        raise ValueError(f"{file} has no row {row!r}{hint(row, known)}")
    found = [cell for cell in here if _meant(column, (*cell.columns, experiment))]
    if not found:
        known = dict.fromkeys(name for cell in here for name in cell.columns)
        raise ValueError(f"{file} has no column {column!r} in that row{hint(column, known)}")
    # Words that are names in full mean these before they mean parts of others.
    exact = [
        cell
        for cell in found
        if _meant(row, cell.rows, whole=True)
        and _meant(column, (*cell.columns, experiment), whole=True)
    ]
    numbers = [cell for cell in exact or found if cell.raw is not None]
    if len(numbers) == 1:
        return numbers[0]
    if not numbers:
        raise ValueError(f"{file}: no number stands in row {row!r}, column {column!r}")
    raise ValueError(
        f"{file}: {len(numbers)} numbers stand in row {row!r}, column {column!r}; add a word, "
        f"as in --row {_apart(numbers, 'rows')!r} or --column {_apart(numbers, 'columns')!r}"
    )


def _meant(asked: str, names: Iterable[str], whole: bool = False) -> bool:
    """Whether the words asked for are all names of a row or column, or, unless ``whole``, parts."""
    known = {_same(name) for name in names}
    if not asked.strip() or _same(asked) in known:
        return True
    parts = set() if whole else {part.strip() for name in known for part in name.split(",")}
    return all(_same(word) in known | parts for word in asked.split(","))


def _same(name: str) -> str:
    return " ".join(name.casefold().split())


def _apart(cells: Sequence[Cell], of: str) -> str:
    """A name that not all of the cells have; the first cell's own where there is none."""
    names = [getattr(cell, of) for cell in cells]
    telling_apart = [name for name in names[0] if any(name not in other for other in names)]
    return (telling_apart or [*names[0], ""])[0]
