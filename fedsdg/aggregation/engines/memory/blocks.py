"""Parameters laid out as columns 0 … d-1, tensor after tensor, and cut into blocks of columns.

A tensor may have any strides: a piece of it is an index into the tensor, never an address.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

Tile = tuple[int | slice, ...]


class Piece(NamedTuple):
    """Some columns of one tensor, side by side."""

    name: str
    tile: Tile
    """Index of the piece in the tensor."""
    columns: slice
    """Its columns in the block."""

    def of(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A view of the piece, in the shape that it has in its tensor."""
        return tensors[self.name][self.tile] if self.tile else tensors[self.name]


class Block(NamedTuple):
    """Columns start … stop, from one tensor or several."""

    columns: slice
    pieces: list[Piece]

    @property
    def width(self) -> int:
        return self.columns.stop - self.columns.start

    def gather(self, tensors: Mapping[str, torch.Tensor], row: torch.Tensor) -> None:
        """row [width] <- the block's numbers, in the dtype and on the device of the row."""
        parts = [piece.of(tensors).flatten() for piece in self.pieces]
        dtypes, devices = {part.dtype for part in parts}, {part.device for part in parts}
        if dtypes != {row.dtype} or devices != {row.device}:
            parts = [part.to(row) for part in parts]
        torch.cat(parts, out=row)


def cut(shapes: Mapping[str, Iterable[int]], width: int) -> list[Block]:
    """Blocks of at most `width` columns, in order, that make up all tensors of these shapes."""
    blocks: list[Block] = []
    pieces: list[Piece] = []
    start = filled = 0
    for name, shape in shapes.items():
        for tile, numbers in _tiles(tuple(shape), width):
            if pieces and filled + numbers > width:
                blocks.append(Block(slice(start, start + filled), pieces))
                pieces, start, filled = [], start + filled, 0
            pieces.append(Piece(name, tile, slice(filled, filled + numbers)))
            filled += numbers
    if filled:
        blocks.append(Block(slice(start, start + filled), pieces))
    return blocks


def _tiles(shape: tuple[int, ...], most: int) -> Iterator[tuple[Tile, int]]:
    """(index, its numbers) of pieces of at most `most` numbers, in order, that make up the whole.

    The index is () where all of it is one piece; a tensor without numbers has none.
    """
    numbers = math.prod(shape)
    if numbers == 0:
        return
    if numbers <= most:
        yield (), numbers
        return
    inner = numbers // shape[0]
    if inner > most:
        for row in range(shape[0]):
            for tile, within in _tiles(shape[1:], most):
                yield (row, *tile), within
        return
    rows = most // inner
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])
        yield (slice(start, stop),), (stop - start) * inner
