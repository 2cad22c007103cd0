"""Docstrings as pages want them: arguments as a list, examples as code, brackets as they are."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Arguments stand in docstrings here as lines `name: text` or `name, other: text`.
_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (?=\S)")
#: An opening bracket of [M, d], which Markdown would take for a link's.
_BRACKET = re.compile(r"(`[^`\n]*`)|(?<!\\)\[")


class Readable(griffe.Extension):
    """Changes the docstring of every module, class and function."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """The Markdown of a docstring, paragraph by paragraph."""
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if all(line.startswith("    ") for line in lines):
        return text
    lines = _BRACKET.sub(lambda found: found[1] or r"\[", text).splitlines()
    heads = [line for line in lines if line and not line[0].isspace()]
    if all(map(_ARGUMENT.match, heads)):
        lines = [_ARGUMENT.sub(r"- **\1**: ", line, count=1) for line in lines]
    return "\n".join(lines)
