"""The partition of a run: made once, kept in its file, and checked before it is used."""

import contextlib

import numpy as np

from fedsdg.config.run import Run
from fedsdg.data.datasets import ImageData, global_test_set
from fedsdg.data.partition import Partition, partition_clients
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import Source
from fedsdg.experiment.material import load_images
from fedsdg.experiment.runs import Task


def get_or_make(task: Task) -> Partition:
    """Return the partition of a run: that of its file, or a new one, which is written there.

    The user's own data are looked at, since they may have changed.

    Raises:
        FileNotFoundError: The data set is not there.
        ValueError: No draw gives every client enough samples.
    """
    run = task.run
    with contextlib.suppress(FileNotFoundError, ValueError):  # none, or a damaged one
        partition = read_partition(task.partition)
        # Built-in data sets do not change, and hashing their images takes time.
        own_data = isinstance(task.source, Source)
        data_hash = (
            load_images(task.source).sha256 if own_data else partition.facts["dataset_sha256"]
        )
        if not _differences(run, partition, data_hash):
            return partition
    partition = draw(run, load_images(task.source))
    write_partition(partition, task.partition)
    return partition


def draw(run: Run, data: ImageData) -> Partition:
    """Divide a data set among the clients of a run.

    Args:
        run: The run.
        data: Its data set.

    Raises:
        ValueError: No draw gives every client enough samples.
    """
    clients = int(run.federation.clients)
    skew = parse_skew(run.skew)
    return partition_clients(data, clients, skew, run.partition_seed, run.partition)


def require_partition(run: Run, data: ImageData, partition: Partition) -> None:
    """Check that a partition is the one that a run asks for.

    Args:
        run: The run.
        data: Its data set.
        partition: As it was read.

    Raises:
        ValueError: It was made for another data set, with other settings, or with another test set
            than the fixed one of the data.
    """
    differences = _differences(run, partition, data.sha256)
    if run.partition.test == "fixed" and not differences:
        fixed = np.sort(global_test_set(data.labels, data.test))
        if not np.array_equal(partition.global_test(), fixed):
            differences.append("another test set")
    if differences:
        raise ValueError(
            f"the partition was made with {' and '.join(differences)} than the run wants; delete "
            "it and make it again with 'fedsdg partition'"
        )


def _differences(run: Run, partition: Partition, data_hash: str) -> list[str]:
    """Return in which settings a partition is not the one that a run asks for."""
    made = {"test": "by-seed", **partition.facts}
    expected = {
        "dataset": run.dataset,
        "dataset_sha256": data_hash,
        "skew": run.skew,
        "seed": run.partition_seed,
        "num_clients": run.federation.clients,
        **dict(run.partition),
    }
    return [
        f"another {key.replace('_', ' ')} ({made.get(key)}, not {value})"
        for key, value in expected.items()
        if made.get(key) != value
    ]
