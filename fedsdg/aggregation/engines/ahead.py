"""What a plan is going to ask of rows on a GPU, asked before the host knows the answers.

A GPU works off a queue. A host that wants a number waits until the queue is empty, and meanwhile
nothing is added to it. So a rule whose next coefficients follow from the first statistics says in
tensors how (`PlannedRule.ahead`): the passes are queued one behind the other, and all that came of
them is fetched at once. The plan is then made as ever, and what it asks with the coefficients of
a pass that was made is answered by that pass; anything else takes a pass of its own. So whatever
was foreseen wrongly costs time and changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.engines.backends import kernels_for
from fedsdg.aggregation.engines.rows import Measured, Summed, TensorRows
from fedsdg.aggregation.engines.statistics import from_moments


class There(NamedTuple):
    """As `statistics.Statistics`, in float64 tensors where the rows are."""

    unit: float
    norms: Tensor
    dots: Tensor
    reference_norm: Tensor


@dataclass(frozen=True, eq=False)
class _Measuring:
    coefficients: Tensor | None
    sums: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class _Summing:
    weights: Tensor
    total: Tensor
    finite: Tensor


class Ahead:
    """The rows of a tensor [M, d], asked in tensors; nothing here waits for an answer."""

    def __init__(self, rows: Tensor) -> None:
        from fedsdg.aggregation.engines.kernels.cuda.tables import as_rows

        self.rows = as_rows(rows)
        self.real = np.float64 if rows.dtype == torch.float64 else np.float32
        self.passes: list[_Measuring | _Summing] = []

    @property
    def device(self) -> torch.device:
        return self.rows.tensor.device

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def sent(self, numbers: np.ndarray) -> Tensor:
        """Numbers of the host in float64, where the rows are."""
        from fedsdg.aggregation.engines.kernels.cuda.launching import sent

        return sent(np.asarray(numbers, dtype=np.float64), self.device)

    def measure(self, coefficients: Tensor | None = None) -> There:
        """As `rows.Rows.measure`, in the precision that is tried first."""
        from fedsdg.aggregation.engines.kernels.cuda.moments import moments_there

        c = coefficients
        if c is None:
            c = torch.ones(self.rows.size, dtype=torch.float64, device=self.device)
            scale = torch.full_like(c[0], 1.0 / self.rows.size)
        else:
            scale = c.abs().max()
            c = c / torch.where(scale > 0, scale, 1.0)
        sums = moments_there(self.rows, c, self.real)
        self.passes.append(_Measuring(coefficients, sums, scale))
        norms = sums[0].sqrt()
        return There(1.0, norms[:-1], sums[1, :-1] * scale, norms[-1] * scale)

    def weighted_sum(self, weights: Tensor) -> None:
        """As `rows.Rows.weighted_sum`."""
        from fedsdg.aggregation.engines.kernels.cuda.sums import weighted_sum_there

        total = torch.empty(self.rows.d, dtype=self.rows.dtype, device=self.device)
        finite = weighted_sum_there(self.rows, weights, total)
        self.passes.append(_Summing(weights, total, finite))


def go_ahead(rows: Mapping[str, TensorRows], ask: Callable[[Mapping[str, Ahead]], None]) -> None:
    """Let the rows take the passes that `ask` asks for, and keep what came of them.

    Only where all of them go to the kernels of a GPU; elsewhere the host waits for nobody.
    """
    there = (isinstance(each, TensorRows) for each in rows.values())
    if not all(there) or any(kernels_for(each.tensor) != "triton" for each in rows.values()):
        return
    from fedsdg.aggregation.engines.kernels.cuda.moments import moments_in_range

    ahead = {name: Ahead(each.tensor) for name, each in rows.items()}
    ask(ahead)
    made = [(name, each) for name in ahead for each in ahead[name].passes]
    if not made:
        return
    numbers = [part.reshape(-1).double() for _, each in made for part in _small(each)]
    fetched = torch.cat(numbers).cpu().numpy()
    pieces = iter(np.split(fetched, np.cumsum([len(part) for part in numbers])[:-1]))
    for name, each in made:
        own = [next(pieces) for _ in _small(each)]
        if isinstance(each, _Summing):
            rows[name].summed.append(Summed(own[0], each.total, bool(own[1][0])))
            continue
        squares, dots = own[0].reshape(2, -1)
        if moments_in_range(ahead[name].rows, squares, ahead[name].real):
            found = from_moments(squares, dots[:-1], float(own[1][0]))
            rows[name].measured.append(Measured(own[2] if len(own) > 2 else None, found))


def _small(each: _Measuring | _Summing) -> list[Tensor]:
    """What the host wants of a pass."""
    if isinstance(each, _Summing):
        return [each.weights, each.finite]
    wanted = [each.sums, each.scale]
    return wanted if each.coefficients is None else [*wanted, each.coefficients]
