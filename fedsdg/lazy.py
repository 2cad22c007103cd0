"""Imports at first use: torch, so that parts are declared and checked without it, and packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def at_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its names when they are first used.

    Args:
        package: Its name.
        homes: By name, the module within the package that has it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    torch = _Lazy("torch")
    Tensor = Any
    """For annotations alone."""
