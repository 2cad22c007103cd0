"""A page for every method, from what its parts say and what the committed records hold.

What stands on it: formula, a picture of what is sent and kept, parameters, accuracies, source.
Nothing of it is written by hand, and no method is named here.
"""

from __future__ import annotations

import html
import inspect
import re
from functools import cache
from typing import Any

import yaml
from exchange import Exchange, measured, picture
from mkdocs.structure.files import File, Files

from fedsdg.analysis.records import record
from fedsdg.analysis.tables import TABLES, Table
from fedsdg.config.reference import allowed, default_of, table
from fedsdg.federation.data_sharing import DataSharing
from fedsdg.files.places import ARENAS, RECORDS, root
from fedsdg.methods.families import FAMILIES, METHODS
from fedsdg.methods.method import Method
from fedsdg.parts import Part, parameters, plain

FOLDER = "methods"


def on_config(config: Any) -> Any:
    """A branch of the navigation for every family, below the page that lists them all."""
    families = {
        family: [f"{FOLDER}/{name}.md" for name in rows] for family, rows in FAMILIES.items()
    }
    (branch,) = (one["Methods"] for one in config.nav if "Methods" in one)
    branch += [{family: pages} for family, pages in families.items()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    sent = measured()
    for family, rows in FAMILIES.items():
        for name, row in rows.items():
            text = page(name, row, family, sent.get(name))
            files.append(File.generated(config, f"{FOLDER}/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """On the page that lists all methods, their names lead to theirs."""
    if page.file.src_uri != "methods.md":
        return markdown

    def linked(match: re.Match[str]) -> str:
        title, name = match[1], match[2]
        return f"| [{title}]({FOLDER}/{name}.md) (`{name}`) |" if name in METHODS else match[0]

    return re.sub(r"^\| ([^|`]+) \(`([^`]+)`\) \|", linked, markdown, flags=re.MULTILINE)


def page(name: str, row: Method, family: str, sent: Exchange | None) -> str:
    """The Markdown of a method's page."""
    formula = f'<p class="formula">{html.escape(row.formula)}</p>'
    parts = [f"# {row.title}", f"`{name}` · {family}", formula]
    parts += ["## What is sent, what is kept", picture(row, sent)]
    kept = type(row.personalisation)
    parts.append(f"*{kept.__name__}*: {sentence_of(kept)}")
    parts.append(
        "d is the number of communicated parameters ([all symbols](../methods.md)); bytes are "
        "those of one client in one round, measured on the model of the arenas."
    )
    parts += ["## Parameters", _parameters(row), f"```yaml\n{_entry(name, row)}```"]
    parts.append("## In the arenas")
    lines = [line for arena in ARENAS if (line := _line(arena, name))]
    if lines:
        means = "Means over the seeds of the record, with their 95 % intervals."
        links = "[The arenas, and how to read intervals](../reading.md)."
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


def _parameters(row: Method) -> str:
    known = parameters(*row.parts)
    fixed = [f"`{key}` is {plain(known[key].default)}" for key in row.fixed]
    said = f"\n\nFixed by the method: {'; '.join(fixed)}." if fixed else ""
    if not row.parameters:
        return f"It has none of its own.{said}"
    entries = (
        (f"`{key}`", default_of(info), allowed(info), info.description or "")
        for key, info in row.parameters.items()
    )
    return table(("parameter", "default", "values", "meaning"), entries) + said


def _entry(name: str, row: Method) -> str:
    """The method as a config has it, with the first of its parameters that has a default."""
    known = ((k, info.default) for k, info in row.parameters.items() if not info.is_required())
    shown = next(known, None)
    if shown is None:
        return f"methods:\n  - {name}\n"
    values = {"type": name, shown[0]: plain(shown[1])}
    entry = yaml.safe_dump(values, default_flow_style=True, sort_keys=False)
    return f"methods:\n  - {entry}"


def _modules(row: Method) -> str:
    """Where its code is."""
    used = [type(part) for part in row.parts if type(part) is not DataSharing]
    files = dict.fromkeys(f"{part.__module__.replace('.', '/')}.py" for part in used)
    return "\n".join(f"- [{file}](../../{file})" for file in files)


def sentence_of(part: type[Part]) -> str:
    """The first sentence of the docstring of a part."""
    return (inspect.getdoc(part) or "").partition("\n\n")[0].replace("\n", " ")
