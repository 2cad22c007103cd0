"""Frozen backbones: pretrained from scratch, or taken over from somebody else.

A backbone is two files, NAME.safetensors and NAME.json, which depend on its recipe alone. Finished
ones are kept in the store under the hash of the recipe. Pretraining rounds differently on another
processor, and other weights mean other runs, so those of the record come before one's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsdg import files, models
from fedsdg.config.backbones import LETTERS, Backbone, Checkpoint, Pretrained, Shape, Timm
from fedsdg.config.config import Config
from fedsdg.data.datasets import ImageData, global_test_set
from fedsdg.data.glyphs import render_letters
from fedsdg.data.images import Pictures
from fedsdg.data.reading import load
from fedsdg.data.sources import built_in
from fedsdg.errors import remark
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.store import get_or_run, store_folder
from fedsdg.files.places import BACKBONE, RECORDS, filled, root
from fedsdg.lazy import Tensor, torch
from fedsdg.rng import stream

PRETRAIN = "FEDSDG_PRETRAIN"
"""The environment variable that, set to 1, leaves the backbones of the record alone."""
DATA, WEIGHTS, BATCHES, AUGMENT, PROBE = range(5)
"""Sub-streams of "pretraining", so that no draw shifts another."""
OPTIONS: tuple[str, ...] = ("learning_rate", "beta2", "weight_decay", "warmup_steps")
OPTIONS += ("label_smoothing", "clip_norm", "ema")
"""What a training takes from the recipe as it is."""


def backbone(
    name: str,
    recipe: Backbone,
    file: Path | None = None,
    *,
    checkpoint_seconds: float = 30.0,
    recorded: bool = True,
) -> Path:
    """Return the weights' file of a backbone, whose facts lie beside it as JSON.

    It is the file itself if a pretraining of this recipe made it, else a copy of the record's, else
    of the store's, which is made if it is not there. A pretraining that was stopped or killed goes
    on where it was. torch is imported only to make one.

    Args:
        name: The name of the recipe in the config.
        recipe: How to make it.
        file: Where it shall lie; None: ``results/backbones/NAME.safetensors``.
        checkpoint_seconds: Time between checkpoints of a pretraining; they change no byte of it.
        recorded: Take the file itself, or the record's unless ``$FEDSDG_PRETRAIN`` is 1; else the
            store's in any case, which mends a damaged file.

    Raises:
        ValueError: There is no GPU, its memory is too small, or weights to take over do not fit.
        FileNotFoundError: Weights to take over, or images, are missing.
        FloatingPointError: The loss became NaN or infinite.
        Stopped: A signal ended the pretraining; its state is saved.
    """
    file = file or filled(BACKBONE, backbone=name)
    if recorded and file.is_file() and _is_made_by(recipe, file.with_suffix(".json")):
        return file
    record = f"{RECORDS}/backbones/{name}.safetensors"
    source = root() / record
    published = source.with_suffix(".json")
    wanted = recorded and os.environ.get(PRETRAIN, "") in ("", "0")
    if wanted and source.is_file() and _is_made_by(recipe, published):
        facts = {**files.read_json(published), "taken_from": record}
        remark(f"backbone {name}: taken from {record}")
    else:
        weights = getattr(recipe, "file", None)
        sha256 = files.sha256_file(weights) if weights else None
        key = files.sha256_json(["backbone", name, recipe.overrides(), sha256])

        def make(folder: Path) -> None:
            _make(recipe, folder / f"{name}.safetensors", key, checkpoint_seconds)

        source = get_or_run(key, make) / f"{name}.safetensors"
        facts = files.read_json(source.with_suffix(".json"))
    files.write_bytes(file, source.read_bytes())
    files.write_json(file.with_suffix(".json"), facts)
    return file


def backbone_sha256(file: Path) -> str:
    """Return the SHA-256 of a backbone's weights, as the facts beside its file say."""
    return str(files.read_json(file.with_suffix(".json"))["sha256"])


def described_sha256(config: Config, folder: Path) -> str | None:
    """Return the SHA-256 of a config's backbone, by the facts that lie beside its weights.

    Args:
        config: The config.
        folder: Where the facts are.

    Returns:
        The hash; "" if another recipe made the backbone; None if there are no facts, or if the
        config has no backbone or takes one over.
    """
    recipe = config.backbones[config.backbone]
    facts = folder / f"{config.backbone}.json"
    if config.trainable == "full" or not isinstance(recipe, Pretrained) or not facts.is_file():
        return None
    return backbone_sha256(facts) if _is_made_by(recipe, facts) else ""


def _is_made_by(recipe: Backbone, facts: Path) -> bool:
    """Return whether a pretraining of this recipe made a backbone, by the file of its facts."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return Pretrained.read(files.read_json(facts)["recipe"]) == recipe
    return False


def _make(recipe: Backbone, file: Path, key: str, checkpoint_seconds: float) -> None:
    """Write the two files of a backbone."""
    from fedsdg.experiment.gpu import repeatable

    started = time.perf_counter()
    device = getattr(recipe, "device", "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("backbone: device is cuda, but torch sees no GPU; set device to cpu")
    # First of all, so that data that are missing are missed before the hours of training.
    data = load(built_in(recipe.probe))
    generators = torch.random.fork_rng(devices=[0] if device == "cuda" else [])
    with repeatable(device, threads=recipe.threads), generators, stopped_by_signals():
        if isinstance(recipe, Pretrained):
            # Another version may round differently; what one began, another does not finish.
            versions = files.sha256_json([torch.__version__, np.__version__])
            checkpoint = store_folder("checkpoints") / key / versions
            made = _pretrained(recipe, checkpoint, checkpoint_seconds)
        elif isinstance(recipe, Timm):
            made = models.from_timm(recipe.timm_name, recipe.file, image_size=recipe.image_size)
        else:
            assert isinstance(recipe, Checkpoint)
            made = models.from_checkpoint(recipe.file, _architecture(recipe))
        accuracy = probe_accuracy(made, data)
        facts = {
            **made.facts,
            "source": recipe.registered_as,
            "linear_probe": {"data": data.name, "accuracy": accuracy},
        }
        models.save_backbone(made.model, made.architecture, file, facts)
    seconds = time.perf_counter() - started
    remark(f"backbone {file.stem}: linear probe on {data.name} {accuracy:.4f}, {seconds:.1f} s")


# --- Pretraining ----------------------------------------------------------------------------------


def source_images(recipe: Pretrained) -> tuple[np.ndarray, np.ndarray, int]:
    """Return what a backbone is trained on and measured with.

    Args:
        recipe: Names rendered letters, or a data set, whose global test set is held out.

    Returns:
        Images uint8 [n, …], their labels int64 [n], and the number of the first ones that are
        trained on; the others are held out.
    """
    generator = stream("pretraining", recipe.seed, DATA)
    if recipe.data == LETTERS:
        count = recipe.images or 0
        return *render_letters(count + recipe.held_out, generator, recipe.image_size), count
    data = load(built_in(recipe.data))
    order = generator.permutation(len(data.labels))
    held_out = np.isin(order, global_test_set(data.labels, data.test))
    train = order[~held_out][: recipe.images]
    rows = np.concatenate([train, order[held_out]])
    return data.images[rows], data.labels[rows], len(train)


def _pretrained(recipe: Pretrained, checkpoint: Path, checkpoint_seconds: float) -> models.Backbone:
    """Train a vision transformer from random weights, or go on from the checkpoint if there is one.

    The state is saved now and then, at a signal, and at the end: measuring follows, which takes
    minutes at full scale and may fail.
    """
    images, labels, count = source_images(recipe)
    shape = _architecture(recipe, images[:count])
    classes = int(labels.max()) + 1
    epoch = max(1, count // recipe.batch_size)
    torch.manual_seed(int(stream("pretraining", recipe.seed, WEIGHTS).integers(2**62)))
    model = models.build_backbone(shape, num_classes=classes, drop_path_rate=recipe.drop_path)
    training = models.Training(
        model.to(recipe.device),
        recipe.epochs * epoch,
        bfloat16=recipe.precision == "bfloat16",
        **{name: getattr(recipe, name) for name in OPTIONS},
    )
    _restore(training, checkpoint)
    draws = itertools.islice(_draws(recipe, count), training.done, training.steps)
    report = models.progress_report(training.steps, epoch, recipe.batch_size, training.done)
    saved_at = time.perf_counter()
    try:
        # A step is never broken off: weights, moments and average move one after another.
        with stopped_by_signals(at_once=False) as check:
            for rows, shifts, mirrored in draws:
                batch = _prepared(images[rows], shape)
                if recipe.augment != "none":
                    batch = models.shift_and_mirror(batch, shifts, mirrored)
                truth = torch.from_numpy(labels[rows])
                loss = training.step(batch.to(recipe.device), truth.to(recipe.device))
                report(training.done, loss)
                check()
                due = time.perf_counter() - saved_at >= checkpoint_seconds
                if due or training.done == training.steps:
                    _save(training, checkpoint)
                    saved_at = time.perf_counter()
    except Stopped as stop:
        _save(training, checkpoint)
        goes_on = f"goes on after step {training.done} of {training.steps} of the pretraining"
        raise Stopped(stop.args[0], f"stopped; the same command {goes_on}") from None
    except torch.OutOfMemoryError as error:
        remedy = f"lower batch_size, which is {recipe.batch_size}, or set device to cpu"
        raise ValueError(f"the GPU's memory is too small ({error}); {remedy}") from error
    training.finish()
    with torch.no_grad():
        scores = model.get_submodule("head")(_features(model, shape, images[count:]))
    right = np.asarray(scores.argmax(dim=1).cpu()) == labels[count:]
    facts = {
        "recipe": dict(recipe),
        "images": count,
        "classes": classes,
        "held_out_images": len(right),
        "held_out_accuracy": float(right.mean()),
    }
    return models.Backbone(model, shape, "", "pretraining", facts)


def _draws(recipe: Pretrained, count: int) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield rows of batches, their shifts and which are mirrored, epoch after epoch.

    Each epoch has a new order and leaves out the incomplete last batch.
    """
    order = stream("pretraining", recipe.seed, BATCHES)
    augmentation = stream("pretraining", recipe.seed, AUGMENT)
    size = min(recipe.batch_size, count)
    reach = max(1, recipe.image_size // 8)
    while True:
        shuffled = order.permutation(count)
        for start in range(0, count - size + 1, size):
            shifts = augmentation.integers(-reach, reach + 1, size=(2, size))
            mirrored = (augmentation.random(size) < 0.5) & (recipe.augment == "crop-flip")
            rows = shuffled[start : start + size]
            yield rows, torch.from_numpy(shifts), torch.from_numpy(mirrored)


def _save(training: models.Training, checkpoint: Path) -> None:
    """Write the SHA-256 of the state's bytes, then the bytes."""
    from safetensors.torch import save

    content = save({name: value.cpu().contiguous() for name, value in training.state().items()})
    digest = hashlib.sha256(content).digest()
    files.write_bytes(checkpoint, digest + content, durable=True)


def _restore(training: models.Training, checkpoint: Path) -> None:
    from safetensors.torch import load

    content = checkpoint.read_bytes() if checkpoint.is_file() else b""
    if content[:32] == hashlib.sha256(content[32:]).digest():
        training.restore(load(content[32:]))
        remark(f"going on after step {training.done} of {training.steps}")
    elif content:
        remark(f"the checkpoint {checkpoint} is damaged; the pretraining starts anew")


def _architecture(recipe: Shape, images: np.ndarray | None = None) -> models.Architecture:
    """Return the shape of a recipe, with the statistics of images if it names none."""
    plain = recipe.architecture()
    if images is None or (recipe.mean and recipe.std):
        return plain
    sample = _prepared(images[:20_000], plain).numpy().astype(np.float64)
    mean = [round(float(value), 6) for value in sample.mean(axis=(0, 2, 3))]
    std = [round(float(value), 6) for value in sample.std(axis=(0, 2, 3))]
    return recipe.architecture(tuple(mean), tuple(std))


# --- What features are worth ----------------------------------------------------------------------


def _prepared(images: np.ndarray, shape: models.Architecture) -> Tensor:
    """Return images uint8 as a model takes them, float32 [n, channels, size, size]."""
    pictures = Pictures(images, shape.image_size, shape.channels, shape.mean, shape.std)
    return torch.from_numpy(pictures.prepared(images))


def _features(model: torch.nn.Module, shape: models.Architecture, images: np.ndarray) -> Tensor:
    """Return class tokens of images uint8, float32 [n, dim], computed where the model is."""
    device = next(model.eval().parameters()).device
    batches = np.split(images, range(512, len(images), 512))
    with torch.no_grad():
        prepared = (_prepared(batch, shape).to(device) for batch in batches)
        return torch.cat([models.class_tokens(model, batch) for batch in prepared])


def probe_accuracy(backbone: models.Backbone, data: ImageData) -> float:
    """Return the accuracy of a linear probe, fitted on half of the images and tested on the others.

    Args:
        backbone: The backbone; its features are those of the class token.
        data: The images, without those of their own test set.
    """
    usable = np.flatnonzero(~data.test)
    order = stream("pretraining", 0, PROBE).permutation(len(usable))
    features = _features(backbone.model, backbone.architecture, data.images[usable])
    return models.linear_probe(features.cpu().numpy(), data.labels[usable], order)
