"""Partitions as parquet files: one row per sample, the facts in the schema's metadata.

Columns ``sample`` int64, ``label`` int32, ``client`` int32 (−1: of no client) and ``split``
(dictionary of strings). The metadata key ``fedsdg`` holds canonical JSON. Equal partitions give
equal bytes.
"""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.data.partition import LEFT_OUT, SPLITS, TEST, Partition
from fedsdg.files import atomic_path, canonical_json

METADATA_KEY = b"fedsdg"


def write_partition(partition: Partition, path: str | os.PathLike[str]) -> None:
    """Write a partition; the file appears complete or not at all."""
    sizes = partition.counts(partition.split, 3).tolist()
    classes = partition.counts(partition.label, partition.facts["num_classes"]).tolist()
    facts = {**partition.facts, "sizes": sizes, "class_counts": classes, "sha256": partition.sha256}
    # Without left-out samples files keep the bytes of records made before there could be any.
    names = SPLITS if (partition.split == LEFT_OUT).any() else SPLITS[:LEFT_OUT]
    columns = {
        "sample": np.arange(len(partition.client)),
        "label": partition.label.astype(np.int32),
        "client": partition.client,
        "split": pa.DictionaryArray.from_arrays(pa.array(partition.split), pa.array(names)),
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: canonical_json(facts)})
    with atomic_path(Path(path)) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_partition(path: str | os.PathLike[str], dataset_sha256: str | None = None) -> Partition:
    """Read a partition and check it against its hash.

    Args:
        path: The file.
        dataset_sha256: Hash of the data set at hand (``ImageData.sha256``); None: not compared.

    Raises:
        FileNotFoundError: There is no file.
        ValueError: The file is damaged, altered, no partition, made for other data, or gives a
            client a sample of the global test set.
    """
    remedy = "make it with `fedsdg partition`"
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no partition {path}: {remedy}")
    try:
        # ParquetFile, not read_table, which would read folders such as a=b as columns.
        with pq.ParquetFile(path) as file:
            table = file.read()
        facts = json.loads(table.schema.metadata[METADATA_KEY])
        sha256 = facts.pop("sha256")
        del facts["sizes"], facts["class_counts"]
        partition = Partition(
            client=table["client"].to_numpy().astype(np.int32),
            split=np.array([SPLITS.index(name) for name in table["split"].to_pylist()], np.int8),
            label=table["label"].to_numpy().astype(np.int64),
            facts=facts,
        )
        if (partition.client[partition.split > TEST] >= 0).any() or partition.sha256 != sha256:
            raise ValueError("it was altered, or gives a client the global test set")
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"partition {path} is damaged ({error}): {remedy} again") from error
    if dataset_sha256 not in (None, facts.get("dataset_sha256")):
        raise ValueError(f"partition {path} was made for other data than these: {remedy} again")
    return partition
