"""The updates of a cohort as M vectors of d numbers, wherever they lie.

A rule asks few things of them (`Rows`), and all but the two column-wise results are sums over
columns. So rows may be one tensor in memory (`TensorRows`), or come as blocks of columns one after
another (`BlockRows`: parameters minus an origin, files), or be spread over processes
(`distributed.ShardedRows`), and the rule is the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fedsdg.aggregation.engines import statistics
from fedsdg.aggregation.engines.backends import backend_for, kernels_for
from fedsdg.aggregation.engines.order_statistics import looked_at_mean, trimmed_mean
from fedsdg.aggregation.engines.statistics import Statistics

Blocks = Iterator[tuple[slice, torch.Tensor]]


class Rows(Protocol):
    """x_1 … x_M, each of d numbers. Nothing here modifies them."""

    @property
    def shape(self) -> tuple[int, int]:
        """(M, d)."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the numbers, and of results [d]."""
        ...

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        """Norms, dots with z = sum_k c_k x_k (None: the mean) and ||z||, in one pass."""
        ...

    def squared_distances(self) -> tuple[np.ndarray, float]:
        """([M, M] ||x_i - x_j||^2 / unit**2, unit), in one pass."""
        ...

    @property
    def distance_error(self) -> float:
        """What the squared distances may be off, relative to each."""
        ...

    def log_distances(self) -> np.ndarray:
        """[M, M] log2 ||x_i - x_j||, for distances that no unit has room for; in one pass."""
        ...

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        """[M, M] <y_k, y_l> of y_k = (x_k - sum_l c_l x_l) / 2^e_k; in one pass."""
        ...

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        """[d] sum_k w_k x_k, accumulated in float64; not finite where a number of weight other than
        0 is not finite."""
        ...

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        """[d] of each column the mean of the numbers of rank trim … M-1-trim; NaN where a number
        is not finite."""
        ...

    def norm(self, vector: torch.Tensor) -> float:
        """||v||_2 of a vector [d] laid out as the results are."""
        ...

    def finite(self, vector: torch.Tensor) -> bool:
        """Whether all numbers of a vector [d] laid out as the results are, are finite."""
        ...

    def nonfinite_counts(self) -> np.ndarray:
        """[M] how many numbers of each row are NaN or infinite."""
        ...


class Measured(NamedTuple):
    """Statistics that are known already."""

    coefficients: np.ndarray | None
    statistics: Statistics


class Summed(NamedTuple):
    """A weighted sum that is known already, and whether all of it is finite."""

    weights: np.ndarray
    total: torch.Tensor
    finite: bool


SAME = 1e-14
"""Coefficients that differ by less, of the largest, differ by the rounding of their making."""


class TensorRows:
    """The rows of one tensor [M, d], on any device."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.tensor = rows
        self.measured: list[Measured] = []
        self.summed: list[Summed] = []
        self._finite: torch.Tensor | None = None
        """A result that was seen to be finite when it was made, and need not be read again."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.tensor.shape[0], self.tensor.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        for known in self.measured:
            if _same(known.coefficients, coefficients):
                return known.statistics
        return statistics.measure(self.tensor, coefficients)

    def squared_distances(self) -> tuple[np.ndarray, float]:
        return statistics.squared_distances(self.tensor)

    @property
    def distance_error(self) -> float:
        return distance_error(self.dtype, kernels=kernels_for(self.tensor) is not None)

    def log_distances(self) -> np.ndarray:
        return statistics.log_distances(self.tensor)

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return statistics.centred_products(self.tensor, centre, exponents)

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        chosen = np.flatnonzero(weights)
        if len(chosen) == 1 and weights[chosen[0]] == 1:
            return self.tensor[chosen[0]].clone()
        for known in self.summed:
            if _same(known.weights, weights):
                return self._noted(known.total, known.finite)
        return self._noted(*statistics.looked_at_sum(self.tensor, weights))

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        return self._noted(*looked_at_mean(self.tensor, trim))

    def norm(self, vector: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64))

    def finite(self, vector: torch.Tensor) -> bool:
        return vector is self._finite or all_finite(vector)

    def nonfinite_counts(self) -> np.ndarray:
        return np.array([_nonfinite(row) for row in self.tensor], dtype=np.int64)

    def _noted(self, result: torch.Tensor, finite: bool | None) -> torch.Tensor:
        self._finite = result if finite else None
        return result


class BlockRows:
    """Rows that come in blocks of columns: what is asked of them is asked of every block.

    blocks: called for every pass; yields (columns, [M, width] tensor) for all columns 0 … d-1 in
    order. A block is used before the next is asked for, so all may share one buffer.
    """

    def __init__(
        self,
        blocks: Callable[[], Blocks],
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.blocks, self.shape, self.dtype, self.device = blocks, shape, dtype, device

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        return merged(statistics.measure(block, coefficients) for block in self._tensors())

    def squared_distances(self) -> tuple[np.ndarray, float]:
        return merged_distances(statistics.squared_distances(block) for block in self._tensors())

    @property
    def distance_error(self) -> float:
        numbers = self.shape[0] * self.shape[1]
        kernels = backend_for(numbers, torch.device(self.device)) != "torch"
        return distance_error(self.dtype, kernels=kernels)

    def log_distances(self) -> np.ndarray:
        return merged_logs(statistics.log_distances(block) for block in self._tensors())

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return merged_products(
            statistics.centred_products(block, centre, exponents) for block in self._tensors()
        )

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        return self._columnwise(lambda block: TensorRows(block).weighted_sum(weights))

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        return self._columnwise(lambda block: trimmed_mean(block, trim))

    def norm(self, vector: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64))

    def finite(self, vector: torch.Tensor) -> bool:
        return all_finite(vector)

    def nonfinite_counts(self) -> np.ndarray:
        counts = np.zeros(self.shape[0], dtype=np.int64)
        for block in self._tensors():
            counts += TensorRows(block).nonfinite_counts()
        return counts

    def _tensors(self) -> Iterator[torch.Tensor]:
        if not self.shape[1]:  # So that there is something to add.
            yield torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for _, block in self.blocks():
            yield block

    def _columnwise(self, work: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        result = torch.empty(self.shape[1], dtype=self.dtype, device=self.device)
        for columns, block in self.blocks():
            result[columns] = work(block)
        return result


def merged(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of rows from those of disjoint ranges of their columns (no Gram).

    Squares and products add up, brought to the largest of the units first. At least one part.
    """
    parts = list(parts)
    unit = _common_unit((p.unit, bool(p.norms.any())) for p in parts)
    squares = np.zeros(len(parts[0].norms))
    dots, reference_square = squares.copy(), 0.0
    with np.errstate(invalid="ignore"):  # Of rows that are not finite, neither are the products.
        for part in parts:
            scale = part.unit / unit
            squares += (part.norms * scale) ** 2
            dots += part.dots * scale * scale
            reference_square += (part.reference_norm * scale) ** 2
        if unit == 1.0:
            return Statistics(unit, np.sqrt(squares), dots, float(np.sqrt(reference_square)))
        # Rows far below the unit have norms, though no squares.
        scales = [part.unit / unit for part in parts]
        norms = [part.norms * scale for part, scale in zip(parts, scales, strict=True)]
        of_z = [part.reference_norm * scale for part, scale in zip(parts, scales, strict=True)]
        return Statistics(unit, np.hypot.reduce(norms), dots, float(np.hypot.reduce(of_z)))


def merged_distances(parts: Iterable[tuple[np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """As `merged`, for squared distances [M, M] in squares of their units.

    The parts are added as they come: of many clients, all of them together are large.
    """
    parts = iter(parts)
    total, unit = next(parts)
    for distances, part_unit in parts:
        if not total.any():
            unit = part_unit  # Of zeros the unit says nothing.
        elif distances.any() and part_unit > unit:
            total, unit = total * (unit / part_unit) * (unit / part_unit), part_unit
        total = total + distances * (part_unit / unit) * (part_unit / unit)
    return total, unit


def merged_logs(parts: Iterable[np.ndarray]) -> np.ndarray:
    """As `merged`, for `log_distances`: of the logarithms of sums of squares."""
    return reduce(lambda one, other: np.logaddexp2(2 * one, 2 * other) / 2, parts)


def merged_products(parts: Iterable[np.ndarray]) -> np.ndarray:
    """As `merged`, for `centred_products`, which have all the same units."""
    return reduce(np.add, parts)


def distance_error(dtype: torch.dtype, *, kernels: bool) -> float:
    """`Rows.distance_error`: kernels add products of rows other than float64 in float32."""
    return 1e-7 if kernels and dtype != torch.float64 else 1e-12


def squares_suffice(distances: np.ndarray, unit: float, rows: Rows) -> bool:
    """Whether squared distances [M, M], finite ones, have room for all that the rows differ by.

    Float64 has for those of all other dtypes. Equal rows are taken for rows that may not be.
    """
    if rows.dtype != torch.float64:
        return True
    least = rows.shape[1] * float(np.finfo(np.float64).tiny)
    between = distances[~np.eye(len(distances), dtype=bool)]
    return unit == 1.0 and bool((between >= least).all())


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool((np.abs(one - other) <= SAME * np.abs(other).max()).all())


def _common_unit(units: Iterable[tuple[float, bool]]) -> float:
    """The largest unit of parts that are not all zero (of which the unit says nothing)."""
    return max((unit for unit, any_ in units if any_), default=1.0)


def all_finite(numbers: torch.Tensor) -> bool:
    """Whether none is NaN or infinite."""
    if numbers.numel() == 0:
        return True
    # Minimum and maximum propagate NaN and infinity, and unlike isfinite need no temporary.
    low, high = torch.aminmax(numbers)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _nonfinite(row: torch.Tensor) -> int:
    return 0 if all_finite(row) else int((~torch.isfinite(row)).sum())
