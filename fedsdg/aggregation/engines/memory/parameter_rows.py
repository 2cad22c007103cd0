"""Updates that were never formed as a whole: theta_k - theta_g, wherever the parameters lie."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from fedsdg.aggregation.engines.backends import backend, backend_for, has_addresses
from fedsdg.aggregation.engines.memory.addressed_rows import AddressedRows
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.formed_rows import FormedRows
from fedsdg.aggregation.engines.memory.tabled_rows import TabledRows, tabled_groups
from fedsdg.aggregation.engines.memory.writing import check_results
from fedsdg.aggregation.engines.rows import (
    TensorRows,
    all_finite,
    distance_error,
    merged,
    merged_distances,
    merged_logs,
    merged_products,
)
from fedsdg.aggregation.engines.statistics import Statistics
from fedsdg.aggregation.plans import Combination, Nothing, OrderStatistics, Plan, Step

LARGE_NUMBERS = 1 << 18
"""Tensors of at least so many numbers, over all clients, are worth a kernel call of their own."""


class ParameterRows:
    """x_k = theta_k - theta_g, or theta_k itself: rows of d columns in the order of theta_g.

    In float64 if any tensor is float64, else in float32. The parameters are read anew at every
    pass: by the kernels where they lie, large tensors on the CPU (`AddressedRows`), all on a GPU
    (`TabledRows`); others a block of columns at a time (`FormedRows`). Nothing of size d is
    allocated but the results [d] asked for.
    """

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        *,
        subtract: bool = True,
        dtype: torch.dtype | None = None,
        large: Sequence[str] | None = None,
    ) -> None:
        """origin: theta_g, or without `subtract` any parameters of the same names and shapes.

        large: the tensors to read where they lie; None: by their sizes.
        """
        self.origin, self.clients, self.subtract = origin, clients, subtract
        self.shape = len(clients), sum(tensor.numel() for tensor in origin.values())
        tensors = [tensor for params in (origin, *clients) for tensor in params.values()]
        wide = torch.float64 in {tensor.dtype for tensor in tensors}
        self.dtype = dtype or (torch.float64 if wide else torch.float32)
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self.backend = backend_for(self.shape[0] * self.shape[1], device)
        if large is None:
            large = [name for name in origin if self.backend == "numba" and self._by_address(name)]
        in_place: type[AddressedRows | TabledRows] = AddressedRows
        groups = [[name] for name in large]
        if self.backend == "triton":
            in_place, groups = TabledRows, tabled_groups(origin, clients)
        self.large = [name for group in groups for name in group]
        in_place_names = set(self.large)
        small = [name for name in origin if name not in in_place_names]
        self.parts: list[FormedRows | AddressedRows | TabledRows] = []
        if small or not groups:
            self.parts.append(FormedRows(*self._only(small), self.dtype, subtract=subtract))
        self.parts += [
            in_place(*self._only(group), self.dtype, subtract=subtract) for group in groups
        ]

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        with backend(self.backend):
            return merged(part.measure(coefficients) for part in self.parts)

    def squared_distances(self) -> tuple[np.ndarray, float]:
        with backend(self.backend):
            return merged_distances(part.squared_distances() for part in self.parts)

    @property
    def distance_error(self) -> float:
        return distance_error(self.dtype, kernels=self.backend != "torch")

    def log_distances(self) -> np.ndarray:
        return merged_logs(part.log_distances() for part in self.parts)

    def centred_products(self, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
        return merged_products(part.centred_products(centre, exponents) for part in self.parts)

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        return self._columnwise(Combination(weights))

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        return self._columnwise(OrderStatistics(trim))

    def norm(self, vector: torch.Tensor) -> float:
        return TensorRows(vector[None]).norm(vector)

    def finite(self, vector: torch.Tensor) -> bool:
        return all_finite(vector)

    def nonfinite_counts(self) -> np.ndarray:
        return np.sum([part.nonfinite_counts() for part in self.parts], axis=0)

    def write(self, plan: Plan, targets: StateDict, *, fresh: bool) -> None:
        """targets <- theta_g + step of the plan (without theta_g where it is not subtracted).

        fresh: whether the targets hold nothing yet; otherwise they change only if all results are
        finite. Raises NonFiniteError, naming a tensor, if one is not. Nothing that is read may
        overlap the targets (see `writing.apart`).
        """
        certain = plan.checked and plan.step.inside
        if self.large and not all(target.is_contiguous() for target in targets.values()):
            certain = False  # Differences are formed that the plan may not have seen.
        with backend(self.backend):
            rows, step = self._used(plan)
            for rehearse in (False,) if fresh or certain else (True, False):
                # Last columns first: a pass before ended there, and left them in the cache.
                for part in reversed(rows.parts):
                    bad = part.put(step, targets, rehearse=rehearse)
                    if not (certain and self.dtype == torch.float64):
                        check_results(bad, targets)
                    for name in bad:  # Means of finite numbers: only their rounding overflowed.
                        targets[name].nan_to_num_()

    def _used(self, plan: Plan) -> tuple["ParameterRows", Step]:
        """The rows that the step depends on, if it pays to read no others, and the step on them."""
        step: Step = plan.step
        if isinstance(step, Nothing):
            step = Combination(np.zeros(self.shape[0]))
        if not (plan.checked and isinstance(step, Combination) and self.backend == "numba"):
            return self, step
        used = np.flatnonzero(step.coefficients)
        if len(used) == self.shape[0]:
            return self, step
        used = used if len(used) else np.zeros(1, dtype=np.int64)
        clients = [self.clients[int(k)] for k in used]
        rows = ParameterRows(
            self.origin, clients, subtract=self.subtract, dtype=self.dtype, large=self.large
        )
        return rows, Combination(step.coefficients[used])

    def _columnwise(self, step: Step) -> torch.Tensor:
        """[d] the step, without theta_g."""
        device = next((t.device for t in self.origin.values()), None)
        result = torch.empty(self.shape[1], dtype=self.dtype, device=device)
        pieces = result.split([tensor.numel() for tensor in self.origin.values()])
        views = {
            name: piece.view(tensor.shape)
            for (name, tensor), piece in zip(self.origin.items(), pieces, strict=True)
        }
        with backend(self.backend):
            for part in self.parts:
                part.put(step, views, add=False)
        return result

    def _only(self, names: Iterable[str]) -> tuple[StateDict, list[StateDict]]:
        """Of the global parameters and of the clients', some of the tensors."""
        clients: list[StateDict] = [{name: each[name] for name in names} for each in self.clients]
        return {name: self.origin[name] for name in names}, clients

    def _by_address(self, name: str) -> bool:
        """Whether a tensor is one for `AddressedRows`."""
        like = self.origin[name]
        if like.numel() * len(self.clients) < LARGE_NUMBERS:
            return False
        tensors = [params[name] for params in (self.origin, *self.clients)]
        return all(
            t.dtype == like.dtype and t.is_contiguous() and has_addresses(t.view(-1))
            for t in tensors
        )


def form_matrix(
    origin: StateDict,
    clients: Sequence[StateDict],
    *,
    subtract: bool = True,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[M, d] the rows of `ParameterRows` as one tensor."""
    dtype = ParameterRows(origin, clients, subtract=subtract, dtype=dtype).dtype
    rows = FormedRows(origin, clients, dtype, subtract=subtract, whole=True)
    if not rows.cut:
        return torch.empty(rows.shape, dtype=dtype, device=rows.device)
    return rows.formed(rows.cut[0])[0]
