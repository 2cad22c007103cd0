"""A backbone that somebody else trained: a plain state dict, or a model of timm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedsdg.experiment.backbones.recipe import check_keys
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import Backbone, from_checkpoint, from_timm

_ARCHITECTURE = {f.name: f.default for f in fields(Architecture)}
_CHECKPOINT = _ARCHITECTURE.keys() - {"timm_name"} | {"file", "probe", "threads"}
_TIMM = {"timm_name", "file", "image_size", "probe", "threads"}


def take(source: str, options: Mapping[str, Any]) -> Backbone:
    """A backbone somebody else trained."""
    if source == "timm":
        known = dict.fromkeys(_TIMM) | {"timm_name": MISSING}
        check_keys(options, known, source)
        size = options.get("image_size")
        return from_timm(options["timm_name"], options.get("file"), image_size=size)
    known = {key: _ARCHITECTURE.get(key) for key in _CHECKPOINT} | {"file": MISSING}
    check_keys(options, known, source)
    return from_checkpoint(options["file"], shape_of(options))


def shape_of(options: Mapping[str, Any]) -> Architecture:
    """The architecture that the options of a checkpoint give."""
    return Architecture(**{key: value for key, value in options.items() if key in _ARCHITECTURE})
