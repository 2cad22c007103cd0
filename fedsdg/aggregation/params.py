"""Parameters of any kind as tensors by name, without a copy, checked, and new ones of that kind.

A kind is one array or tensor, a list or tuple of them (layers), or a mapping from name to them.
Names are the keys of a mapping, "[0]", "[1]", … of a list, and "parameters" of a single array.
"""

from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.errors import kind
from fedsdg.aggregation.rows import StateDict

ALONE = "parameters"
"""The name of an array or tensor that is not in a container."""
FLOATING = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
"""The dtypes that are averaged."""
WHOLE = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool))
"""The dtypes of buffers: counters and masks, which are never averaged."""
ARRAYS = frozenset(map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?")))
"""The dtypes of arrays, in native byte order."""


def by_client(params: Any, what: str = "client_params") -> tuple[list[Hashable], list[Any], bool]:
    """Return client ids, their parameters, and whether the ids are positions in a list.

    An array or tensor with a leading client axis is the list of its rows.

    Args:
        params: The parameters of all clients.
        what: What they are, for messages.

    Raises:
        ValueError: They are in no container of clients.
    """
    if isinstance(params, Mapping):
        return list(params), list(params.values()), False
    if isinstance(params, np.ndarray | Tensor) and params.ndim:
        return list(range(len(params))), [params[k, ...] for k in range(len(params))], True
    if isinstance(params, Sequence) and not isinstance(params, str | bytes):
        return list(range(len(params))), list(params), True
    raise ValueError(
        f"{what} is {kind(params)}; give a list of parameters, a mapping from client id to them, "
        "or an array with a leading client axis"
    )


def tensors(who: str, params: Any) -> dict[Any, Tensor]:
    """Return the global parameters as tensors by name that share their memory where possible.

    Raises:
        ValueError: Not dense floating, integer or boolean arrays or tensors on one device; the
            message names `who` sent what.
    """
    checked = {name: _tensor(who, name, value) for name, value in _entries(params).items()}
    if len({tensor.device for tensor in checked.values()}) > 1:
        raise ValueError(f"{who}: tensors are on several devices; move them to one")
    return checked


def tensors_like(who: str, params: Any, given: Any, like: StateDict) -> dict[Any, Tensor]:
    """Return a client's parameters as tensors by name.

    Args:
        who: Whose parameters they are, for messages.
        params: The client's parameters.
        given: The global parameters as they were given.
        like: The global parameters as tensors.

    Raises:
        ValueError: Another container, or other names, shapes, dtypes or devices.
    """
    if container(params) is not container(given):
        raise ValueError(
            f"{who}: parameters are {kind(params)}, global_params is {kind(given)}; give both in "
            "the same form"
        )
    entries = _entries(params)
    for name in [*like, *entries]:
        if name not in entries or name not in like:
            fault = "missing" if name in like else "not in global_params"
            raise ValueError(f"{who}: tensor {name!r} is {fault}; send exactly its tensors")
    checked = {name: _tensor(who, name, entries[name]) for name in like}
    for name, expected in like.items():
        tensor = checked[name]
        if (
            tensor.shape != expected.shape
            or tensor.dtype != expected.dtype
            or tensor.device != expected.device
        ):
            raise ValueError(
                f"{who}: tensor {name!r} is {_described(tensor)}, expected {_described(expected)} "
                "as in global_params; convert it, or send the same architecture"
            )
    return checked


def outputs(out: Any, given: Any, like: StateDict) -> dict[Any, Tensor]:
    """Return the tensors of `out`, checked to be writable in place.

    Args:
        out: Where the result goes.
        given: The global parameters as they were given.
        like: The global parameters as tensors.

    Raises:
        ValueError: It is not like the global parameters, or a tensor cannot be written to.
    """
    checked = tensors_like("out", out, given, like)
    for name, value in _entries(out).items():
        tensor = checked[name]
        copied = isinstance(value, np.ndarray) and tensor.data_ptr() != value.ctypes.data
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        if tensor.numel() and (copied or any(n > 1 and step == 0 for n, step in strides)):
            raise ValueError(
                f"out: tensor {name!r} cannot be written to in place; give a writable buffer "
                "without broadcast, reversed or misaligned axes"
            )
    return checked


def check_overlaps(
    outs: StateDict, inputs: Mapping[str, StateDict], averaged: Sequence[Any]
) -> None:
    """Raise ValueError unless results can be written to `outs` while inputs are read.

    An input may be at the same place as its result; it may not overlap one otherwise. Results that
    are not contiguous are copied to their place at the end, and may.

    Args:
        outs: Where the results go.
        inputs: The global parameters and those of all clients, by whose they are.
        averaged: The names of the tensors that are read.
    """
    spans = {name: _span(outs[name]) for name in averaged if outs[name].is_contiguous()}
    taken = sorted(span for span in spans.values() if span[0] < span[1])
    if any(end > start for (_, end), (start, _) in pairwise(taken)):
        raise ValueError("out: tensors share memory; give a buffer for each")
    for who, params in inputs.items():
        for name in averaged:
            start, end = _span(params[name])
            in_place = params[name].is_contiguous() and (start, end) == spans.get(name)
            after = bisect(taken, (start, end))
            neighbours = taken[max(after - 1, 0) : after + 1]
            if not in_place and any(start < stop and begin < end for begin, stop in neighbours):
                raise ValueError(f"out overlaps {name!r} of {who}; give a buffer of its own")


def tied(params: Sequence[StateDict]) -> dict[Any, Any]:
    """Return the names of tensors that are the same memory as an earlier one, and its name.

    Weights are tied only if they are tied in the global parameters and in those of every client.

    Args:
        params: The global parameters, then those of the clients.
    """
    first_of: dict[Any, Any] = {}
    ties: dict[Any, Any] = {}
    for name, tensor in params[0].items():
        first = first_of.setdefault(_memory(tensor), name)
        if tensor.numel() and first != name:
            ties[name] = first
    return {
        name: first
        for name, first in ties.items()
        if all(_memory(client[name]) == _memory(client[first]) for client in params)
    }


def new_like(params: Any, ties: Mapping[Any, Any]) -> Any:
    """Return uninitialised parameters of the same kind, shapes, dtypes, device and ties."""
    new = {name: _empty(value) for name, value in _entries(params).items() if name not in ties}
    by_name = {name: new[ties.get(name, name)] for name in _entries(params)}
    kept_in = container(params)
    if kept_in in (list, tuple):
        return kept_in(by_name.values())
    return by_name if kept_in is dict else by_name[ALONE]


def container(params: Any) -> type:
    """Return what holds the tensors: dict, list, tuple, or object for a single one."""
    if isinstance(params, Mapping):
        return dict
    return next((kept_in for kept_in in (list, tuple) if isinstance(params, kept_in)), object)


def _entries(params: Any) -> dict[Any, Any]:
    if isinstance(params, Mapping):
        return dict(params)
    if isinstance(params, list | tuple):
        return {f"[{position}]": value for position, value in enumerate(params)}
    return {ALONE: params}


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"


def _tensor(who: str, name: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return _checked(who, name, value)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{who}: {name!r} is {kind(value)}; convert it with numpy.asarray or torch.as_tensor"
        )
    if value.dtype not in ARRAYS:
        raise ValueError(
            f"{who}: array {name!r} has dtype {value.dtype.str}; only float16, float32 and float64 "
            "in native byte order are averaged: convert it, or leave it out"
        )
    # torch cannot view negative or fractional strides, and warns about read-only memory.
    viewable = value.flags.c_contiguous or all(
        stride >= 0 and stride % value.itemsize == 0 for stride in value.strides
    )
    if not value.flags.writeable or not value.flags.aligned or not viewable:
        value = value.copy()
    return torch.from_numpy(value)


def _checked(who: str, name: Any, tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        raise ValueError(
            f"{who}: tensor {name!r} is complex ({tensor.dtype}); send real and imaginary parts as "
            "two real tensors (torch.view_as_real)"
        )
    dense = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta
    if not dense or (tensor.dtype not in FLOATING and tensor.dtype not in WHOLE):
        raise ValueError(
            f"{who}: tensor {name!r} is {tensor.dtype}, {tensor.layout} on {tensor.device}; only "
            "dense floating tensors with values are averaged: convert it, or leave it out"
        )
    return tensor.detach() if tensor.requires_grad else tensor


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses that a tensor's numbers lie between."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    reach = int(((np.array(tensor.shape) - 1) * tensor.stride()).sum())
    return start, start + (reach + 1) * tensor.element_size()


def _empty(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.empty(value.shape, value.dtype)
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)
