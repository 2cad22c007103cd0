"""What a table is before it is written: captioned blocks of cells, and the raw numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Raw:
    """Where a printed number stands unrounded: a column of ``Table.raw`` and what tells its rows.

    ``row`` are values of columns; the number is the mean over the rows that have them.
    """

    column: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One cell as text; the best of a column is bold. Of a number ``raw`` says where it is from."""

    text: str
    bold: bool = False
    raw: Raw | None = field(default=None, compare=False, repr=False)

    def of(self, column: str, row: Mapping[str, Any]) -> Entry:
        """The same cell with where its number stands unrounded."""
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
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"block '{self.title}': a row of {len(row)} cells under "
                    f"{len(self.columns)} columns"
                )


def block(title: str, heads: Sequence[str], lines: Sequence[Sequence[str | Entry]]) -> Block:
    """A block of plain text, without groups of columns and without bold."""
    rows = tuple(
        tuple(cell if isinstance(cell, Entry) else Entry(cell) for cell in line) for line in lines
    )
    return Block(title, tuple(("", head) for head in heads), rows)


@dataclass(frozen=True)
class Table:
    """A table ready to be written; ``raw`` holds the numbers unrounded, units in names."""

    name: str
    caption: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    raw: pd.DataFrame


def mark_best(columns: Sequence[Sequence[tuple[str, float | None]]]) -> list[list[Entry]]:
    """Entries of each column from (text, value); the highest value is bold.

    Values that print as the same number as the highest are bold too.
    """
    marked = []
    for column in columns:
        shown = [None if value is None else round(100 * value, 1) for _, value in column]
        best = max((value for value in shown if value is not None), default=None)
        marked.append(
            [
                Entry(text, bold=value is not None and value == best)
                for (text, _), value in zip(column, shown, strict=True)
            ]
        )
    return marked
