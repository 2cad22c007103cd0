"""The partition of a run: made once, kept in its file, and compared before it is used."""

import contextlib

from fedsdg.config.run import Run
from fedsdg.data.datasets import ImageData
from fedsdg.data.partition import Partition, partition_clients
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.material import load_images
from fedsdg.experiment.runs import Task


def get_or_make(task: Task, data: ImageData | None = None) -> Partition:
    """Return the partition of a run: that of its file, or a new one, which is written there.

    Args:
        task: The run.
        data: Its data set, which must be that of the file; None: it is one that does not change,
            and hashing its images takes time.

    Raises:
        FileNotFoundError: The data set is not there.
        ValueError: No draw gives every client enough samples.
    """
    run = task.run
    expected = {
        "dataset": run.dataset,
        "skew": run.skew,
        "seed": run.partition_seed,
        "num_clients": run.federation.clients,
        **dict(run.partition),
    }
    if data is not None:
        expected["dataset_sha256"] = data.sha256
    with contextlib.suppress(FileNotFoundError, ValueError):  # none, or a damaged one
        partition = read_partition(task.partition)
        if expected.items() <= {"test": "by-seed", **partition.facts}.items():
            return partition
    partition = draw(run, data or load_images(task.source))
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
