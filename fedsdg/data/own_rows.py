"""The rows of one's own data set: what its columns hold, and its images as they are encoded.

From parquet files, from a folder of images, or from the hub. Columns are read by themselves, so
that samples can be counted without an image being read.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.data.own_data import OwnData
from fedsdg.data.stored_images import MissingColumnError, check_shards, first_line

#: Files of a folder that are images; others are passed over.
SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
#: Says for images of a folder what their path does not, as on the Hugging Face hub.
METADATA = "metadata.csv"
_FOLDER_VARIABLE = "FEDSDG_DATA"

Cell = str | int | None


@dataclass(frozen=True)
class Rows:
    """n samples, those for training first.

    ``columns``: values [n] of every column of texts or whole numbers, None where a cell is empty.
    ``names``: of columns whose numbers stand for names, these names.
    ``found``: all columns, for whoever asks for one that there is not.
    ``test`` [n]: True for the samples of a test split; all False where there is none.
    ``encoded``: gives the n images as stored, in this order, each with where it is.
    ``domain``: the column that holds the domains, None where there are none.
    ``left_out``: splits and files that are not among the samples.
    """

    columns: Mapping[str, Sequence[Cell]]
    found: Sequence[str]
    test: np.ndarray
    encoded: Callable[[], Iterator[tuple[str, bytes]]]
    domain: str | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_rows(own: OwnData) -> Rows:
    """The rows of a data set as its declaration says.

    Raises FileNotFoundError where there is nothing, ValueError where it is not as declared.
    """
    if own.hub is not None:
        return _from_hub(own)
    place = find_folder(own)
    files = [place] if place.is_file() else sorted(place.rglob("*.parquet"))
    return _from_parquet(own, place, files) if files else _from_images(own, place)


def find_folder(own: OwnData) -> Path:
    """The folder, relative to the working directory, or else to $FEDSDG_DATA."""
    assert own.folder is not None
    given = Path(own.folder).expanduser()
    places = [given, *(Path(root) / given for root in [os.environ.get(_FOLDER_VARIABLE)] if root)]
    for place in places:
        if place.is_dir() or (place.suffix == ".parquet" and place.is_file()):
            return place
    tried = " nor ".join(map(str, places))
    raise FileNotFoundError(
        f"data set {own.name!r}: there is no folder {tried}; name it in datasets as folder: PATH"
    )


def listing(own: OwnData) -> str:
    """A hash of which files there are and of their sizes, without reading them.

    Of a set of the hub, of its name.
    """
    digest = hashlib.sha256(str(own.hub).encode())
    if own.hub is None:
        place = find_folder(own)
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        for file in files:
            digest.update(f"{file.relative_to(place)} {file.stat().st_size}\0".encode())
    return digest.hexdigest()


def _chosen(own: OwnData, there: Sequence[str], where: str, alone: bool) -> list[str]:
    """The training split and, if any, the test split, of the names that are there.

    ``alone``: whether all is training where there is neither.
    """
    train, test = own.train or "train", own.test or "test"
    known = f"there are {', '.join(there)}" if there else "there is none"
    if train not in there:
        if alone and own.train is None and own.test is None and test not in there:
            return []
        raise ValueError(
            f"data set {own.name!r}: {where} has no split {train!r}, {known}; "
            "name them as split: {train: …, test: …}"
        )
    if own.test is not None and test not in there:
        raise ValueError(
            f"data set {own.name!r}: {where} has no split {test!r}, {known}; leave the test split "
            "out, and one is drawn"
        )
    # A single split that is named is all that is wanted.
    wanted = [train] if own.train is not None and own.test is None else [train, test]
    return [name for name in wanted if name in there]


# --- Tables ---------------------------------------------------------------------------------------


def _from_parquet(own: OwnData, place: Path, files: Sequence[Path]) -> Rows:
    check_shards(list(files))
    names = [own.train or "train", own.test or "test"]
    there = [name for name in names if any(file.name.startswith(name) for file in files)]
    there += [file.stem for file in files if not file.name.startswith(tuple(names))]
    split = _chosen(own, there, str(place), alone=True)
    if not split:
        parts = [("", file) for file in files]
    else:
        parts = [(name, f) for name in split for f in files if f.name.startswith(name)]
    tables, schemas = [], []
    for _, file in parts:
        schema, table = _columns_of(own, file)
        schemas.append(schema)
        tables.append(table)
    test = np.repeat([name == names[1] for name, _ in parts], [t.num_rows for t in tables])

    def encoded() -> Iterator[tuple[str, bytes]]:
        for _, file in parts:
            with pq.ParquetFile(file) as parquet:
                batches = parquet.iter_batches(batch_size=1024, columns=[own.image])
                yield from _images(own, str(file), batches)

    taken = {file for _, file in parts}
    return Rows(
        columns=_joined(own, tables, [str(file) for _, file in parts]),
        found=schemas[0].names,
        test=test,
        encoded=encoded,
        domain=own.domain,
        names=_class_names(schemas[0]),
        left_out=tuple(str(f.relative_to(place)) for f in files if f not in taken),
    )


def _columns_of(own: OwnData, file: Path) -> tuple[pa.Schema, pa.Table]:
    """The schema of a file, and its columns that can be told apart by value."""
    try:
        with pq.ParquetFile(file) as parquet:
            schema = parquet.schema_arrow
            require_columns(own, str(file), schema.names)
            return schema, parquet.read(columns=[f.name for f in schema if _is_plain(f.type)])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} is truncated or not a parquet file: fetch it again ({first_line(error)})"
        ) from error


def require_columns(own: OwnData, source: str, found: Sequence[str]) -> None:
    """Raises ValueError for a column that is declared and not found, with those that are."""
    for key in ("image", "label", "domain"):
        column = getattr(own, key)
        if column is not None and column not in found:
            raise MissingColumnError(
                f"{source} has no column {column!r}, which datasets: {own.name}.{key} names; "
                f"its columns are {', '.join(map(repr, found))}"
            )


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        test(kind)
        for test in (
            pa.types.is_integer,
            pa.types.is_boolean,
            pa.types.is_string,
            pa.types.is_large_string,
        )
    )


def _joined(own: OwnData, tables: Sequence[pa.Table], sources: Sequence[str]) -> dict[str, Any]:
    """The columns that all tables have, one after another."""
    shared = [n for n in tables[0].column_names if all(n in t.column_names for t in tables)]
    for key in ("label", "domain"):
        column = getattr(own, key)
        if column is None or column in shared:
            continue
        source = next(
            s for s, t in zip(sources, tables, strict=True) if column not in t.schema.names
        )
        raise ValueError(
            f"{source}: column {column!r} must hold texts or whole numbers to be the {key}; choose "
            f"another as datasets: {own.name}.{key}"
        )
    return {
        name: list(itertools.chain.from_iterable(t.column(name).to_pylist() for t in tables))
        for name in shared
    }


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, where the file was written by the hub's library."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            column: tuple(map(str, about["names"]))
            for column, about in described.items()
            if isinstance(about, dict) and about.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError):
        return {}


def _images(
    own: OwnData, source: str, batches: Iterator[pa.RecordBatch | pa.Table]
) -> Iterator[tuple[str, bytes]]:
    row = 0
    for batch in batches:
        column = batch.column(own.image)
        kind = column.type
        if pa.types.is_struct(kind) and "bytes" in {entry.name for entry in kind}:
            cells = [cell and cell["bytes"] for cell in column.to_pylist()]
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            cells = column.to_pylist()
        else:
            raise ValueError(
                f"{source}: column {own.image!r} must hold encoded images (bytes, or a struct with "
                f"'bytes'), found {kind}; choose another as datasets: {own.name}.image"
            )
        for cell in cells:
            yield f"{source}, row {row}", cell or b""
            row += 1


def _from_hub(own: OwnData) -> Rows:
    assert own.hub is not None
    owner, name, *subset = own.hub.split("/")
    try:
        import datasets

        bundle: Any = datasets.load_dataset(f"{owner}/{name}", *subset)
    except Exception as error:  # not installed, or one of many unrelated types when offline
        reason = first_line(error) or type(error).__name__
        raise FileNotFoundError(
            f"data set {own.name!r} could not be fetched from the hub as {own.hub!r} ({reason}): "
            "check the network, or fetch its parquet files elsewhere and name their folder as "
            "folder: PATH"
        ) from error
    there = list(map(str, bundle))
    split = _chosen(own, there, own.hub, alone=False)
    sources = [f"{own.hub} ({one})" for one in split]
    tables, described = [], {}
    for one, source in zip(split, sources, strict=True):
        part = bundle[one]
        require_columns(own, source, part.column_names)
        schema = part.features.arrow_schema
        plain = [entry.name for entry in schema if _is_plain(entry.type)]
        tables.append(part.select_columns(plain).with_format("arrow")[:])
        described = {
            column: tuple(about.names)
            for column, about in part.features.items()
            if isinstance(about, datasets.ClassLabel)
        }

    def encoded() -> Iterator[tuple[str, bytes]]:
        for one, source in zip(split, sources, strict=True):
            # As arrow, images stay encoded.
            part = bundle[one].select_columns([own.image]).with_format("arrow")
            yield from _images(own, source, part.iter(batch_size=1024))

    test = own.test or "test"
    return Rows(
        columns=_joined(own, tables, sources),
        found=bundle[split[0]].column_names,
        test=np.repeat([one == test for one in split], [t.num_rows for t in tables]),
        encoded=encoded,
        domain=own.domain,
        names=described,
        left_out=tuple(one for one in there if one not in split),
    )


# --- Folders of images ----------------------------------------------------------------------------


def _from_images(own: OwnData, place: Path) -> Rows:
    """``[train|test/][DOMAIN/]CLASS/image``; what the path does not say, ``metadata.csv`` may."""
    files = sorted(
        file
        for file in place.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(place).parts)
    )
    if not files:
        raise FileNotFoundError(
            f"data set {own.name!r}: {place} holds neither parquet files nor images "
            f"({', '.join(sorted(SUFFIXES))})"
        )
    tops = sorted({file.relative_to(place).parts[0] for file in files if file.parent != place})
    split = _chosen(own, tops, str(place), alone=True)
    roots = [place / name for name in split] or [place]
    parts = [(root, file) for root in roots for file in files if file.is_relative_to(root)]
    if not parts:
        raise FileNotFoundError(f"data set {own.name!r}: {roots[0]} holds no images")
    levels = _levels(own, parts)
    more = _metadata(own, place, [file for _, file in parts])
    columns: dict[str, Sequence[Cell]] = {**levels, **more}
    if not columns:
        raise ValueError(
            f"data set {own.name!r}: {parts[0][1]} lies in no folder of its class; let all images "
            f"lie as [train|test/][DOMAIN/]CLASS/image, or name their labels in a {METADATA}"
        )
    require_columns(own, str(place), [own.image, *columns])
    test = own.test or "test"

    def encoded() -> Iterator[tuple[str, bytes]]:
        for _, file in parts:
            yield str(file), file.read_bytes()

    return Rows(
        columns=columns,
        found=[own.image, *columns],
        test=np.array([bool(split) and root.name == test for root, _ in parts]),
        encoded=encoded,
        domain=own.domain or ("domain" if "domain" in levels else None),
        left_out=tuple(top for top in tops if split and top not in split),
    )


def _levels(own: OwnData, parts: Sequence[tuple[Path, Path]]) -> dict[str, list[Cell]]:
    """Columns by the folders that hold an image: ``label``, and ``domain`` above it."""
    above = [file.relative_to(root).parts[:-1] for root, file in parts]
    depth = len(above[0])
    for (_, file), names in zip(parts, above, strict=True):
        if len(names) != depth:
            raise ValueError(
                f"data set {own.name!r}: {parts[0][1]} and {file} lie at different depths; let all "
                "images lie as [train|test/][DOMAIN/]CLASS/image"
            )
    if depth > 2:
        raise ValueError(
            f"data set {own.name!r}: {parts[0][1]} lies {depth} folders deep; let all images lie "
            "as [train|test/][DOMAIN/]CLASS/image"
        )
    named = ("domain", "label")[2 - depth :]
    return {name: [names[i] for names in above] for i, name in enumerate(named)}


def _metadata(own: OwnData, place: Path, files: Sequence[Path]) -> dict[str, list[Cell]]:
    """Columns of the files ``metadata.csv``, whose ``file_name`` is relative to their folder."""
    tables = sorted(place.rglob(METADATA))
    if not tables:
        return {}
    said: dict[Path, dict[str, str]] = {}
    shared: list[str] | None = None
    for table in tables:
        try:
            with table.open(encoding="utf-8-sig", newline="") as text:
                reader = csv.DictReader(text, strict=True)
                rows, header = list(reader), list(reader.fieldnames or [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{table} cannot be read as a table of texts: {error}") from error
        if "file_name" not in header:
            raise ValueError(
                f"{table} has no column 'file_name'; its columns are "
                f"{', '.join(map(repr, header)) or 'none'}"
            )
        shared = [name for name in header if shared is None or name in shared]
        for row in rows:
            said[table.parent / row["file_name"]] = row
    for file in files:
        if file not in said:
            raise ValueError(f"{file} has no row in {METADATA}; add one, or remove the image")
    assert shared is not None
    wanted = [name for name in shared if name != "file_name"]
    return {name: [said[file][name] or None for file in files] for name in wanted}
