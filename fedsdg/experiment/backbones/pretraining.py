"""The frozen backbone: trained from scratch on a source data set, or taken over.

Three sources: "pretrain" trains a vision transformer on rendered letters or a named data set;
"checkpoint" takes a plain state dict of timm's VisionTransformer; "timm" takes a pretrained model
of the hub. All end in the same two files, NAME.safetensors and NAME.json, with a linear probe that
says what the backbone is worth.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsdg.data.datasets import ImageData, load_dataset
from fedsdg.data.glyphs import render_letters
from fedsdg.data.images import prepare
from fedsdg.experiment.backbones.recipe import LETTERS, Recipe, check_keys, parse_recipe
from fedsdg.experiment.backbones.snapshots import Snapshot
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.files import sha256_json, source_hash
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import Backbone, build, from_checkpoint, from_timm, save_backbone
from fedsdg.models.forward import class_tokens
from fedsdg.models.probe import linear_probe
from fedsdg.models.training import Training, progress_report, shift_and_mirror
from fedsdg.rng import stream

ALPHABET = 26  # the labels count one case, then the other

# Sub-streams of "pretraining", so that no draw shifts another.
_DATA, _WEIGHTS, _BATCHES, _AUGMENT, _PROBE = range(5)

#: The parts of the package that make the weights. How data were loaded is in their hash.
SOURCES = (
    "data/images.py",
    "experiment/backbones/pretraining.py",
    "experiment/backbones/recipe.py",
    "experiment/machine/gpu.py",
    "models",
    "rng.py",
)

_ARCHITECTURE = {f.name: f.default for f in fields(Architecture)}
_CHECKPOINT = _ARCHITECTURE.keys() - {"timm_name"} | {"file", "probe", "threads"}
_TIMM = {"timm_name", "file", "image_size", "probe", "threads"}


def pretrain(
    options: Mapping[str, Any],
    output: Path | str,
    *,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool = True,
) -> Backbone:
    """Make the backbone that `options` describe and write it to `output` (.safetensors, .json).

    Args:
        options: `source` "pretrain" (default; the fields of `Recipe`) | "checkpoint" (`file` and
            the architecture) | "timm" (`timm_name`, optionally `file` and `image_size`).
        output: ends in .safetensors. The bytes written depend on `options` only.
        checkpoints: folder of unfinished work, from which the same call goes on; None: none is
            kept. Saved at SIGINT and SIGTERM, and between two steps `checkpoint_seconds` or more
            after the last time. When it is saved changes no byte of the backbone.
        progress: a bar on a terminal, plain lines elsewhere, both on standard error.

    Raises:
        ValueError: unknown, missing or contradicting options; a checkpoint of something else; the
            device's memory is too small.
        FileNotFoundError: a checkpoint file or the images are missing.
        FloatingPointError: the loss became NaN or infinite.
        Stopped: SIGINT or SIGTERM came.
    """
    chosen = dict(options)
    source = chosen.pop("source", "pretrain")
    started = time.perf_counter()
    if source == "pretrain":
        backbone = _from_scratch(
            parse_recipe(chosen), output, checkpoints, checkpoint_seconds, progress
        )
    elif source in ("checkpoint", "timm"):
        probe = load_dataset(chosen.get("probe", "digits"))
        taken = _take(source, chosen)
        with _threads(int(chosen.get("threads", 2))):
            accuracy = _probe(taken.model, taken.architecture, probe)
        facts = {"source": source, **taken.facts, "linear_probe": accuracy}
        backbone = save_backbone(taken.model, taken.architecture, output, facts)
    else:
        raise ValueError(f"backbone source {source!r} is not pretrain, checkpoint or timm")
    if progress:
        seconds = time.perf_counter() - started
        summary = f"{backbone.name}: {_summary(backbone.facts)}, {seconds:.1f} s"
        print(summary, file=sys.stderr, flush=True)
    return backbone


def is_made(options: Mapping[str, Any], output: Path | str) -> bool:
    """Whether `output` is there and, by the facts beside it, the backbone that `options` describe.

    That the weights belong to the facts is checked where they are loaded. Where the file that it
    was made from is gone, its name and the architecture decide.
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
        if source == "timm" and not Path(chosen.get("file", "")).is_file():
            size = chosen.get("image_size", facts["architecture"]["image_size"])
            found = (facts["timm_name"], facts["architecture"]["image_size"])
            return bool(found == (chosen["timm_name"], size))
        if not Path(chosen["file"]).is_file():
            # Of weights that are not there nothing could be made: what was made of them counts.
            asked = json.loads(json.dumps(asdict(_shape(chosen))))
            same = facts["file"] == Path(chosen["file"]).name
            return bool(same and facts["architecture"] == asked)
        taken = _take(source, chosen)
        shape = json.loads(json.dumps(asdict(taken.architecture)))
        return bool(facts["sha256"] == taken.sha256 and facts["architecture"] == shape)
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Source(NamedTuple):
    """Images uint8 and labels int64, to train on and held out."""

    images: np.ndarray
    labels: np.ndarray
    held_images: np.ndarray
    held_labels: np.ndarray

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for values in self:
            digest.update(f"{values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def _from_scratch(
    recipe: Recipe,
    output: Path | str,
    checkpoints: Path | None,
    checkpoint_seconds: float,
    progress: bool,
) -> Backbone:
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("backbone: device is cuda, but torch sees no GPU; set device to cpu")
    # First of all, so that data that are missing are missed before the hours of training.
    probe = load_dataset(recipe.probe)
    source = _source(recipe)
    snapshot = None
    if checkpoints is not None:
        made_for = {
            "recipe": asdict(recipe),
            "images": source.sha256,
            "sources": source_hash(*SOURCES),
        }
        # Another version may round differently; what one began, another does not finish.
        versions = {"torch": torch.__version__, "numpy": np.__version__}
        file = checkpoints / f"backbone~{sha256_json(made_for)}.safetensors"
        snapshot = Snapshot(file, {**made_for, **versions})
    with _threads(recipe.threads), repeatable(recipe.device), stopped_by_signals():
        try:
            model, architecture, facts = _train(
                recipe, source, snapshot, checkpoint_seconds, progress
            )
            facts["linear_probe"] = _probe(model, architecture, probe)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"backbone: the GPU's memory is too small for batches of {recipe.batch_size} "
                f"images ({error}); lower batch_size, or set device to cpu"
            ) from error
        except FloatingPointError:
            if snapshot is not None:
                snapshot.remove()
            raise
        backbone = save_backbone(model, architecture, output, {"source": "pretrain", **facts})
        if snapshot is not None:
            snapshot.remove()
    return backbone


def _train(
    recipe: Recipe,
    source: _Source,
    snapshot: Snapshot | None,
    checkpoint_seconds: float,
    progress: bool,
) -> tuple[nn.Module, Architecture, dict[str, Any]]:
    architecture = _architecture(recipe, source.images)
    classes = int(max(source.labels.max(), source.held_labels.max())) + 1
    per_epoch = max(1, len(source.images) // recipe.batch_size)
    with torch.random.fork_rng(devices=[0] if recipe.device == "cuda" else []):
        torch.manual_seed(int(stream("pretraining", recipe.seed, _WEIGHTS).integers(2**62)))
        model = build(architecture, num_classes=classes, drop_path_rate=recipe.drop_path)
        training = Training(
            model.to(recipe.device),
            recipe.epochs * per_epoch,
            learning_rate=recipe.learning_rate,
            beta2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            warmup_steps=recipe.warmup_steps,
            label_smoothing=recipe.label_smoothing,
            clip_norm=recipe.clip_norm,
            bfloat16=recipe.precision == "bfloat16",
            ema=recipe.ema,
        )
        if snapshot is not None and (state := snapshot.restore()) is not None:
            training.restore(state)
            _say(f"going on after step {training.done} of {training.steps} from {snapshot.file}")
        pixels = _pixels(source.images, architecture, recipe.device)
        batches = _batches(recipe, pixels, source.labels, training.done)
        report = None
        if progress:
            report = progress_report(training.steps, per_epoch, recipe.batch_size, training.done)
        _to_the_end(training, batches, snapshot, checkpoint_seconds, report)
    facts: dict[str, Any] = {
        "recipe": asdict(recipe),
        "images": len(source.images),
        "classes": classes,
        "held_out_images": len(source.held_images),
    }
    if recipe.ema:
        model.eval()
        right = _predicted(model, architecture, source.held_images) == source.held_labels
        facts["held_out_accuracy_without_ema"] = float(right.mean())
    training.finish()
    predicted = _predicted(model, architecture, source.held_images)
    facts["held_out_accuracy"] = float((predicted == source.held_labels).mean())
    if recipe.data == LETTERS:  # many pairs, as c and C, differ in nothing but size
        same = predicted % ALPHABET == source.held_labels % ALPHABET
        facts["held_out_accuracy_ignoring_case"] = float(same.mean())
    return model, architecture, facts


def _to_the_end(
    training: Training,
    batches: Iterator[tuple[Tensor, Tensor]],
    snapshot: Snapshot | None,
    checkpoint_seconds: float,
    report: Callable[[int, float], None] | None,
) -> None:
    """Make the steps that are left, and keep the state now and then, at a signal, and at the end.

    At the end, because measuring follows, which takes minutes at full scale and may fail.
    """
    kept, kept_at, complained = training.done, time.perf_counter(), False

    def keep() -> None:
        nonlocal kept, kept_at, complained
        if snapshot is not None and training.done > kept:
            try:
                snapshot.save(training.state())
                kept = training.done
            except OSError as error:
                if not complained:  # a full disk would say so again and again
                    _say(f"no checkpoint could be saved ({error}); the pretraining goes on")
                complained = True
        kept_at = time.perf_counter()

    try:
        # A step is never broken off: weights, moments and average move one after another.
        with stopped_by_signals(at_once=False) as check:
            while training.done < training.steps:
                loss = training.step(*next(batches))
                if report is not None:
                    report(training.done, loss)
                check()
                due = time.perf_counter() - kept_at >= checkpoint_seconds
                if due or (training.done == training.steps and kept):
                    keep()
    except Stopped as stop:
        keep()
        sentence = "stopped; the same command starts the pretraining anew"
        if kept:
            sentence = (
                f"stopped; the same command goes on after step {kept} of {training.steps} of the "
                "pretraining"
            )
        raise Stopped(stop.args[0], sentence) from None


def _pixels(
    images: np.ndarray, architecture: Architecture, device: str
) -> Callable[[np.ndarray], Tensor]:
    """Row numbers -> their images as the model takes them.

    A GPU holds them all, prepared; a CPU prepares a batch at a time, which costs it next to
    nothing and saves three quarters of the memory.
    """
    if device == "cpu":
        return lambda rows: _tensor(images[rows], architecture)
    resident = _tensor(images, architecture).to(device)
    return lambda rows: resident[torch.from_numpy(rows).to(device)]


def _batches(
    recipe: Recipe, pixels: Callable[[np.ndarray], Tensor], labels: np.ndarray, done: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Epochs without end: a new order each, the incomplete last batch left out.

    The first `done` batches are drawn and not made, so that the streams stand where they stood.
    """
    order = stream("pretraining", recipe.seed, _BATCHES)
    augmentation = stream("pretraining", recipe.seed, _AUGMENT)
    size = min(recipe.batch_size, len(labels))
    reach = max(1, recipe.image_size // 8)
    drawn = 0
    while True:
        shuffled = order.permutation(len(labels))
        for start in range(0, len(labels) - size + 1, size):
            chosen = shuffled[start : start + size]
            if recipe.augment != "none":
                shifts = augmentation.integers(-reach, reach + 1, size=(2, size))
                mirrored = augmentation.random(size) < 0.5
                mirrored &= recipe.augment == "crop-flip"
            drawn += 1
            if drawn <= done:
                continue
            batch = pixels(chosen)
            if recipe.augment != "none":
                moves = [torch.from_numpy(move).to(batch.device) for move in (shifts, mirrored)]
                batch = shift_and_mirror(batch, *moves)
            yield batch, torch.from_numpy(labels[chosen]).to(batch.device)


def _source(recipe: Recipe) -> _Source:
    generator = stream("pretraining", recipe.seed, _DATA)
    if recipe.data == LETTERS:
        cut = recipe.images or 0
        images, labels = render_letters(cut + recipe.held_out, generator, recipe.image_size)
        return _Source(images[:cut], labels[:cut], images[cut:], labels[cut:])
    data = load_dataset(recipe.data)
    order = generator.permutation(len(data.labels))
    held = data.official_test[order]
    if not held.any():
        held = np.arange(len(order)) < max(1, len(order) // 10)
    chosen, test = order[~held][: recipe.images], order[held]
    return _Source(data.images[chosen], data.labels[chosen], data.images[test], data.labels[test])


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
        check_keys(options, known, source)
        size = options.get("image_size")
        return from_timm(options["timm_name"], options.get("file"), image_size=size)
    known = {key: _ARCHITECTURE.get(key) for key in _CHECKPOINT} | {"file": MISSING}
    check_keys(options, known, source)
    return from_checkpoint(options["file"], _shape(options))


def _shape(options: Mapping[str, Any]) -> Architecture:
    return Architecture(**{key: value for key, value in options.items() if key in _ARCHITECTURE})


def _tensor(images: np.ndarray, architecture: Architecture) -> Tensor:
    size, channels = architecture.image_size, architecture.channels
    mean, std = architecture.mean, architecture.std
    return torch.from_numpy(prepare(images, size=size, channels=channels, mean=mean, std=std))


def _features(model: nn.Module, architecture: Architecture, images: np.ndarray) -> Tensor:
    """Class tokens of uint8 images, float32 [n, dim], computed where the model is."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            class_tokens(model, _tensor(images[start : start + 512], architecture).to(device))
            for start in range(0, len(images), 512)
        ]
    return torch.cat(parts)


def _predicted(model: nn.Module, architecture: Architecture, images: np.ndarray) -> np.ndarray:
    """The class that the head gives to each image."""
    with torch.no_grad():
        scores = model.get_submodule("head")(_features(model, architecture, images))
    predicted: np.ndarray = scores.argmax(dim=1).cpu().numpy()
    return predicted


def _probe(model: nn.Module, architecture: Architecture, data: ImageData) -> dict[str, Any]:
    """Fitted on one half of the images, tested on the other; official test images stay unseen."""
    usable = np.flatnonzero(~data.official_test)
    order = stream("pretraining", 0, _PROBE).permutation(len(usable))
    features = _features(model, architecture, data.images[usable]).cpu().numpy()
    accuracy = linear_probe(features, data.labels[usable], order)
    return {"data": data.name, "accuracy": accuracy}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _say(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)


def _summary(facts: Mapping[str, Any]) -> str:
    probe = facts["linear_probe"]
    text = f"linear probe on {probe['data']} {probe['accuracy']:.4f}"
    if "held_out_accuracy" in facts:
        text = f"held-out accuracy {facts['held_out_accuracy']:.4f}, {text}"
    return text
