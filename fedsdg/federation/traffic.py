"""How many bytes a round sends, measured on the messages themselves."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.messages import serialise, serialise_entries
from fedsdg.models.parameters import Layout


class Traffic(NamedTuple):
    """Bytes of a whole cohort in one round, from the server and to it."""

    down: int = 0
    up: int = 0


def traffic(
    layout: Layout,
    model: Tensor,
    received: Mapping[str, Tensor],
    uploaded: Tensor,
    vectors: Mapping[str, Tensor],
    numbers: Mapping[str, Tensor],
    *,
    models_tried: int = 0,
    partial: np.ndarray | None = None,
    lost: int = 0,
    round_: int = 1,
    in_step: int = 0,
    quantised: int = 0,
    of_bytes: int = 0,
) -> Traffic:
    """What a cohort of M clients sends and gets.

    Each gets a ``model`` [d], the vectors ``received`` [d] beside it, and ``models_tried`` further
    models; it sends its row of ``uploaded`` [M, d], of each of the ``vectors`` [M, d], and of the
    ``numbers`` [M, …]. ``partial`` [M]: how many entries of the model it lacks (None: all).
    ``lost``: clients beside them that got the model, and left before they sent anything.
    Where parameters train in turns, clients send those of ``round_``, and ``in_step`` of them, who
    took part in the round before, lack only those of that one. ``quantised`` of the clients send
    a message ``of_bytes`` in place of their row of ``uploaded``, and the rest beside it.
    """
    clients = len(uploaded)
    whole = _length({"": model}, layout)
    first = _length({"": model, **received}, layout)
    down = (clients + lost) * first + clients * models_tried * whole
    if partial is not None:
        # Which entries they are makes no message longer or shorter.
        vector, places = model.cpu(), torch.arange(layout.d)
        few = partial[partial < layout.d].tolist()
        sizes = [len(serialise_entries(vector, places < count)) for count in few]
        down -= sum(max(0, whole - size) for size in sizes)
    if in_step:
        down -= in_step * (whole - _length({"": model}, layout.of_round(round_ - 1)))
    if not clients:
        return Traffic(down)
    sent = {"": uploaded[0], **{name: rows[0] for name, rows in vectors.items()}}
    told = {name: rows[0] for name, rows in numbers.items()}
    up = clients * _length(sent, layout.of_round(round_), told)
    if quantised:
        beside = {name: rows for name, rows in sent.items() if name}
        rest = _length(beside, layout.of_round(round_), told)
        up += quantised * (rest + of_bytes) - quantised * (up // clients)
    return Traffic(down, up)


def _length(
    vectors: Mapping[str, Tensor], layout: Layout, told: Mapping[str, Tensor] | None = None
) -> int:
    """Bytes of `serialise` of the same, which names, shapes and dtypes alone decide."""
    kinds = tuple((name, vector.dtype) for name, vector in vectors.items())
    extra = tuple((name, x.dtype, tuple(x.shape)) for name, x in (told or {}).items())
    return _serialised(kinds, layout, extra)


@functools.lru_cache(maxsize=256)
def _serialised(
    kinds: tuple[tuple[str, torch.dtype], ...],
    layout: Layout,
    extra: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...],
) -> int:
    """The length of a real message of zeros, made once for each kind of message."""
    vectors = {name: torch.zeros(layout.d, dtype=dtype) for name, dtype in kinds}
    told = {name: torch.zeros(shape, dtype=dtype) for name, dtype, shape in extra}
    return len(serialise(vectors, layout, told))
