"""The uploads of a cohort as M vectors of d numbers, wherever they lie.

A rule needs only two kinds of access. `reduce` sums a function of blocks of columns, which gives
norms, dot products and distances; `map` writes a step, which treats every column by itself, block
by block. Sources differ in where blocks come from: `MemoryRows` here, `file_rows.FileRows`,
`ranks.RankRows`. A block describes tensors by their addresses, so that kernels work in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsdg.aggregation import statistics
from fedsdg.aggregation.errors import NonFiniteError
from fedsdg.aggregation.types import Combination, Step, TrimmedMean
from fedsdg.lazy import Tensor, torch

StateDict = Mapping[Any, Tensor]
Chosen = Sequence[Any] | None
"""Positions of clients or names of tensors; None: all."""
Counts = dict[int, dict[Any, int]]
"""By row (-1: theta_g), then by tensor: how many values are not finite."""


class Statistics(NamedTuple):
    """Norms and dot products of rows x_1 … x_M with a reference z."""

    norms: np.ndarray
    "[M] ||x_k||"
    dots: np.ndarray
    "[M] <x_k, z>"
    reference_norm: float
    "||z||"


@dataclass(eq=False)
class Block:
    """Columns of T tensors, each contiguous, all of one dtype on one device."""

    names: Sequence[Any]
    "[T]"
    tensors: list[list[Tensor | None]]
    "[T][1 + M]: theta_g, or None if rows are not differences from it, then theta_k"
    starts: Sequence[int]
    "[T] the first column of each piece in its tensor"

    @property
    def size(self) -> int:
        """M."""
        return len(self.tensors[0]) - 1

    @property
    def first(self) -> Tensor:
        """A tensor."""
        return self.tensors[0][-1]  # type: ignore[return-value]

    @property
    def formed(self) -> bool:
        """Whether rows are differences from theta_g."""
        return self.tensors[0][0] is not None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored numbers."""
        return self.first.dtype

    @cached_property
    def ends(self) -> np.ndarray:
        """[T] the column after each tensor's last."""
        return np.cumsum([row[-1].numel() for row in self.tensors])  # type: ignore[union-attr]

    @cached_property
    def table(self) -> np.ndarray:
        """[T, 1 + M] addresses; 0: no tensor."""
        addresses = [[0 if t is None else t.data_ptr() for t in row] for row in self.tensors]
        return np.array(addresses, dtype=np.int64)

    def empty(self) -> list[Tensor]:
        """Return uninitialised tensors for results."""
        return [torch.empty_like(row[-1]) for row in self.tensors]  # type: ignore[arg-type]


class Rows:
    """M vectors of d numbers, which nothing modifies. Sums over them are remembered.

    Attributes:
        columns: How many columns each tensor has that is here, in order.
        size: M.
        d: The number of columns.
        dtypes: The dtypes of the stored tensors.
        upload: The name of the upload.
    """

    def __init__(
        self,
        columns: Mapping[Any, int],
        size: int,
        dtypes: set[torch.dtype],
        upload: str = "update",
    ) -> None:
        self.columns = columns
        self.size = size
        self.d = sum(columns.values())
        self.dtypes = dtypes
        self.upload = upload
        self._sums: dict[Any, np.ndarray] = {}
        self._finite = False
        self._rounding: float | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the updates: float64 if any tensor is, else float32."""
        return torch.float64 if torch.float64 in self.dtypes else torch.float32

    def blocks(self) -> Iterator[Block]:
        """Yield all columns in order; a block is valid until the next one is asked for."""
        raise NotImplementedError

    def subset(self, clients: Chosen = None, names: Chosen = None) -> Rows:
        """Return the rows of some clients, by position, and the columns of some tensors.

        Args:
            clients: None: all; []: theta_g is still there, for `rounding`.
            names: None: all.
        """
        raise NotImplementedError

    def reduce(self, function: Callable[..., np.ndarray], *arguments: np.ndarray) -> np.ndarray:
        """Return the sum over all blocks of `function(block, *arguments)`, in one pass.

        Args:
            function: Returns an array of the same shape for every block.
            arguments: Arrays, such as coefficients [M].

        Returns:
            The sum in float64, the same object if it was asked for before.
        """
        key = (function, *(argument.tobytes() for argument in arguments))
        if key not in self._sums:
            self._sums[key] = self._reduced(function, *arguments)
        return self._sums[key]

    def _reduced(self, function: Callable[..., np.ndarray], *arguments: np.ndarray) -> np.ndarray:
        return np.asarray(sum(function(block, *arguments) for block in self.blocks()))

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        """Return norms, dot products with z = sum_k c_k x_k, and ||z||, in one pass.

        Args:
            coefficients: [M] c; None: z is the mean.

        Raises:
            NonFiniteError: A number is not finite, or a norm exceeds 1e150.
        """
        c = np.full(self.size, 1 / max(self.size, 1)) if coefficients is None else coefficients
        sums = np.broadcast_to(  # Without columns the sum is the number 0.
            self.reduce(statistics.norms_and_dots, np.asarray(c, dtype=np.float64)),
            (2, self.size + 1),
        )
        if not np.isfinite(sums[0]).all():
            raise NonFiniteError(
                "the norm of the update exceeds 1e150; leave the client out or scale it down",
                np.flatnonzero(~np.isfinite(sums[0, :-1])).tolist(),
            )
        self._finite = True
        reference_norm, self._rounding = np.sqrt(sums[:, -1]).tolist()
        return Statistics(np.sqrt(sums[0, :-1]), sums[1, :-1], reference_norm)

    def distances(self) -> np.ndarray:
        """Return [M, M] ||x_i - x_j||^2, in one pass; raises as `measure`."""
        squares = np.broadcast_to(self.reduce(statistics.distances), (self.size, self.size))
        if self.size == 1 or not np.isfinite(squares).all():
            self.measure()  # Norms tell which update is at fault.
        self._finite = True
        return squares

    def gram(self, centre: np.ndarray) -> np.ndarray:
        """Return [M, M] <y_k, y_l> of y_k = x_k - sum_l c_l x_l in float64, in one pass.

        Args:
            centre: [M] c, summing to 1.
        """
        return np.broadcast_to(self.reduce(statistics.gram, centre), (self.size, self.size))

    def rounding(self, update_norm: float) -> float:
        """Return 1/2 eps (||theta_g|| + update_norm), each tensor with its own eps.

        No update formed from parameters, of at most that norm, has a larger rounding error.
        """
        rows = self.subset(clients=[]) if self._rounding is None else self
        rows.measure()
        coarsest = max((torch.finfo(dtype).eps for dtype in self.dtypes), default=0.0)
        return (rows._rounding or 0.0) + coarsest / 2 * update_norm

    def map(
        self,
        step: Step,
        target: Callable[[Block], list[Tensor]],
        put: Callable[[Block, list[Tensor]], Any] | None = None,
    ) -> None:
        """Write theta_g + step if rows are differences from theta_g, else the step.

        Args:
            step: A `Combination` or `TrimmedMean`.
            target: Returns where the result of a block goes: contiguous tensors like the block's,
                which may be theta_g's or a client's.
            put: Called with the block and these tensors when they are filled.

        Raises:
            NonFiniteError: A result is not finite.
        """
        for block in self.blocks():
            outs = target(block)
            self._write(step, block, outs, with_origin=True)
            if put is not None:
                put(block, outs)

    def numbers(self) -> np.ndarray:
        """Return [M, d] float64 all numbers of an upload that is small; NaN is allowed."""
        chunks = [chunk.cpu().numpy() for b in self.blocks() for chunk in statistics.chunks(b)]
        return np.concatenate(chunks, axis=1) if chunks else np.zeros((self.size, 0))

    def vector(self, step: Step) -> Tensor:
        """Return the step [d] itself, in the dtype of the updates."""
        parts: dict[Any, list[Tensor]] = {name: [] for name in self.columns}
        for block in self.blocks():
            outs = [torch.empty_like(row[-1], dtype=self.dtype) for row in block.tensors]  # type: ignore[arg-type]
            self._write(step, block, outs, with_origin=False)
            for name, out in zip(block.names, outs, strict=True):
                parts[name].append(out.view(-1))
        pieces = [piece for of_tensor in parts.values() for piece in of_tensor]
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=self.dtype)

    def check_finite(self) -> None:
        """Raise NonFiniteError unless all numbers are finite, with a pass if none has shown it."""
        if not self._finite:
            self.measure()

    def nonfinite(self) -> Counts:
        """Return how many numbers are not finite, by row and tensor."""
        counts: Counts = {}
        for block in self.blocks():
            by_tensor = statistics.nonfinite(block)
            for t, column in np.argwhere(by_tensor):
                name = block.names[t]
                if self.upload not in ("update", name):
                    name = f"{self.upload}: {name}"
                of_row = counts.setdefault(int(column) - 1, {})
                of_row[name] = of_row.get(name, 0) + int(by_tensor[t, column])
        return counts

    def _write(self, step: Step, block: Block, outs: list[Tensor], *, with_origin: bool) -> None:
        """Write a step, or theta_g + step, at the columns of a block; raise if it overflows."""
        finite = write_step(step, block, outs, with_origin=with_origin)
        offset = getattr(step, "offset", None)
        if offset is not None:
            ends = dict(zip(self.columns, np.cumsum([*self.columns.values()]), strict=True))
            for name, start, out in zip(block.names, block.starts, outs, strict=True):
                first = ends[name] - self.columns[name] + start
                out.view(-1).add_(offset[first : first + out.numel()].to(out))
                finite &= statistics.all_finite(out)
        if not finite:
            raise NonFiniteError(
                f"an aggregated tensor of {list(block.names)[:3]} overflows {outs[0].dtype}; use a "
                "wider dtype or leave the largest clients out"
            )


class MemoryRows(Rows):
    """theta_k - theta_g, or theta_k without an origin; the differences are never stored."""

    def __init__(
        self,
        clients: Sequence[StateDict],
        origin: StateDict | None = None,
        upload: str = "update",
    ) -> None:
        like = clients[0] if origin is None else origin
        columns = {name: tensor.numel() for name, tensor in like.items()}
        super().__init__(columns, len(clients), {tensor.dtype for tensor in like.values()}, upload)
        self.clients = list(clients)
        self.origin = origin
        groups: dict[torch.dtype, list[Any]] = {}
        for name, tensor in like.items():
            if tensor.numel():
                groups.setdefault(tensor.dtype, []).append(name)
        self._blocks = [self._block(names) for names in groups.values()]

    @classmethod
    def of_matrix(cls, rows: Tensor, upload: str = "update") -> MemoryRows:
        """Return the rows of a tensor [M, d].

        Raises:
            ValueError: The upload is not a floating matrix with at least one row.
        """
        if rows.ndim != 2 or not len(rows) or not rows.is_floating_point():
            raise ValueError(
                f"upload {upload!r} is {rows.dtype} of shape {tuple(rows.shape)}; give floating "
                "numbers [M, d] of at least one client"
            )
        return cls([{upload: row} for row in rows.detach()], upload=upload)

    def blocks(self) -> Iterator[Block]:
        """Yield all columns in order."""
        return iter(self._blocks)

    def subset(self, clients: Chosen = None, names: Chosen = None) -> MemoryRows:
        """Return the rows of some clients and the columns of some tensors."""
        chosen = self.clients if clients is None else [self.clients[k] for k in clients]
        if names is None:
            return MemoryRows(chosen, self.origin, self.upload)
        origin = None if self.origin is None else {name: self.origin[name] for name in names}
        return MemoryRows([{n: c[n] for n in names} for c in chosen], origin, self.upload)

    def _block(self, names: list[Any]) -> Block:
        sources = [self.origin, *self.clients]
        tensors = [[None if s is None else s[name].contiguous() for s in sources] for name in names]
        return Block(names, tensors, [0] * len(names))


def write_step(step: Step, block: Block, outs: list[Tensor], *, with_origin: bool) -> bool:
    """Write a step, or theta_g + step, at the columns of a block; return whether it is finite.

    theta_g + sum_k c_k (theta_k - theta_g) = (1 - sum_k c_k) theta_g + sum_k c_k theta_k, so equal
    clients give their parameters up to rounding, and theta_g is one more row of a weighted sum.
    """
    if isinstance(step, Combination):
        share = float(with_origin) - step.coefficients.sum() if block.formed else 0.0
        share = share if abs(share) >= 1e-14 else 0.0
        return statistics.weighted_sum(block, np.append(share, step.coefficients), outs)
    if not isinstance(step, TrimmedMean) or (block.formed and not with_origin):
        raise ValueError(f"a {type(step).__name__} cannot be applied to these rows")
    return statistics.trimmed_mean(block, step.trim, outs)


def nonfinite_by_row(uploads: Iterable[Rows]) -> Counts:
    """Return what is not finite in several uploads, by row in ascending order."""
    merged: Counts = {}
    for rows in uploads:
        for row, counts in rows.nonfinite().items():
            merged.setdefault(row, {}).update(counts)
    return dict(sorted(merged.items()))
