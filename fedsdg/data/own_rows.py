"""The rows of one's own data set: what its columns hold, and its images as they are encoded.

From parquet files, from a folder of images, or from the hub. Columns are read by themselves, so
that samples can be counted without an image being read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.data.data_files import files_below, find_folder
from fedsdg.data.image_metadata import METADATA, read_metadata
from fedsdg.data.own_data import OwnData
from fedsdg.data.splits import all_names, choose_splits, files_by_split, require_all_shards
from fedsdg.data.stored_images import MissingColumnError, first_line

#: Files of a folder that are images; others are passed over.
SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)

Cell = str | int | None


@dataclass(frozen=True)
class Rows:
    """n samples, those for training first.

    ``columns``: values [n] of every column of texts or whole numbers, None where a cell is empty.
    ``names``: of columns whose numbers stand for names, these names.
    ``found``: all columns, for whoever asks for one that there is not.
    ``test`` [n]: True for the samples of a test split; all False where there is none.
    ``encoded``: gives the n images as stored, in this order.
    ``where``: gives the file of a row, and its number there where the file holds several.
    ``domain``: the column that holds the domains, None where there are none.
    ``left_out``: splits and files that are not among the samples.
    """

    columns: Mapping[str, Sequence[Cell]]
    found: Sequence[str]
    test: np.ndarray
    encoded: Callable[[], Iterator[bytes]]
    where: Callable[[int], str]
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
    if place.is_file():
        return _from_parquet(own, place.parent, [place])
    files = files_below(place)
    tables = [file for file in files if file.suffix == ".parquet"]
    return _from_parquet(own, place, tables) if tables else _from_images(own, place, files)


# --- Tables ---------------------------------------------------------------------------------------


def _from_parquet(own: OwnData, place: Path, files: Sequence[Path]) -> Rows:
    names = all_names(file.relative_to(place) for file in files)
    where = str(place if len(files) > 1 else files[0])
    split = choose_splits(own, names, where, pool=True)
    if split:
        found = files_by_split(place, files, split)
        parts = [(name, file) for name in split for file in found[name]]
    else:
        require_all_shards(files)
        parts = [("", file) for file in files]
    tables, schemas = [], []
    for _, file in parts:
        schema, table = _columns_of(own, file)
        schemas.append(schema)
        tables.append(table)
    counts = [table.num_rows for table in tables]

    def encoded() -> Iterator[bytes]:
        for _, file in parts:
            with pq.ParquetFile(file) as parquet:
                batches = parquet.iter_batches(batch_size=1024, columns=[own.image])
                yield from _images(own, str(file), batches)

    taken = {file for _, file in parts}
    sources = [str(file) for _, file in parts]
    return Rows(
        columns=_joined(own, tables, sources),
        found=schemas[0].names,
        test=np.repeat([name in split[1:] for name, _ in parts], counts),
        encoded=encoded,
        where=_place_in(sources, counts),
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
) -> Iterator[bytes]:
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
        yield from (cell or b"" for cell in cells)


def _place_in(sources: Sequence[str], counts: Sequence[int]) -> Callable[[int], str]:
    """Return a function that names the source of a row, and the row's number in it."""
    ends = np.cumsum(counts)

    def where(row: int) -> str:
        part = int(np.searchsorted(ends, row, side="right"))
        return f"{sources[part]}, row {row - ends[part] + counts[part]}"

    return where


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
    split = choose_splits(own, there, own.hub, pool=False)
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

    counts = [table.num_rows for table in tables]

    def encoded() -> Iterator[bytes]:
        for one, source in zip(split, sources, strict=True):
            # As arrow, images stay encoded.
            part = bundle[one].select_columns([own.image]).with_format("arrow")
            yield from _images(own, source, part.iter(batch_size=1024))

    return Rows(
        columns=_joined(own, tables, sources),
        found=bundle[split[0]].column_names,
        test=np.repeat([one in split[1:] for one in split], counts),
        encoded=encoded,
        where=_place_in(sources, counts),
        domain=own.domain,
        names=described,
        left_out=tuple(one for one in there if one not in split),
    )


# --- Folders of images ----------------------------------------------------------------------------


def _from_images(own: OwnData, place: Path, files: Sequence[Path]) -> Rows:
    """``[train|test/][DOMAIN/]CLASS/image``; what the path does not say, ``metadata.csv`` may."""
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not images:
        raise FileNotFoundError(
            f"data set {own.name!r}: {place} holds neither parquet files nor images "
            f"({', '.join(sorted(SUFFIXES))})"
        )
    tops = sorted({file.relative_to(place).parts[0] for file in images if file.parent != place})
    split = choose_splits(own, tops, str(place), pool=True)
    roots = [place / name for name in split] or [place]
    parts = [(root, file) for root in roots for file in images if file.is_relative_to(root)]
    levels = _levels(own, parts)
    chosen = [file for _, file in parts]
    more = read_metadata([file for file in files if file.name == METADATA], chosen)
    _require_agreement(own, chosen, levels, more)
    columns: dict[str, Sequence[Cell]] = {**levels, **more}
    if not columns:
        raise ValueError(
            f"data set {own.name!r}: {chosen[0]} lies in no folder of its class; let all images "
            f"lie as [train|test/][DOMAIN/]CLASS/image, or name their labels in a {METADATA}"
        )
    require_columns(own, str(place), [own.image, *columns])
    beside = [file.name for file in images if file.parent == place]
    return Rows(
        columns=columns,
        found=[own.image, *columns],
        test=np.array([root.name in split[1:] for root, _ in parts]),
        encoded=lambda: (file.read_bytes() for file in chosen),
        where=lambda row: str(chosen[row]),
        domain=own.domain or ("domain" if "domain" in levels else None),
        left_out=tuple(top for top in [*tops, *beside] if split and top not in split),
    )


def _require_agreement(
    own: OwnData,
    files: Sequence[Path],
    levels: Mapping[str, Sequence[Cell]],
    more: Mapping[str, Sequence[Cell]],
) -> None:
    """Check that no column of ``metadata.csv`` gives images another class than their folders."""
    for name in levels.keys() & more.keys():
        for file, folder, cell in zip(files, levels[name], more[name], strict=True):
            if cell != folder:
                raise ValueError(
                    f"{file} lies in the folder of the {name} {folder!r}, but {METADATA} says "
                    f"{name} {cell or ''!r}; rename that column, and name it as "
                    f"datasets: {own.name}.{name}, or correct it"
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
