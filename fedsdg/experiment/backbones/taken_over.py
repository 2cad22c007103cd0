"""A backbone that somebody else trained: a plain state dict, or a model of timm."""

from __future__ import annotations

from dataclasses import asdict, fields

from fedsdg.experiment.backbones.recipe import Checkpoint, Timm
from fedsdg.models import Architecture, Backbone, from_checkpoint, from_timm


def take(entry: Checkpoint | Timm) -> Backbone:
    """A backbone somebody else trained."""
    if isinstance(entry, Timm):
        return from_timm(entry.timm_name, entry.file, image_size=entry.image_size)
    return from_checkpoint(entry.file, shape_of(entry))


def shape_of(entry: Checkpoint) -> Architecture:
    """The architecture that a checkpoint declares."""
    known = {field.name for field in fields(Architecture)}
    return Architecture(**{key: value for key, value in asdict(entry).items() if key in known})
