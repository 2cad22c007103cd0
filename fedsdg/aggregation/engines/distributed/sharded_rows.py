"""The updates of a cohort with their columns spread over ranks."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from fedsdg.aggregation.engines.distributed.peers import Peers
from fedsdg.aggregation.engines.memory.checks import FLOATING
from fedsdg.aggregation.engines.memory.rounding import Rounding
from fedsdg.aggregation.engines.rows import (
    Rows,
    distance_error,
    merged,
    merged_distances,
    merged_logs,
    merged_products,
)
from fedsdg.aggregation.engines.statistics import Statistics


class ShardedRows:
    """M rows of d numbers; of them this rank holds some columns, `local`, in order of the ranks.

    Made and used by all ranks alike. What rules ask is gathered from all ranks and added up in
    their order, so that it is the same to the last bit on each: 2M+2 numbers for `measure`,
    M(M-1)/2+1 for `squared_distances`, M(M+1)/2 for `log_distances` and for `centred_products`, M
    for `nonfinite_counts`, one for `norm` and for `finite`. The column-wise `weighted_sum` and
    `trimmed_mean` exchange nothing, and return this rank's columns.

    Raises ValueError when the ranks disagree about M or the dtype.
    """

    def __init__(self, local: Rows, peers: Peers) -> None:
        size, width = local.shape

        def own() -> list[float]:
            if local.dtype not in FLOATING:
                raise ValueError(f"the rows are {local.dtype}; convert them to a floating dtype")
            return [size, FLOATING.index(local.dtype), width]

        facts = peers.gathered(own, 3)
        for rank, other in enumerate(facts):
            if (other[:2] != facts[0][:2]).any():
                raise ValueError(
                    f"rank {rank} has {other[0]:.0f} rows of {FLOATING[int(other[1])]}, rank 0 "
                    f"{facts[0][0]:.0f} of {FLOATING[int(facts[0][1])]}; give the same clients in "
                    f"the same dtype on every rank"
                )
        self.local, self.peers, self.dtype = local, peers, local.dtype
        self.shape = (size, int(facts[:, 2].sum()))
        """(M, d) with the columns of all ranks."""

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        size = self.shape[0]

        def numbers() -> list[float]:
            found = self.local.measure(coefficients)
            return [found.unit, found.reference_norm, *found.norms, *found.dots]

        parts = self.peers.gathered(numbers, 2 + 2 * size)
        return merged(
            Statistics(part[0], part[2 : 2 + size], part[2 + size :], part[1]) for part in parts
        )

    def squared_distances(self) -> tuple[np.ndarray, float]:
        size = self.shape[0]
        pairs = np.triu_indices(size, 1)

        def numbers() -> list[float]:
            distances, unit = self.local.squared_distances()
            return [unit, *distances[pairs]]

        def square(between: np.ndarray) -> np.ndarray:
            distances = np.zeros((size, size))
            distances[pairs] = between
            return distances + distances.T

        parts = self.peers.gathered(numbers, 1 + len(pairs[0]))
        return merged_distances((square(part[1:]), float(part[0])) for part in parts)

    @property
    def distance_error(self) -> float:
        """The same on all ranks, whatever each does."""
        return distance_error(self.dtype, kernels=True)

    def log_distances(self) -> np.ndarray:
        return merged_logs(self._matrices(self.local.log_distances))

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return merged_products(
            self._matrices(lambda: self.local.centred_products(centre, exponents))
        )

    def _matrices(self, work: Callable[[], np.ndarray]) -> Iterator[np.ndarray]:
        """The symmetric matrices [M, M] of all ranks."""
        size = self.shape[0]
        pairs = np.triu_indices(size)
        for part in self.peers.gathered(lambda: work()[pairs], len(pairs[0])):
            matrix = np.empty((size, size))
            matrix[pairs] = matrix.T[pairs] = part
            yield matrix

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        return self.local.weighted_sum(weights)

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        return self.local.trimmed_mean(trim)

    def norm(self, vector: torch.Tensor) -> float:
        return math.hypot(*self.peers.gathered(lambda: [self.local.norm(vector)], 1)[:, 0])

    def finite(self, vector: torch.Tensor) -> bool:
        return bool(self.peers.gathered(lambda: [self.local.finite(vector)], 1).all())

    def nonfinite_counts(self) -> np.ndarray:
        counts = self.peers.gathered(self.local.nonfinite_counts, self.shape[0])
        return counts.sum(axis=0).astype(np.int64)


class ShardedNorm:
    """max_k ||theta_k|| as a rule takes it, of parameters spread over ranks (see `Rounding`)."""

    def __init__(self, rounding: Rounding, dtype: torch.dtype, peers: Peers) -> None:
        self.rounding, self.peers = rounding, peers
        self._half_eps = 0.5 * torch.finfo(dtype).eps

    def __float__(self) -> float:
        size = len(self.rounding.clients)
        norms = self.peers.gathered(lambda: self.rounding.norms, size)
        return float(np.hypot.reduce(norms, axis=0).max()) / self._half_eps

    def at_most(self, update_norm: float) -> float:
        """Each rank bounds its part as if its columns held the whole update."""

        def bound() -> list[float]:
            norms = np.full(len(self.rounding.clients), update_norm)
            return [self.rounding.at_most(norms).max()]

        return math.hypot(*self.peers.gathered(bound, 1)[:, 0]) / self._half_eps
