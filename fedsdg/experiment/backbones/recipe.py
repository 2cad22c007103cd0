"""How to train a backbone from scratch: the options, their defaults and their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal

from fedsdg.parts import Range, make, part

LETTERS = "letters"

#: Sub-streams of "pretraining", so that no draw shifts another.
DATA, WEIGHTS, BATCHES, AUGMENT, PROBE = range(5)


@part
class Recipe:
    """A vision transformer trained from scratch, by AdamW with linear warm-up and a cosine."""

    image_size: Annotated[int, Range(1)]
    "height and width of its images"
    patch_size: Annotated[int, Range(1)]
    "height and width of a patch"
    channels: Literal[1, 3]
    "of its images"
    dim: Annotated[int, Range(1)]
    "numbers of a token"
    depth: Annotated[int, Range(1)]
    "blocks"
    heads: Annotated[int, Range(1)]
    "attention heads of a block"
    mlp_ratio: Annotated[float, Range(1e-9)] = 4.0
    "width of a feed-forward layer, in tokens"
    data: str = LETTERS
    "`letters` (rendered from fonts) or the name of a data set"
    mean: Annotated[tuple[float, ...] | None, Range()] = None
    "of each channel, which is taken off; null: that of the training images"
    std: Annotated[tuple[float, ...] | None, Range()] = None
    "of each channel, by which is divided; null: that of the training images"
    images: Annotated[int | None, Range(1)] = 60_000
    "training images; null takes all of a named data set"
    held_out: Annotated[int, Range(1)] = 5_000
    """letters rendered besides, to measure accuracy; a named data set uses its own test set, or a
    tenth of its images where it has none"""
    epochs: Annotated[int, Range(1)] = 6
    "epochs of training"
    batch_size: Annotated[int, Range(1)] = 64
    "images of a batch"
    learning_rate: Annotated[float, Range(1e-12)] = 2e-3
    "the highest, after warm-up"
    beta2: Annotated[float, Range(0, 1)] = 0.98
    "AdamW's β₂"
    weight_decay: Annotated[float, Range(0)] = 0.05
    "AdamW's weight decay"
    warmup_steps: Annotated[int, Range(0)] = 300
    "steps in which the learning rate rises"
    label_smoothing: Annotated[float, Range(0, 1)] = 0.1
    "share of the label that is spread over all classes"
    drop_path: Annotated[float, Range(0, 1)] = 0.0
    "stochastic depth of the last block; 0 in the first, linear between"
    clip_norm: Annotated[float, Range(1e-12)] = 1.0
    "largest norm of the gradient"
    ema: Annotated[float, Range(0, 1)] = 0.0
    """largest decay of the moving average of the weights, which is then the backbone, below 1; 0
    takes the last weights"""
    augment: Literal["none", "crop", "crop-flip"] = "none"
    "`crop`: shifts by up to an eighth of the size, reflected; `crop-flip`: mirrored as well"
    precision: Literal["float32", "bfloat16"] = "float32"
    "`bfloat16`: by autocast"
    device: Literal["cpu", "cuda"] = "cpu"
    "the last bits of the weights depend on it"
    seed: Annotated[int, Range(0)] = 0
    "of images, initial values and order"
    threads: Annotated[int, Range(1)] = 2
    "threads of this step, whatever `--cores` says; sums depend on it"
    probe: str = "digits"
    """data set of the linear probe that says what the backbone is worth: fitted on half of its
    images, tested on the other half; official test images stay unseen"""

    def __post_init__(self) -> None:
        if self.data == LETTERS and self.images is None:
            raise ValueError("letters are rendered, so images must be a number")
        if self.ema == 1:
            raise ValueError("ema is 1, but must be below 1")


def parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """The recipe of a mapping (without `source`), checked.

    Raises:
        ValueError: names what is unknown, missing or out of range, and what is allowed.
    """
    check_keys(options, {f.name: f.default for f in fields(Recipe)}, "pretrain")
    return make(Recipe, options, "backbone")


def check_keys(options: Mapping[str, Any], known: Mapping[str, Any], source: str) -> None:
    """Every key must be known, and every known key whose default is MISSING must be there."""
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(
            f"backbone: source {source} does not know {', '.join(unknown)}; "
            f"its options are {', '.join(sorted(known))}"
        )
    if lacking := sorted(k for k, v in known.items() if v is MISSING and k not in options):
        raise ValueError(f"backbone: source {source} also needs {', '.join(lacking)}")
