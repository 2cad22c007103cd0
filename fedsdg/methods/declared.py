"""The methods as a file says them: what a config may set, titles, words; read without torch.

``fedsdg/declarations.json`` is generated from the rows of real parts (``make documents``), so that
whoever only asks what there is, a config that is checked, a page, Snakemake, completion, need not
import the parts; ``describing.py`` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from fedsdg.files import declarations
from fedsdg.parts import REQUIRED, Absent, Declared, Ends, Range, plain

R = TypeVar("R", "Row", "ChoiceRow")

#: Where it lies.
FILE = declarations.FILE
_KINDS: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class ChoiceRow:
    """What is known of an optimiser, a loss or an attack without its part."""

    title: str
    parameters: Mapping[str, Declared] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    text: str = ""
    source: str = ""


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
    #: Parameters of its parts that no config may set, and what they are.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: What the parts are called, the rule first, and the modules that they are in.
    rule: str = ""
    terms: tuple[str, ...] = ()
    personalisation: str = ""
    #: What of the model is a client's own, in the words of the personalisation.
    keeps: str = ""
    modules: tuple[str, ...] = ()
    #: The row as one text: all but its words. Rows with equal texts make equal runs.
    text: str = ""
    formula: str = ""
    source: str = ""
    up: str = "d"
    down: str = "d"
    client_cost: str = ""
    server_cost: str = ""


# --- The file -------------------------------------------------------------------------------------


def to_plain(row: Row | ChoiceRow) -> dict[str, Any]:
    """A row in JSON's types; what is as usual is left out."""
    usual = type(row)("")
    found = {
        entry.name: plain(getattr(row, entry.name))
        for entry in fields(row)
        if getattr(row, entry.name) != getattr(usual, entry.name)
    }
    if isinstance(row, Row) and row.fixed:
        found["fixed"] = {name: plain(value) for name, value in row.fixed.items()}
    # A list, for the keys of a JSON file are sorted and parameters are not.
    return found | {"parameters": [_plain(one) for one in row.parameters.values()]}


def _plain(one: Declared) -> dict[str, Any]:
    said = {
        "name": one.name,
        "kind": one.kind.__name__,
        "default": plain(one.default),
        "least": one.range.least,
        "most": one.range.most,
        "choices": None if one.choices is None else list(one.choices),
        "optional": one.optional or None,
        "several": one.several or None,
        "ends": one.ends or None,
        "meaning": one.meaning,
        "absent": None if one.absent is None else [plain(one.absent.value)],
    }
    if one.required:
        del said["default"]
    return {key: value for key, value in said.items() if value is not None or key == "default"}


def from_plain(kind: type[R], said: Mapping[str, Any]) -> R:
    """The row that ``to_plain`` wrote."""
    given: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in said.items()
    }
    known = {one["name"]: _declared(one) for one in said["parameters"]}
    return kind(**{**given, "parameters": MappingProxyType(known)})


def _declared(said: Mapping[str, Any]) -> Declared:
    default = said.get("default", REQUIRED)
    if isinstance(default, list):
        default = tuple(default)
    elif isinstance(default, Mapping):
        default = Ends(**default)
    choices, absent = said.get("choices"), said.get("absent")
    return Declared(
        name=said["name"],
        kind=_KINDS[said["kind"]],
        default=default,
        meaning=said["meaning"],
        range=Range(said.get("least"), said.get("most")),
        choices=None if choices is None else tuple(choices),
        absent=None if absent is None else Absent(absent[0]),
        **{key: said.get(key, False) for key in ("optional", "several", "ends")},
    )


def _named(kind: type[R], table: str) -> Mapping[str, R]:
    found = {}
    for entry in declarations.declarations()[table]:
        said = {key: value for key, value in entry.items() if key != "name"}
        found[entry["name"]] = from_plain(kind, said)
    return MappingProxyType(found)


@cache
def methods() -> Mapping[str, Row]:
    """The package's own methods by name, in the order of tables and figures."""
    return _named(Row, "methods")


@cache
def choices(table: str) -> Mapping[str, ChoiceRow]:
    """The package's own "optimisers", "losses" or "attacks" by name."""
    return _named(ChoiceRow, table)
