"""A page for every method, from what the parts declare and what the committed records hold.

What stands on it: formula, a picture of what is sent and kept, parameters, accuracies, source.
Nothing of it is written by hand, and no method is named here.
"""

from __future__ import annotations

import ast
import html
import re
from functools import cache
from typing import Any

import yaml
from exchange import Exchange, measured, picture
from mkdocs.structure.files import File, Files

from fedsdg.analysis.records import record
from fedsdg.analysis.tables import TABLES, Table
from fedsdg.files.places import ARENAS, RECORDS, root
from fedsdg.methods.declared import Row, methods
from fedsdg.methods.markdown import allowed, default_of, in_words, table
from fedsdg.methods.page import fixed_of

FOLDER = "methods"
#: Parts that change nothing.
COMMON = {"fedsdg.federation.data_sharing:DataSharing"}


def on_config(config: Any) -> Any:
    """A branch of the navigation for every family, below the page that lists them all."""
    families: dict[str, list[str]] = {}
    for name, row in methods().items():
        families.setdefault(row.family, []).append(f"{FOLDER}/{name}.md")
    (branch,) = (one["Methods"] for one in config.nav if "Methods" in one)
    branch += [{family: pages} for family, pages in families.items()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    sent = measured()
    for name, row in methods().items():
        text = page(name, row, sent.get(name))
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """On the page that lists all methods, their names lead to theirs."""
    if page.file.src_uri != "methods.md":
        return markdown
    known = methods()

    def linked(match: re.Match[str]) -> str:
        title, name = match[1], match[2]
        return f"| [{title}]({FOLDER}/{name}.md) (`{name}`) |" if name in known else match[0]

    return re.sub(r"^\| ([^|`]+) \(`([^`]+)`\) \|", linked, markdown, flags=re.MULTILINE)


def page(name: str, row: Row, sent: Exchange | None) -> str:
    """The Markdown of a method's page."""
    formula = f'<p class="formula">{html.escape(row.formula)}</p>'
    parts = [f"# {row.title}", f"`{name}` · {row.family}", formula]
    parts += ["## What is sent, what is kept", picture(row, sent)]
    if keeps := sentence_of(row, row.personalisation):
        parts.append(f"*{row.personalisation}*: {keeps}")
    parts.append(
        "d is the number of communicated parameters ([all symbols](../methods.md)); bytes are "
        "those of one client in one round, measured on the model of the arenas."
    )
    parts += ["## Parameters", _parameters(row), f"```yaml\n{_entry(name, row)}```"]
    parts.append("## In the arenas")
    lines = [line for arena in ARENAS if (line := _line(arena, name))]
    if lines:
        means = "Means over the seeds of the record, with their 95 % intervals."
        links = "[What the arenas are](../arenas.md); [how to read intervals](../reading.md)."
        parts += [f"{means} {links}", *lines]
    else:
        parts.append("No published arena has this method.")
    parts += ["## Source", f"{row.source}.", _modules(row)]
    return "\n\n".join(parts) + "\n"


@cache
def _main(arena: str) -> tuple[Table, dict[str, list[str]]]:
    """The main table of an arena, and the labels of each method's rows."""
    known = record(root() / RECORDS / arena)
    labels: dict[str, list[str]] = {}
    for label, method in dict(known.finished[["method", "type"]].to_numpy()).items():
        labels.setdefault(method, []).append(label)
    return TABLES["main"](known), labels


def _line(arena: str, name: str) -> str:
    """The method's lines, or those of its variants, in the main table; empty where it has none."""
    table, labels = _main(arena)
    own = labels.get(name, [])
    rows = [name] if name in own else own
    if not rows:
        return ""
    return f"[{arena}](../../{RECORDS}/{arena}/main.md):\n\n{table.rows(rows)}"


def _parameters(row: Row) -> str:
    fixed = [f"`{key}` is {in_words(one)}" for key, one in fixed_of(row).items()]
    said = f"\n\nFixed by the method: {'; '.join(fixed)}." if fixed else ""
    if not row.parameters:
        return f"It has none of its own.{said}"
    entries = (
        (f"`{key}`", default_of(one), allowed(one), one.meaning)
        for key, one in row.parameters.items()
    )
    return table(("parameter", "default", "values", "meaning"), entries) + said


def _entry(name: str, row: Row) -> str:
    """The method as a config has it, with the first of its parameters that has a default."""
    shown = next(((k, p.default) for k, p in row.parameters.items() if not p.required), None)
    if shown is None:
        return f"methods:\n  - {name}\n"
    values = {"type": name, shown[0]: shown[1]}
    entry = yaml.safe_dump(values, default_flow_style=True, sort_keys=False)
    return f"methods:\n  - {entry}"


def _modules(row: Row) -> str:
    """Where its code is."""
    own = [one for one in row.modules if one not in COMMON]
    files = dict.fromkeys(_file(one) for one in own)
    return "\n".join(f"- [{file}](../../{file})" for file in files)


def _file(part: str) -> str:
    """The file of ``module:class``."""
    return f"{part.partition(':')[0].replace('.', '/')}.py"


def sentence_of(row: Row, name: str) -> str:
    """The first sentence of the docstring of a part, read without importing it.

    Nothing of a part that consists of its docstring, for it changes nothing.
    """
    for part in row.modules:
        tree = ast.parse((root() / _file(part)).read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name and len(node.body) > 1:
                return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    return ""
