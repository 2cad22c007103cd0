"""Read labelled images from parquet files or from the Hugging Face hub.

Both give tables of encoded images (struct of ``bytes`` and ``path``) and labels, and share one
decoder. Local files are read by pyarrow directly, without the hub library's copy of the data in
its cache; that library need not be installed for them. From the hub the files lie in its cache
(``HF_HOME``).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedsdg.data.data_files import files_below
from fedsdg.data.encoded_images import FORMATS, UNREADABLE, require_8_bits
from fedsdg.data.splits import files_by_split, listed

if TYPE_CHECKING:
    from fedsdg.data.datasets import DatasetSpec


class Samples(NamedTuple):
    """images uint8 [n, H, W(, 3)], labels int64 [n], official_test bool [n]; training first.

    ``left_out``: files of the folder that belong to no split.
    """

    images: np.ndarray
    labels: np.ndarray
    official_test: np.ndarray
    left_out: tuple[str, ...] = ()


def read_folder(spec: DatasetSpec, folder: Path) -> Samples:
    """Read the parquet files of the splits ``train`` and ``test`` below a folder, sorted by path.

    Raises FileNotFoundError when files are missing, ValueError when one is corrupt or not as
    declared.
    """
    tables: dict[str, list[tuple[str, pa.Table]]] = {}
    files, left_out = split_files(spec, folder)
    for split, part in files.items():
        tables[split] = [(str(file), _read_table(spec, file)) for file in part]
    samples = _decode(spec, tables)
    # Arrow keeps the memory of the encoded images for later tables, of which there are none.
    tables.clear()
    pa.default_memory_pool().release_unused()
    return samples._replace(left_out=left_out)


def split_files(spec: DatasetSpec, folder: Path) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the parquet files of each split of a data set of the table, and those of none.

    Raises:
        FileNotFoundError: a split has no file, or lacks a shard.
        ValueError: a file belongs to both splits.
    """
    stored = [file for file in files_below(folder) if file.suffix == ".parquet"]
    found = files_by_split(folder, stored, _splits(spec))
    names = {file: str(file.relative_to(folder)) for file in stored}
    for split, files in found.items():
        if not files:
            there = listed(list(names.values()))
            raise FileNotFoundError(
                f"data set {spec.name!r}: {folder} has no {split}.parquet, no file of a folder "
                f"{split} and no {split}-00000-of-….parquet; it has {there or 'no parquet file'}"
            )
    taken = {file for files in found.values() for file in files}
    return found, tuple(name for file, name in names.items() if file not in taken)


def read_hub(spec: DatasetSpec) -> Samples:
    """Fetch the data set from the hub (or from the hub library's cache).

    Raises FileNotFoundError when it cannot be fetched, ValueError when it is not as declared.
    """
    assert spec.hub_id is not None
    try:
        import datasets

        bundle: Any = datasets.load_dataset(spec.hub_id)
    except Exception as error:  # not installed, or one of many unrelated types when offline
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FileNotFoundError(
            f"data set {spec.name!r} could not be fetched from the hub as {spec.hub_id!r} "
            f"({reason}): check the network, or put its parquet files into a folder "
            f"{spec.name!r} and set FEDSDG_DATA to the folder above it"
        ) from error
    tables: dict[str, list[tuple[str, pa.Table]]] = {}
    for split in _splits(spec):
        if split not in bundle:
            raise ValueError(
                f"{spec.hub_id} has no split {split!r}: found {', '.join(map(str, bundle))}"
            )
        source = f"{spec.hub_id} ({split})"
        part = bundle[split]
        _check_columns(spec, source, part.column_names)
        part = part.select_columns([spec.image_column, spec.label_column])
        # As arrow, images stay encoded: the hub's and local ones go through the same decoder.
        tables[split] = [(source, part.with_format("arrow")[:])]
    return _decode(spec, tables)


def _splits(spec: DatasetSpec) -> tuple[str, ...]:
    return ("train", "test") if spec.official_test else ("train",)


def _read_table(spec: DatasetSpec, file: Path) -> pa.Table:
    try:
        # Opened as a file: as a path, folder names such as `a=b` would be read as columns.
        with pq.ParquetFile(file) as parquet:
            _check_columns(spec, str(file), parquet.schema_arrow.names)
            return parquet.read(columns=[spec.image_column, spec.label_column])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} is truncated or not a parquet file: fetch it again ({first_line(error)})"
        ) from error


def _check_columns(spec: DatasetSpec, source: str, found: list[str]) -> None:
    for column in (spec.image_column, spec.label_column):
        if column not in found:
            # Not a ValueError from pyarrow: those mean a broken file.
            raise MissingColumnError(
                f"{source} has no column {column!r}, which {spec.name!r} is declared to have; "
                f"its columns are {', '.join(map(repr, found))}"
            )


class MissingColumnError(ValueError):
    """A declared column is not among the columns found."""


def _decode(spec: DatasetSpec, tables: dict[str, list[tuple[str, pa.Table]]]) -> Samples:
    total = sum(table.num_rows for parts in tables.values() for _, table in parts)
    shape: tuple[int, ...] = (spec.size, spec.size) + ((3,) if spec.channels == 3 else ())
    images = np.empty((total, *shape), dtype=np.uint8)
    labels = np.empty(total, dtype=np.int64)
    official_test = np.zeros(total, dtype=bool)
    at = 0
    for split, parts in tables.items():
        for source, table in parts:
            end = at + table.num_rows
            labels[at:end] = _labels(spec, source, table)
            official_test[at:end] = split == "test"
            _decode_into(images[at:end], spec, source, table.column(spec.image_column))
            at = end
    return Samples(images, labels, official_test)


def _labels(spec: DatasetSpec, source: str, table: pa.Table) -> np.ndarray:
    column = table.column(spec.label_column)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ValueError(
            f"{source}: column {spec.label_column!r} must hold whole numbers without gaps, "
            f"found {column.type} with {column.null_count} empty"
        )
    values = column.to_numpy()
    if len(values) and not (values.min() >= 0 and values.max() < spec.num_classes):
        raise ValueError(
            f"{source}: labels run from {values.min()} to {values.max()}, but {spec.name!r} is "
            f"declared to have {spec.num_classes} classes"
        )
    return values


def _decode_into(out: np.ndarray, spec: DatasetSpec, source: str, column: pa.ChunkedArray) -> None:
    kind = column.type
    if not pa.types.is_struct(kind) or "bytes" not in {field.name for field in kind}:
        raise ValueError(
            f"{source}: column {spec.image_column!r} must hold encoded images "
            f"(a struct with 'bytes'), found {kind}"
        )
    mode = "L" if spec.channels == 1 else "RGB"
    row = 0
    for chunk in column.chunks:
        for value in chunk.field("bytes"):
            content = value.as_py() or b""
            try:
                with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                    pixels = image if image.mode == mode else image.convert(mode)
                    found = np.asarray(pixels)
            except UNREADABLE as error:
                raise ValueError(
                    f"{source}: the image in row {row} cannot be decoded, the file is corrupt: "
                    "fetch it again"
                ) from error
            require_8_bits(f"{source}, row {row}", image, content)
            if found.shape != out.shape[1:]:
                height, width = found.shape[:2]
                raise ValueError(
                    f"{source}: the image in row {row} is {width}×{height} pixels, but "
                    f"{spec.name!r} is declared to be {spec.size}×{spec.size}"
                )
            out[row] = found
            row += 1


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line."""
    return str(error).strip().partition("\n")[0]
