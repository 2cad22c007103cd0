"""The updates of clients whose parameters lie in files, in blocks of columns."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field

import numpy as np
import torch

from fedsdg.aggregation.engines.files.tensor_files import FileVector
from fedsdg.aggregation.engines.rows import BlockRows, Blocks
from fedsdg.aggregation.engines.statistics import Statistics

WIDEST = 1 << 20
"""Columns of a block at most: longer reads are no faster."""
NARROWEST = 256


class NonFinite(Exception):
    """Numbers read from a file hold NaN or infinity. Never leaves this package."""

    def __init__(self, vector: FileVector) -> None:
        super().__init__(vector)
        self.vector = vector


@dataclass
class Meter:
    """How much was read, and who wants to know."""

    progress: Callable[[str, int, int], None] | None = None
    """Called with a title, the bytes of this pass that were read, and all that are to be."""
    passes: int = 0
    bytes: int = 0
    _title: str = ""
    _share: tuple[int, int] = field(default=(0, 0))

    def begin(self, what: str, total: int) -> None:
        """A pass over the files starts."""
        self.passes += 1
        self._title, self._share = f"pass {self.passes}: {what}", (0, total)
        self._tell()

    def add(self, count: int) -> None:
        """So many bytes more."""
        self.bytes += count
        self._share = self._share[0] + count, self._share[1]
        self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self._title, *self._share)


class FileRows(BlockRows):
    """theta_k - theta_g, or without an origin theta_k itself, read anew for every pass.

    While a block is worked on, the next is read by the executor's threads; both have at most
    `memory` bytes. The first pass over all columns also looks for numbers that are not finite
    (then it raises NonFinite) and takes the norms behind `PassedNorm`; what comes of a pass is
    remembered, so that asking again costs none. Raises ValueError, naming file and tensor, when a
    difference overflows.
    """

    def __init__(
        self,
        vectors: Sequence[FileVector],
        origin: FileVector | None,
        dtype: torch.dtype,
        *,
        memory: int,
        executor: Executor,
        meter: Meter,
        screened: bool = False,
        what: str = "reading",
    ) -> None:
        """screened: whether the numbers are known to be finite. what: the title of a pass."""
        self.vectors, self.origin = list(vectors), origin
        super().__init__(self._pass, (len(self.vectors), len(self.vectors[0])), dtype)
        self.width = block_width(len(self.vectors), dtype.itemsize, memory)
        self.executor, self.meter, self.screened, self.what = executor, meter, screened, what
        self.norms = np.zeros(len(self.vectors))
        self._known: dict[bytes | None, Statistics] = {}
        self._distances: tuple[np.ndarray, float] | None = None

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        key = None if coefficients is None else coefficients.tobytes()
        if key not in self._known:
            self._known[key] = super().measure(coefficients)
        return self._known[key]

    def squared_distances(self) -> tuple[np.ndarray, float]:
        if self._distances is None:
            self._distances = super().squared_distances()
        return self._distances

    def _pass(self) -> Blocks:
        size, d = self.shape
        width = min(self.width, d)
        starts = range(0, d, width) if d else range(0)
        buffers = [torch.empty(size, width, dtype=self.dtype) for _ in starts[:2]]
        origins = [torch.empty(width, dtype=self.dtype) for _ in starts[:2]]
        self.meter.begin(self.what, self._bytes(0, d))

        def fetch(n: int) -> list[Future[None]]:
            columns = slice(starts[n], min(starts[n] + width, d))
            origin = None
            if self.origin is not None:
                origin = origins[n % 2][: columns.stop - columns.start]
                self._fill_origin(columns.start, origin)
            return [
                self.executor.submit(
                    self._fill, k, columns.start, row[: columns.stop - columns.start], origin
                )
                for k, row in enumerate(buffers[n % 2])
            ]

        pending = fetch(0) if len(starts) else []
        try:
            for n, start in enumerate(starts):
                for future in pending:
                    future.result()
                pending = fetch(n + 1) if n + 1 < len(starts) else []
                columns = slice(start, min(start + width, d))
                self.meter.add(self._bytes(columns.start, columns.stop))
                yield columns, buffers[n % 2][:, : columns.stop - start]
            self.screened = True
        finally:
            for future in pending:
                future.cancel()
            wait(pending)  # None may still write when the memory is used for something else.

    def _fill_origin(self, start: int, into: torch.Tensor) -> None:
        assert self.origin is not None
        for place, _ in self.origin.read(start, into):
            if not self.screened and math.isnan(finite_norm(into[place])):
                raise NonFinite(self.origin)

    def _fill(self, k: int, start: int, into: torch.Tensor, origin: torch.Tensor | None) -> None:
        """Row k of a block; the pieces are looked at and subtracted from while they are cached."""
        vector = self.vectors[k]
        for place, dtype in vector.read(start, into):
            part, norm = into[place], 0.0
            if not self.screened:
                norm = finite_norm(part)
                if math.isnan(norm):
                    raise NonFinite(vector)
                self.norms[k] = math.hypot(self.norms[k], 0.5 * torch.finfo(dtype).eps * norm)
            if origin is None:
                continue
            part.sub_(origin[place])
            # Finite origins less smaller numbers than these stay finite.
            if norm > _ROOTS[self.dtype][1]:
                self._check_range(vector, start + place.start, part)

    def _check_range(self, vector: FileVector, start: int, part: torch.Tensor) -> None:
        beyond = torch.nonzero(~torch.isfinite(part))
        if len(beyond):
            raise ValueError(
                f"client {vector.file.path}: the update of tensor "
                f"{vector.name_of(start + int(beyond[0]))!r} overflows {self.dtype}; convert the "
                f"parameters to torch.float64 or leave the client out"
            )

    def _bytes(self, start: int, stop: int) -> int:
        """Read for these columns: all files have the same dtypes."""
        parts = self.vectors[0].parts(start, stop)
        files = len(self.vectors) + (self.origin is not None)
        return files * sum((part.stop - part.start) * dtype.itemsize for part, dtype in parts)


class PassedNorm:
    """`Context.parameter_norm` of rows of files: it came to light in the first pass over them.

    max_k 1/2 eps ||theta_k||, each tensor with its own eps, in the units in which a rule turns it
    back into that: 1/2 eps(dtype of the rows).
    """

    def __init__(self, rows: FileRows) -> None:
        self.rows = rows

    def __float__(self) -> float:
        assert self.rows.screened  # A rule asks when it has measured the updates.
        return float(self.rows.norms.max()) / (0.5 * torch.finfo(self.rows.dtype).eps)

    def at_most(self, update_norm: float) -> float:
        return float(self)


def block_width(size: int, itemsize: int, memory: int) -> int:
    """Columns of a block such that two blocks of `size` rows, and what is made of one, fit."""
    return max(NARROWEST, min(WIDEST, memory // (itemsize * (2 * size + 6))))


_ROOTS = {torch.float32: (1e-12, 3e18), torch.float64: (1e-140, 1e150)}
"""Norms between which the squares of numbers of a dtype can be added without scaling."""
_CHUNK = 1 << 13
"""Numbers whose squares are added in their own dtype."""


def finite_norm(part: torch.Tensor) -> float:
    """||x||_2 of numbers [n] in float32 or float64, at least to five digits; NaN where one is not
    finite."""
    numbers = part.numpy()
    whole = len(numbers) // _CHUNK * _CHUNK
    chunks, rest = numbers[:whole].reshape(-1, _CHUNK), numbers[whole:]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.vecdot(chunks, chunks).sum(dtype=np.float64) + np.vecdot(rest, rest)
    square = float(squares)
    low, high = _ROOTS[part.dtype]
    if low <= math.sqrt(square) <= high:
        return math.sqrt(square)
    peak = float(np.abs(numbers).max(initial=0.0))
    if not math.isfinite(peak):
        return math.nan
    scaled = numbers.astype(np.float64) / (peak or 1.0)
    return peak * math.sqrt(float(np.vecdot(scaled, scaled)))
