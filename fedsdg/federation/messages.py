"""What travels between server and client, as bytes: safetensors of named tensors.

Traffic is measured on these bytes, and a message can only be made from communicated
parameters: private factors and gates have no place in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedsdg.models.parameters import Layout, views


def serialise(
    vectors: Mapping[str, Tensor], layout: Layout, measured: Mapping[str, Tensor] | None = None
) -> bytes:
    """One message: the communicated tensors of each vector [d], ``tensor`` or ``vector.tensor``.

    The model or its update is called ``""`` and keeps the plain tensor names. A tensor that the
    layout does not train, because it is not its turn, is left out. What was
    ``measured``, a few numbers each, is sent as it is. Nothing to say (no communicated parameters)
    is no message: ``b""``.
    """
    tensors = {name: rows.detach().cpu().contiguous() for name, rows in (measured or {}).items()}
    sent = [spec.name for spec in layout.communicated if spec.trainable]
    for vector_name, vector in vectors.items():
        # In one copy from the device, and not one for each tensor.
        named = views(vector.detach().cpu()[None], layout.communicated)
        for name in sent:
            key = f"{vector_name}.{name}" if vector_name else name
            tensors[key] = named[name][0].contiguous()
    return save(tensors) if tensors else b""


def serialise_entries(vector: Tensor, entries: Tensor) -> bytes:
    """A message of some ``entries`` (bool [d]) of a vector [d] alone: a bit each, and values."""
    bits = torch.from_numpy(np.packbits(entries.numpy(force=True)))
    return save({"entries": bits, "values": vector[entries].cpu()})
