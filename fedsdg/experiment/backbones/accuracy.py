"""What a backbone is worth: what its head predicts, and a linear probe on its features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsdg.data.datasets import ImageData
from fedsdg.experiment.backbones.recipe import PROBE
from fedsdg.experiment.backbones.source_images import prepared
from fedsdg.models import Architecture, class_tokens, linear_probe
from fedsdg.rng import stream


def probed(model: nn.Module, architecture: Architecture, data: ImageData) -> dict[str, Any]:
    """Fitted on one half of the images, tested on the other; official test images stay unseen."""
    usable = np.flatnonzero(~data.test)
    order = stream("pretraining", 0, PROBE).permutation(len(usable))
    features = _features(model, architecture, data.images[usable]).cpu().numpy()
    accuracy = linear_probe(features, data.labels[usable], order)
    return {"data": data.name, "accuracy": accuracy}


def predicted_classes(
    model: nn.Module, architecture: Architecture, images: np.ndarray
) -> np.ndarray:
    """The class that the head gives to each image."""
    with torch.no_grad():
        scores = model.get_submodule("head")(_features(model, architecture, images))
    predicted: np.ndarray = scores.argmax(dim=1).cpu().numpy()
    return predicted


def _features(model: nn.Module, architecture: Architecture, images: np.ndarray) -> Tensor:
    """Class tokens of uint8 images, float32 [n, dim], computed where the model is."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            class_tokens(model, prepared(images[start : start + 512], architecture).to(device))
            for start in range(0, len(images), 512)
        ]
    return torch.cat(parts)
