"""The partition of a run: made once, kept in its file, and checked before it is used."""

import contextlib
from dataclasses import asdict
from functools import lru_cache

from fedsdg.data.datasets import ImageData
from fedsdg.data.partition import Partition
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.experiment.loading import Source, load_images
from fedsdg.experiment.material import Material, make_partition
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.configured import Task


@lru_cache(maxsize=1)
def loaded_images(source: Source) -> ImageData:
    """Return a data set; a process keeps it until it needs another."""
    return load_images(source)


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
        own_data = not isinstance(task.source, str)
        unchanged = not own_data or (
            partition.facts["dataset_sha256"] == loaded_images(task.source).sha256
        )
        if unchanged and not _differences(run, partition):
            return partition
    partition = make_partition(
        loaded_images(task.source), run.skew, run.seed, run.federation.clients, run.partition
    )
    write_partition(partition, task.partition)
    return partition


def partition_hash(task: Task) -> tuple[str, tuple[str, ...]]:
    """Return the SHA-256 of a run's partition, and notes on its data if they are the user's own."""
    sha256 = get_or_make(task).sha256
    own_data = not isinstance(task.source, str)
    notes = loaded_images(task.source).notes if own_data else ()
    return sha256, tuple(f"{task.run.dataset}: {note}" for note in notes)


def require_partition(run: RunConfig, material: Material, partition: Partition) -> None:
    """Check that a partition is the one that a run asks for.

    Raises:
        ValueError: It was made for another data set, or with other settings.
    """
    remedy = "delete it and make it again with 'fedsdg partition'"
    facts = partition.facts
    if facts["dataset_sha256"] != material.dataset_sha256:
        raise ValueError(
            f"the partition was made for another data set ({facts['dataset']}) than {run.dataset} "
            f"as it is now; {remedy}"
        )
    differences = _differences(run, partition)
    if differences:
        raise ValueError(
            f"the partition was made with {' and '.join(differences)} than the run wants; {remedy}"
        )


def _differences(run: RunConfig, partition: Partition) -> list[str]:
    """Return in which settings a partition is not the one that a run asks for."""
    made = {"test": "by-seed", **partition.facts, "clients": partition.num_clients}
    wanted = {
        "dataset": run.dataset,
        "skew": run.skew,
        "seed": run.seed,
        "clients": run.federation.clients,
        **asdict(run.partition),
    }
    return [
        f"another {key} ({made.get(key)}, not {value})"
        for key, value in wanted.items()
        if made.get(key) != value
    ]
