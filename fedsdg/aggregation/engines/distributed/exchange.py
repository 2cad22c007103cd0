"""From whole clients on each rank to columns of all clients on each rank, and back.

The columns are those of the parameters laid end to end. They are cut into as many even ranges as
there are ranks, and travel as they are stored, in rounds, so that buffers stay small.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from fedsdg.aggregation.engines.distributed.peers import Peers
from fedsdg.aggregation.engines.memory.checks import StateDict

BUFFER_BYTES = 1 << 25
"""About what a round sends, and what it receives."""

Steps = Iterator[tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]]
"""What a rank sends to which rank, and where it wants what which rank sends."""

Pieces = dict[str, slice]
"""Some consecutive columns: of each tensor that holds any, the range of its flat elements."""


class Layout:
    """Which columns are whose: of tensors with the given names and numbers of elements."""

    def __init__(self, tensors: StateDict, ranks: int) -> None:
        self.sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        d = sum(self.sizes.values())
        self.bounds = [rank * d // ranks for rank in range(ranks + 1)]
        self.number_bytes = max((t.element_size() for t in tensors.values()), default=1)

    def of(self, rank: int) -> Pieces:
        """The columns of a rank."""
        return self.pieces(self.bounds[rank], self.bounds[rank + 1])

    def pieces(self, start: int, stop: int) -> Pieces:
        """The columns start … stop-1."""
        pieces, first = {}, 0
        for name, size in self.sizes.items():
            low, high = max(start - first, 0), min(stop - first, size)
            if low < high:
                pieces[name] = slice(low, high)
            first += size
        return pieces

    def rounds(self, width: int) -> Iterator[list[Pieces]]:
        """By rank the next columns, at most `width` of each, until all have had theirs."""
        ranges = list(zip(self.bounds[:-1], self.bounds[1:], strict=True))
        longest = max(stop - start for start, stop in ranges)
        for offset in range(0, longest, width):
            yield [
                self.pieces(start + offset, min(start + offset + width, stop))
                for start, stop in ranges
            ]


def shard_by_columns(
    peers: Peers,
    layout: Layout,
    counts: Sequence[int],
    own: Sequence[StateDict],
    like: StateDict,
) -> list[dict[str, torch.Tensor]]:
    """This rank's columns of all clients, those of rank 0 first, as flat tensors by name.

    counts: how many clients each rank has. own: those of this rank; every rank sends each other
    one only the columns that are that rank's. like: the tensors of the layout.
    """
    total, mine = sum(counts), layout.of(peers.rank)
    shards: dict[str, torch.Tensor] = {}
    first = [sum(counts[:rank]) for rank in range(peers.size)]
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    largest = max(total, peers.size * max(counts, default=0), 1)

    def steps() -> Steps:
        for name, part in mine.items():
            shape, dtype = (total, part.stop - part.start), like[name].dtype
            shards[name] = torch.empty(shape, dtype=dtype, device=like[name].device)
        flat = [{name: params[name].reshape(-1) for name in layout.sizes} for params in own]
        for k, params in enumerate(flat):
            for name, part in mine.items():
                shards[name][first[peers.rank] + k] = params[name][part]
        for pieces in layout.rounds(max(1, BUFFER_BYTES // (largest * layout.number_bytes))):
            sends = {}
            for rank in others:
                row = _bytes(pieces[rank], like)
                if own and row:
                    sends[rank] = torch.empty(len(own), row, dtype=torch.uint8, device=peers.device)
                    for buffer, params in zip(sends[rank], flat, strict=True):
                        _pack(buffer, pieces[rank], params)
            row = _bytes(pieces[peers.rank], like)
            receives = {
                rank: torch.empty(counts[rank], row, dtype=torch.uint8, device=peers.device)
                for rank in others
                if counts[rank] and row
            }
            yield sends, receives
            here = {
                name: slice(part.start - mine[name].start, part.stop - mine[name].start)
                for name, part in pieces[peers.rank].items()
            }
            for rank, buffers in receives.items():
                for k, buffer in enumerate(buffers):
                    _unpack(buffer, here, {name: shards[name][first[rank] + k] for name in here})

    _travel(peers, steps())
    return [{name: shards[name][k] for name in mine} for k in range(total)]


def join_columns(
    peers: Peers, layout: Layout, shard: StateDict, whole: Mapping[str, torch.Tensor]
) -> None:
    """Fills `whole`, contiguous tensors by name, from the columns of all ranks, `shard` of this."""
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    width = max(1, BUFFER_BYTES // (peers.size * layout.number_bytes))

    def steps() -> Steps:
        flat = {name: tensor.view(-1) for name, tensor in whole.items()}
        for name, part in layout.of(peers.rank).items():
            flat[name][part] = shard[name].view(-1)
        for pieces in layout.rounds(width):
            buffers = {
                rank: torch.empty(_bytes(part, whole), dtype=torch.uint8, device=peers.device)
                for rank, part in enumerate(pieces)
            }
            own = buffers[peers.rank]
            _pack(own, pieces[peers.rank], flat)
            yield (
                {rank: own for rank in others if len(own)},
                {rank: buffers[rank] for rank in others if len(buffers[rank])},
            )
            for rank in others:
                _unpack(buffers[rank], pieces[rank], flat)

    _travel(peers, steps())


def _travel(peers: Peers, steps: Steps) -> None:
    """Swaps what each step packs; it unpacks when it goes on. What fails on one rank, in whatever
    it does between two swaps, fails on all at once."""
    while (step := peers.agreed(lambda: next(steps, None))) is not None:
        peers.swap(*step)


def bytes_of(vector: torch.Tensor) -> torch.Tensor:
    """The bytes of a vector [n], side by side; a view where its numbers are."""
    if vector.stride(0) != 1:  # Also of a single number, which counts as contiguous.
        vector = torch.empty(len(vector), dtype=vector.dtype, device=vector.device).copy_(vector)
    return vector.view(torch.uint8)


def _bytes(pieces: Pieces, like: StateDict) -> int:
    return sum((p.stop - p.start) * like[name].element_size() for name, p in pieces.items())


def _pack(buffer: torch.Tensor, pieces: Pieces, flat: StateDict) -> None:
    start = 0
    for name, part in pieces.items():
        data = bytes_of(flat[name][part])
        buffer[start : start + len(data)] = data
        start += len(data)


def _unpack(buffer: torch.Tensor, pieces: Pieces, flat: StateDict) -> None:
    start = 0
    for name, part in pieces.items():
        place = flat[name][part].view(torch.uint8)
        place.copy_(buffer[start : start + len(place)])
        start += len(place)
