"""How much of updates formed from parameters may be rounding, and which of them overflow."""

from collections.abc import Hashable, Sequence
from functools import cache, cached_property

import numpy as np
import torch

from fedsdg.aggregation.engines.backends import backend, backend_for
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows

SLACK = 1 + 1e-4
"""Norms are good to five digits at least."""


class Rounding:
    """1/2 eps ||theta_k|| for every client, each tensor with the coarser eps of the two that its
    update was formed from."""

    def __init__(self, origin: StateDict, clients: Sequence[StateDict]) -> None:
        self.origin, self.clients = origin, clients

    @cached_property
    def norms(self) -> np.ndarray:
        """[M], from all parameters of all clients."""
        return self._norms(self.clients)

    def at_most(self, update_norms: np.ndarray) -> np.ndarray:
        """[M] upper bounds of `norms` given those of the updates, from the global parameters:
        ||theta_k|| <= ||theta_g|| + ||Delta_k||, whatever the weights of the tensors."""
        coarsest = np.max(list(self._groups), axis=0, initial=0.0)
        return SLACK * (self._of_origin + 0.5 * coarsest * update_norms)

    @cached_property
    def _of_origin(self) -> np.ndarray:
        return self._norms([self.origin])

    @cached_property
    def _groups(self) -> dict[tuple[float, ...], list[str]]:
        """The names of the tensors by their eps [M]."""
        groups: dict[tuple[float, ...], list[str]] = {}
        for name, tensor in self.origin.items():
            eps = _coarser_eps(tensor.dtype, *(params[name].dtype for params in self.clients))
            groups.setdefault(eps, []).append(name)
        return groups

    def _norms(self, params: Sequence[StateDict]) -> np.ndarray:
        total, tensors = np.zeros(len(self.clients)), list(self.origin.values())
        numbers = len(self.clients) * sum(tensor.numel() for tensor in tensors)
        device = tensors[0].device if tensors else torch.device("cpu")
        with backend(backend_for(numbers, device)):  # Also for the origin alone.
            for eps, names in self._groups.items():
                some = [{name: each[name] for name in names} for each in params]
                measured = ParameterRows(some[0], some, subtract=False).measure()
                total = np.hypot(total, 0.5 * np.array(eps) * measured.norms * measured.unit)
        return total


class ParameterNorm:
    """`Rounding` as a rule takes it: the norm that times 1/2 eps(dtype of the updates) gives it.

    The parameters may be coarser than the updates are stored.
    """

    def __init__(self, rounding: Rounding, dtype: torch.dtype) -> None:
        self.rounding, self._half_eps = rounding, 0.5 * torch.finfo(dtype).eps

    def __float__(self) -> float:
        return float(self.rounding.norms.max()) / self._half_eps

    def at_most(self, update_norm: float) -> float:
        size = len(self.rounding.clients)
        return float(self.rounding.at_most(np.full(size, update_norm)).max()) / self._half_eps


def check_differences(
    origin: StateDict, clients: Sequence[StateDict], ids: Sequence[Hashable]
) -> None:
    """ValueError, naming the client and the tensor, where a difference of finite parameters is not
    finite in the dtype of the updates."""
    dtype = ParameterRows(origin, clients).dtype
    for name, tensor in origin.items():
        for client, params in zip(ids, clients, strict=True):
            one = ParameterRows({name: tensor}, [{name: params[name]}], dtype=dtype)
            if one.nonfinite_counts().any():
                raise ValueError(
                    f"client {client}: the update of tensor {name!r} overflows {dtype}; convert "
                    f"the parameters to torch.float64 or leave the client out"
                )


@cache
def _coarser_eps(of_origin: torch.dtype, *of_clients: torch.dtype) -> tuple[float, ...]:
    """For every client the coarser eps of the two dtypes that its update was formed from."""
    eps = torch.finfo(of_origin).eps
    return tuple(max(eps, torch.finfo(dtype).eps) for dtype in of_clients)
