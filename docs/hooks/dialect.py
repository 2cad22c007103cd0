"""What GitHub reads and Python-Markdown does not: a list right below a paragraph, bars in code."""

from __future__ import annotations

import re
from typing import Any

_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
#: The name of a comparison, to which findings link.
_NAMED = re.compile(r"^- \*\*([\w.+-]+): ")


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
