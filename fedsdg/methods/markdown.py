"""Tables of Markdown, and what a declared field may be in words. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsdg.parts import Declared, Ends


def in_words(value: Any) -> str:
    """A value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Ends):
        return f"{in_words(value.low)} to {in_words(value.high)}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(in_words, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def default_of(declared: Declared) -> str:
    """What a field is where nothing is said; nothing where it must be said."""
    return "" if declared.required else in_words(declared.default)


def allowed(declared: Declared) -> str:
    """What a field may be, in words."""
    words = _allowed(declared)
    return f"{words}, or null" if declared.optional else words


def _allowed(declared: Declared) -> str:
    if declared.choices:
        return " or ".join(f"`{in_words(choice)}`" for choice in declared.choices)
    if declared.kind is bool:
        return "true or false"
    if declared.kind is str:
        return "list of texts" if declared.several else "text"
    least, most = declared.range.least, declared.range.most
    words = "whole number" if declared.kind is int else "number"
    words += "s" if declared.several else ""
    if least is not None and most is not None:
        words += f" from {in_words(least)} to {in_words(most)}"
    elif least is not None:
        words += f" from {in_words(least)}"
    elif most is not None:
        words += f" to {in_words(most)}"
    return f"{words}, or a mapping of low and high" if declared.ends else words


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Lines of one Markdown table; a bar or a line break within a cell would end it."""
    lines = [heads, ("---",) * len(heads)]
    lines += [tuple(cell.replace("|", r"\|").replace("\n", " ") or "—" for cell in r) for r in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
