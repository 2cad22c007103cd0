"""What the runs of a cell share: images, their division among clients, the backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedsdg.data.datasets import ImageData, global_test_set
from fedsdg.data.images import Pictures
from fedsdg.data.partition import Partition, PartitionSettings, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.machine.devices import take_device
from fedsdg.federation.tasks import Samples
from fedsdg.models import Backbone, CnnArchitecture


@dataclass(frozen=True)
class Material:
    """What the runs of a cell share: a data set's images, prepared and stored, and the backbone.

    No backbone where all parameters are trained.
    """

    samples: Samples
    num_classes: int
    dataset_sha256: str
    backbone: Backbone | None
    pictures: Pictures
    #: Where one's own data are from and what was done to them.
    data_facts: Mapping[str, Any] = field(default_factory=dict)
    #: The samples [n] of the data's own test set, if they have one.
    test: np.ndarray | None = None

    @property
    def backbone_hash(self) -> str | None:
        """None without one: the network is then described by the sources alone."""
        return self.backbone.sha256 if self.backbone else None


def prepare_material(dataset: str | ImageData, backbone: Backbone | None, device: str) -> Material:
    """Bring a data set's images to the backbone's size, channels and normalisation.

    Without a backbone they keep their own size and channels (see ``CnnArchitecture``).

    ``dataset``: a name, or the data where they are loaded already.
    """
    if device == "cuda":
        take_device()
        if not torch.cuda.is_available():
            raise ValueError(
                "training.device is cuda, but this machine has no CUDA device; set it to cpu"
            )
    data = load_images(dataset) if isinstance(dataset, str) else dataset
    shape = (
        CnnArchitecture(data.images.shape[1], 3 if data.images.ndim == 4 else 1)
        if backbone is None
        else backbone.architecture
    )
    pictures = Pictures(
        data.images,
        size=shape.image_size,
        channels=shape.channels,
        mean=shape.mean,
        std=shape.std,
    )
    images = pictures.prepared(data.images)
    samples = Samples(
        torch.from_numpy(images).to(device), torch.from_numpy(data.labels).long().to(device)
    )
    return Material(
        samples, data.num_classes, data.sha256, backbone, pictures, data.facts, data.test
    )


def require_test_set(partition: Partition, material: Material) -> None:
    """Check that a partition leaves the fixed test set alone, if its spec says that it does.

    Raises:
        ValueError: It gives a test image to a client, or has another test set.
    """
    facts = partition.facts
    if facts.get("test") != "fixed":
        return
    test = np.zeros(len(partition.label), dtype=bool) if material.test is None else material.test
    fixed = np.zeros(len(test), dtype=bool)
    fixed[global_test_set(partition.label, test)] = True
    name = (
        f"the partition of {facts['dataset']} ({facts['skew']}, {partition.num_clients} clients, "
        f"seed {facts['seed']})"
    )
    remedy = "delete its file and make it again with `fedsdg partition`"
    held = np.flatnonzero(fixed & (partition.client >= 0))
    if len(held):
        raise ValueError(
            f"{name} gives sample {held[0]} of the fixed test set to client "
            f"{partition.client[held[0]]}: {remedy}"
        )
    if not np.array_equal(partition.global_test(), np.flatnonzero(fixed)):
        raise ValueError(f"{name} has another test set than the fixed one of its data: {remedy}")


def make_partition(
    dataset: str | ImageData, skew: str, seed: int, clients: int, settings: PartitionSettings
) -> Partition:
    """Divide a data set among clients, drawing from the stream ``partition`` of ``seed``.

    ``dataset``: a name, or the data where they are loaded already.
    """
    data = load_images(dataset) if isinstance(dataset, str) else dataset
    return partition_clients(data, clients, parse_skew(skew), seed, settings)
