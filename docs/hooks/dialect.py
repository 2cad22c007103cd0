"""What is Markdown here and not for Python-Markdown: in pages as GitHub reads them, in docstrings.

Pages have lists right below a paragraph, and bars in code within tables. Docstrings have arguments
as a list, examples as code, and brackets as they are.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
#: The name of a comparison, to which findings link.
_NAMED = re.compile(r"^- \*\*([\w.+-]+): ")
#: Arguments stand in docstrings here as lines `name: text` or `name, other: text`.
_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (?=\S)")
#: An opening bracket of [M, d], which Markdown would take for a link's.
_BRACKET = re.compile(r"(`[^`\n]*`)|(?<!\\)\[")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text with an empty line above every list, and bars of code in tables unescaped.

    A list of claims in the record gets an anchor for each.
    """
    claims = page.file.src_uri.endswith("/claims.md")
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        above = lines[-1] if lines else ""
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            if _ITEM.match(line) and above and not _ITEM.match(above) and above[0] not in " |":
                lines.append("")
            if line.startswith("|"):
                line = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
            if claims:
                line = _NAMED.sub(r'- <a id="\1"></a>**\1: ', line)
        lines.append(line)
    return "\n".join(lines)


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
