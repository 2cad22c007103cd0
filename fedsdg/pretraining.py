"""The frozen backbone: trained from scratch on a source data set, or taken over.

Three sources: "pretrain" trains a vision transformer on rendered letters or a named data set;
"checkpoint" takes a plain state dict of timm's VisionTransformer; "timm" takes a pretrained model
of the hub. All end in the same two files, NAME.safetensors and NAME.json, with a linear probe that
says what the backbone is worth.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsdg.data.datasets import load_dataset
from fedsdg.data.glyphs import render_letters
from fedsdg.data.images import prepare
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import Backbone, build, from_checkpoint, from_timm, save_backbone
from fedsdg.models.forward import class_tokens
from fedsdg.models.probe import linear_probe
from fedsdg.models.training import progress_report, shift_and_mirror, train
from fedsdg.rng import stream

LETTERS = "letters"
ALPHABET = 26  # the labels count one case, then the other

# Sub-streams of "pretraining", so that no draw shifts another.
_DATA, _WEIGHTS, _BATCHES, _AUGMENT, _PROBE = range(5)


@dataclass(frozen=True)
class Recipe:
    """How to train from scratch; see `fedsdg.models.training.train` for the optimiser's numbers.

    Attributes:
        data: "letters" (rendered glyphs) or the name of a data set.
        mean, std: per channel; None takes those of the training images.
        images: training images; None takes all of a named data set.
        held_out: letters rendered besides, to measure accuracy. A named data set uses its own test
            set, or a tenth of its images where it has none.
        augment: "none" | "crop" (shifts by up to size/8, reflected) | "crop-flip".
        drop_path: stochastic depth of the last block; 0 in the first, linear between.
        precision: "float32" | "bfloat16" (autocast).
        threads: of torch. Part of the recipe, because the weights' last bits depend on it.
        probe: data set of the linear probe.
    """

    image_size: int
    patch_size: int
    channels: int
    dim: int
    depth: int
    heads: int
    mlp_ratio: float = 4.0
    data: str = LETTERS
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    images: int | None = 60_000
    held_out: int = 5_000
    epochs: int = 6
    batch_size: int = 64
    learning_rate: float = 2e-3
    beta2: float = 0.98
    weight_decay: float = 0.05
    warmup_steps: int = 300
    label_smoothing: float = 0.1
    drop_path: float = 0.0
    clip_norm: float = 1.0
    augment: str = "none"
    precision: str = "float32"
    seed: int = 0
    threads: int = 2
    probe: str = "digits"


_ARCHITECTURE = {f.name: f.default for f in fields(Architecture)}
_CHECKPOINT = _ARCHITECTURE.keys() - {"timm_name"} | {"file", "probe", "threads"}
_TIMM = {"timm_name", "file", "image_size", "probe", "threads"}


def pretrain(options: Mapping[str, Any], output: Path | str, *, progress: bool = True) -> Backbone:
    """Make the backbone that `options` describe and write it to `output` (.safetensors, .json).

    Args:
        options: `source` "pretrain" (default; the fields of `Recipe`) | "checkpoint" (`file` and
            the architecture) | "timm" (`timm_name`, optionally `file` and `image_size`).
        output: ends in .safetensors. The bytes written depend on `options` only.
        progress: a bar on a terminal, plain lines elsewhere, both on standard error.

    Raises:
        ValueError: unknown, missing or contradicting options.
        FileNotFoundError: a checkpoint file is missing.
        FloatingPointError: the loss became NaN or infinite.
    """
    chosen = dict(options)
    source = chosen.pop("source", "pretrain")
    started = time.perf_counter()
    if source == "pretrain":
        recipe = parse_recipe(chosen)
        with _threads(recipe.threads):
            model, architecture, facts = _train(recipe, progress)
            facts["linear_probe"] = _probe(model, architecture, recipe.probe)
    elif source in ("checkpoint", "timm"):
        taken = _take(source, chosen)
        model, architecture, facts = taken.model, taken.architecture, dict(taken.facts)
        with _threads(int(chosen.get("threads", 2))):
            facts["linear_probe"] = _probe(model, architecture, chosen.get("probe", "digits"))
    else:
        raise ValueError(f"backbone source {source!r} is not pretrain, checkpoint or timm")
    backbone = save_backbone(model, architecture, output, {"source": source, **facts})
    if progress:
        seconds = time.perf_counter() - started
        print(f"{backbone.name}: {_summary(facts)}, {seconds:.1f} s", file=sys.stderr, flush=True)
    return backbone


def is_made(options: Mapping[str, Any], output: Path | str) -> bool:
    """Whether `output` is there and, by the facts beside it, the backbone that `options` describe.

    That the weights belong to the facts is checked where they are loaded.
    """
    output = Path(output)
    try:
        facts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
        source = options.get("source", "pretrain")
        chosen = {key: value for key, value in options.items() if key != "source"}
        if not output.is_file() or facts["source"] != source:
            return False
        if source == "pretrain":
            recipe = json.loads(json.dumps(asdict(parse_recipe(chosen))))
            return bool(facts["recipe"] == recipe)
        if facts["linear_probe"]["data"] != chosen.get("probe", "digits"):
            return False
        if source == "timm" and "file" not in chosen:
            size = chosen.get("image_size", facts["architecture"]["image_size"])
            found = (facts["timm_name"], facts["architecture"]["image_size"])
            return bool(found == (chosen["timm_name"], size))
        taken = _take(source, chosen)
        shape = json.loads(json.dumps(asdict(taken.architecture)))
        return bool(facts["sha256"] == taken.sha256 and facts["architecture"] == shape)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """The recipe of a mapping (without `source`), checked.

    Raises:
        ValueError: names what is unknown, missing or out of range, and what is allowed.
    """
    _check_keys(options, {f.name: f.default for f in fields(Recipe)}, "pretrain")
    recipe = Recipe(**options)
    choices = {"augment": ("none", "crop", "crop-flip"), "precision": ("float32", "bfloat16")}
    for option, allowed in choices.items():
        if getattr(recipe, option) not in allowed:
            raise ValueError(
                f"backbone: {option} {getattr(recipe, option)!r} is unknown; "
                f"choose one of {', '.join(allowed)}"
            )
    if recipe.data == LETTERS and recipe.images is None:
        raise ValueError("backbone: letters are rendered, so images must be a number")
    for option in ("images", "held_out", "epochs", "batch_size", "threads"):
        value = getattr(recipe, option)
        if value is not None and value < 1:
            raise ValueError(f"backbone: {option} {value} must be at least 1")
    return recipe


def _train(recipe: Recipe, progress: bool) -> tuple[nn.Module, Architecture, dict[str, Any]]:
    images, labels, held_images, held_labels = _source(recipe)
    architecture = _architecture(recipe, images)
    classes = int(max(labels.max(), held_labels.max())) + 1
    per_epoch = max(1, len(images) // recipe.batch_size)
    steps = recipe.epochs * per_epoch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream("pretraining", recipe.seed, _WEIGHTS).integers(2**62)))
        model = build(architecture, num_classes=classes, drop_path_rate=recipe.drop_path)
        train(
            model,
            _batches(recipe, architecture, images, labels),
            steps,
            learning_rate=recipe.learning_rate,
            beta2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            warmup_steps=recipe.warmup_steps,
            label_smoothing=recipe.label_smoothing,
            clip_norm=recipe.clip_norm,
            bfloat16=recipe.precision == "bfloat16",
            report=progress_report(steps, per_epoch) if progress else None,
        )
    tokens = torch.from_numpy(_features(model, architecture, held_images))
    with torch.no_grad():
        predicted = model.get_submodule("head")(tokens).argmax(dim=1).numpy()
    facts: dict[str, Any] = {
        "recipe": asdict(recipe),
        "images": len(images),
        "classes": classes,
        "held_out_images": len(held_images),
        "held_out_accuracy": float((predicted == held_labels).mean()),
    }
    if recipe.data == LETTERS:  # many pairs, as c and C, differ in nothing but size
        same = predicted % ALPHABET == held_labels % ALPHABET
        facts["held_out_accuracy_ignoring_case"] = float(same.mean())
    return model, architecture, facts


def _batches(
    recipe: Recipe, architecture: Architecture, images: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[Tensor, Tensor]]:
    """Epochs without end: a new order each, the incomplete last batch left out."""
    order = stream("pretraining", recipe.seed, _BATCHES)
    augmentation = stream("pretraining", recipe.seed, _AUGMENT)
    size = min(recipe.batch_size, len(images))
    reach = max(1, recipe.image_size // 8)
    while True:
        shuffled = order.permutation(len(images))
        for start in range(0, len(images) - size + 1, size):
            chosen = shuffled[start : start + size]
            batch = _tensor(images[chosen], architecture)
            if recipe.augment != "none":
                shifts = augmentation.integers(-reach, reach + 1, size=(2, size))
                mirrored = augmentation.random(size) < 0.5
                mirrored &= recipe.augment == "crop-flip"
                batch = shift_and_mirror(
                    batch, torch.from_numpy(shifts), torch.from_numpy(mirrored)
                )
            yield batch, torch.from_numpy(labels[chosen])


def _source(recipe: Recipe) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images (uint8) and labels, held-out images and labels."""
    generator = stream("pretraining", recipe.seed, _DATA)
    if recipe.data == LETTERS:
        cut = recipe.images or 0
        images, labels = render_letters(cut + recipe.held_out, generator, recipe.image_size)
        return images[:cut], labels[:cut], images[cut:], labels[cut:]
    data = load_dataset(recipe.data)
    order = generator.permutation(len(data.labels))
    held = data.official_test[order]
    if not held.any():
        held = np.arange(len(order)) < max(1, len(order) // 10)
    chosen, test = order[~held][: recipe.images], order[held]
    return data.images[chosen], data.labels[chosen], data.images[test], data.labels[test]


def _architecture(recipe: Recipe, images: np.ndarray) -> Architecture:
    mean, std, channels = recipe.mean, recipe.std, recipe.channels
    if mean is None or std is None:
        sample = prepare(
            images[:20_000],
            size=recipe.image_size,
            channels=channels,
            mean=[0.0] * channels,
            std=[1.0] * channels,
        ).astype(np.float64)
        mean = tuple(round(float(m), 6) for m in sample.mean(axis=(0, 2, 3)))
        std = tuple(round(float(s), 6) for s in sample.std(axis=(0, 2, 3)))
    keys = ("image_size", "patch_size", "channels", "dim", "depth", "heads", "mlp_ratio")
    return Architecture(**{key: getattr(recipe, key) for key in keys}, mean=mean, std=std)


def _take(source: str, options: Mapping[str, Any]) -> Backbone:
    """A backbone somebody else trained."""
    if source == "timm":
        known = dict.fromkeys(_TIMM) | {"timm_name": MISSING}
        _check_keys(options, known, source)
        size = options.get("image_size")
        return from_timm(options["timm_name"], options.get("file"), image_size=size)
    known = {key: _ARCHITECTURE.get(key) for key in _CHECKPOINT} | {"file": MISSING}
    _check_keys(options, known, source)
    shape = {key: value for key, value in options.items() if key in _ARCHITECTURE}
    return from_checkpoint(options["file"], Architecture(**shape))


def _check_keys(options: Mapping[str, Any], known: Mapping[str, Any], source: str) -> None:
    """Every key must be known, and every known key whose default is MISSING must be there."""
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(
            f"backbone: source {source} does not know {', '.join(unknown)}; "
            f"its options are {', '.join(sorted(known))}"
        )
    if lacking := sorted(k for k, v in known.items() if v is MISSING and k not in options):
        raise ValueError(f"backbone: source {source} also needs {', '.join(lacking)}")


def _tensor(images: np.ndarray, architecture: Architecture) -> Tensor:
    size, channels = architecture.image_size, architecture.channels
    mean, std = architecture.mean, architecture.std
    return torch.from_numpy(prepare(images, size=size, channels=channels, mean=mean, std=std))


def _features(model: nn.Module, architecture: Architecture, images: np.ndarray) -> np.ndarray:
    """Class tokens of uint8 images, float32 [n, dim]."""
    model.eval()
    with torch.no_grad():
        parts = [
            class_tokens(model, _tensor(images[start : start + 512], architecture))
            for start in range(0, len(images), 512)
        ]
    return torch.cat(parts).numpy()


def _probe(model: nn.Module, architecture: Architecture, name: str) -> dict[str, Any]:
    data = load_dataset(name)
    order = stream("pretraining", 0, _PROBE).permutation(len(data.labels))
    accuracy = linear_probe(_features(model, architecture, data.images), data.labels, order)
    return {"data": name, "accuracy": accuracy}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _summary(facts: Mapping[str, Any]) -> str:
    probe = facts["linear_probe"]
    text = f"linear probe on {probe['data']} {probe['accuracy']:.4f}"
    if "held_out_accuracy" in facts:
        text = f"held-out accuracy {facts['held_out_accuracy']:.4f}, {text}"
    return text
