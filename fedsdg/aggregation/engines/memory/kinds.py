"""Parameters of any kind as tensors by name, without a copy, and new parameters of that kind.

A kind is one array or tensor, a list or tuple of them (layers), or a mapping from name to them.
Names are the keys of a mapping, "[0]", "[1]", … of a list, and "parameters" of one array.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.memory.checks import (
    StateDict,
    check_storage,
    check_structure,
    kind,
    named_clients,
)
from fedsdg.aggregation.engines.memory.checks import check_global as check_tensors
from fedsdg.aggregation.engines.memory.writing import check_disjoint

ALONE = "parameters"
"""The name of an array or tensor that is all there is."""
FLOATING_ARRAYS = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))
"""The dtypes of arrays that can be averaged, in native byte order."""


def clients_of(client_params: Any) -> tuple[list[Any], list[Any], bool]:
    """Client ids, their parameters, and whether the ids are positions in a list.

    An array or tensor with a leading client axis is the list of its rows.
    """
    if isinstance(client_params, np.ndarray | torch.Tensor) and client_params.ndim > 0:
        client_params = [client_params[k, ...] for k in range(len(client_params))]
    ids, clients = named_clients(client_params)
    return ids, clients, not isinstance(client_params, Mapping)


def entries(params: Any) -> dict[Any, Any]:
    """The arrays and tensors of parameters by name, as they were given."""
    if isinstance(params, Mapping):
        return dict(params)
    if isinstance(params, list | tuple):
        return {f"[{position}]": value for position, value in enumerate(params)}
    return {ALONE: params}


def global_tensors(params: Any) -> dict[str, torch.Tensor]:
    """The global parameters by name, checked: at least one, finite, floating, on one device."""
    who = "global parameters"
    tensors = _tensors(who, params)
    check_tensors(tensors)
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor.device != tensors[first].device:
            raise ValueError(
                f"{who}: tensor {name!r} is on {tensor.device}, tensor {first!r} on "
                f"{tensors[first].device}; move them to one device"
            )
    return tensors


def tensors_like(who: str, params: Any, global_params: Any, origin: StateDict) -> StateDict:
    """Parameters of the kind, keys, shapes, dtypes and device of the global ones; any values."""
    check_like(who, params, global_params, origin)
    return views(params)


def check_like(who: str, params: Any, global_params: Any, origin: StateDict) -> None:
    """Require the kind, keys, shapes, dtypes and device of the global parameters; any values.

    Args:
        who: whose parameters they are, for messages.
        params: parameters of any kind.
        global_params: the global parameters as they were given.
        origin: the same as checked tensors.

    Raises:
        ValueError: naming the tensor that differs, and how.
    """
    if _container(params) is not _container(global_params):
        raise ValueError(
            f"{who}: parameters are {kind(params)}, global_params is {kind(global_params)}; "
            f"give both in the same form"
        )
    given, like = entries(params), entries(global_params)
    if _alike(given, like):
        return
    tensors = _tensors(who, params)
    check_structure(who, tensors, origin)
    for name, value in given.items():
        expected = np.ndarray if isinstance(like[name], np.ndarray) else torch.Tensor
        if not isinstance(value, expected):
            raise ValueError(
                f"{who}: {name!r} is {kind(value)}, global_params holds a {expected.__name__}; "
                f"convert one of the two"
            )
    check_storage(who, tensors, origin)


def _alike(given: Mapping[Any, Any], like: Mapping[Any, Any]) -> bool:
    """Whether arrays and tensors have the names, kinds, shapes and dtypes of checked ones.

    Those that do need none of the checks that find out what is wrong with the others.
    """
    if given.keys() != like.keys():
        return False
    for name, value in given.items():
        other = like[name]
        if type(value) is not type(other):
            return False
        # A nested tensor has no shape to ask for.
        if isinstance(value, torch.Tensor) and (
            value.is_nested or value.layout != torch.strided or value.device != other.device
        ):
            return False
        if value.shape != other.shape or value.dtype != other.dtype:
            return False
    return True


def out_tensors(out: Any, global_params: Any, origin: StateDict) -> StateDict:
    """Views into `out`, which has the form of the global parameters and can be written to."""
    tensors = tensors_like("out", out, global_params, origin)
    for name, value in entries(out).items():
        if isinstance(value, np.ndarray):
            # A view and not a copy, and one that numpy allows to be written to.
            writable = value.flags.writeable and _addressable(_plain(value))
        else:
            writable = torch.is_inference_mode_enabled() or not value.is_inference()
        strides = zip(tensors[name].shape, tensors[name].stride(), strict=True)
        spread = any(size > 1 and stride == 0 for size, stride in strides)
        if not writable or (spread and tensors[name].numel() > 0):
            raise ValueError(
                f"out: tensor {name!r} cannot be written to in place; give a writable buffer "
                f"without broadcast, reversed or misaligned axes"
            )
    check_disjoint(tensors)
    return tensors


def new_like(params: Any) -> Any:
    """Uninitialised parameters of the same kind, shapes, dtypes and device."""
    if isinstance(params, Mapping):
        return {name: _empty(value) for name, value in params.items()}
    if isinstance(params, list | tuple):
        return _container(params)(_empty(value) for value in params)
    return _empty(params)


def views(params: Any) -> dict[str, torch.Tensor]:
    """Tensors by name that share the memory of checked parameters."""
    return _tensors("parameters", params)


def _tensors(who: str, params: Any) -> dict[Any, torch.Tensor]:
    given = entries(params)
    if ALONE in given and _container(params) is object and not _is_array(params):
        raise ValueError(
            f"{who}: parameters are {kind(params)}; give an array, a tensor, a list of them, or a "
            f"dict of them by name"
        )
    return {name: _tensor(who, name, value) for name, value in given.items()}


def _tensor(who: str, name: Any, value: Any) -> torch.Tensor:
    if not isinstance(value, np.ndarray):
        if isinstance(value, torch.Tensor):
            return value.detach()
        raise ValueError(
            f"{who}: {name!r} is {kind(value)}; convert it with numpy.asarray or torch.as_tensor"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{who}: array {name!r} is masked; fill it, or leave it out")
    if value.dtype not in FLOATING_ARRAYS:
        raise ValueError(
            f"{who}: array {name!r} has dtype {value.dtype.str}; only float16, float32 and float64 "
            f"in native byte order can be averaged: convert it, or leave it out"
        )
    if not _addressable(value) and not _addressable(value := _plain(value)):
        value = np.array(value, order="C")
    if not value.flags.writeable:
        value = np.asarray(_Writable(value))
    return torch.from_numpy(value)


class _Writable:
    """The memory of a read-only array, announced as writable.

    torch warns about read-only arrays because its tensors could be written to. Ours are only read,
    and silencing the warning would change the filters of all threads.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # Keeps the memory alive.
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _plain(array: np.ndarray) -> np.ndarray:
    """A view with ordinary strides along axes where no step is ever taken."""
    if array.size > 1 and 1 not in array.shape:
        return array
    ordinary = np.empty(0, array.dtype).itemsize
    strides = tuple(
        ordinary if size <= 1 or array.size == 0 else stride
        for size, stride in zip(array.shape, array.strides, strict=True)
    )
    writable = array.flags.writeable
    return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=writable)


def _addressable(array: np.ndarray) -> bool:
    """Whether torch can view the array: strides >= 0 in whole elements, aligned."""
    size = array.itemsize
    for stride in array.strides:  # A loop: this is asked of every array of every client.
        if stride < 0 or stride % size:
            return False
    return array.flags.aligned


def _empty(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.empty(value.shape, value.dtype)
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _container(params: Any) -> type:
    if isinstance(params, Mapping):
        return dict
    return next((t for t in (list, tuple) if isinstance(params, t)), object)
