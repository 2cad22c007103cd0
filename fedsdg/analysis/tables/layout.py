"""Tables before they are written: views arranged as captioned blocks of cells, and raw numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import CUT, MISSING, few_seeds, is_cut, percent
from fedsdg.analysis.frames import records
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title, natural_order
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.clients import CREDITS

Row = Mapping[str, Any]

#: Columns of a view that identify its rows; all others hold numbers.
IDENTITY = (
    *("dataset", "clients", "skew", "scenario", "attack", "share", "method", "rival"),
    *("key", "type", "others", "value", "metric", "at", "measure", "yardstick"),
)
#: Column -> the printed form of its values; values of other columns are printed unchanged.
_TITLES: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(("method", "type", "rival"), method_title),
    "measure": lambda measure: CREDITS[measure].partition(" (")[0],
}
#: Column -> the sorting key of a block's lines; without one they keep the order of appearance.
_ORDERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("method", "type", "rival"), method_order),
    "scenario": natural_order,
    "measure": list(CREDITS).index,
    "others": str,
}


@dataclass(frozen=True)
class Raw:
    """The unrounded source of a printed number: a column of ``Table.raw`` and some of its rows.

    ``row`` maps columns to values; the number is the mean over the rows that have these values.
    """

    column: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A cell as text, the best of a column in bold; ``raw`` names the source of a number."""

    text: str
    bold: bool = False
    raw: Raw | None = field(default=None, compare=False, repr=False)

    def of(self, column: str, row: Mapping[str, Any]) -> Entry:
        """Return this cell with the source of its number.

        Args:
            column: A column of ``Table.raw``.
            row: Columns and the values that select the rows.
        """
        return replace(self, raw=Raw(column, row))


@dataclass(frozen=True)
class Block:
    """Rows under one header. A column with a group shares a spanning heading with its neighbours.

    ``columns`` are (group, heading); the first column holds the names of the rows.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Entry, ...], ...]

    def __post_init__(self) -> None:
        """Refuse rows that are longer or shorter than the header."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"block '{self.title}': a row of {len(row)} cells under "
                    f"{len(self.columns)} columns"
                )


@dataclass(frozen=True)
class Table:
    """A table ready to be written; ``raw`` holds the numbers unrounded, units in names."""

    name: str
    caption: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    raw: pd.DataFrame


@dataclass(frozen=True)
class Column:
    """A column of a block that is made from a view: ``text`` prints a row of the view.

    ``raw`` is the number's column in ``Table.raw``, None for text; ``where`` selects the rows of
    the view that this column shows.
    """

    heading: str
    text: Callable[[Row], str]
    raw: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


def number(name: str, heading: str, show: Callable[[float], str], group: str = "") -> Column:
    """Return a column that prints a number of a view.

    Args:
        name: The number's column in the view and in ``Table.raw``.
        heading: The column's heading in print.
        show: Prints the number; a missing one is printed as such.
        group: A heading that the column shares with its neighbours.
    """

    def text(row: Row) -> str:
        return MISSING if row[name] is None else show(row[name])

    return Column(heading, text, name, group=group)


def share(row: Row) -> str:
    """Mean ± half-width in percent, of ``low`` to ``high`` where seeds suffice for an interval."""
    return percent(row["mean"], row["high"] - row["mean"] if row["n"] >= SHOWN_FROM else None)


def ranked(summary: Summary) -> Callable[[Row], float | None]:
    """Return the function that ranks the rows of a column: by mean, ceilings left out."""

    def mean(row: Row) -> float | None:
        return None if summary.roles.is_ceiling(row["method"]) else row["mean"]

    return mean


def pivot(
    title: str,
    view: pd.DataFrame,
    lines: Mapping[str, str],
    columns: Sequence[Column],
    best: Callable[[Row], float | None] | None = None,
) -> Block:
    """Arrange rows of a view as a block.

    Args:
        title: The title of the block.
        view: One row for each cell, or for each line where the columns print numbers of one row.
        lines: The identity columns that distinguish the lines, and their headings.
        columns: The columns to the right of them.
        best: The share whose highest value in each column is bold; None does not compete.

    Returns:
        A block whose cells carry the identity of their row as the source of the number.
    """
    identity = [name for name in IDENTITY if name in view]
    by_line: dict[tuple[Any, ...], list[Row]] = {}
    for row in records(view):
        by_line.setdefault(tuple(row[name] for name in lines), []).append(row)
    seen = {name: list(view[name].unique()) for name in lines}

    def order(line: tuple[Any, ...]) -> list[Any]:
        keys = zip(lines, line, strict=True)
        return [_ORDERS.get(name, seen[name].index)(value) for name, value in keys]

    ordered = sorted(by_line, key=order)
    filled = []
    for column in columns:
        cells = [_matching(by_line[line], column.where) for line in ordered]
        entries = [_entry(row, column, identity) for row in cells]
        if best is not None:
            values = [None if row is None else best(row) for row in cells]
            entries = mark_best(entries, values)
        filled.append(entries)
    names = [
        [Entry(_TITLES.get(name, str)(value)) for name, value in zip(lines, line, strict=True)]
        for line in ordered
    ]
    heads = [("", heading) for heading in lines.values()]
    heads += [(column.group, column.heading) for column in columns]
    rows = [(*leading, *(entries[i] for entries in filled)) for i, leading in enumerate(names)]
    return Block(title, tuple(heads), tuple(rows))


def _matching(rows: Sequence[Row], where: Row) -> Row | None:
    matching = (row for row in rows if all(row[name] == value for name, value in where.items()))
    return next(matching, None)


def _entry(row: Row | None, column: Column, identity: Sequence[str]) -> Entry:
    if row is None:
        return Entry(MISSING)
    entry = Entry(column.text(row))
    return entry.of(column.raw, {name: row[name] for name in identity}) if column.raw else entry


def mark_best(entries: Sequence[Entry], values: Sequence[float | None]) -> list[Entry]:
    """Return the entries of a column, bold where the value prints like the highest.

    Args:
        entries: The cells.
        values: The shares that they stand for; None does not compete.
    """
    shown = [None if value is None else round(100 * value, 1) for value in values]
    best = max((value for value in shown if value is not None), default=None)
    return [
        replace(entry, bold=value is not None and value == best)
        for entry, value in zip(entries, shown, strict=True)
    ]


def block(
    title: str, heads: Sequence[str | tuple[str, str]], lines: Sequence[Sequence[str | Entry]]
) -> Block:
    """A block whose cells are given, row by row.

    Args:
        title: The title of the block.
        heads: The headings of the columns, each alone or as (group, heading).
        lines: The cells of each row; a text alone is neither bold nor has a source.
    """
    columns = tuple(("", head) if isinstance(head, str) else head for head in heads)
    rows = tuple(
        tuple(cell if isinstance(cell, Entry) else Entry(cell) for cell in line) for line in lines
    )
    return Block(title, columns, rows)


def table_of_views(
    summary: Summary,
    name: str,
    caption: str,
    blocks: Sequence[Block],
    raw: pd.DataFrame,
    notes: Sequence[str] = (),
    without: str = "",
) -> Table:
    """A table whose caption ends with the hyper-parameters of the runs.

    Args:
        summary: The experiment.
        name: The name of the table.
        caption: Its caption, without a full stop.
        blocks: Its blocks.
        raw: Its numbers unrounded.
        notes: Its notes.
        without: The only note of a table without blocks.
    """
    caption = f"{caption}. {hyperparameters(summary.runs)}"
    if not blocks:
        blocks, notes = [block("", ["Method"], [])], [without]
    return Table(name, caption, tuple(blocks), tuple(notes), raw)


def table_of_means(
    summary: Summary,
    name: str,
    caption: str,
    blocks: Sequence[Block],
    view: pd.DataFrame,
    without: str,
) -> Table:
    """A table of reported accuracies, with the notes on their intervals.

    Args:
        summary: The experiment.
        name: The name of the table.
        caption: Its caption; ``{round}`` stands for the title of the reported round.
        blocks: Its blocks.
        view: Its means over seeds with the ends of their intervals, shares of 1.
        without: The only note of a table without blocks.
    """
    caption = caption.format(round=summary.rounds[summary.reported])
    raw = view.rename(columns={name: f"{name} (share)" for name in ("mean", "low", "high")})
    notes = interval_notes(summary, view["n"], blocks)
    return table_of_views(summary, name, caption, blocks, raw, notes, without)


def interval_notes(
    summary: Summary, counts: Sequence[int] | pd.Series, blocks: Sequence[Block]
) -> list[str]:
    """The notes on intervals: few seeds, cut ends, and methods that had not settled.

    Args:
        summary: The experiment.
        counts: Numbers of seeds that means were taken over.
        blocks: The blocks that show the intervals.
    """
    entries = [entry for one in blocks for row in one.rows for entry in row]
    cut = any(entry.raw is not None and is_cut(entry.text) for entry in entries)
    return [*few_seeds(counts, SHOWN_FROM), *([CUT] if cut else []), *horizon_notes(summary)]
