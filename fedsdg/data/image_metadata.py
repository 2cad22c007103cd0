"""Tables ``metadata.csv`` beside images: what the path of an image does not say of it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

#: As on the Hugging Face hub.
METADATA = "metadata.csv"
_FILE_NAME = "file_name"


def read_metadata(tables: Sequence[Path], files: Sequence[Path]) -> dict[str, list[str | None]]:
    """Read the columns that all tables share, one cell for each image.

    Args:
        tables: paths of the tables, whose column ``file_name`` is relative to their folders.
        files: paths of the images.

    Returns:
        Cells by column, in the order of ``files``, None for an empty one.

    Raises:
        ValueError: a table cannot be read, names a column twice, has a row of another length than
            its header, or contradicts another row on an image; or an image has no row.
    """
    rows: dict[Path, tuple[str, dict[str, str]]] = {}
    shared: list[str] = []
    for number, table in enumerate(tables):
        header, lines = _read(table)
        shared = [name for name in header if number == 0 or name in shared]
        for where, row in lines:
            file = table.parent / row[_FILE_NAME]
            earlier, same = rows.setdefault(file, (where, row))
            for name in row.keys() & same.keys() - {_FILE_NAME}:
                if row[name] != same[name]:
                    raise ValueError(
                        f"{where} says that the {name} of {file} is {row[name]!r}, but {earlier} "
                        f"that it is {same[name]!r}; remove one of the two rows"
                    )
    for file in files:
        if tables and file not in rows:
            raise ValueError(f"{file} has no row in {METADATA}; add one, or remove the image")
    wanted = [name for name in shared if name != _FILE_NAME]
    return {name: [rows[file][1][name] or None for file in files] for name in wanted}


def _read(table: Path) -> tuple[list[str], Iterator[tuple[str, dict[str, str]]]]:
    """Return the header of a table, and its rows with where each stands."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            # An empty line is no row.
            lines = [(f"{table}, line {reader.line_num},", cells) for cells in reader if cells]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{table} cannot be read as a table of texts: {error}") from error
    if _FILE_NAME not in header:
        raise ValueError(
            f"{table} has no column {_FILE_NAME!r}; its columns are "
            f"{', '.join(map(repr, header)) or 'none'}"
        )
    for name in header:
        if header.count(name) > 1:
            raise ValueError(f"{table} has two columns {name!r}; rename or remove one of them")
    for where, cells in lines:
        if len(cells) != len(header):
            raise ValueError(
                f"{where} has {len(cells)} cells, but the header has {len(header)}; quote cells "
                "that hold a comma, and leave no cell out"
            )
    return header, ((where, dict(zip(header, cells, strict=True))) for where, cells in lines)
