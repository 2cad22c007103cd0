"""How to train a backbone from scratch: the options, their defaults and their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

LETTERS = "letters"

#: Sub-streams of "pretraining", so that no draw shifts another.
DATA, WEIGHTS, BATCHES, AUGMENT, PROBE = range(5)


@dataclass(frozen=True)
class Recipe:
    """How to train from scratch; see `fedsdg.models.training.Training` for the optimiser's numbers.

    Attributes:
        data: "letters" (rendered glyphs) or the name of a data set.
        mean, std: per channel; None takes those of the training images.
        images: training images; None takes all of a named data set.
        held_out: letters rendered besides, to measure accuracy. A named data set uses its own test
            set, or a tenth of its images where it has none.
        augment: "none" | "crop" (shifts by up to size/8, reflected) | "crop-flip".
        drop_path: stochastic depth of the last block; 0 in the first, linear between.
        ema: largest decay of the moving average of the weights, which is then the backbone; 0: the
            backbone is the weights after the last step.
        precision: "float32" | "bfloat16" (autocast).
        device: "cpu" | "cuda". Part of the recipe, because the weights' last bits depend on it.
        threads: of torch, for the same reason.
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
    ema: float = 0.0
    augment: str = "none"
    precision: str = "float32"
    device: str = "cpu"
    seed: int = 0
    threads: int = 2
    probe: str = "digits"


_CHOICES = {
    "augment": ("none", "crop", "crop-flip"),
    "precision": ("float32", "bfloat16"),
    "device": ("cpu", "cuda"),
}


def parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """The recipe of a mapping (without `source`), checked.

    Raises:
        ValueError: names what is unknown, missing or out of range, and what is allowed.
    """
    check_keys(options, {f.name: f.default for f in fields(Recipe)}, "pretrain")
    recipe = Recipe(**options)
    for option, allowed in _CHOICES.items():
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
    if not 0.0 <= recipe.ema < 1.0:
        raise ValueError(f"backbone: ema {recipe.ema} must be at least 0 and below 1")
    return recipe


def check_keys(options: Mapping[str, Any], known: Mapping[str, Any], source: str) -> None:
    """Every key must be known, and every known key whose default is MISSING must be there."""
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(
            f"backbone: source {source} does not know {', '.join(unknown)}; "
            f"its options are {', '.join(sorted(known))}"
        )
    if lacking := sorted(k for k, v in known.items() if v is MISSING and k not in options):
        raise ValueError(f"backbone: source {source} also needs {', '.join(lacking)}")
