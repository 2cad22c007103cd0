"""What GitHub takes for Markdown and Python-Markdown does not.

Pages have lists right below a paragraph, comments within lists, and bars in code within tables;
docstrings have one example, which griffe knows as examples.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Code, or a comment: a line that begins with one would end a list.
_COMMENT = re.compile(r"(`[^`]*`)|<!--.*?-->")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text without comments, an empty line above every list, bars in tables unescaped."""
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        above = lines[-1] if lines else ""
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            line = _COMMENT.sub(r"\1", line)
            if _ITEM.match(line) and above and not _ITEM.match(above) and above[0] not in " |":
                lines.append("")
            if line.startswith("|"):
                line = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
        lines.append(line)
    return "\n".join(lines)


class Examples(griffe.Extension):
    """Changes the docstring of every module, class and function."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Give the section its name."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.M
            )
