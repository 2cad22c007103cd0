"""From parameters to the matrix of updates, and how much of it may be rounding."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch

from fedsdg.aggregation.state_dict_checks import StateDict, all_finite
from fedsdg.aggregation.statistics import measure

BLOCK_NUMBERS = 1 << 16


def form_updates(
    global_params: StateDict, clients: Sequence[StateDict], ids: Sequence[Hashable]
) -> torch.Tensor:
    """[M, d] theta_k - theta_g in float64 if any tensor is float64, else float32.

    Columns in the order of global_params. Raises ValueError, naming the client and the tensor,
    where the difference overflows.
    """
    return _rows(global_params, clients, ids, subtract=True)


def flatten(like: StateDict, clients: Sequence[StateDict], ids: Sequence[Hashable]) -> torch.Tensor:
    """[M, d] what the clients sent, as it is, in the columns and dtype of `form_updates`."""
    return _rows(like, clients, ids, subtract=False)


def rounding_norms(global_params: StateDict, clients: Sequence[StateDict]) -> np.ndarray:
    """[M] 1/2 eps ||theta_k||, each tensor with the coarser eps of the two it was formed from."""
    total = np.zeros(len(clients))
    for k, params in enumerate(clients):
        for name, tensor in params.items():
            eps = max(torch.finfo(t.dtype).eps for t in (tensor, global_params[name]))
            total[k] = np.hypot(total[k], 0.5 * eps * _norm(tensor.detach()))
    return total


def _rows(
    global_params: StateDict,
    clients: Sequence[StateDict],
    ids: Sequence[Hashable],
    *,
    subtract: bool,
) -> torch.Tensor:
    tensors = [t for params in (global_params, *clients) for t in params.values()]
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    d = sum(tensor.numel() for tensor in global_params.values())
    rows = torch.empty(len(clients), d, dtype=dtype, device=tensors[0].device)
    start = 0
    for name, tensor in global_params.items():
        origin = tensor.detach().reshape(-1).to(rows) if subtract else None
        columns = rows[:, start : start + tensor.numel()]
        for row, params in zip(columns, clients, strict=True):
            row.copy_(params[name].detach().reshape(-1))
            if origin is not None:
                row.sub_(origin)
        for client, row in zip(ids, columns, strict=True):
            if not all_finite(row):
                raise ValueError(
                    f"client {client}: the update of tensor {name!r} overflows {dtype}; convert "
                    f"the parameters to torch.float64 or leave the client out"
                )
        start += tensor.numel()
    return rows


def _norm(tensor: torch.Tensor) -> float:
    # By blocks: torch converts all that it is given to float64 first.
    blocks = tensor.reshape(-1).split(BLOCK_NUMBERS)
    norm = math.hypot(*(torch.linalg.vector_norm(b, dtype=torch.float64).item() for b in blocks))
    if norm < float("inf"):
        return norm
    statistics = measure(tensor.reshape(1, -1))
    return float(statistics.norms[0]) * statistics.unit
