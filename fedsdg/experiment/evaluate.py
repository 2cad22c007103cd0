"""The accuracy of an exported model on data sets, by the metric that its card names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
    client = facts.get("client")
    for data in datasets:
        _require_classes(folder, data, count, facts.get("classes"))
        numbers, words = _samples(data, facts, partition)
        labels = data.labels[numbers]
        stored = data.images[numbers]
        weights = np.full(len(numbers), 1 / len(numbers))
        targets = labels
        if client:
            words += ", as the client sees it"
            held = client["held"] and np.array(client["held"])
            weights = class_weights(held, labels)
            targets = np.array(client["labels"])[labels]
            stored = View(**client["view"])(stored, numbers) if client["view"] else stored
        counts = weights > 0
        pictures = Pictures(stored, **shape)
        images = torch.from_numpy(pictures.prepared(stored[counts]))
        with torch.no_grad():
            found = torch.cat([scores(part) for part in images.split(1024)])
        truth = torch.from_numpy(targets[counts])
        losses = torch.nn.functional.cross_entropy(found, truth, reduction="none")
        right = (found.argmax(1) == truth).numpy()
        accuracy = float(weights[counts] @ right)
        yield Evaluation(
            dataset=data.name,
            metric="accuracy" if client else "accuracy_shared",
            accuracy=accuracy,
            loss=float(weights[counts] @ losses.double().numpy()),
            images=int(counts.sum()),
            samples=words,
            chance=chance.remark(accuracy, labels, client and client["held"]),
        )


def _require_classes(folder: Path, data: ImageData, count: int, names: Any) -> None:
    if data.num_classes != count:
        raise ValueError(
            f"the model in {folder} tells {count} classes apart, but {data.name} has "
            f"{data.num_classes}; choose data of the same classes"
        )
    for number, (ours, theirs) in enumerate(zip(names or (), data.classes or (), strict=False)):
        if ours != theirs:
            raise ValueError(
                f"class {number} of the model in {folder} is {ours!r}, but of {data.name} "
                f"{theirs!r}; choose data of the same classes"
            )


def _samples(data: ImageData, facts: Any, partition: Path | None) -> tuple[np.ndarray, str]:
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
    folder: Path, facts: Any, file: Path | None
) -> tuple[Callable[[Tensor], Tensor], int, dict[str, Any]]:
    """Return the scores of prepared images, the number of classes, and how images are prepared."""
    if (folder / models.PEFT_CONFIG).is_file():
        return _adapted(folder, facts, file)
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"{folder} holds no model: neither {models.PEFT_CONFIG} nor {WEIGHTS} is there; name a "
            "folder that 'fedsdg export' wrote"
        )
    if "images" not in facts:
        raise ValueError(f"{folder} has no {FACTS} that says what its model takes; export it again")
    scores: Callable[[Tensor], Tensor]
    if (folder / "config.json").is_file():
        models.declare_torchvision_operators()
        import timm

        network: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        scores, count = network, network.num_classes
    else:
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        count = len(weights.get(HEAD[1], ()))

        def scores(images: Tensor) -> Tensor:
            return models.cnn_scores(weights, images)

    return scores, _with_head(count, folder), facts["images"]


def _adapted(
    folder: Path, facts: Any, file: Path | None
) -> tuple[Callable[[Tensor], Tensor], int, dict[str, Any]]:
    """Return what `_loaded` does of adapters, merged into their backbone."""
    if facts.get("backbone"):
        backbone = load_backbone(facts["backbone"], file)
    elif file is not None:
        backbone = models.load_backbone(file)
    else:
        raise ValueError(
            f"{folder} holds adapters, which are nothing without their backbone; name its file "
            "with --backbone"
        )
    adapters = models.load_peft(folder)
    shape = backbone.architecture
    network = models.build_backbone(shape, num_classes=_with_head(adapters.num_classes, folder))
    try:
        network.load_state_dict(adapters.merged(backbone.model.state_dict()))
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"the checkpoint in {folder} is for another backbone than {backbone.name}: {error}"
        ) from error
    images = {
        "size": shape.image_size,
        "channels": shape.channels,
        "mean": shape.mean,
        "std": shape.std,
    }
    return network.eval(), adapters.num_classes, images


def _with_head(count: int, folder: Path) -> int:
    if not count:
        raise ValueError(f"the model in {folder} has no head, so that it gives no classes")
    return count
