"""Reading a section of a config: closed keys, checked values, errors that name the remedy.

A section is a frozen dataclass whose fields are made by :func:`checked`. Never imports torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from fedsdg.composition import Parameter

T = TypeVar("T")


def checked(default: Any, **bounds: Any) -> Any:
    """A dataclass field whose value is validated by a ``Parameter``."""
    return field(default=default, metadata={"parameter": Parameter(default, **bounds)})


def hint(word: str, known: Iterable[str]) -> str:
    """The end of an error's sentence: the known name closest to a word, else all of them."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else ``ValueError``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {value!r}, but must be a mapping of keys to values")
    return value


def values(given: Mapping[str, Any], known: Mapping[str, Parameter], where: str) -> dict[str, Any]:
    """The checked values of ``given``, or ``ValueError`` for an unknown key or a bad value."""
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{hint(key, known)}")
    return {key: known[key].check(value, f"{where}.{key}") for key, value in given.items()}


def section(cls: type[T], value: Any, where: str) -> T:
    """The dataclass ``cls`` with what a mapping says of its fields, defaults for the others."""
    known = {entry.name: entry.metadata["parameter"] for entry in fields(cls)}  # type: ignore[arg-type]
    return cls(**values(mapping(value, where), known, where))
