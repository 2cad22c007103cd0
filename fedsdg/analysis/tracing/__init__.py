"""From a committed number to the runs behind it.

The page on which the number stands is made again from its record, so that every cell says where it
stands unrounded, and that row says which runs it was computed from. Seed by seed the page is made
from the runs of that seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.analysis.frames import records
from fedsdg.analysis.plots import FIGURES, known_figure
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES
from fedsdg.analysis.tables.layout import Raw
from fedsdg.analysis.tracing.cells import Cell, cells_of_sidecar, cells_of_table, chosen
from fedsdg.analysis.tracing.found import Trace
from fedsdg.analysis.tracing.judged import CLAIMS, trace_claim
from fedsdg.analysis.tracing.runs import facts_of, runs_behind
from fedsdg.analysis.tracing.selection import Selected
from fedsdg.files import hint
from fedsdg.files.places import RECORDS, SUMMARY, filled

#: From a summary to the rows of unrounded numbers of one page.
Rows = Callable[[Summary], pd.DataFrame]


def trace(file: str | Path, row: str, column: str) -> Trace:
    """The number in this row and column of a committed table or of the sidecar of a figure.

    Of the ledger and its page a row is the id of a claim, and its effect the only column.

    Raises ``FileNotFoundError`` where there is no such file or record, and ``ValueError`` where the
    file is no page of a record, where its row or column is unknown or says too little, and where
    no run stands behind the number.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: name a table of a record, as {_EXAMPLE}")
    if (path.name, path.parent.name) in CLAIMS:
        return trace_claim(path, row, column)
    summary = Summary(_folder(path))
    if path.suffix == ".json":
        plot = known_figure(path.stem)
        frame = plot.frame(summary)
        if frame is None:
            raise ValueError(
                f"{path} holds no numbers, for the figure is drawn from the records at once; trace "
                f"a table of the same record, as {_EXAMPLE}"
            )
        cells = cells_of_sidecar(path, frame)
    else:
        cells = cells_of_table(path, TABLES[path.stem](summary))
    cell = chosen(cells, row, column, summary.experiment, path)
    return _traced(path, summary, cell, partial(_rows, path))


def _rows(file: Path, summary: Summary) -> pd.DataFrame:
    """The unrounded numbers of the page of this name, of any summary."""
    if file.suffix != ".json":
        return TABLES[file.stem](summary).raw
    frame = known_figure(file.stem).frame(summary)
    assert frame is not None
    return frame


_EXAMPLE = f"{RECORDS}/label-skew/main.md"


def _folder(file: Path) -> Path:
    """The folder of the summary that a page was made from: a record, or what was computed here."""
    if (file.parent / "measured.json").is_file():
        raise ValueError(f"no run stands behind {file}: it prints what measured.json holds")
    known = FIGURES if file.suffix == ".json" else TABLES
    places = [file.parent, filled(SUMMARY, experiment=file.parent.name)]
    if file.suffix == ".json":
        # paper_figures/{experiment}/ and results/reference/{experiment}/ lie side by side.
        above = file.resolve().parents[2]
        places = [root / RECORDS / file.parent.name for root in (above, Path())]
    folders = [folder for folder in places if (folder / "runs.parquet").is_file()]
    if not folders or file.suffix not in (".md", ".csv", ".tex", ".json"):
        raise ValueError(
            f"{file} is no table of a record and no sidecar of a figure; name one, as {_EXAMPLE}"
        )
    if file.stem not in known:
        raise ValueError(f"{file}: a record has no such page{hint(file.stem, known)}")
    return folders[0]


def _traced(path: Path, summary: Summary, cell: Cell, rows: Rows) -> Trace:
    assert cell.raw is not None
    found = [row for row in records(rows(summary)) if _agrees(row, cell.raw)]
    unrounded = _value(found, cell.raw)
    if unrounded is None:
        raise ValueError(f"{path}, {cell.line}: no number stands there, but {cell.committed!r}")
    runs = {id(run): run for row in found for run in runs_behind(summary, row)}
    if not runs:
        why = "; the trials of a search gave it: see search.json" if path.stem == "tuning" else ""
        raise ValueError(f"{path}, {cell.line}: no run stands behind {cell.committed!r}{why}")
    seeds = sorted({run["seed"] for run in runs.values()})
    alone = {seed: Selected(summary, partial(_has_seed, seed)) for seed in seeds}
    return Trace(
        file=path.as_posix(),
        line=cell.line,
        experiment=summary.experiment,
        committed=cell.committed,
        recomputed=cell.recomputed,
        of=cell.raw.column,
        where=dict(cell.raw.row),
        unrounded=unrounded,
        seeds={
            seed: _value([r for r in records(rows(one)) if _agrees(r, cell.raw)], cell.raw)
            for seed, one in alone.items()
        },
        runs=[facts_of(summary, run) for run in runs.values()],
    )


def _has_seed(seed: int, run: Mapping[str, Any]) -> bool:
    return bool(run["seed"] == seed)


def _agrees(row: dict[str, Any], raw: Raw) -> bool:
    return all(row.get(name) == value for name, value in raw.row.items())


def _value(rows: list[dict[str, Any]], raw: Raw) -> Any:
    """The mean over the rows of a number; what a single row says of anything else."""
    values = [value for row in rows if (value := row.get(raw.column)) is not None]
    if not values:
        return None
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return sum(values) / len(values)
    return values[0]
