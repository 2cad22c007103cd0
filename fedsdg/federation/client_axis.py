"""Dataclasses whose fields have the client as their first axis."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

COMMON = {"common": True}
"""Metadata of a dataclass field without a client axis: its value is the same for all clients."""


def select(value: Any, selection: np.ndarray | slice) -> Any:
    """Return entries of the first axis of a value.

    Args:
        value: A tensor, an array or a list; a mapping of these, entry by entry; or None.
        selection: Positions (int64), a mask (bool) or a slice. With a slice tensors and arrays are
            views, otherwise copies.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: select(entry, selection) for name, entry in value.items()}
    if isinstance(value, list):
        return [value[position] for position in np.arange(len(value))[selection]]
    if isinstance(value, Tensor) and isinstance(selection, np.ndarray):
        return value[torch.from_numpy(selection).to(value.device)]
    return value[selection]


def concatenate(values: Sequence[Any]) -> Any:
    """Return the entries of several values of one kind, one value after the other.

    Args:
        values: As for `select`, of mappings those that all have; None only if all are None.
    """
    first = values[0]
    if isinstance(first, Mapping):
        shared = [name for name in first if all(name in value for value in values)]
        return {name: concatenate([value[name] for value in values]) for name in shared}
    if isinstance(first, list):
        return [entry for value in values for entry in value]
    if isinstance(first, Tensor):
        return torch.cat(list(values))
    return None if first is None else np.concatenate(values)


class ClientAxis:
    """Base of dataclasses of tensors, arrays, lists, mappings of these, or None, by client."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(getattr(self, self._names()[0]))

    def take(self, selection: np.ndarray | slice) -> Self:
        """Return the values of some clients, in the order of the selection."""
        selected = {name: select(getattr(self, name), selection) for name in self._names()}
        return replace(self, **selected)  # type: ignore[type-var]

    def followed_by(self, *others: Self) -> Self:
        """Return these clients and then those of the others; empty ones are left out."""
        parts = [part for part in (self, *others) if len(part)] or [self]
        joined = {name: concatenate([getattr(p, name) for p in parts]) for name in self._names()}
        return replace(parts[0], **joined)  # type: ignore[type-var]

    def _names(self) -> list[str]:
        return [f.name for f in fields(self) if not f.metadata.get("common")]  # type: ignore[arg-type]
