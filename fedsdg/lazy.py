"""Torch, imported when it is first used, so that parts are declared and checked without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _Lazy("torch")
