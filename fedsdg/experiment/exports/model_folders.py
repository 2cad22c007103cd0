"""Folders with one model each, which other libraries read: adapters for peft, weights for timm.

- adapters: `adapter_config.json`, `adapter_model.safetensors` (see `peft_exchange`);
- timm: `config.json`, `model.safetensors`, for `timm.create_model("local-dir:FOLDER")`;
- a small CNN: `model.safetensors` by the names of `small_cnn`.

Beside each stands `fedsdg.json` with what these formats do not say: which backbone, which images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.experiment.starts import FACTS, facts_of, require_backbone
from fedsdg.federation.accuracy import ClientTestView
from fedsdg.files import read_json, write_json
from fedsdg.models import (
    HEAD,
    PEFT_CONFIG,
    Architecture,
    Backbone,
    CnnArchitecture,
    Portable,
    build_backbone,
    cnn_layout,
    cnn_scores,
    declare_torchvision_operators,
    load_peft,
)

WEIGHTS = "model.safetensors"
TIMM = "config.json"
#: Of an exported model of adapters: the folder with all weights.
MERGED = "merged"


@dataclass(frozen=True)
class LoadedModel:
    """A model that gives scores [B, classes] of images [B, channels, size, size].

    Pixel values in [0, 1] are fed as (x - mean) / std.
    """

    scores: Callable[[Tensor], Tensor]
    num_classes: int
    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    "their names, in the order of the scores, where they have some"
    task: ClientTask | None = None
    "of the client whose model it is; None: it is a model of the server, or of another program"


def write_timm(
    state: Mapping[str, Tensor], backbone: Backbone, folder: Path, names: Sequence[str]
) -> None:
    """Write weights as a folder that timm loads: `timm.create_model("local-dir:FOLDER", True)`.

    `state`: timm's names; with a head, or without one for a model that gives features. `names`: of
    the classes, where they have some.
    """
    shape = backbone.architecture
    numbers: dict[str, Any] = {"img_size": shape.image_size, "in_chans": shape.channels}
    name = "vit_tiny_patch16_224"  # any of timm's plain ones; the numbers say how it differs
    if shape.timm_name is not None:
        settings: Any = backbone.model
        name = settings.pretrained_cfg["architecture"]
    else:
        numbers |= {
            "patch_size": shape.patch_size,
            "embed_dim": shape.dim,
            "depth": shape.depth,
            "num_heads": shape.heads,
            "mlp_ratio": shape.mlp_ratio,
        }
    classes = len(state[HEAD[1]]) if HEAD[1] in state else 0
    record = {
        "architecture": name,
        "num_classes": classes,
        "num_features": shape.dim,
        "model_args": numbers,
        "pretrained_cfg": {
            "input_size": [shape.channels, shape.image_size, shape.image_size],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": list(shape.mean),
            "std": list(shape.std),
            "num_classes": classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if names and classes:
        record["label_names"] = list(names)
    write_weights(state, folder)
    write_json(folder / TIMM, record)


def write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """Write weights by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    (folder / WEIGHTS).write_bytes(content)


def load_model(folder: Path | str, backbone: Backbone | None = None) -> LoadedModel:
    """Read a folder of any of the three kinds.

    `backbone`: what the adapters are for; other kinds need none.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it is damaged, has no head, or its adapters are of another backbone.
    """
    folder = Path(folder)
    if (folder / PEFT_CONFIG).is_file():
        if backbone is None:
            raise ValueError(
                f"{folder} holds adapters, which are nothing without their backbone; name its file "
                "with --backbone"
            )
        require_backbone(folder, backbone.name, backbone.sha256)
        found = _adapted(load_peft(folder), backbone, folder)
    elif not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"{folder} holds no model: neither {PEFT_CONFIG} nor {WEIGHTS} is there; name a folder "
            "that 'fedsdg export' wrote"
        )
    else:
        found = _timm(folder) if (folder / TIMM).is_file() else _small_cnn(folder)
    classes = facts_of(folder).get("classes", ())
    return replace(found, classes=classes, task=_task(folder, found.num_classes))


def _task(folder: Path, num_classes: int) -> ClientTask | None:
    """Return the task of the client whose model a folder holds, if it is a client's."""
    file = folder / FACTS
    plain = read_json(file).get("client") if file.is_file() else None
    if plain is None:
        return None
    try:
        task = ClientTask.of_plain(plain)
        if len(task.labels) != num_classes:
            raise ValueError(f"{len(task.labels)} labels for {num_classes} classes")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} does not say what the client's accuracy depends on ({error}); export it again"
        ) from error
    return task


def _adapted(model: Portable, backbone: Backbone, folder: Path) -> LoadedModel:
    shape = backbone.architecture
    if not model.num_classes:
        raise ValueError(f"the adapters in {folder} have no head, so that they give no classes")
    network = build_backbone(shape, num_classes=model.num_classes).eval()
    own: Any = backbone.model.state_dict()
    own = {name: value.cpu() for name, value in own.items()}
    for layer, (a, b) in model.factors.items():
        frozen = own.get(f"{layer}.weight")
        found = None if frozen is None else tuple(frozen.shape)
        if found != (b.shape[0], a.shape[1]):
            raise ValueError(
                f"the checkpoint in {folder} is for another backbone than {backbone.name}: {layer} "
                f"is {(b.shape[0], a.shape[1])} there, but {found or 'nothing'} here"
            )
    if model.weights[HEAD[0]].shape[1] != shape.dim:
        raise ValueError(
            f"the checkpoint in {folder} is for another backbone than {backbone.name}: its head "
            f"takes {model.weights[HEAD[0]].shape[1]} features, but there are {shape.dim}"
        )
    network.load_state_dict(model.merged(own))
    return _of_network(network, model.num_classes, shape)


def _of_network(network: nn.Module, classes: int, shape: Architecture) -> LoadedModel:
    return LoadedModel(
        network.eval(), classes, shape.image_size, shape.channels, shape.mean, shape.std
    )


def _timm(folder: Path) -> LoadedModel:
    declare_torchvision_operators()
    import timm

    try:
        network: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
        settings = network.pretrained_cfg
        channels, size, _ = settings["input_size"]
        statistics = tuple(settings["mean"]), tuple(settings["std"])
        classes = int(network.num_classes)
    except Exception as error:  # timm's, json's and file errors share no base class
        raise ValueError(f"timm cannot load the model in {folder}: {error}") from error
    if not classes:
        raise ValueError(f"the model in {folder} has no head, so that it gives no classes")
    return LoadedModel(network.eval(), classes, int(size), int(channels), *statistics)


def _small_cnn(folder: Path) -> LoadedModel:
    try:
        weights = safetensors.torch.load_file(folder / WEIGHTS)
    except safetensors.SafetensorError as error:
        raise ValueError(f"the model in {folder} is damaged: {error}") from error
    images = facts_of(folder).get("images")
    if images is None or "conv1.weight" not in weights:
        raise ValueError(
            f"{folder} holds weights of which neither {TIMM} nor {FACTS} says what they are"
        )
    if HEAD[1] not in weights:
        raise ValueError(f"the model in {folder} has no head, so that it gives no classes")
    classes, shape = weights[HEAD[1]].numel(), CnnArchitecture(images["size"], images["channels"])
    for spec in cnn_layout(shape, classes).communicated:
        found = tuple(weights[spec.name].shape) if spec.name in weights else "nothing"
        if found != spec.shape:
            raise ValueError(
                f"the model in {folder} is damaged: {spec.name} is {found}, but should be "
                f"{spec.shape}; export it again"
            )

    def scores(pictures: Tensor) -> Tensor:
        return cnn_scores(weights, pictures)

    return LoadedModel(
        scores, classes, images["size"], images["channels"], images["mean"], images["std"]
    )


def accuracy_and_loss(
    model: LoadedModel, images: Tensor, view: ClientTestView, chunk: int = 1024
) -> tuple[float, float]:
    """Return the accuracy of a model and its mean cross-entropy.

    Args:
        model: The model.
        images: [n, …] prepared images, those that count in the view.
        view: The test images as those of client 0.
        chunk: Images in one pass.
    """
    counts = view.weights[0] > 0
    labels = torch.from_numpy(view.labels[0][counts])
    with torch.no_grad():
        scores = torch.cat([model.scores(part) for part in images.split(chunk)])
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    accuracy = view.accuracy(0, scores.argmax(1).numpy())
    return accuracy, float(losses.double().numpy() @ view.weights[0][counts])
