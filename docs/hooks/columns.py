"""The columns of the records, as tables on their page, from where they are declared."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedsdg.config.reference import table
from fedsdg.files import records
from fedsdg.files.places import root

PAGE = "maintainers/records.md"
HERE = "<!-- columns -->"
TABLES = {
    "`rounds.parquet`": (records.Round, records.Evaluation, records.GroupEvaluation),
    "`clients.parquet`": (records.Client,),
    "`timings.parquet`": (records.Seconds,),
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the tables where the page has a place for them."""
    if page.file.src_uri != PAGE:
        return markdown
    parts = []
    for title, rows in TABLES.items():
        lines = [line for row in rows for line in _always(row)]
        parts += [f"### {title}", table(("column", "type", "meaning"), lines)]
    parts += ["### Columns that a part of a run adds", _of_parts()]
    return markdown.replace(HERE, "\n\n".join(parts))


def _always(row: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each column of a class of ``files/records.py``."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(row)).body)
    meanings = {
        field.targets[0].id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.Assign) and isinstance(text, ast.Expr)
    }
    for name, kind in records.columns_in(row):
        yield f"`{name}`", str(kind), meanings[name]


def _of_parts() -> str:
    """Return a table of the columns that rules, conditions and observers declare in the sources."""
    lines = {}
    for file in sorted(Path(root(), "fedsdg").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            declares = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Column"
            if declares and len(node.args) == 4:
                place, name, kind, meaning = (ast.literal_eval(one) for one in node.args)
                file_of = "rounds" if place == "rounds" else "clients"
                lines[file_of, name] = (f"`{name}`", file_of, kind, meaning)
    return table(("column", "file", "type", "meaning"), [lines[key] for key in sorted(lines)])
