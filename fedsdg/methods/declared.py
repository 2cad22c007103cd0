"""The methods as a file says them: what a config may set, titles, words; read without torch.

``fedsdg/declarations.json`` is generated from the rows of real parts (``make documents``), so that
whoever only asks what there is, a config that is checked, a page, Snakemake, completion, need not
import the parts. A plugin's rows are described in the same form when it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedsdg.files import read_json
from fedsdg.parts import REQUIRED, Declared, Ends, Range, declared, is_part

if TYPE_CHECKING:
    from fedsdg.methods.method import Method

#: Beside the rooms, as the default config is.
FILE = Path(__file__).parents[1] / "declarations.json"
#: Fields of a row that hold parts.
_PARTS = ("rule", "objective", "personalisation", "stopping", "pooling")
_KINDS: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Row:
    """What is known of a method without its parts."""

    title: str
    family: str = ""
    parameters: Mapping[str, Declared] = field(default_factory=dict)
    optimiser: str | None = None
    undecayed: bool = False
    needs_adapters: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    #: What the parts are called, the rule first, and the modules that they are in.
    rule: str = ""
    terms: tuple[str, ...] = ()
    personalisation: str = ""
    modules: tuple[str, ...] = ()
    #: The row as one text: all but its words. Rows with equal texts make equal runs.
    text: str = ""
    formula: str = ""
    source: str = ""
    up: str = "d"
    down: str = "d"
    client_cost: str = ""
    server_cost: str = ""


def row_of(method: Method, family: str = "") -> Row:
    """A row of real parts, described."""
    own = {entry.name for entry in fields(Row)}
    plain = {
        entry.name: getattr(method, entry.name)
        for entry in fields(method)
        if entry.name in own and entry.name not in ("rule", "personalisation")
    }
    return Row(
        **plain,
        family=family,
        parameters=method.parameters,
        rule=type(method.rule).__name__,
        terms=tuple(type(term).__name__ for term in method.terms),
        personalisation=type(method.personalisation).__name__,
        modules=tuple(sorted(set(_modules(method.parts)))),
        text=_text(method),
    )


def _modules(parts: Any) -> list[str]:
    """Those of parts and of the parts within them."""
    found = []
    for one in parts:
        found.append(type(one).__module__)
        if is_part(one):
            inner = (getattr(one, name) for name, d in declared(one).items() if d.holds_part)
            found += _modules(value for value in inner if is_part(value))
    return found


def _text(method: Method) -> str:
    """All that makes a run: the parts, and the choices that are no parts."""
    parts = ", ".join(map(repr, method.parts))
    choices = {
        entry.name: getattr(method, entry.name)
        for entry in fields(method)
        if not entry.metadata.get("words") and entry.name not in _PARTS
    }
    return f"{parts}; {', '.join(f'{name}={choices[name]!r}' for name in sorted(choices))}"


# --- The file -------------------------------------------------------------------------------------


def to_plain(row: Row) -> dict[str, Any]:
    """A row in JSON's types; what is as usual is left out."""
    usual = Row("")
    plain = {
        entry.name: getattr(row, entry.name)
        for entry in fields(row)
        if getattr(row, entry.name) != getattr(usual, entry.name)
    }
    plain["parameters"] = {name: _plain(one) for name, one in row.parameters.items()}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in plain.items()}


def _plain(one: Declared) -> dict[str, Any]:
    default = one.default._asdict() if isinstance(one.default, Ends) else one.default
    said = {
        "kind": one.kind.__name__,
        "default": list(default) if isinstance(default, tuple) else default,
        "least": one.range.least,
        "most": one.range.most,
        "choices": None if one.choices is None else list(one.choices),
        "optional": one.optional or None,
        "several": one.several or None,
        "ends": one.ends or None,
        "meaning": one.meaning,
    }
    if one.required:
        del said["default"]
    return {key: value for key, value in said.items() if value is not None or key == "default"}


def from_plain(plain: Mapping[str, Any]) -> Row:
    """The row that ``to_plain`` wrote."""
    given: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in plain.items()
    }
    known = {name: _declared(name, one) for name, one in plain["parameters"].items()}
    return Row(**{**given, "parameters": MappingProxyType(known)})


def _declared(name: str, plain: Mapping[str, Any]) -> Declared:
    default = plain.get("default", REQUIRED)
    if isinstance(default, list):
        default = tuple(default)
    elif isinstance(default, Mapping):
        default = Ends(**default)
    choices = plain.get("choices")
    return Declared(
        name=name,
        kind=_KINDS[plain["kind"]],
        default=default,
        meaning=plain["meaning"],
        range=Range(plain.get("least"), plain.get("most")),
        choices=None if choices is None else tuple(choices),
        **{key: plain.get(key, False) for key in ("optional", "several", "ends")},
    )


@cache
def rows() -> Mapping[str, Row]:
    """The package's own methods by name, in the order of tables and figures."""
    return MappingProxyType({n: from_plain(one) for n, one in read_json(FILE)["methods"].items()})
