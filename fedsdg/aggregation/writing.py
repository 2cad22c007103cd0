"""New parameters into their place: origin plus step, whole or not at all."""

import math
from collections.abc import Iterator

import torch

from fedsdg.aggregation.state_dict_checks import StateDict, all_finite

BLOCK_NUMBERS = 1 << 16
"""Numbers added and checked at a time."""

Tile = tuple[int | slice, ...]


def write_sums(targets: StateDict, origin: StateDict, step: torch.Tensor, *, fresh: bool) -> None:
    """targets <- origin + step, tensor by tensor in the order of origin; step [d].

    The targets may be the tensors of origin, or overlap with them in any way. fresh: whether the
    targets hold nothing yet; otherwise they are written only when no sum overflows its dtype.
    Raises ValueError, naming the tensor, when one does.
    """
    if not fresh and overlapping(targets, origin):
        origin = {name: tensor.clone() for name, tensor in origin.items()}
    pieces = dict(zip(origin, step.split([t.numel() for t in origin.values()]), strict=True))
    if not fresh:
        for name, target in targets.items():
            for _, block in _sums(target, origin[name], pieces[name]):
                _check(name, block)
    for name, target in targets.items():
        for tile, block in _sums(target, origin[name], pieces[name]):
            if fresh:
                _check(name, block)
            target[tile] = block


def write_copies(targets: StateDict, origin: StateDict) -> None:
    """targets <- origin, where the targets may be or overlap the tensors of origin."""
    if overlapping(targets, origin):
        origin = {name: tensor.clone() for name, tensor in origin.items()}
    for name, target in targets.items():
        target.copy_(origin[name])


def overlapping(targets: StateDict, origin: StateDict) -> bool:
    """Whether writing one target could change another, or the origin of another.

    A target that is its own origin, element by element, is harmless. By the ranges of addresses,
    so interleaved views count as overlapping though they share nothing.
    """
    spans = [(*_span(tensor), name) for name, tensor in targets.items()]
    spans += [
        (*_span(tensor), name)
        for name, tensor in origin.items()
        if not _same_memory(tensor, targets[name])
    ]
    spans = sorted(span for span in spans if span[0] < span[1])
    reach = 0
    for start, end, _ in spans:
        if start < reach:
            return True
        reach = max(reach, end)
    return False


def _sums(
    target: torch.Tensor, origin: torch.Tensor, step: torch.Tensor
) -> Iterator[tuple[Tile, torch.Tensor]]:
    """Tiles of origin + step in the dtype of the target; views only, whatever the strides."""
    step = step.view(origin.shape)
    for tile in _tiles(tuple(origin.shape)):
        yield tile, (origin[tile] + step[tile]).to(target.dtype)


def _tiles(shape: tuple[int, ...]) -> Iterator[Tile]:
    """Indices of disjoint pieces of at most BLOCK_NUMBERS elements that make up the whole."""
    inner = math.prod(shape[1:])
    if not shape or inner == 0:
        yield ()
    elif inner > BLOCK_NUMBERS:
        for row in range(shape[0]):
            for tile in _tiles(shape[1:]):
                yield (row, *tile)
    else:
        rows = BLOCK_NUMBERS // inner
        for start in range(0, shape[0], rows):
            yield (slice(start, start + rows),)


def _check(name: str, block: torch.Tensor) -> None:
    if not all_finite(block):
        raise ValueError(
            f"the aggregated tensor {name!r} overflows {block.dtype}; convert the parameters to a "
            f"wider dtype, or lower the rate of the server"
        )


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address and the one past the last, both 0 for a tensor without elements."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
