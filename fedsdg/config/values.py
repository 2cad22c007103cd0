"""Kinds of values that several sections have: names, skews, seeds, lists without repetitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from fedsdg.data.skew import parse_skew
from fedsdg.errors import ConfigError, shortened
from fedsdg.parts import Natural, Several

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,99}")
"""Folders and temporary files add to a name; file systems allow 255 bytes."""


def require_name(text: str) -> str:
    """Return a name that may be part of a path, or raise ConfigError."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"is {shortened(text)}, {len(text)} characters long, but must be made of letters, "
            "digits, '.', '_', '+', '~' and '-', at most 100, since it names a folder"
        )
    return text


def require_skew(text: str) -> str:
    """Return a skew in its one spelling; raises ValueError for any other text."""
    return parse_skew(text).text


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values of which no two are equal, or raise ConfigError."""
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ConfigError(f"names {value!r} twice")
    return values


def require_folders(place: str, names: Iterable[str]) -> None:
    """Refuse names that are one folder, if only where a file system ignores case, as on macOS.

    Args:
        place: Where the names stand in a config.
        names: The names.

    Raises:
        ConfigError: Two names are equal, or differ in case alone.
    """
    known: dict[str, str] = {}
    for name in names:
        if name in known.values():
            text = f"has two entries that are called {name!r}; give one another 'name'"
            raise ConfigError(text, place)
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise ConfigError(
                f"has {other!r} and {name!r}, which differ in upper and lower case alone; some "
                "file systems take them for one folder, so rename one",
                place,
            )


def _listed(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def without_null(value: Any) -> Any:
    """Return a mapping without entries that a file laid over others sets to null; null is {}."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return value
    return {key: entry for key, entry in value.items() if entry is not None}


Name = Annotated[str, AfterValidator(require_name)]
Positive = Annotated[float, Field(ge=1e-12)]
Skews = Annotated[Several[Annotated[str, AfterValidator(require_skew)]], AfterValidator(distinct)]
Seeds = Annotated[Several[Natural], AfterValidator(distinct)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
"""A list of names, which may be empty."""
Texts = Annotated[
    tuple[str, ...],
    Field(strict=False),
    BeforeValidator(_listed, json_schema_input_type=str | list[str] | None),
]
"""A text, a list of texts, or null."""
