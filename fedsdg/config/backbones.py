"""Entries of ``backbones``: a vision transformer to train from scratch, or weights to take over."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsdg.config.values import Positive
from fedsdg.data.sources import DATASETS
from fedsdg.models.architecture import Architecture
from fedsdg.parts import Count, Natural, NonNegative, Part, Several, Share

LETTERS = "letters"
Statistics = Several[float]
Ratio = Annotated[float, Field(ge=1e-9)]


class Backbone(Part, kind=True):
    """The frozen backbone of all methods: where its weights come from."""

    probe: Literal[(*DATASETS,)] = "digits"  # type: ignore[valid-type]
    """data set of the linear probe that says what the backbone is worth: fitted on half of its
    images, tested on the other half; official test images stay unseen"""
    threads: Count = 2
    "threads of this step, whatever `--cores` says; sums depend on it"


class Shape(Backbone):
    """The sizes of a vision transformer that is built from numbers."""

    image_size: Count
    "height and width of its images"
    patch_size: Count
    "height and width of a patch; divides `image_size`"
    channels: Literal[1, 3]
    "of the images: 1 grey, 3 colour"
    dim: Count
    "numbers of a token; a multiple of `heads`"
    depth: Count
    "blocks"
    heads: Count
    "attention heads of a block"
    mlp_ratio: Ratio = 4.0
    "width of a feed-forward layer, in tokens"
    mean: Statistics | None = None
    "mean of each channel, subtracted; null: that of the training images"
    std: Statistics | None = None
    "standard deviation of each channel, divided by; null: that of the training images"

    def check_fields(self) -> None:
        """Check that sizes divide one another, and the numbers for channels."""
        self.architecture()

    def architecture(
        self, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
    ) -> Architecture:
        """Return the shape of the network.

        Args:
            mean: Of each channel, where the entry has none; else 0.
            std: Of each channel, where the entry has none; else 1.
        """
        keys = ("image_size", "patch_size", "channels", "dim", "depth", "heads", "mlp_ratio")
        return Architecture(
            **{key: getattr(self, key) for key in keys},
            mean=self.mean or mean or (0.0,) * self.channels,
            std=self.std or std or (1.0,) * self.channels,
        )


class Pretrained(Shape, name="pretrain"):
    """A vision transformer trained from scratch, by AdamW with linear warm-up and a cosine."""

    data: Literal[(LETTERS, *DATASETS)] = LETTERS  # type: ignore[valid-type]
    "`letters` (rendered from fonts) or the name of a data set"
    images: Count | None = 60_000
    "training images; null takes all of a named data set"
    held_out: Count = 5_000
    """letters rendered besides, to measure accuracy; a named data set uses its own test set, or the
    fixed one of `partition.test` if it has none, so that no backbone learns from it"""
    epochs: Count = 6
    "epochs of training"
    batch_size: Count = 64
    "images of a batch"
    learning_rate: Positive = 2e-3
    "the highest, after warm-up"
    beta2: Share = 0.98
    "AdamW's β₂"
    weight_decay: NonNegative = 0.05
    "AdamW's weight decay"
    warmup_steps: Natural = 300
    "steps in which the learning rate rises"
    label_smoothing: Share = 0.1
    "share of the label that is spread over all classes"
    drop_path: Share = 0.0
    "stochastic depth of the last block; 0 in the first, linear between"
    clip_norm: Positive = 1.0
    "largest norm of the gradient"
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """largest decay of the moving average of the weights, which is then the backbone, below 1; 0
    takes the last weights"""
    augment: Literal["none", "crop", "crop-flip"] = "none"
    "`crop`: shifts by up to an eighth of the size, reflected; `crop-flip`: mirrored as well"
    precision: Literal["float32", "bfloat16"] = "float32"
    "`bfloat16`: by autocast"
    device: Literal["cpu", "cuda"] = "cpu"
    "the last bits of the weights depend on it"
    seed: Natural = 0
    "random seed of images, initial values and order"

    def check_fields(self) -> None:
        """Refuse letters without a number of images."""
        super().check_fields()
        if self.data == LETTERS and self.images is None:
            raise ValueError("letters are rendered, so images must be a number")


class Checkpoint(Shape, name="checkpoint"):
    """A plain state dict of timm's `VisionTransformer`, in a safetensors file."""

    file: str
    "its weights"
    mean: Statistics
    "mean of each channel, subtracted"
    std: Statistics
    "standard deviation of each channel, divided by"


class Timm(Backbone, name="timm"):
    """A pretrained vision transformer of timm, from the hub or from a file of its weights."""

    timm_name: str
    "such as `vit_tiny_patch16_224.augreg_in21k`"
    file: str | None = None
    "its weights; null asks the hub"
    image_size: Count | None = None
    "resample the position embedding to this height and width; null keeps the model's own"
