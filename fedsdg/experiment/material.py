"""What runs share: images, prepared for the model, the partition, and the frozen backbone."""

import contextlib
import itertools
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.run import Run
from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.partition import Partition, partition_clients
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.data.reading import load
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import Source, built_in
from fedsdg.experiment.runs import Task, task_of
from fedsdg.federation.tasks import Samples
from fedsdg.models import Backbone, CnnArchitecture, load_backbone


@dataclass(frozen=True)
class Material:
    """Images and backbone of runs on one data set."""

    data: ImageData
    "the images as they are read"
    pictures: Pictures
    "how a model takes them"
    samples: Samples
    "as a model takes them, on the device of the run"
    backbone: Backbone | None
    "None if all parameters are trained"

    @property
    def backbone_hash(self) -> str | None:
        """SHA-256 of the backbone."""
        return self.backbone.sha256 if self.backbone else None


@lru_cache(maxsize=1)
def load_images(source: str | Source) -> ImageData:
    """Load a data set; a process keeps it until it needs another.

    Args:
        source: A built-in name, that of a plugin's data set, or a description of one's own images.

    Raises:
        FileNotFoundError: There is nothing to load.
        ValueError: The data are not as they are described.
    """
    if isinstance(source, Source):
        return load(source)
    if source in plugins.DATASETS:
        return plugins.DATASETS[source]()
    return load(built_in(source))


@lru_cache(maxsize=1)
def load_material(source: str | Source, backbone: Path | None, device: str) -> Material:
    """Return images and backbone; a process keeps them until it needs others.

    Args:
        source: As for ``load_images``.
        backbone: The backbone's weights; None if all parameters are trained.
        device: "cpu" or "cuda".

    Raises:
        FileNotFoundError: There is nothing to load.
        ValueError: The data are not as they are described, or there is no such device.
    """
    frozen = None if backbone is None else load_backbone(backbone)
    return prepare_material(load_images(source), frozen, device)


def prepare_material(data: ImageData, backbone: Backbone | None, device: str) -> Material:
    """Bring images to the backbone's size, channels and normalisation.

    Without a backbone they keep their size and channels (see ``CnnArchitecture``).

    Args:
        data: The images.
        backbone: The frozen backbone, if there is one.
        device: "cpu" or "cuda".

    Raises:
        ValueError: There is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "training.device is cuda, but this machine has no CUDA device; set it to cpu"
        )
    channels = 3 if data.images.ndim == 4 else 1
    shape = backbone.architecture if backbone else CnnArchitecture(data.images.shape[1], channels)
    pictures = Pictures(
        data.images,
        size=shape.image_size,
        channels=shape.channels,
        mean=shape.mean,
        std=shape.std,
    )
    samples = Samples(
        images=torch.from_numpy(pictures.prepared(data.images)).to(device),
        labels=torch.from_numpy(data.labels).long().to(device),
    )
    return Material(data, pictures, samples, backbone)


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


def require_runnable(config: Config) -> None:
    """Draw every partition of a grid, in memory.

    Raises:
        FileNotFoundError: A data set is not there.
        ValueError: No draw gives every client enough samples, or the classes of the data set do not
            suit loss or conditions.
    """
    entries = [entry.with_values({}) for entry in config.methods]  # They may yet be searched.
    drawn = set()
    for dataset, setting, seed in itertools.product(config.sources, config.settings, config.seeds):
        runs = [config.run(dataset, setting, entry, seed) for entry in entries]
        task = task_of(config, runs[0])
        data = load_images(task.source)
        for run in runs:
            run.training.loss.require_classes(data.num_classes)
        conflict = task.run.conditions.label_conflict
        if conflict is not None:
            conflict.require_classes(data.num_classes, data.name)
        if task.partition not in drawn:
            draw(task.run, data)
        drawn.add(task.partition)
