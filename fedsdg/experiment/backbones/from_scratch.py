"""A backbone trained from scratch, which goes on where it was stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsdg.data.reading import load
from fedsdg.data.sources import built_in
from fedsdg.experiment.backbones.accuracy import predicted_classes, probed
from fedsdg.experiment.backbones.recipe import LETTERS, WEIGHTS, Recipe
from fedsdg.experiment.backbones.snapshots import Snapshot
from fedsdg.experiment.backbones.source_images import (
    SourceImages,
    architecture_of,
    batches_of,
    pixels_of,
    source_images,
)
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.machine.threads import threads
from fedsdg.files import sha256_json, source_hash
from fedsdg.models import (
    Architecture,
    Backbone,
    Training,
    build_backbone,
    progress_report,
    save_backbone,
)
from fedsdg.rng import stream

ALPHABET = 26  # the labels count one case, then the other

#: The parts of the package that make the weights. How data were loaded is in their hash.
SOURCES = (
    "data/images.py",
    "experiment/backbones/from_scratch.py",
    "experiment/backbones/recipe.py",
    "experiment/backbones/source_images.py",
    "experiment/machine/gpu.py",
    "experiment/machine/threads.py",
    "models",
    "rng.py",
)


def from_scratch(
    recipe: Recipe,
    output: Path | str,
    checkpoints: Path | None,
    checkpoint_seconds: float,
    progress: bool,
) -> Backbone:
    """The backbone of a recipe; arguments and errors as of `pretrain`."""
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("backbone: device is cuda, but torch sees no GPU; set device to cpu")
    # First of all, so that data that are missing are missed before the hours of training.
    probe = load(built_in(recipe.probe))
    source = source_images(recipe)
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
    with threads(recipe.threads), repeatable(recipe.device), stopped_by_signals():
        try:
            model, architecture, facts = _train(
                recipe, source, snapshot, checkpoint_seconds, progress
            )
            facts["linear_probe"] = probed(model, architecture, probe)
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
    source: SourceImages,
    snapshot: Snapshot | None,
    checkpoint_seconds: float,
    progress: bool,
) -> tuple[nn.Module, Architecture, dict[str, Any]]:
    architecture = architecture_of(recipe, source.images)
    classes = int(max(source.labels.max(), source.held_labels.max())) + 1
    per_epoch = max(1, len(source.images) // recipe.batch_size)
    with torch.random.fork_rng(devices=[0] if recipe.device == "cuda" else []):
        torch.manual_seed(int(stream("pretraining", recipe.seed, WEIGHTS).integers(2**62)))
        model = build_backbone(architecture, num_classes=classes, drop_path_rate=recipe.drop_path)
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
        pixels = pixels_of(source.images, architecture, recipe.device)
        batches = batches_of(recipe, pixels, source.labels, training.done)
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
        right = predicted_classes(model, architecture, source.held_images) == source.held_labels
        facts["held_out_accuracy_without_ema"] = float(right.mean())
    training.finish()
    predicted = predicted_classes(model, architecture, source.held_images)
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


def _say(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
