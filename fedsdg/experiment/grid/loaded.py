"""What a process has loaded: images, and prepared images with a backbone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData
    from fedsdg.experiment.loading import Source
    from fedsdg.experiment.material import Material


@lru_cache(maxsize=1)
def loaded_images(source: Source) -> ImageData:
    """A data set, which a process keeps until it needs another."""
    from fedsdg.experiment.loading import load_images

    return load_images(source)


@lru_cache(maxsize=1)
def loaded_material(source: Source, backbone: Path | None, device: str) -> Material:
    """Prepared images and backbone, which a process keeps until it needs others."""
    from fedsdg.experiment.material import prepare_material
    from fedsdg.models import load_backbone

    frozen = load_backbone(backbone) if backbone else None
    return prepare_material(loaded_images(source), frozen, device)
