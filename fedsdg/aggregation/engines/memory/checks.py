"""The checks of the doors for parameters: errors name the client, the tensor and the remedy."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fedsdg.aggregation.engines.rows import all_finite
from fedsdg.aggregation.uploads import NonFiniteError

StateDict = Mapping[str, torch.Tensor]

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes that can be averaged."""


def named_clients(client_params: Any) -> tuple[list[Hashable], list[Any]]:
    """Client ids and their parameters: positions for a sequence, keys for a mapping."""
    if isinstance(client_params, Mapping):
        return list(client_params.keys()), list(client_params.values())
    if isinstance(client_params, Sequence) and not isinstance(client_params, str | bytes):
        return list(range(len(client_params))), list(client_params)
    raise ValueError(
        f"client_params is {kind(client_params)}; give a list of dicts of tensors, or a mapping "
        f"from client id to such a dict"
    )


def check_global(params: Any) -> None:
    """A non-empty mapping of finite floating tensors, else ValueError."""
    if not isinstance(params, Mapping):
        raise ValueError(f"global_params is {kind(params)}; give a dict of tensors by name")
    if not params:
        raise ValueError("global_params holds no tensors; give the shared parameters by name")
    for name, tensor in params.items():
        _check_tensor("global parameters", name, tensor)
    check_finite("global parameters", params)


def check_structure(who: str, params: Any, global_params: StateDict) -> None:
    """The keys and shapes of the global parameters, dense floating tensors, else ValueError."""
    if not isinstance(params, Mapping):
        raise ValueError(
            f"{who}: parameters are {kind(params)}; give a dict of tensors by name, with the keys "
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


def check_storage(who: str, params: StateDict, global_params: StateDict) -> None:
    """The dtypes and devices of the global parameters, tensor by tensor, else ValueError."""
    for name, tensor in params.items():
        like = global_params[name]
        for fact, found, expected in (
            ("dtype", tensor.dtype, like.dtype),
            ("device", tensor.device, like.device),
        ):
            if found != expected:
                raise ValueError(
                    f"{who}: tensor {name!r} has {fact} {found}, expected {expected} as in "
                    f"global_params; convert one of the two"
                )


def nonfinite_counts(params: StateDict) -> dict[str, int]:
    """How many values are NaN or infinite, by tensor; only the tensors that hold any."""
    return {
        name: int((~torch.isfinite(tensor)).sum())
        for name, tensor in params.items()
        if not all_finite(tensor)
    }


def check_finite(who: str, params: StateDict) -> None:
    """Raises NonFiniteError when a value is NaN or infinite, for the first such tensor."""
    for name, count in nonfinite_counts(params).items():
        raise NonFiniteError(
            f"{who}: tensor {name!r} has {count} non-finite values of {params[name].numel()}; "
            f"leave the client out or restore its last finite parameters"
        )


def kind(value: Any) -> str:
    """What a value is, for an error message."""
    return f"a {type(value).__name__}"


def _check_tensor(who: str, name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{who}: {name!r} is {kind(tensor)}; convert it with torch.as_tensor")
    dense = tensor.layout == torch.strided and not tensor.is_nested
    if not dense or tensor.dtype not in FLOATING:
        raise ValueError(
            f"{who}: tensor {name!r} is {tensor.dtype}, {tensor.layout}; only dense floating "
            f"tensors can be averaged: convert it, or leave it out (counters, masks)"
        )
    if tensor.device.type == "meta":
        raise ValueError(
            f"{who}: tensor {name!r} is on the device meta and has no values; load them first"
        )
