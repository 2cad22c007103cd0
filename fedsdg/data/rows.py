"""Rows of a data set as they are stored, from parquet files, folders of images or the hub."""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageFile, UnidentifiedImageError

from fedsdg.data.datasets import Column
from fedsdg.data.files import choose_splits, files_below, find_folder
from fedsdg.data.sources import NUM_CLASSES, Source

# A file or a split on the hub, whether it is for testing, and its rows.
_Table = tuple[str, bool, pa.Table]
# Types of columns as pyarrow writes them: texts or whole numbers, and encoded images.
_PLAIN = re.compile(r"(dictionary<values=)?(large_)?(string|u?int|bool).*")
_ENCODED = re.compile(r"(large_)?binary|struct<.*\bbytes: (large_)?binary.*")
# train-00000-of-00002; older files of the hub have a hash behind the numbers.
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})(-[0-9a-f]{16})?$")
# A file that is named like this is an image, even if it is damaged.
_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


class Rows(NamedTuple):
    """The n samples of a data set before any image is decoded; lists have n entries."""

    where: list[str]
    "file of the image, and the row in it"
    test: np.ndarray
    "bool [n], whether the sample belongs to the test split"
    images: list[Any]
    "paths, or cells of a table: bytes, or structs that hold them"
    columns: dict[str, Column]
    "columns of texts or whole numbers"
    ignored: list[str]
    "files that do not belong to the data set"


def read_rows(source: Source) -> Rows:
    """Read the labels of a data set, and where its images are.

    Args:
        source: The declaration. Its folder is a set of tables if it has parquet files, else it
            holds images as [train|test/]CLASS/image.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: The files differ from the declaration, or a file is damaged.
    """
    root = find_folder(source)
    if root is None:
        return _table_rows(source, _hub_tables(source), [])
    files = files_below(root)
    parquet = [file for file in files if file.suffix == ".parquet"]
    if not parquet:
        return _folder_rows(source, root, files)
    tables = _parquet_tables(source, root, parquet)
    used = {where for where, _, _ in tables}
    return _table_rows(source, tables, [file for file in map(_text, files) if file not in used])


def content(image: Any) -> bytes:
    """Return the bytes of an entry of ``Rows.images``; none if the image is missing."""
    cell = image.read_bytes() if isinstance(image, Path) else image.as_py()
    return (cell["bytes"] if isinstance(cell, dict) else cell) or b""


def _text(path: Path) -> str:
    """Return a path as text; bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


# --- Tables ---------------------------------------------------------------------------------------


def _parquet_tables(source: Source, root: Path, files: Sequence[Path]) -> list[_Table]:
    """Read parquet files; their folders, and their names without numbers, can be splits."""
    # One file that is given alone has no names.
    below = {file: file.relative_to(root) for file in files}
    names = {f: {*b.parts[:-1], _SHARD.sub(r"\1", b.stem)} for f, b in below.items()}
    splits = choose_splits(source, set().union(*names.values()), str(root))
    used = {file: split for split in splits for file in files if split in names[file]}
    tables = []
    for file in used or files:
        try:
            # ParquetFile, not read_table, which would read folders such as a=b as columns.
            with pq.ParquetFile(file) as parquet:
                table = parquet.read()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{file} is truncated or no parquet file; restore it") from error
        tables.append((_text(file), used.get(file) == source.test, table))
    shards = [_SHARD.fullmatch(where.removesuffix(".parquet")) for where, _, _ in tables]
    counts = Counter(shard.group(1, 2) for shard in shards if shard)
    for (name, total), count in counts.items():
        if count != int(total):
            raise ValueError(f"there are {count} files {name}-*, not {int(total)}; fetch them")
    return tables


def _hub_tables(source: Source) -> list[_Table]:
    """Fetch the splits of a repository, as the ``datasets`` library reads them."""
    names = f"{source.hub}".split("/")
    try:
        import datasets

        bundle: Any = datasets.load_dataset("/".join(names[:2]), *names[2:])
    except Exception as error:  # not installed, or one of many unrelated types when offline
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"data set {source.name!r} could not be fetched from the hub as {source.hub!r} "
            f"({reason}): check the network, or put its parquet files into a folder "
            f"{source.name!r} and set FEDSDG_DATA to the folder above it"
        ) from error
    splits = choose_splits(source, list(bundle), f"{source.hub}")
    # In the table behind a split images are encoded.
    return [
        (f"{source.hub} ({split})", split in splits[1:], bundle[split].data.table)
        for split in splits or bundle
    ]


def _table_rows(source: Source, tables: Sequence[_Table], ignored: list[str]) -> Rows:
    """Join tables, with the columns that all of them have."""
    where: list[str] = []
    images: list[Any] = []
    test: list[bool] = []
    for file, is_test, table in tables:
        for key, types in (("label", _PLAIN), ("image", _ENCODED)):
            name = getattr(source, key)
            if name not in _columns_like(types, table):
                schema = ", ".join(f"{column.name} ({column.type})" for column in table.schema)
                raise ValueError(f"{file}: no column {name!r} of {key}s ({schema}); set {key!r}")
        where += [f"{file}, row {row}" for row in range(table.num_rows)]
        images += list(table.column(source.image))
        test += [is_test] * table.num_rows
    shared = set.intersection(*(_columns_like(_PLAIN, table) for _, _, table in tables))
    columns = {name: _numbered(source, tables, name) for name in sorted(shared - {source.image})}
    return Rows(
        where=where,
        test=np.array(test, dtype=bool),
        images=images,
        columns=columns,
        ignored=ignored,
    )


def _columns_like(types: re.Pattern[str], table: pa.Table) -> set[str]:
    """Return the columns of such a type; a name that two columns have is left out."""
    names = Counter(table.column_names)
    return {c.name for c in table.schema if types.fullmatch(str(c.type)) and names[c.name] == 1}


def _numbered(source: Source, tables: Sequence[_Table], name: str) -> Column:
    """Number the values of a column: first the named classes as declared, then others sorted.

    Files may number their classes differently, so numbers become names first; a number without a
    name is an empty cell.
    """
    cells: list[Any] = []
    values: list[Any] = []
    for _, _, table in tables:
        names = _class_names(table, name)
        given = table.column(name).to_pylist()
        cells += [names.get(cell) for cell in given] if names else given
        values = list(dict.fromkeys([*values, *names.values()]))
    if source.built_in and name == source.label and not values:
        values = list(range(NUM_CLASSES[source.name]))
    if len({type(value) for value in (*cells, *values)} - {type(None)}) > 1:
        raise ValueError(
            f"data set {source.name!r}: column {name!r} holds numbers in some rows, and texts or "
            "names of classes in others; store one kind in all files"
        )
    values += sorted(set(cells) - {None, *values})
    number = {value: code for code, value in enumerate(values)}
    codes = np.array([number.get(cell, -1) for cell in cells], dtype=np.int64)
    return Column(codes, tuple(map(str, values)))


def _class_names(table: pa.Table, column: str) -> dict[Any, str]:
    """Return the classes of a column by number, as the hub's library stores them with a table."""
    try:
        stored = json.loads(table.schema.metadata[b"huggingface"])
        return dict(enumerate(stored["info"]["features"][column]["names"]))
    except (LookupError, TypeError, ValueError):
        return {}


# --- Folders of images ----------------------------------------------------------------------------


def _folder_rows(source: Source, root: Path, files: Sequence[Path]) -> Rows:
    """Return a row for each image of [train|test/]CLASS/image."""
    folders = {file: file.relative_to(root).parts[:-1] for file in files if _is_image(file)}
    if not folders:
        raise FileNotFoundError(f"{root} has no parquet files and no images; see docs/own-data.md")
    top = {above[0] for above in folders.values() if above}
    splits = choose_splits(source, top, str(root))
    used = [f for f, above in folders.items() if not splits or (above and above[0] in splits)]
    for file in used:
        if len(folders[file]) != 1 + bool(splits):
            raise ValueError(
                f"{file} is misplaced; store all images as [train|test/]CLASS/image, or in a "
                "Parquet file with a column that says whose they are"
            )
    classes = {file.parent for file in used}
    parents = [root / split for split in splits] or [root]
    for folder in chain(*map(Path.iterdir, parents)):
        # Archives of macOS have a folder __MACOSX.
        if folder.is_dir() and folder not in classes and not folder.name.startswith((".", "__")):
            names = ", ".join(_text(file) for file in files_below(folder)[:3])
            raise ValueError(
                f"the class folder {folder} has no image that Pillow can read (it has "
                f"{names or 'no files'}); convert its files to PNG or JPEG, or remove the folder"
            )
    labels, codes = np.unique([_text(Path(file.parent.name)) for file in used], return_inverse=True)
    return Rows(
        where=[_text(file) for file in used],
        test=np.array([folders[file][0] == source.test for file in used]),
        images=used,
        columns={source.label: Column(codes, tuple(map(str, labels)))},
        ignored=[_text(file) for file in sorted(set(files) - set(used))],
    )


def _is_image(file: Path) -> bool:
    """Return whether Pillow knows a file, or its name says that it is an image."""
    if file.suffix.lower() in _SUFFIXES:
        return True
    try:
        with Image.open(file) as image:
            # Pillow identifies some formats, such as HDF5, but cannot decode them.
            return not isinstance(image, ImageFile.StubImageFile)
    except Exception as error:  # Decoding names the fault of a damaged image.
        return not isinstance(error, UnidentifiedImageError)
