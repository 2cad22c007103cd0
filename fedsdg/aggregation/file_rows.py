"""The updates of clients whose parameters lie in files, in blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsdg.aggregation.rows import Block, Chosen, Rows
from fedsdg.aggregation.tensor_files import TensorFile
from fedsdg.aggregation.types import Combination, Step

WIDEST = 1 << 20
"""Columns of a block at most: longer reads are no faster."""
NARROWEST = 256
READERS = 4
"""Files that are read at the same time."""


class Part(NamedTuple):
    """Numbers start … stop of a tensor."""

    name: str
    start: int
    stop: int


@dataclass
class ReadMeter:
    """How much was read."""

    progress: Callable[[str, int, int], object] = lambda title, done, total: None
    "called with a title, the bytes of this pass that were read, and all of its bytes"
    passes: int = 0
    bytes: int = 0


class FileRows(Rows):
    """theta_k - theta_g, or theta_k without an origin, read anew for every pass.

    While a block is used, the next is read by other threads; both together have at most `memory`
    bytes, or `NARROWEST` columns if these are more.
    """

    def __init__(
        self,
        files: Sequence[TensorFile],
        origin: TensorFile | None,
        names: Sequence[str],
        memory: int,
        meter: ReadMeter,
        upload: str = "update",
    ) -> None:
        entries = {name: (origin or files[0]).entries[name] for name in names}
        columns = {name: entry.numel for name, entry in entries.items()}
        super().__init__(columns, len(files), {p.dtype for p in entries.values()}, upload)
        self.entries = entries
        self.files = list(files)
        self.origin = origin
        self.sources = [origin, *files]
        self.memory = memory
        self.meter = meter

    def subset(self, clients: Chosen = None, names: Chosen = None) -> FileRows:
        """Return the rows of some clients and the columns of some tensors."""
        files = self.files if clients is None else [self.files[k] for k in clients]
        chosen = list(self.columns) if names is None else names
        return FileRows(files, self.origin, chosen, self.memory, self.meter, self.upload)

    def map(self, step: Step, target: Any, put: Any = None) -> None:
        """Write a step block by block."""
        rows = self
        if isinstance(step, Combination):
            used = np.flatnonzero(step.coefficients)
            rows = self.subset(used.tolist())  # The other files need not be read.
            step = replace(step, coefficients=step.coefficients[used])
        super(FileRows, rows).map(step, target, put)

    def blocks(self) -> Iterator[Block]:
        """Yield all columns in order."""
        itemsize = max((dtype.itemsize for dtype in self.dtypes), default=4)
        width = self.memory // (2 * itemsize * len(self.sources))
        width = max(NARROWEST, min(WIDEST, width))
        pieces = self._pieces(width)
        buffers = torch.empty(2, len(self.sources), width * itemsize, dtype=torch.uint8)
        read = len(self.files) + (self.origin is not None)
        sizes = [read * sum(self._bytes(part) for part in parts) for parts in pieces]
        self.meter.passes += 1
        title = f"pass {self.meter.passes}"
        self.meter.progress(title, 0, sum(sizes))
        with ThreadPoolExecutor(READERS) as executor:

            def fetch(n: int) -> tuple[Block, list[Future[None]]]:
                """Return block n and the reads that fill it."""
                block = self._block_in(buffers[n % 2], pieces[n])
                return block, [
                    executor.submit(_fill, file, pieces[n], [row[k] for row in block.tensors])
                    for k, file in enumerate(self.sources)
                    if file is not None
                ]

            upcoming: Any = fetch(0) if pieces else None
            try:
                for n in range(len(pieces)):
                    block, reads = upcoming
                    for future in reads:
                        future.result()
                    upcoming = fetch(n + 1) if n + 1 < len(pieces) else None
                    self.meter.bytes += sizes[n]
                    self.meter.progress(title, sum(sizes[: n + 1]), sum(sizes))
                    yield block
            finally:
                executor.shutdown(cancel_futures=True)

    def _block_in(self, buffer: torch.Tensor, parts: list[Part]) -> Block:
        """Return a block with room for parts of all files in a buffer."""
        rows = buffer.view(self.entries[parts[0].name].dtype)
        ends = np.cumsum([part.stop - part.start for part in parts]).tolist()
        tensors = [
            [
                None if file is None else rows[k, end - (part.stop - part.start) : end]
                for k, file in enumerate(self.sources)
            ]
            for part, end in zip(parts, ends, strict=True)
        ]
        return Block([part.name for part in parts], tensors, [part.start for part in parts])

    def _pieces(self, width: int) -> list[list[Part]]:
        """Return all columns in order, at most `width` of one dtype at a time."""
        pieces: list[list[Part]] = []
        room = 0
        for name in self.columns:
            entry, start = self.entries[name], 0
            while start < entry.numel:
                if not room or entry.dtype != self.entries[pieces[-1][0].name].dtype:
                    pieces.append([])
                    room = width
                stop = min(start + room, entry.numel)
                pieces[-1].append(Part(name, start, stop))
                room -= stop - start
                start = stop
        return pieces

    def _bytes(self, part: Part) -> int:
        return (part.stop - part.start) * self.entries[part.name].dtype.itemsize


def _fill(file: TensorFile, parts: list[Part], targets: list[Any]) -> None:
    for part, target in zip(parts, targets, strict=True):
        file.read(part.name, part.start, target)
