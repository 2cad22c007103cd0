"""Lists, names, seeds and skews as a config writes them: each checked by itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from fedsdg.data.skew import parse_skew
from fedsdg.parts import Declared, Range, shown

SKEW = re.compile(
    r"dirichlet~(\d+(\.\d+)?|\.\d+)"
    r"|quantity~(?=.*[1-9])\d+(\.\d+)?|classes~[1-9]\d*"
    r"|column~[A-Za-z0-9][A-Za-z0-9_.-]*|iid"
)

_KINDS = ("dirichlet", "quantity", "classes", "column", "iid")
#: Folders and temporary files add to a name; file systems allow 255 bytes.
LONGEST_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def listed(value: Any, where: str) -> list[Any]:
    """``value`` if it is a list without repetitions, not empty; else ``ValueError``."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} is {value!r}, but must be a list with at least one entry")
    for position, entry in enumerate(value):
        if entry in value[:position]:
            raise ValueError(f"{where} names {entry!r} twice")
    return value


def parse_seeds(value: Any, where: str) -> tuple[int, ...]:
    """Seeds: whole numbers from 0."""
    check = Declared("seed", int, range=Range(0)).check
    return tuple(check(seed, f"{where}: seed") for seed in listed(value, where))


def _meant(skew: Any) -> str:
    """The skew that a misspelt one may have meant, else how they are written."""
    kind, sign, rest = str(skew).partition("~")
    close = difflib.get_close_matches(kind, _KINDS, n=1, cutoff=0.6)
    if close and close[0] != kind and SKEW.fullmatch(f"{close[0]}{sign}{rest}"):
        return f"; did you mean {close[0] + sign + rest!r}?"
    return "; write 'dirichlet~0.1', 'classes~2', 'column~writer' or 'iid'"


def parse_text(value: Any, where: str) -> str:
    """A text, without spaces around it."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r}, but must be a text")
    return value.strip()


def parse_tuned(value: Any) -> tuple[str, ...]:
    """Files of tuned values: none, one, or a list."""
    given = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(parse_text(entry, "tuned") for entry in given)


def parse_files(value: Any, where: str) -> tuple[str, ...]:
    """Names of files; there may be none."""
    for name in listed(value, where) if value != [] else []:
        parse_text(name, where)
    return tuple(value)


def parse_skews(value: Any) -> tuple[str, ...]:
    """Skews as texts, each of a kind that there is."""
    for skew in listed(value, "skews"):
        if not isinstance(skew, str) or not SKEW.fullmatch(skew):
            raise ValueError(f"skews: {skew!r} is not a skew{_meant(skew)}")
        kind, _, number = skew.partition("~")
        if kind == "dirichlet" and not float(number) > 0:
            raise ValueError(f"skews: {skew!r} has α = {number}, but α must be greater than 0")
        try:
            parse_skew(skew)
        except ValueError as error:
            raise ValueError(f"skews: {error}") from error
    return tuple(value)


def parse_name(value: Any, where: str) -> str:
    """A name that may be part of a path."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"{where} is {shown(value)}, but must be made of letters, digits, '.', '_', '+' and '-'"
        )
    if len(value) > LONGEST_NAME:
        raise ValueError(
            f"{where} is {shown(value)}, {len(value)} characters long, but may have at most "
            f"{LONGEST_NAME}, since it names a folder"
        )
    return value


def parse_pages(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Names of tables or figures, or none; an unknown one is named where it is to be made."""
    if key not in given:
        return None
    if given[key] == []:
        return ()
    return tuple(parse_name(name, f"{key}: entry") for name in listed(given[key], key))
