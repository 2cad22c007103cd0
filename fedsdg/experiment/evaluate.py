"""The accuracy of an exported model on data sets, by the metric that its card names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedsdg import files, models
from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.partition_files import read_partition
from fedsdg.experiment import chance
from fedsdg.experiment.export import FACTS, WEIGHTS, load_backbone
from fedsdg.federation.accuracy import class_weights
from fedsdg.federation.conditions.difference import View
from fedsdg.models.portable import HEAD


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on a data set."""

    dataset: str
    metric: str
    "`accuracy` of a client's model, `accuracy_shared` of any other, as cards name them"
    accuracy: float
    loss: float
    "mean cross-entropy"
    images: int
    "how many of them count"
    samples: str
    "which images, in words"
    chance: str
    '"at chance (1/7)" if the accuracy may be luck (see `chance`), else an empty string'


def evaluate(
    folder: Path,
    datasets: Iterable[ImageData],
    backbone: Path | None = None,
    partition: Path | None = None,
) -> Iterator[Evaluation]:
    """Measure a model as rounds and its card do.

    The accuracy is Σ_i w_i [ŷ_i = y_i]. For a client's model the images x_i are as the client sees
    them, the labels y_i those that it uses and, after label skew, the weights w_i those of the
    classes that it holds; otherwise all images weigh the same. The images are those on which the
    run was measured, if it was on this data set; else those of the data set's own test set, or all.

    Args:
        folder: A model that `fedsdg export` wrote, or a peft checkpoint.
        datasets: The data sets.
        backbone: The file of the adapters' backbone; None: `results/backbones/NAME.safetensors`.
        partition: A file; measure on the images that none of its clients holds.

    Yields:
        The results, one for each data set.

    Raises:
        FileNotFoundError: The model or its backbone is missing.
        ValueError: It is damaged or has no head, or a data set has other classes than the model, or
            none that the client holds.
    """
    facts = files.read_json(folder / FACTS) if (folder / FACTS).is_file() else {}
    scores, count, shape = _loaded(folder, facts, backbone)
    if not count:
        raise ValueError(f"the model in {folder} has no head, so that it gives no classes")
    client = facts.get("client") or {}
    for data in datasets:
        _require_classes(folder, data, count, facts.get("classes"))
        numbers, words = _samples(data, facts, partition)
        labels = data.labels[numbers]
        targets = np.array(client["labels"])[labels] if client else labels
        held = np.array(client["held"]) if client.get("held") else None
        weights = class_weights(held, labels)
        counts = weights > 0
        stored = data.images[numbers[counts]]
        if client.get("view"):
            stored = View(**client["view"])(stored, numbers[counts])
        pictures = Pictures(stored, shape.image_size, shape.channels, shape.mean, shape.std)
        prepared = torch.from_numpy(pictures.prepared(stored))
        with torch.no_grad():
            found = torch.cat([scores(part) for part in prepared.split(1024)])
        truth = torch.from_numpy(targets[counts])
        losses = torch.nn.functional.cross_entropy(found, truth, reduction="none")
        accuracy = math.fsum(weights[counts][(found.argmax(1) == truth).numpy()])
        yield Evaluation(
            dataset=data.name,
            metric="accuracy" if client else "accuracy_shared",
            accuracy=accuracy,
            loss=float(weights[counts] @ losses.double().numpy()),
            images=len(stored),
            samples=f"{words}, as the client sees it" if client else words,
            chance=chance.remark(accuracy, np.bincount(labels), held),
        )


def _require_classes(
    folder: Path, data: ImageData, count: int, names: Sequence[str] | None
) -> None:
    remedy = "choose data of the same classes"
    if data.num_classes != count:
        raise ValueError(
            f"the model in {folder} tells {count} classes apart, but {data.name} has "
            f"{data.num_classes}; {remedy}"
        )
    for number, (known, name) in enumerate(zip(names or (), data.classes or (), strict=False)):
        if known != name:
            raise ValueError(
                f"class {number} of the model in {folder} is {known!r}, but of {data.name} "
                f"{name!r}; {remedy}"
            )


def _samples(
    data: ImageData, facts: Mapping[str, Any], partition: Path | None
) -> tuple[np.ndarray, str]:
    """Return sample numbers and, in words, which they are."""
    if partition is not None:
        numbers = read_partition(partition, data.sha256).global_test()
        return numbers, f"the global test set of {partition}"
    if facts.get("data") == data.sha256:
        return np.array(facts["test"].split(), dtype=np.int64), "the global test set of its run"
    if data.test.any():
        return np.flatnonzero(data.test), "its test set"
    return np.arange(len(data.labels)), "all images, for it has no test set of its own"


def _loaded(
    folder: Path, facts: Mapping[str, Any], file: Path | None
) -> tuple[Callable[[Tensor], Tensor], int, models.Architecture | models.CnnArchitecture]:
    """Return scores [B, C] of prepared images, the number C of classes, and how to prepare them."""
    known = facts.get("backbone")
    if (folder / WEIGHTS).is_file() and "images" in facts and known is None:
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        images = models.CnnArchitecture(facts["images"]["size"], facts["images"]["channels"])
        return partial(models.cnn_scores, weights), len(weights.get(HEAD[1], ())), images
    if not (folder / models.PEFT_CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} holds no model: neither {models.PEFT_CONFIG}, nor {WEIGHTS} of a small CNN; "
            "name a folder such as models/global that 'fedsdg export' wrote"
        )
    if known is None and file is None:
        raise ValueError(
            f"{folder} holds adapters, which are nothing without their backbone; name its file "
            "with --backbone"
        )
    backbone = load_backbone(known, file) if known else models.load_backbone(file or "")
    adapters = models.load_peft(folder)
    shape = backbone.architecture
    network = models.build_backbone(shape, num_classes=adapters.num_classes).eval()
    try:
        network.load_state_dict(adapters.merged(backbone.model.state_dict()))
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"the adapters in {folder} are for another backbone than {backbone.name}: {error}"
        ) from error
    return network, adapters.num_classes, shape
