"""Random cohorts of parameters, and the forms and layouts in which doors take them."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from fedsdg.aggregation.statistics import VARIABLE

SHAPES = {"a.w": (7, 5), "a.b": (5,), "head.w": (3, 2, 2), "scalar": ()}


@contextmanager
def backend(name):
    """Choose the backend of aggregation within a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, name)
        yield


def drawn(seed=0, size=7, dtype="float32", shapes=None, spread=0.3, common=0.2):
    """Return (theta, clients) as dicts of arrays; "bfloat16" gives float32 numbers that fit it."""
    g = np.random.default_rng(seed)
    shapes = SHAPES if shapes is None else shapes
    theta = {name: np.asarray(g.normal(size=shape)) for name, shape in shapes.items()}
    clients = [
        {n: v + spread * g.normal(size=v.shape) + common for n, v in theta.items()}
        for _ in range(size)
    ]
    return rounded(theta, dtype), [rounded(client, dtype) for client in clients]


def rounded(params, dtype):
    """Return arrays with numbers of a dtype, in float32 for bfloat16."""
    if dtype == "bfloat16":
        return {
            n: torch.tensor(v).to(torch.bfloat16).to(torch.float32).numpy()
            for n, v in params.items()
        }
    return {n: np.asarray(v, dtype=dtype) for n, v in params.items()}


def tensors(params, dtype=None):
    """Return arrays as tensors, in a torch dtype if it is given."""
    wanted = {} if dtype is None else {"dtype": getattr(torch, dtype)}
    return {n: torch.tensor(v, **wanted) for n, v in params.items()}


def flat(params):
    """Return all numbers as float64 [d]."""
    values = params.values() if isinstance(params, dict) else params
    return np.concatenate(
        [
            np.asarray(v.double() if isinstance(v, torch.Tensor) else v, float).ravel()
            for v in values
        ]
    )


def updates(theta, clients):
    """Return [M, d] float64."""
    return np.array([flat(client) - flat(theta) for client in clients])


def transposed(tensors_by_name):
    """Return the same numbers with reversed strides."""
    return {n: t.mT.contiguous().mT if t.ndim > 1 else t for n, t in tensors_by_name.items()}


def expanded(tensors_by_name):
    """Return the same numbers as every other column of larger tensors."""
    made = {}
    for name, tensor in tensors_by_name.items():
        room = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        room[..., 0] = tensor
        made[name] = room[..., 0]
    return made


def read_only(params):
    """Return arrays that may not be written to."""
    copies = {n: v.copy() for n, v in params.items()}
    for copy in copies.values():
        copy.flags.writeable = False
    return copies
