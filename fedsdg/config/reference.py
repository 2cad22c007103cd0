"""The page that explains every key of a config, from what its parts declare."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedsdg.config import plugins
from fedsdg.config.backbones import Backbone
from fedsdg.config.config import Config
from fedsdg.config.entries import Entry
from fedsdg.data.sources import DATASETS
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.methods.families import FAMILIES
from fedsdg.parts import Part, named_schema, plain

_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_LIMITS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


def config_page() -> str:
    """Return the page in Markdown: a table for each section and for each registered part."""
    pages = ["# The config, key by key\n", section("The whole", Config)]
    pages += [section(f"`{place}`", part) for place, part in sections(Config)]
    for kind in (Optimiser, Loss, Attack, Backbone):
        for name, part in kind.registry.items():
            pages.append(section(f"{kind.__name__} `{name}`", part))
    pages += ["## Parameters of methods\n", parameters_table()]
    return "\n".join(pages)


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of a config, for editors."""
    schema = Config.model_json_schema()
    for key, names in (("methods", plugins.METHODS), ("datasets", DATASETS)):
        schema["properties"][key] |= {"type": "array", "items": named_schema(names)}
    return schema


def sections(model: type[Part], place: str = "") -> Iterator[tuple[str, type[Part]]]:
    """Yield place and model of each section within another, and of those within it."""
    for key, info in model.model_fields.items():
        for part in _parts(info.annotation):
            if part is not Entry and not part.registry and part.model_fields:
                yield f"{place}{key}", part
                yield from sections(part, f"{place}{key}.")


def _parts(annotation: Any) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def section(title: str, model: type[Part]) -> str:
    """Return a heading, the first sentence on a part, and a table of its keys."""
    summary = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].replace("``", "`")
    rows = [
        (f"`{key}`", default_of(info), allowed(info), info.description or "")
        for key, info in model.model_fields.items()
    ]
    return f"## {title}\n\n{' '.join(summary.split())}\n\n" + table(
        ("key", "default", "values", "meaning"), rows
    )


def methods_page() -> str:
    """Return docs/methods.md: formula, parameters and source of every method, by family."""
    pages = ["# Methods\n"]
    for family, rows in FAMILIES.items():
        lines = []
        for name, row in rows.items():
            known = [f"`{key}` = {default_of(info)}" for key, info in row.parameters.items()]
            lines.append((f"{row.title} (`{name}`)", row.formula, ", ".join(known), row.source))
        pages += [f"## {family}\n", table(("method", "formula", "parameters", "source"), lines)]
    return "\n".join(pages)


def parameters_table() -> str:
    """Return a row for each parameter, with the methods that share it."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, row in plugins.METHODS.items():
        for key, info in row.parameters.items():
            cells = (f"`{key}`", default_of(info), allowed(info), info.description or "")
            shared.setdefault(cells, []).append(f"`{name}`")
    rows = [(*cells, ", ".join(names)) for cells, names in shared.items()]
    return table(("parameter", "default", "values", "meaning", "methods"), rows)


def default_of(info: FieldInfo) -> str:
    """Return the default as YAML has it; nothing if the key is required."""
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Part):
        return f"`{value.registered_as}`" if value.registered_as else "see below"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(plain(value), ensure_ascii=False).strip('"')


def allowed(info: FieldInfo) -> str:
    """Return what a field may be, in words."""
    return " or ".join(dict.fromkeys(_allowed(info.annotation, info.metadata)))


def _allowed(kind: Any, metadata: Iterable[Any] = ()) -> Iterator[str]:
    origin = get_origin(kind)
    inside = get_args(kind)
    if origin is Literal:
        yield from (f"`{json.dumps(choice).strip(chr(34))}`" for choice in inside)
    elif kind in _TYPES:
        yield " ".join([_TYPES[kind], *_limits(metadata)])
    elif kind is type(None):
        yield "null"
    elif origin is tuple:
        yield f"list ({' or '.join(dict.fromkeys(_allowed(inside[0])))})"
    elif origin is Annotated:
        nested = [one for entry in inside[1:] for one in getattr(entry, "metadata", [entry])]
        yield from _allowed(inside[0], nested)
    elif isinstance(kind, type) and issubclass(kind, Part):
        yield " or ".join(f"`{name}`" for name in kind.registry) or "its keys"
    elif (
        origin is not None
        and inside
        and not (isinstance(origin, type) and issubclass(origin, dict))
    ):
        for inner in inside:
            yield from _allowed(inner, metadata)
    else:
        yield "mapping from names" if origin is dict else re.sub(r"[\w.]*\.", "", str(kind))


def _limits(metadata: Iterable[Any]) -> Iterator[str]:
    for limit in metadata:
        for name, word in _LIMITS.items():
            if hasattr(limit, name):
                yield f"{word} {getattr(limit, name):g}"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; bars and line breaks within cells are escaped."""
    lines = [heads, ("---",) * len(heads), *rows]
    text = ""
    for line in lines:
        cells = [cell.replace("|", r"\|").replace("\n", " ") or "—" for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    return text


if __name__ == "__main__":
    Path("docs/config.md").write_text(config_page(), encoding="utf-8")
    Path("docs/methods.md").write_text(methods_page(), encoding="utf-8")
