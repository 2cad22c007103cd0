"""The pages that explain every key of a config and every method, from what their parts declare.

Editors take ``Config.model_json_schema()``.

``python -m fedsdg.config.reference`` writes docs/config.md and docs/methods.md.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from fedsdg.config import plugins
from fedsdg.config.backbones import Backbone
from fedsdg.config.config import Config
from fedsdg.config.entries import Entry
from fedsdg.errors import models_in
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.methods import families
from fedsdg.methods.families import FAMILIES
from fedsdg.methods.method import Method
from fedsdg.parts import Part, plain

_MADE = "Made by `make docs` from the parts in `fedsdg/`; not to be edited here.\n"
_ABOUT = """[config/README.md](../config/README.md) says how configs are laid over one another.
Defaults are those of a key that no file gives; every config is laid over `config/config.yaml`.
Parameters of each method: [methods.md](methods.md).
"""
_TYPES = {
    "integer": "whole number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
}
_LIMITS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}


def config_page() -> str:
    """Return docs/config.md: a table for each section and for each registered part."""
    pages = ["# The config, key by key\n", _MADE, _ABOUT, section("The whole", Config)]
    pages += [section(f"`{place}`", part) for place, part in sections(Config)]
    for kind in (Optimiser, Loss, Attack, Backbone):
        for name, part in kind.registry.items():
            pages.append(section(f"{kind.__name__} `{name}`", part))
    return "\n".join(pages)


def methods_page() -> str:
    """Return docs/methods.md: formula, parameters and source of every method, by family."""
    notation = inspect.cleandoc(families.__doc__ or "").rpartition("\n\n")[2]
    pages = ["# The methods\n", _MADE, f"{notation}\n"]
    for family, rows in FAMILIES.items():
        lines = [
            (f"{row.title} (`{name}`)", row.formula, _values(row), row.source)
            for name, row in rows.items()
        ]
        pages += [f"## {family}\n", table(("method", "formula", "parameters", "source"), lines)]
    pages += ["## Parameters\n", _parameters_table()]
    return "\n".join(pages)


def sections(model: type[Part], place: str = "") -> Iterator[tuple[str, type[Part]]]:
    """Yield place and model of each section within another, and of those within it.

    Args:
        model: The outer section.
        place: Its own place, with a dot behind it.
    """
    for key, info in model.model_fields.items():
        for part in models_in(info.annotation):
            if issubclass(part, Part) and part.model_fields and part not in (Entry, Backbone):
                yield f"{place}{key}", part
                yield from sections(part, f"{place}{key}.")


def section(title: str, model: type[Part]) -> str:
    """Return a heading, the first sentence on a part, and a table of its keys.

    Args:
        title: The heading.
        model: The part.
    """
    summary = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].replace("``", "`")
    rows = [
        (f"`{key}`", default_of(info), allowed(info), info.description or "")
        for key, info in model.model_fields.items()
    ]
    keys = table(("key", "default", "values", "meaning"), rows)
    return f"## {title}\n\n{' '.join(summary.split())}\n\n{keys}"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; bars and line breaks within cells are escaped.

    Args:
        heads: The first line.
        rows: The others.
    """
    text = ""
    for line in (heads, ("---",) * len(heads), *rows):
        cells = [cell.replace("|", r"\|").replace("\n", " ") or "—" for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    return text


def _values(row: Method) -> str:
    """Return the parameters of a method with their defaults, and what it prescribes."""
    values = {key: info.default for key, info in row.parameters.items()} | dict(row.training)
    if row.optimiser:
        values["optimiser"] = row.optimiser
    return ", ".join(f"`{key}` = {_plain_text(value)}" for key, value in values.items())


def _parameters_table() -> str:
    """Return a row for each parameter, with the methods that share it."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, row in plugins.METHODS.items():
        for key, info in row.parameters.items():
            cells = (f"`{key}`", allowed(info), info.description or "")
            shared.setdefault(cells, []).append(f"`{name}`")
    rows = [(*cells, ", ".join(names)) for cells, names in shared.items()]
    return table(("parameter", "values", "meaning", "methods"), rows)


def default_of(info: FieldInfo) -> str:
    """Return the default as YAML has it; nothing if the key is required."""
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Part):
        return f"`{value.registered_as}`" if value.registered_as else "see below"
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(plain(value), ensure_ascii=False).strip('"')


def allowed(info: FieldInfo) -> str:
    """Return what a field may be, in words."""
    return _in_words(TypeAdapter(info.rebuild_annotation()).json_schema())


def _in_words(schema: Mapping[str, Any]) -> str:
    """Return what a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_in_words, schema["anyOf"])))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return " or ".join(f"`{_plain_text(choice)}`" for choice in choices)
    if schema.get("type") == "array":
        return f"list ({_in_words(schema['items'])})" if schema.get("items") else "list"
    limits = [f"{word} {schema[key]:.12g}" for key, word in _LIMITS.items() if key in schema]
    kind = schema.get("type", "see below")
    return " ".join([_TYPES.get(kind, kind), *limits])


if __name__ == "__main__":
    Path("docs/config.md").write_text(config_page(), encoding="utf-8")
    Path("docs/methods.md").write_text(methods_page(), encoding="utf-8")
