"""New parameters into their place, whole or not at all."""

from bisect import bisect_left
from collections.abc import Collection
from itertools import accumulate

import numpy as np
import torch

from fedsdg.aggregation.engines.memory.blocks import Block, cut
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.rows import all_finite
from fedsdg.aggregation.uploads import NonFiniteError

BLOCK_NUMBERS = 1 << 16
"""Numbers added and checked at a time."""


def place(
    block: Block, values: torch.Tensor, targets: StateDict, *, rehearse: bool = False
) -> set[str]:
    """targets <- values [width], at the block's columns, in the dtypes of the targets.

    Returns the names of the tensors in which a number is not finite. rehearse: nothing is written.
    """
    fine, bad = all_finite(values), set()
    for piece in block.pieces:
        target = piece.of(targets)
        result = values[piece.columns].view(target.shape).to(target)
        if not (fine and result.dtype == values.dtype) and not all_finite(result):
            bad.add(piece.name)
        if not rehearse:
            target.copy_(result)
    return bad


def check_results(bad: Collection[str], targets: StateDict) -> None:
    """NonFiniteError for the first of the tensors in which a result is not finite."""
    for name in targets:
        if name in bad:
            raise NonFiniteError(
                f"the aggregated tensor {name!r} overflows {targets[name].dtype}; convert the "
                f"parameters to a wider dtype, or lower the rate of the server"
            )


def write_sums(targets: StateDict, origin: StateDict, step: torch.Tensor, *, fresh: bool) -> None:
    """targets <- origin + step, tensor by tensor in the order of origin; step [d].

    fresh: whether the targets hold nothing yet; otherwise they are written only when no sum
    overflows its dtype. They must not overlap with origin (see `apart`).
    Raises NonFiniteError, naming the tensor, when one does.
    """
    blocks = cut({name: tuple(tensor.shape) for name, tensor in origin.items()}, BLOCK_NUMBERS)
    for rehearse in (False,) if fresh else (True, False):
        for block in blocks:
            base = torch.empty(block.width, dtype=step.dtype, device=step.device)
            block.gather(origin, base)
            sums = base.add_(step[block.columns])
            check_results(place(block, sums, targets, rehearse=rehearse), targets)


def write_copies(targets: StateDict, origin: StateDict) -> None:
    """targets <- origin, where the targets may be or overlap the tensors of origin."""
    origin = apart(targets, [origin])[0]
    for name, target in targets.items():
        target.copy_(origin[name])


def check_disjoint(targets: StateDict) -> None:
    """ValueError, naming tensors, where a number of the targets has two places in them."""
    filled = [(_span(tensor), name) for name, tensor in targets.items() if tensor.numel()]
    for name, tensor in targets.items():
        if _overlaps_itself(tensor):
            raise ValueError(
                f"out: elements of tensor {name!r} share memory; give a buffer with a place for "
                f"each"
            )
    reaching: list[tuple[int, str]] = []
    for (start, end), name in sorted(filled, key=lambda entry: entry[0]):
        reaching = [(until, other) for until, other in reaching if until > start]
        for _, other in reaching:
            if np.shares_memory(_addresses(targets[name]), _addresses(targets[other])):
                raise ValueError(
                    f"out: tensors {other!r} and {name!r} share memory; give a buffer for each"
                )
        reaching.append((end, name))


def apart(targets: StateDict, others: list[StateDict]) -> list[StateDict]:
    """The others, those of their tensors copied that would change before they have been read.

    Results are written a few columns at a time, into those columns of the target that have just
    been read. So a tensor is harmless that is its own target, element by element; one that
    overlaps a target in another way is copied. By the ranges of addresses, so interleaved views
    count as overlapping though they share nothing.
    """
    filled = [(_span(tensor), name) for name, tensor in targets.items() if tensor.numel()]
    spans = sorted(filled, key=lambda entry: entry[0])
    starts = [start for (start, _), _ in spans]
    reaches = list(accumulate((end for (_, end), _ in spans), max, initial=0))
    shared = {
        name
        for k, ((start, end), name) in enumerate(spans)
        if reaches[k] > start or (k + 1 < len(spans) and starts[k + 1] < end)
    }

    def harmless(name: str, tensor: torch.Tensor) -> bool:
        if tensor.numel() == 0:
            return True
        if name not in shared and _same_memory(tensor, targets[name]):
            return True
        start, end = _span(tensor)
        return reaches[bisect_left(starts, end)] <= start

    return [
        {name: t if harmless(name, t) else t.clone() for name, t in params.items()}
        for params in others
    ]


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    reach, apart = 0, True
    for stride, size in steps:
        if size > 1:
            apart, reach = apart and stride > reach, reach + stride * (size - 1)
    if apart or tensor.numel() == 0:
        return False
    places = np.zeros(1, dtype=np.int64)  # Unusual strides: look at every place.
    for stride, size in steps:
        places = np.add.outer(places, stride * np.arange(size)).reshape(-1)
    return len(np.unique(places)) < len(places)


class _Memory:
    """Where a tensor lies, as numpy wants to be told; nothing there is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _addresses(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(_Memory(tensor))


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address and the one past the last of a tensor that has elements."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
