"""Parts of a data set: tables of labels and encoded images, from files or from the hub.

A folder of images is a table of their paths, so that all origins are read alike.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from fedsdg.next_data.files import choose_splits, files_below, find_folder, split_files
from fedsdg.next_data.sources import Source

Cell = str | int | None
# Types of columns as pyarrow writes them: texts or whole numbers, and encoded images.
_PLAIN = re.compile(r"(dictionary<values=)?(large_)?(string|u?int|bool).*")
_ENCODED = re.compile(r"(large_)?binary|struct<.*\bbytes: (large_)?binary.*")


class Part(NamedTuple):
    """Rows of one file, one folder of images, or one split on the hub."""

    where: str
    "file or folder"
    test: bool
    "whether the rows are test samples"
    table: pa.Table
    "columns of texts and whole numbers, and the images: encoded, or their paths"


def read_parts(source: Source) -> tuple[list[Part], list[Path]]:
    """Read a data set from its folder, else from the hub.

    Returns:
        The parts, training first, and the files that do not belong to the data set.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: The files differ from the declaration, or a file is damaged.
    """
    place = find_folder(source)
    if place is None:
        return _hub_parts(source), []
    files = files_below(place)
    tables = [file for file in files if file.suffix == ".parquet"]
    used = tables or [file for file in files if _is_image(file)]
    if not used:
        raise FileNotFoundError(f"{place} has no parquet files and no images that Pillow can read")
    found = split_files(source, place, used) if place.is_dir() else [(place, False)]
    ignored = sorted(set(files) - {file for file, _ in found})
    if tables:
        return [_parquet_part(source, file, test) for file, test in found], ignored
    return _image_parts(source, place, found, ignored), ignored


def plain_columns(source: Source, parts: Sequence[Part]) -> list[str]:
    """Return the columns of texts or whole numbers that all parts have, without that of images."""
    shared = set.intersection(*(_names_of(part.table.schema, _PLAIN) for part in parts))
    return sorted(shared - {source.image})


def _names_of(schema: pa.Schema, types: re.Pattern[str]) -> set[str]:
    return {column.name for column in schema if types.fullmatch(str(column.type))}


def cells_of(part: Part, column: str, *, empty: bool) -> tuple[list[Cell], list[str]]:
    """Return the cells of a column, and the names of its classes that the hub's library has stored.

    Numbers of named classes become their names, so the same name is the same class in all files; a
    negative one means that there is no label.

    Args:
        part: Part of a data set.
        column: Name of a column.
        empty: Whether a cell may be empty, or a number without a name.

    Raises:
        ValueError: A cell is empty or has no name, but may not.
    """
    stored = json.loads((part.table.schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = stored.get("info", {}).get("features", {}).get(column, {})
    names = dict(enumerate(feature.get("names") or ()))
    given = part.table.column(column).to_pylist()
    cells = [names.get(cell) if names and isinstance(cell, int) else cell for cell in given]
    if None in cells and not empty:
        row = cells.index(None)
        problem = f"column {column!r} is {given[row]}, which is no label"
        raise ValueError(f"{part.where}, row {row}: {problem}; correct it, or remove the row")
    return cells, list(names.values())


def encoded_images(source: Source, parts: Sequence[Part]) -> Iterator[tuple[str, bytes]]:
    """Yield the file of each image, with the row in it, and the bytes; none if it is missing."""
    for part in parts:
        for row, scalar in enumerate(part.table.column(source.image)):
            cell = scalar.as_py()
            if isinstance(cell, str):
                yield cell, Path(cell).read_bytes() if Path(cell).exists() else b""
            else:
                content = cell["bytes"] if isinstance(cell, dict) else cell
                yield f"{part.where}, row {row}", content or b""


def _parquet_part(source: Source, file: Path, test: bool) -> Part:
    try:
        # ParquetFile, not read_table, which would read folders such as a=b as columns.
        with pq.ParquetFile(file) as parquet:
            table = parquet.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} is truncated or no parquet file; restore it") from error
    return _checked(source, Part(str(file), test, table))


def _hub_parts(source: Source) -> list[Part]:
    try:
        import datasets

        owner, name, *subset = str(source.hub).split("/")
        bundle: Any = datasets.load_dataset(f"{owner}/{name}", *subset)
    except Exception as error:  # not installed, or one of many unrelated types when offline
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"data set {source.name!r} is not on the hub as {source.hub!r} ({reason}); check the "
            f"network, or put its parquet files into a folder {source.name} in $FEDSDG_DATA"
        ) from error
    splits = choose_splits(source, list(bundle), str(source.hub))
    parts = []
    for split in splits or bundle:
        # As arrow, images stay encoded.
        table = bundle[split].with_format("arrow")[:]
        table = table.replace_schema_metadata(bundle[split].features.arrow_schema.metadata)
        part = Part(f"{source.hub} ({split})", split in splits[1:], table)
        parts.append(_checked(source, part))
    return parts


def _checked(source: Source, part: Part) -> Part:
    """Check that the columns of labels and images are usable."""
    schema = part.table.schema
    for key, types in (("label", _PLAIN), ("image", _ENCODED)):
        name = getattr(source, key)
        if name not in _names_of(schema, types):
            there = ", ".join(f"{column.name} ({column.type})" for column in schema)
            raise ValueError(f"{part.where}: no column {name!r} of {key}s ({there}); set {key!r}")
    return part


# --- Folders of images ----------------------------------------------------------------------------


def _image_parts(
    source: Source, place: Path, found: Sequence[tuple[Path, bool]], ignored: Sequence[Path]
) -> list[Part]:
    """Return a part for each folder of [train|test/]CLASS/image, with the paths of its images."""
    roots = {place, place / (source.train or "train"), place / (source.test or "test")}
    members: dict[tuple[Path, bool], list[str]] = defaultdict(list)
    for file, test in found:
        if file.parent in roots or file.parent.parent not in roots:
            raise ValueError(f"{file} is misplaced; store all images as [train|test/]CLASS/image")
        members[file.parent, test].append(str(file))
    classes = {folder for folder, _ in members}
    parents = {folder.parent for folder in classes}
    for file in ignored:
        if file.parent not in classes | roots and file.parent.parent in parents:
            raise ValueError(
                f"the class folder {file.parent} has no image that Pillow can read, but {file.name}"
                "; convert its files to PNG or JPEG, or remove the folder"
            )
    parts = []
    for (folder, test), paths in members.items():
        table = pa.table({source.label: [folder.name] * len(paths), source.image: paths})
        parts.append(Part(str(folder), test, table))
    return parts


def _is_image(file: Path) -> bool:
    """Return whether a file is an image by its suffix or its content.

    A damaged or missing file with the suffix of an image is one: decoding says what is wrong.
    """
    if Image.registered_extensions().get(file.suffix.lower()) in Image.OPEN:
        return True
    try:
        Image.open(file).close()
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        return not isinstance(error, UnidentifiedImageError)
    return True
