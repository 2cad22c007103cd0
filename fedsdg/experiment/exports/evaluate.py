"""The accuracy of an exported model on data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.partition_files import read_partition
from fedsdg.experiment.chance import Chance
from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.experiment.exports.model_folders import MERGED, accuracy_and_loss, load_model
from fedsdg.experiment.starts import facts_of
from fedsdg.files import places
from fedsdg.models import PEFT_CONFIG, Backbone, load_backbone


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and mean cross-entropy of a model on a data set."""

    dataset: str
    samples: str
    "which images, in words"
    images: int
    "how many of them count"
    accuracy: float
    loss: float
    chance: str
    '"at chance (1/7)" if the accuracy may be luck (see `chance`), else an empty string'


def evaluate_model(
    folder: Path,
    datasets: Iterable[ImageData],
    backbone_file: Path | None = None,
    partition_file: Path | None = None,
) -> Iterator[Evaluation]:
    """Measure a model on the test sets of data sets, or on all images of one without a test set.

    A client's model is measured as rounds measure it: on the images as the client sees them, under
    the labels that it uses and, after label skew, with the classes weighed as the client holds
    them.

    Args:
        folder: A model that `fedsdg export` wrote, or a peft checkpoint.
        datasets: The data sets.
        backbone_file: Of adapters; None: `results/backbones/{name}.safetensors`.
        partition_file: Measure on the images that no client of this partition holds.

    Yields:
        The results, one for each data set.

    Raises:
        FileNotFoundError: The model or its backbone is missing.
        ValueError: A data set has other classes than the model, or none that the client holds.
    """
    model = load_model(folder, _backbone(folder, backbone_file))
    for data in datasets:
        if data.num_classes != model.num_classes:
            raise ValueError(
                f"the model in {folder} tells {model.num_classes} classes apart, but {data.name} "
                f"has {data.num_classes}; choose data of the same classes"
            )
        if model.classes and data.classes and model.classes != data.classes:
            number = next(n for n, name in enumerate(data.classes) if name != model.classes[n])
            raise ValueError(
                f"class {number} of the model in {folder} is {model.classes[number]!r}, but of "
                f"{data.name} {data.classes[number]!r}; choose data of the same classes"
            )
        chosen, samples = _samples(data, partition_file)
        task = model.task or ClientTask(tuple(range(model.num_classes)))
        view = task.test_view(chosen, data.labels[chosen])
        numbers = view.images(0)
        pictures = Pictures(data.images, model.size, model.channels, model.mean, model.std)
        images = pictures.prepared(task.images(data.images[numbers], numbers))
        accuracy, loss = accuracy_and_loss(model, torch.from_numpy(images), view)
        chance = task.chance(Chance.of_labels(data.labels[chosen])).remark(accuracy)
        seen = "" if model.task is None else ", as the client sees it"
        yield Evaluation(data.name, samples + seen, len(numbers), accuracy, loss, chance)


def _backbone(folder: Path, file: Path | None) -> Backbone | None:
    if not (folder / PEFT_CONFIG).is_file():
        return None
    said = facts_of(folder).get("backbone")
    if file is None and said is not None:
        file = places.filled(places.BACKBONE, backbone=said["name"])
        if not file.is_file():
            raise FileNotFoundError(
                f"the model in {folder} consists of adapters of the backbone {said['name']}, which "
                f"is not at {file}; name its file with --backbone, or the folder {MERGED} beside "
                "the adapters, which needs none"
            )
    return None if file is None else load_backbone(file)


def _samples(data: ImageData, partition_file: Path | None) -> tuple[np.ndarray, str]:
    if partition_file is not None:
        partition = read_partition(partition_file, data.sha256)
        return partition.global_test(), f"the global test set of {partition_file}"
    if data.test.any():
        return np.flatnonzero(data.test), "its test set"
    return np.arange(len(data.labels)), "all images, for it has no test set of its own"
