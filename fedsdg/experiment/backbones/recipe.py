"""An entry of ``backbones``: train one from scratch, or take over somebody else's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedsdg.data.sources import built_in
from fedsdg.parts import Range, make, part, shown

LETTERS = "letters"

#: Sub-streams of "pretraining", so that no draw shifts another.
DATA, WEIGHTS, BATCHES, AUGMENT, PROBE = range(5)


@part
class Shape:
    """The sizes of a vision transformer that is built from numbers."""

    image_size: Annotated[int, Range(1)]
    "height and width of its images"
    patch_size: Annotated[int, Range(1)]
    "height and width of a patch; divides `image_size`"
    channels: Literal[1, 3]
    "of its images"
    dim: Annotated[int, Range(1)]
    "numbers of a token; a multiple of `heads`"
    depth: Annotated[int, Range(1)]
    "blocks"
    heads: Annotated[int, Range(1)]
    "attention heads of a block"

    def __post_init__(self) -> None:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size {self.patch_size} must divide image_size {self.image_size}"
            )
        if self.dim % self.heads:
            raise ValueError(f"heads {self.heads} must divide dim {self.dim}")
        for name in ("mean", "std"):
            values = getattr(self, name, None)
            if values is not None and len(values) != self.channels:
                raise ValueError(f"{name} needs one number per channel, {self.channels} in all")
            if values is not None and name == "std" and min(values) <= 0:
                raise ValueError("std must be above 0 in every channel")


@part
class Recipe(Shape):
    """A vision transformer trained from scratch, by AdamW with linear warm-up and a cosine."""

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
    """letters rendered besides, to measure accuracy; a named data set uses its own test set, or the
    fixed one of `partition.test` where it has none, so that no backbone learns from it"""
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
        super().__post_init__()
        _require_data_set("probe", self.probe)
        if self.data != LETTERS:
            _require_data_set("data", self.data)
        elif self.images is None:
            raise ValueError("letters are rendered, so images must be a number")
        if self.ema == 1:
            raise ValueError("ema is 1, but must be below 1")


@part
class Checkpoint(Shape):
    """A plain state dict of timm's `VisionTransformer`, in a safetensors file."""

    file: str
    "its weights"
    mean: Annotated[tuple[float, ...], Range()]
    "of each channel, which is taken off"
    std: Annotated[tuple[float, ...], Range()]
    "of each channel, by which is divided"
    mlp_ratio: Annotated[float, Range(1e-9)] = 4.0
    "width of a feed-forward layer, in tokens"
    probe: str = "digits"
    "data set of the linear probe"
    threads: Annotated[int, Range(1)] = 2
    "threads of the linear probe"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_data_set("probe", self.probe)


@part
class Timm:
    """A pretrained vision transformer of timm, from the hub or from a file of its weights."""

    timm_name: str
    "such as `vit_tiny_patch16_224.augreg_in21k`"
    file: str | None = None
    "its weights; null asks the hub"
    image_size: Annotated[int | None, Range(1)] = None
    "resample the position embedding to this height and width; null keeps the model's own"
    probe: str = "digits"
    "data set of the linear probe"
    threads: Annotated[int, Range(1)] = 2
    "threads of the linear probe"

    def __post_init__(self) -> None:
        _require_data_set("probe", self.probe)


#: What the key `source` chooses between.
SOURCES = {"pretrain": Recipe, "checkpoint": Checkpoint, "timm": Timm}


def parse_backbone(
    options: Mapping[str, Any], where: str = "backbone"
) -> Recipe | Checkpoint | Timm:
    """Check an entry of `backbones` in full.

    Args:
        options: the entry; `source` chooses between `SOURCES` and is "pretrain" by default.
        where: the entry's name in an error.

    Raises:
        ValueError: names what is unknown, missing, out of range or contradictory.
    """
    given = dict(options)
    source = given.pop("source", "pretrain")
    if not isinstance(source, str) or source not in SOURCES:
        raise ValueError(
            f"{where}.source is {shown(source)}, but must be one of {', '.join(SOURCES)}"
        )
    made: Recipe | Checkpoint | Timm = make(SOURCES[source], given, where)
    return made


def _require_data_set(key: str, name: str) -> None:
    try:
        built_in(name)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
