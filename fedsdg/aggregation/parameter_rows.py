"""Updates that were never formed as a whole: theta_k - theta_g, wherever the parameters lie.

The rows of a cohort are its tensors, one after another as columns. They are taken a block of
columns at a time, in one buffer that stays in the cache (`FormedRows`).
"""

from collections.abc import Sequence

import numpy as np
import torch

from fedsdg.aggregation.backends import backend, backend_for
from fedsdg.aggregation.parameter_blocks import Block, cut
from fedsdg.aggregation.plans import Plan, Step
from fedsdg.aggregation.rows import Blocks, BlockRows, TensorRows, merged, merged_distances
from fedsdg.aggregation.state_dict_checks import StateDict
from fedsdg.aggregation.statistics import Statistics
from fedsdg.aggregation.writing import place

BLOCK_NUMBERS = 1 << 18
"""Numbers of a block."""
WHOLE_NUMBERS = 1 << 21
"""So many in all, if one row would fit a block, are formed once and kept."""


class ParameterRows:
    """x_k = theta_k - theta_g, or theta_k itself: rows of d columns in the order of theta_g.

    In float64 if any tensor is float64, else in float32. Numbers are read in place at every pass;
    nothing of size d is allocated but the results [d] that are asked for.
    """

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        *,
        subtract: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """origin: theta_g, or without `subtract` any parameters of the same names and shapes."""
        self.origin, self.clients, self.subtract = origin, clients, subtract
        self.shape = len(clients), sum(tensor.numel() for tensor in origin.values())
        tensors = [tensor for params in (origin, *clients) for tensor in params.values()]
        wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        self.dtype = dtype or (torch.float64 if wide else torch.float32)
        self.backend = backend_for(self.shape[0] * self.shape[1])
        self.parts = [FormedRows(origin, clients, self.dtype, subtract=subtract)]

    def measure(self, coefficients: np.ndarray | None = None) -> Statistics:
        with backend(self.backend):
            return merged(part.measure(coefficients) for part in self.parts)

    def squared_distances(self) -> tuple[np.ndarray, float]:
        with backend(self.backend):
            return merged_distances(part.squared_distances() for part in self.parts)

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        with backend(self.backend):
            return self.parts[0].weighted_sum(weights)

    def trimmed_mean(self, trim: int) -> torch.Tensor:
        with backend(self.backend):
            return self.parts[0].trimmed_mean(trim)

    def norm(self, vector: torch.Tensor) -> float:
        return TensorRows(vector[None]).norm(vector)

    def nonfinite_counts(self) -> np.ndarray:
        return np.sum([part.nonfinite_counts() for part in self.parts], axis=0)

    def write(self, plan: Plan, targets: StateDict, *, fresh: bool) -> None:
        """targets <- theta_g + step of the plan (without theta_g where it is not subtracted).

        fresh: whether the targets hold nothing yet; otherwise they change only if all results are
        finite. Raises NonFiniteError, naming a tensor, if one is not. Nothing that is read may
        overlap the targets (see `writing.apart`).
        """
        certain = plan.checked and plan.step.inside
        with backend(self.backend):
            for rehearse in (False,) if fresh or certain else (True, False):
                for part in self.parts:
                    part.put(plan.step, targets, certain=certain, rehearse=rehearse)


class FormedRows(BlockRows):
    """The columns of some tensors, formed block by block in one buffer."""

    def __init__(
        self,
        origin: StateDict,
        clients: Sequence[StateDict],
        dtype: torch.dtype,
        *,
        subtract: bool,
        whole: bool = False,
    ) -> None:
        """whole: in one block, however large."""
        shapes = {name: tuple(tensor.shape) for name, tensor in origin.items()}
        size, d = len(clients), sum(tensor.numel() for tensor in origin.values())
        device = next((tensor.device for tensor in origin.values()), torch.device("cpu"))
        super().__init__(self._all, (size, d), dtype, device)
        self.origin, self.clients, self.subtract = origin, clients, subtract
        one = whole or (d <= BLOCK_NUMBERS and size * d <= WHOLE_NUMBERS)
        self.cut = cut(shapes, max(256, d if one else BLOCK_NUMBERS // size))
        self._buffer: torch.Tensor | None = None
        self._held: Block | None = None

    def formed(self, block: Block) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows [M, width] of a block and, if it was subtracted, theta_g [width].

        Both are good until the next block is formed.
        """
        size = self.shape[0]
        if self._buffer is None:
            widest = max(each.width for each in self.cut)
            self._buffer = torch.empty(size + 1, widest, dtype=self.dtype, device=self.device)
        rows, base = self._buffer[:size, : block.width], self._buffer[size, : block.width]
        if self._held is not block:
            for params, row in zip(self.clients, rows, strict=True):
                block.gather(params, row)
            if self.subtract:
                block.gather(self.origin, base)
                rows -= base
            self._held = block
        return rows, base if self.subtract else None

    def put(self, step: Step, targets: StateDict, **how: bool) -> None:
        """targets <- what `ParameterRows.write` says; see `writing.place`."""
        for block in self.cut:
            rows, base = self.formed(block)
            values = step.of(TensorRows(rows))
            place(block, values if base is None else values.add_(base), targets, **how)

    def _all(self) -> Blocks:
        for block in self.cut:
            yield block.columns, self.formed(block)[0]


def form_matrix(
    origin: StateDict, clients: Sequence[StateDict], *, subtract: bool = True
) -> torch.Tensor:
    """[M, d] the rows of `ParameterRows` as one tensor."""
    dtype = ParameterRows(origin, clients, subtract=subtract).dtype
    rows = FormedRows(origin, clients, dtype, subtract=subtract, whole=True)
    if not rows.cut:
        return torch.empty(rows.shape, dtype=dtype, device=rows.device)
    return rows.formed(rows.cut[0])[0]
