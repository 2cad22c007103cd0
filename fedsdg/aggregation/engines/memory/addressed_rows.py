"""Rows of parameters that the kernels read where they lie, less the origin."""

from collections.abc import Sequence

import numpy as np
import torch

from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.formed_rows import FormedRows
from fedsdg.aggregation.engines.statistics import (
    Statistics,
    distances_by_kernels,
    measured_by_kernels,
)
from fedsdg.aggregation.plans import Combination, OrderStatistics, Step

REHEARSED_NUMBERS = 1 << 20
"""Results that are formed at a time only to see whether they are finite."""


class AddressedRows:
    """The columns of one large tensor.

    theta_g and theta_k contiguous, on the CPU, of one dtype. Falls back on `FormedRows` where a
    kernel gives up.
    """

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        dtype: torch.dtype,
        *,
        subtract: bool,
    ) -> None:
        from fedsdg.aggregation.engines.kernels.columns import parameter_rows

        ((self.name, tensor),) = origin.items()
        self.origin = origin
        self.formed = FormedRows(origin, clients, dtype, subtract=subtract)
        self.base = tensor.view(-1) if subtract else None
        self.rows = parameter_rows([c[self.name].view(-1) for c in clients], self.base, dtype)

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        return measured_by_kernels(self.rows, coefficients) or self.formed.measure(coefficients)

    def squared_distances(self) -> tuple[np.ndarray, float]:
        found = distances_by_kernels(self.rows)
        return (found, 1.0) if found is not None else self.formed.squared_distances()

    def log_distances(self) -> np.ndarray:
        return self.formed.log_distances()

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return self.formed.centred_products(centre, exponents)

    def nonfinite_counts(self) -> np.ndarray:
        found = measured_by_kernels(self.rows)
        if found is not None and np.isfinite(found.norms).all():
            return np.zeros(self.rows.size, dtype=np.int64)
        return self.formed.nonfinite_counts()

    def put(
        self, step: Step, targets: StateDict, *, add: bool = True, rehearse: bool = False
    ) -> set[str]:
        """As `FormedRows.put`."""
        target = targets[self.name]
        base = self.base if add else None
        finite = None
        if target.is_contiguous() and (base is None or target.dtype == base.dtype):
            flat = target.view(-1)
            work = self._rehearsed if rehearse else self._into
            finite = work(flat, step, base)
        if finite is None:
            return self.formed.put(step, targets, add=add, rehearse=rehearse)
        return set() if finite else {self.name}

    def _rehearsed(
        self, target: torch.Tensor, step: Step, base: torch.Tensor | None
    ) -> bool | None:
        """Whether all numbers of target <- base + step would be finite; see `_into`."""
        scratch = torch.empty(min(REHEARSED_NUMBERS, len(target)), dtype=target.dtype)
        for start in range(0, len(target), len(scratch)):
            columns = slice(start, min(start + len(scratch), len(target)))
            some = None if base is None else base[columns]
            finite = self._into(scratch[: columns.stop - start], step, some, columns)
            if not finite:
                return finite
        return True

    def _into(
        self,
        out: torch.Tensor,
        step: Step,
        base: torch.Tensor | None,
        columns: slice = slice(None),
    ) -> bool | None:
        """out <- base + step at these columns, and whether it is finite; None: no such kernel."""
        from fedsdg.aggregation.engines.kernels import sums, trimmed_means

        rows = self.rows
        if columns.start:
            offset = columns.start * rows.storage.itemsize
            rows = rows._replace(
                addresses=rows.addresses + offset, origin=rows.origin and rows.origin + offset
            )
        rows = rows._replace(d=len(out))
        if isinstance(step, Combination):
            return sums.weighted_sum(rows, step.coefficients, out, base)
        if isinstance(step, OrderStatistics) and rows.size <= trimmed_means.MOST_ROWS:
            return trimmed_means.trimmed_mean(rows, step.trim, out, base)
        return None
