"""What runs share: a data set's images, prepared for the model, and the frozen backbone."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from fedsdg.config import plugins
from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.reading import load
from fedsdg.data.sources import Source, built_in
from fedsdg.federation.tasks import Samples
from fedsdg.models import Backbone, CnnArchitecture, load_backbone


@dataclass(frozen=True)
class Material:
    """Images and backbone of runs on one data set."""

    data: ImageData
    "the images as they are read"
    pictures: Pictures
    "how a model takes them"
    samples: Samples
    "as a model takes them, on the device of the run"
    backbone: Backbone | None
    "None if all parameters are trained"

    @property
    def backbone_hash(self) -> str | None:
        """SHA-256 of the backbone."""
        return self.backbone.sha256 if self.backbone else None


@lru_cache(maxsize=1)
def load_images(source: str | Source) -> ImageData:
    """Load a data set; a process keeps it until it needs another.

    Args:
        source: A built-in name, that of a plugin's data set, or a description of one's own images.

    Raises:
        FileNotFoundError: There is nothing to load.
        ValueError: The data are not as they are described.
    """
    if isinstance(source, Source):
        return load(source)
    if source in plugins.DATASETS:
        return plugins.DATASETS[source]()
    return load(built_in(source))


@lru_cache(maxsize=1)
def load_material(source: str | Source, backbone: Path | None, device: str) -> Material:
    """Return images and backbone; a process keeps them until it needs others.

    Args:
        source: As for ``load_images``.
        backbone: The backbone's weights; None if all parameters are trained.
        device: "cpu" or "cuda".

    Raises:
        FileNotFoundError: There is nothing to load.
        ValueError: The data are not as they are described, or there is no such device.
    """
    frozen = None if backbone is None else load_backbone(backbone)
    return prepare_material(load_images(source), frozen, device)


def prepare_material(data: ImageData, backbone: Backbone | None, device: str) -> Material:
    """Bring images to the backbone's size, channels and normalisation.

    Without a backbone they keep their size and channels (see ``CnnArchitecture``).

    Args:
        data: The images.
        backbone: The frozen backbone, if there is one.
        device: "cpu" or "cuda".

    Raises:
        ValueError: There is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "training.device is cuda, but this machine has no CUDA device; set it to cpu"
        )
    channels = 3 if data.images.ndim == 4 else 1
    shape = backbone.architecture if backbone else CnnArchitecture(data.images.shape[1], channels)
    pictures = Pictures(
        data.images,
        size=shape.image_size,
        channels=shape.channels,
        mean=shape.mean,
        std=shape.std,
    )
    samples = Samples(
        images=torch.from_numpy(pictures.prepared(data.images)).to(device),
        labels=torch.from_numpy(data.labels).long().to(device),
    )
    return Material(data, pictures, samples, backbone)
