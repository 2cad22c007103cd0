"""The checks of the dict-of-tensors door: errors name the client, the tensor and the remedy."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fedsdg.aggregation.uploads import NonFiniteError

StateDict = Mapping[str, torch.Tensor]


def named_clients(client_params: Any) -> tuple[list[Hashable], list[Any]]:
    """Client ids and their parameters: positions for a sequence, keys for a mapping."""
    if isinstance(client_params, Mapping):
        return list(client_params.keys()), list(client_params.values())
    if isinstance(client_params, Sequence) and not isinstance(client_params, str | bytes):
        return list(range(len(client_params))), list(client_params)
    raise ValueError(
        f"client_params is {_kind(client_params)}; give a list of dicts of tensors, or a mapping "
        f"from client id to such a dict"
    )


def check_global(params: Any) -> None:
    """A non-empty mapping of finite floating tensors, else ValueError."""
    if not isinstance(params, Mapping):
        raise ValueError(f"global_params is {_kind(params)}; give a dict of tensors by name")
    if not params:
        raise ValueError("global_params holds no tensors; give the shared parameters by name")
    for name, tensor in params.items():
        _check_tensor("global parameters", name, tensor)


def check_client(client: Hashable, params: Any, global_params: StateDict) -> None:
    """The keys and shapes of the global parameters, finite floating tensors, else ValueError."""
    who = f"client {client}"
    if not isinstance(params, Mapping):
        raise ValueError(
            f"{who}: parameters are {_kind(params)}; give a dict of tensors by name, with the keys "
            f"of global_params"
        )
    for name in global_params:
        if name not in params:
            raise ValueError(
                f"{who}: tensor {name!r} is missing; send every tensor that global_params holds"
            )
    for name, tensor in params.items():
        if name not in global_params:
            raise ValueError(
                f"{who}: tensor {name!r} is not in global_params; leave private tensors out"
            )
        _check_tensor(who, name, tensor)
        expected = tuple(global_params[name].shape)
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{who}: tensor {name!r} has shape {tuple(tensor.shape)}, expected {expected}; "
                f"all clients must share the architecture of global_params"
            )


def _check_tensor(who: str, name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{who}: {name!r} is {_kind(tensor)}; convert it with torch.as_tensor")
    if tensor.layout != torch.strided or not tensor.is_floating_point():
        raise ValueError(
            f"{who}: tensor {name!r} is {tensor.dtype}, {tensor.layout}; only dense floating "
            f"tensors can be averaged: convert it, or leave it out (counters, masks)"
        )
    finite = torch.isfinite(tensor)
    if not finite.all():
        count = int((~finite).sum())
        raise NonFiniteError(
            f"{who}: tensor {name!r} has {count} non-finite values of {tensor.numel()}; "
            f"leave the client out or restore its last finite parameters"
        )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
