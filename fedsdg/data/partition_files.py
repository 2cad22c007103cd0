"""Partitions as parquet files: one row per sample, the facts in the schema's metadata.

Columns ``sample`` int64, ``label`` int32, ``client`` int32 (−1: nobody's) and ``split``
(dictionary of strings). The metadata key ``fedsdg`` holds canonical JSON. Equal partitions give
equal bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.data.partition_record import (
    GLOBAL_TEST,
    LEFT_OUT,
    SPLITS,
    Natural,
    Partition,
    PartitionSpec,
    canonical_json,
)
from fedsdg.files import atomic_path

METADATA_KEY = b"fedsdg"
_COLUMNS = ("sample", "label", "client", "split")


def write_partition(partition: Partition, path: str | os.PathLike[str]) -> None:
    """Write a partition; the file appears whole or not at all."""
    path = Path(path)
    facts = partition.facts() | {
        "sizes": partition.sizes().tolist(),
        "class_counts": partition.class_counts().tolist(),
        "sha256": partition.sha256,
    }
    # Where nothing is left out files have the bytes that they had before anything could be.
    names = SPLITS if (partition.split == LEFT_OUT).any() else SPLITS[:LEFT_OUT]
    split = pa.DictionaryArray.from_arrays(
        pa.array(partition.split.astype(np.int8)), pa.array(names, type=pa.string())
    )
    table = pa.table(
        {
            "sample": pa.array(np.arange(len(partition.client), dtype=np.int64)),
            "label": pa.array(partition.label.astype(np.int32)),
            "client": pa.array(partition.client.astype(np.int32)),
            "split": split,
        }
    ).replace_schema_metadata({METADATA_KEY: canonical_json(facts)})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_partition(
    path: str | os.PathLike[str], *, expect_dataset_sha256: str | None = None
) -> Partition:
    """Read a partition and check it against the sha256 it carries.

    ``expect_dataset_sha256``: the hash of the data at hand (``ImageData.sha256``).

    Raises FileNotFoundError when there is no file, ValueError when it is truncated, altered, no
    partition, made for other data, or gives a client an image of the global test set.
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no partition at {path}: make it with `fedsdg partition`")
    remedy = "delete it and make it again with `fedsdg partition`"
    try:
        # ParquetFile, not read_table: the latter would read `seed~0` folders as columns.
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"partition {path} is truncated or not a parquet file: {remedy}"
        ) from error
    metadata = table.schema.metadata or {}
    if METADATA_KEY not in metadata or not set(_COLUMNS) <= set(table.column_names):
        raise ValueError(f"{path} is a parquet file but no partition: {remedy}")
    try:
        facts: dict[str, Any] = json.loads(metadata[METADATA_KEY])
        partition = _from_table(table, facts)
        held = np.flatnonzero((partition.split == GLOBAL_TEST) & (partition.client >= 0))
        altered = partition.digest() != partition.sha256 or (
            not len(held)  # Else a client has samples in a split that its sizes do not have.
            and (
                facts.get("sizes") != partition.sizes().tolist()
                or facts.get("class_counts") != partition.class_counts().tolist()
            )
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"partition {path} is not readable ({error!r}): {remedy}") from error
    if altered:
        raise ValueError(
            f"partition {path} does not match the sha256 it carries, it was altered: {remedy}"
        )
    if len(held):
        raise ValueError(
            f"partition {path} gives sample {held[0]} of the global test set to client "
            f"{partition.client[held[0]]}: {remedy}"
        )
    if expect_dataset_sha256 is not None and partition.dataset_sha256 != expect_dataset_sha256:
        raise ValueError(
            f"partition {path} was made for another data set than the one at hand: "
            f"{partition.dataset!r} with sha256 {partition.dataset_sha256[:12]}…, "
            f"not {expect_dataset_sha256[:12]}…; {remedy}"
        )
    return partition


def _from_table(table: pa.Table, facts: dict[str, Any]) -> Partition:
    if any(table.column(name).null_count for name in _COLUMNS):
        raise ValueError("it has empty cells")
    if not np.array_equal(table.column("sample").to_numpy(), np.arange(table.num_rows)):
        raise ValueError("its samples are not in order")
    for name in ("dataset", "dataset_sha256", "skew", "sha256"):
        if not isinstance(facts[name], str):
            raise ValueError(f"its {name} is no text")
    for name, count in (("client", facts["num_clients"]), ("label", facts["num_classes"])):
        numbers = table.column(name).to_numpy()
        least = -1 if name == "client" else 0  # Of nobody's samples.
        if len(numbers) and not least <= numbers.min() <= numbers.max() < count:
            raise ValueError(f"it has a {name} beyond the {count} there are")
    codes = {name: code for code, name in enumerate(SPLITS)}
    encoded = table.column("split").combine_chunks().dictionary_encode()
    names = np.array([codes[name] for name in encoded.dictionary.to_pylist()], dtype=np.int8)
    domains, natural = facts.get("client_domain"), facts.get("natural")
    return Partition(
        dataset=facts["dataset"],
        dataset_sha256=facts["dataset_sha256"],
        skew=facts["skew"],
        num_clients=facts["num_clients"],
        seed=facts["seed"],
        client=table.column("client").to_numpy().astype(np.int32),
        split=names[encoded.indices.to_numpy()],
        label=table.column("label").to_numpy().astype(np.int64),
        num_classes=facts["num_classes"],
        attempts=facts["attempts"],
        spec=PartitionSpec(
            scheme=facts["scheme"],
            min_samples=facts["min_samples"],
            min_test=facts["min_test"],
            retries=facts["retries"],
            fractions=tuple(facts["fractions"]),
            global_test=facts["global_test"],
            test=facts.get("test", "by-seed"),
        ),
        sha256=facts["sha256"],
        client_domain=None if domains is None else np.array(domains, dtype=np.int64),
        classes=tuple(facts.get("classes", ())),
        domains=tuple(facts.get("domains", ())),
        natural=natural and Natural(**{**natural, "names": tuple(natural["names"])}),
    )
