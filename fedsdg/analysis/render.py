"""Which tables and figures are made of a record, and every committed file with its maker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedsdg.analysis import slots
from fedsdg.analysis.figures import FIGURES, sidecars, write_figure
from fedsdg.analysis.layout import Table
from fedsdg.analysis.metrics import METRICS
from fedsdg.analysis.records import Record, record, records
from fedsdg.analysis.speed import Measurements, speed
from fedsdg.analysis.tables import TABLES, regret, table
from fedsdg.errors import hint
from fedsdg.files import write_json
from fedsdg.files.places import ARENAS, RECORDS

#: What is shown of an experiment whose config does not say.
USUAL = {
    "tables": ("main", "differences", "cost", "settings"),
    "figures": ("progress", "accuracy_by_alpha", "differences"),
}
PAGES = "pages.json"
FIGURES_BELOW = "paper_figures"
ACROSS = "across"
#: What is committed of tables and, but for the drawings, of figures.
_TABLE, _FIGURE = ("csv", "md"), ("csv", "json")


def shown(of: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tables and figures of a record or summary: those of pages.json, or ``USUAL``."""
    pages = of.json(PAGES) if (of.folder / PAGES).is_file() else {}
    tables, figures = (tuple(pages.get(kind, usual)) for kind, usual in USUAL.items())
    return tables, figures


def add_pages(folder: Path, tables: Sequence[str], figures: Sequence[str]) -> None:
    """Write pages.json, which says what is shown of a record or summary.

    Args:
        folder: The folder of the record.
        tables: Names of tables or metrics.
        figures: Names of figures or metrics.

    Raises:
        ValueError: There is no such table, figure or metric.
    """
    require_known(tables, figures)
    write_json(folder / PAGES, {"tables": [*tables], "figures": [*figures]})


def require_known(tables: Sequence[str], figures: Sequence[str]) -> None:
    """Refuse names of tables and figures that do not exist.

    Args:
        tables: Names of tables or metrics.
        figures: Names of figures or metrics.

    Raises:
        ValueError: There is no such table, figure or metric; the message has the nearest name.
    """
    for kind, names in (("table", tables), ("figure", figures)):
        for name in names:
            pages_named(f"{kind}:{name}")


def pages_named(name: str) -> list[tuple[str, str]]:
    """Return (kind, name) of what a word stands for: a table, a figure, or both of that name.

    Args:
        name: ``main``, ``table:groups``, ``figure:groups``, or a metric.

    Raises:
        ValueError: There is no such table, figure or metric.
    """
    wanted, _, page = name.rpartition(":")
    kinds = {"table": [*TABLES, *METRICS], "figure": [*FIGURES, *METRICS]}
    asked = {kind: known for kind, known in kinds.items() if wanted in ("", kind)}
    found = [(kind, page) for kind, known in asked.items() if page in known]
    if not found:
        near = hint(page, [known for names in asked.values() for known in names])
        raise ValueError(f"there is no {wanted or 'table, figure'} or metric {page!r}{near}")
    return found


def write_shown(
    of: Record,
    tables: Path,
    figures: Path | None,
    names: Sequence[str] | None = None,
    *,
    tex: bool = True,
) -> list[Path]:
    """Write tables and figures of a record.

    Args:
        of: The record or summary.
        tables: The folder of the tables.
        figures: The folder of the figures; None: no figures.
        names: What ``pages_named`` takes; by default all that the record shows.
        tex: Whether tables are written as LaTeX as well.

    Returns:
        The files. A figure without data is left out, and so is a table that nobody named; older
        files of theirs are removed.
    """
    kinds = zip(("table", "figure"), shown(of), strict=True)
    every = [f"{kind}:{name}" for kind, own in kinds for name in own]
    files: list[Path] = []
    for word in every if names is None else names:
        for kind, name in pages_named(word):
            if kind == "figure" and figures is not None:
                files += write_figure(name, of, figures / name) or _remove(figures, name)
            elif kind == "table":
                made = table(name, of)
                wanted = names is not None or len(made.numbers)
                files += made.write(tables, tex=tex) if wanted else _remove(tables, name)
    return files


def _remove(folder: Path, name: str) -> list[Path]:
    """Remove older files of what has no data; of a metric, say why."""
    if name in METRICS:
        columns = ", ".join(METRICS[name].columns)
        print(f"{name} is not shown: no run has all that it reads ({columns})", file=sys.stderr)
    for file in folder.glob(f"{name}.*"):
        file.unlink()
    return []


def write_regret(
    of: Sequence[Record],
    tables: Path,
    figures: Path | None,
    metric: str = "accuracy",
    *,
    tex: bool = True,
) -> list[Path]:
    """Write table and figure of regret over several experiments.

    Args:
        of: The records.
        tables: The folder of the table.
        figures: The folder of the figure, which shows ``accuracy`` alone; None: no figure.
        metric: In which methods are compared.
        tex: Whether the table is written as LaTeX as well.

    Returns:
        The files.
    """
    files = regret(of, metric).write(tables, tex=tex)
    if figures is not None and metric == "accuracy":
        files += write_figure("regret", of, figures / "regret")
    return files


def committed(root: str | Path = ".") -> Iterator[tuple[Path, Callable[[], str]]]:
    """Yield every committed text that is made from records, with the function that makes it.

    Tables and figures of records, regret, claims and the documents that cite them, and the tables
    of measured speed. Nothing is computed before a function is called, and a table or figure once
    for all of its files.

    Args:
        root: The root of the repository.
    """
    root = Path(root)
    below = root / FIGURES_BELOW
    for of in records(root / RECORDS):
        tables, figures = shown(of)
        for name in tables:
            yield from _files(of.folder / name, _TABLE, partial(_texts, table, name, of))
        for name in figures:
            yield from _files(below / of.folder.name / name, _FIGURE, partial(sidecars, name, of))
    arenas = [root / RECORDS / name for name in ARENAS]
    if all((arena / "runs.parquet").is_file() for arena in arenas):
        opened = [record(arena) for arena in arenas]
        yield from _files(
            root / RECORDS / ACROSS / "regret", _TABLE, partial(_texts, regret, opened)
        )
        yield from _files(below / ACROSS / "regret", _FIGURE, partial(sidecars, "regret", opened))
    yield from slots.documents(root)
    measured = root / RECORDS / "performance/measured.json"
    if measured.is_file():
        read = Measurements.read(measured)
        yield from _files(measured.with_name("speed"), ("md",), partial(_texts, speed, read))


def _texts(make: Callable[..., Table], *given: Any) -> dict[str, str]:
    return make(*given).texts()


def _files(
    stem: Path, suffixes: Sequence[str], make: Callable[[], dict[str, str]]
) -> Iterator[tuple[Path, Callable[[], str]]]:
    """Yield the files of a table or figure, whose texts are made once, by suffix."""
    made = cache(make)

    def text(suffix: str) -> str:
        if suffix not in made():
            raise ValueError(f"{stem}: the record has no data for it; take it out of {PAGES}")
        return made()[suffix]

    for suffix in suffixes:
        yield stem.with_name(f"{stem.name}.{suffix}"), partial(text, suffix)
