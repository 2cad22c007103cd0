"""From rows of real parts to what is said of them without parts; imports all of them, and torch.

``make documents`` writes it down; a plugin's rows are described when it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import RowOptimiser
from fedsdg.methods.choices import ATTACKS, LOSSES, OPTIMISERS, Choice
from fedsdg.methods.declared import ChoiceRow, Row, to_plain
from fedsdg.methods.families import FAMILIES, METHODS
from fedsdg.methods.method import Method
from fedsdg.parts import declared, is_part

#: Fields of a row that hold parts.
_PARTS = ("rule", "objective", "personalisation", "stopping", "sharing")


def row_of(method: Method, family: str = "") -> Row:
    """A row of real parts, described; ``ValueError`` for a term that is no part."""
    for term in method.terms:
        if not is_part(term):
            raise ValueError(
                f"its term {type(term).__name__} declares no parameters; write @part of "
                "fedsdg.parts above the class, even if it has none"
            )
    own = {entry.name for entry in fields(Row)}
    plain = {
        entry.name: getattr(method, entry.name)
        for entry in fields(method)
        if entry.name in own and entry.name not in ("rule", "personalisation", "fixed")
    }
    return Row(
        **plain,
        family=family,
        parameters=method.parameters,
        fixed=method.fixed_values,
        rule=type(method.rule).__name__,
        terms=tuple(type(term).__name__ for term in method.terms),
        personalisation=type(method.personalisation).__name__,
        keeps=_summary(type(method.personalisation)),
        modules=tuple(sorted(set(_modules(method.slots)))),
        text=text_of(method),
    )


def _summary(kind: type) -> str:
    """The first paragraph of a part's docstring, in one line."""
    words = (kind.__doc__ or "").strip().split("\n\n")[0].split()
    return " ".join(words).replace("``", "")


def _modules(parts: Any) -> list[str]:
    """Where parts and the parts within them are defined, as ``module:class``."""
    found = []
    for one in parts:
        found.append(f"{type(one).__module__}:{type(one).__qualname__}")
        if is_part(one):
            inner = (getattr(one, name) for name, d in declared(one).items() if d.holds_part)
            found += _modules(value for value in inner if is_part(value))
    return found


def text_of(method: Method) -> str:
    """All that makes a run: the parts, and the choices that are no parts.

    Raises ``TypeError`` for a choice that is not written the same way every time.
    """
    parts = ", ".join(map(repr, method.parts))
    choices = {
        entry.name: getattr(method, entry.name)
        for entry in fields(method)
        if not entry.metadata.get("words") and entry.name not in _PARTS
    }
    return f"{parts}; {', '.join(f'{name}={_said(choices[name])}' for name in sorted(choices))}"


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_said(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_said, value)) + ")"
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    raise TypeError(f"a row of the methods holds {value!r}, which has no text that is always equal")


#: By the name of a plugin's table, what its parts must be, and keys of a config's entry that are
#: taken: a parameter of such a name could never be set.
_KINDS: Mapping[str, type] = {"OPTIMISERS": RowOptimiser, "LOSSES": Loss, "ATTACKS": Attack}
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "METHODS": ("type", "name"),
    "OPTIMISERS": ("type",),
    "LOSSES": ("type",),
    "ATTACKS": ("type", "share"),
}


def require_settable(table: str, row: Row | ChoiceRow) -> None:
    """Raise ``ValueError`` for a parameter that no entry of a config could set."""
    for name in _TAKEN[table]:
        if name in row.parameters:
            raise ValueError(
                f"{row.title} has a parameter {name!r}, which says something else in a config; "
                "rename it"
            )


def require_kind(table: str, choice: Choice) -> None:
    """Raise ``ValueError`` unless the part of a row of a plugin's table is what it should be."""
    kind, own = _KINDS[table], type(choice.part).__name__
    if not isinstance(choice.part, kind):
        raise ValueError(
            f"{choice.title}: its part is of type {own}, but must be of type {kind.__name__} "
            f"({kind.__module__})"
        )


def choice_row_of(choice: Choice) -> ChoiceRow:
    """A choice of a real part, described."""
    modules = tuple(sorted(set(_modules([choice.part]))))
    return ChoiceRow(choice.title, choice.parameters, modules, repr(choice.part), choice.source)


def rows() -> dict[str, Row]:
    """All methods, described, in the order of tables and figures."""
    family = {name: title for title, known in FAMILIES.items() for name in known}
    return {name: row_of(method, family[name]) for name, method in METHODS.items()}


def choice_rows() -> dict[str, dict[str, ChoiceRow]]:
    """All "optimisers", "losses" and "attacks", described."""
    tables = {"optimisers": OPTIMISERS, "losses": LOSSES, "attacks": ATTACKS}
    return {
        table: {name: choice_row_of(choice) for name, choice in known.items()}
        for table, known in tables.items()
    }


def listed(rows: Mapping[str, Row | ChoiceRow]) -> list[dict[str, Any]]:
    """A list, for the keys of a JSON file are sorted and rows are not."""
    return [{"name": name, **to_plain(row)} for name, row in rows.items()]
