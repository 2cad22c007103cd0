"""Rows of parameters on a GPU that the kernels read where they lie, less the origin."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from fedsdg.aggregation.engines.backends import DTYPES, MOST_TRITON_ROWS, has_tables
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.formed_rows import FormedRows
from fedsdg.aggregation.engines.statistics import (
    Statistics,
    distances_by_kernels,
    measured_by_kernels,
)
from fedsdg.aggregation.plans import Combination, OrderStatistics, Step

ALIGNED = 16
"""Addresses and numbers that are multiples of it let a thread read 16 bytes at once."""


class TabledRows:
    """The columns of many tensors, one after another.

    theta_g and theta_k contiguous, of one dtype, on one GPU. One launch reads all of them, through
    a table of where they lie; so parameters of many small tensors cost no more than one large one.
    Falls back on `FormedRows` where a kernel gives up.
    """

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        dtype: torch.dtype,
        *,
        subtract: bool,
    ) -> None:
        from fedsdg.aggregation.engines.kernels.cuda.tables import TabledRows as Table

        self.names, self.dtype = list(origin), dtype
        self.origin, self.clients, self.subtract = origin, clients, subtract
        self.base = list(origin.values()) if subtract else None
        self.rows = Table([[c[name] for name in origin] for c in clients], self.base, dtype)

    @cached_property
    def formed(self) -> FormedRows:
        return FormedRows(self.origin, self.clients, self.dtype, subtract=self.subtract)

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        found = measured_by_kernels(self.rows, coefficients, on="triton")
        return found or self.formed.measure(coefficients)

    def squared_distances(self) -> tuple[np.ndarray, float]:
        found = distances_by_kernels(self.rows, on="triton")
        return (found, 1.0) if found is not None else self.formed.squared_distances()

    def log_distances(self) -> np.ndarray:
        return self.formed.log_distances()

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return self.formed.centred_products(centre, exponents)

    def nonfinite_counts(self) -> np.ndarray:
        found = measured_by_kernels(self.rows, on="triton")
        if found is not None and np.isfinite(found.norms).all():
            return np.zeros(self.rows.size, dtype=np.int64)
        return self.formed.nonfinite_counts()

    def put(
        self, step: Step, targets: StateDict, *, add: bool = True, rehearse: bool = False
    ) -> set[str]:
        """As `FormedRows.put`."""
        from fedsdg.aggregation.engines.kernels.cuda import sums, trimmed_means

        outs = [targets[name] for name in self.names]
        bases, rows = self.base if add else None, self.rows
        if not all(out.is_contiguous() and out.dtype == outs[0].dtype for out in outs):
            return self.formed.put(step, targets, add=add, rehearse=rehearse)
        if isinstance(step, Combination):
            bad = sums.write_weighted_sums(rows, step.coefficients, outs, bases, rehearse=rehearse)
        elif isinstance(step, OrderStatistics):
            bad = trimmed_means.write_trimmed_means(rows, step.trim, outs, bases, rehearse=rehearse)
        else:
            return self.formed.put(step, targets, add=add, rehearse=rehearse)
        return {self.names[position] for position in bad}


def tabled_groups(origin: StateDict, clients: Sequence[StateDict]) -> list[list[str]]:
    """The names of the tensors that tables take, those of one table together.

    Of one dtype, and all of them at multiples of 16 bytes and numbers or not.
    """
    groups: dict[tuple[torch.dtype, bool], list[str]] = {}
    device = next((tensor.device for tensor in origin.values()), None)
    if device is None or len(clients) > MOST_TRITON_ROWS or not has_tables(device):
        return []
    for name, like in origin.items():
        tensors = [like, *(params[name] for params in clients)]
        alike = all(
            t.dtype == like.dtype and t.device == device and t.is_contiguous() for t in tensors
        )
        if alike and like.dtype in DTYPES and like.numel() > 0:
            facts = (like.numel(), *(t.data_ptr() for t in tensors))
            aligned = all(fact % ALIGNED == 0 for fact in facts)
            groups.setdefault((like.dtype, aligned), []).append(name)
    return list(groups.values())
