"""The page of all methods, docs/methods.md, from their declarations. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsdg.methods.declared import Row
from fedsdg.parts import Declared, Ends

_HEAD = """\
# The methods

Made by `make documents` from the rows in `fedsdg/methods/`; not to be edited here.
A test compares the two, and measures what is sent and how often the server reads the updates.

θ is the server's model with its d communicated parameters, θ_k what client k makes of it,
Δ_k = θ_k − θ the update of one of the M clients of a round, n_k its training samples, and step
what the server adds to θ. Clients minimise the cross-entropy where nothing else is said. K are all
clients of the federation, E the local epochs of the config (`training.epochs`). What is sent is
that of one client in one round. The server's cost is how often it reads all the updates.

"""
_BETWEEN = """
## Parameters

An entry of `methods` in a config may set these, and `optimiser`, `loss`, `eta_g`, `eta_p`, `eta_m`,
`private_optimiser` and `refresh` of `training` for itself.

"""


def method_page(table: Mapping[str, Row]) -> str:
    """Markdown: one row a method, and one row a parameter that methods share."""
    methods = _table(
        ("method", "formula", "parameters", "sent up, down", "cost per round", "source"),
        (_method_row(name, row) for name, row in table.items()),
    )
    shared: dict[tuple[str, Declared], list[str]] = {}
    for name, row in table.items():
        for key, parameter in row.parameters.items():
            shared.setdefault((key, parameter), []).append(name)
    parameters = _table(
        ("parameter", "default", "values", "meaning", "methods"),
        (_parameter_row(key, parameter, names) for (key, parameter), names in shared.items()),
    )
    return f"{_HEAD}{methods}{_BETWEEN}{parameters}"


def _method_row(name: str, row: Row) -> tuple[str, ...]:
    settings = [f"`{key}` = {_value(p.default)}" for key, p in row.parameters.items()]
    fixed: dict[str, Any] = {"optimiser": row.optimiser} if row.optimiser else {}
    fixed |= {"weight_decay": 0} if row.undecayed else {}
    settings += [f"`{k}` fixed at {_value(v)}" for k, v in {**fixed, **row.training}.items()]
    server = f"; server: {row.server_cost}" if row.server_cost else ""
    return (
        f"{row.title} (`{name}`)",
        row.formula,
        ", ".join(settings),
        f"{row.up}, {row.down}",
        f"client: {row.client_cost}{server}",
        row.source,
    )


def _parameter_row(key: str, parameter: Declared, names: Iterable[str]) -> tuple[str, ...]:
    return (
        f"`{key}`",
        _value(parameter.default),
        _values(parameter),
        parameter.meaning,
        ", ".join(f"`{name}`" for name in names),
    )


def _values(parameter: Declared) -> str:
    """What a parameter may be, in words."""
    if parameter.choices:
        words = " or ".join(map(_value, parameter.choices))
        return f"{words}, or none" if parameter.optional else words
    if parameter.kind is bool:
        return "true or false"
    if parameter.kind is str:
        return "text"
    least, most = parameter.range.least, parameter.range.most
    words = "whole number" if parameter.kind is int else "number"
    words += "s" if parameter.several else ""
    if least is not None and most is not None:
        words += f" from {_value(least)} to {_value(most)}"
    elif least is not None:
        words += f" from {_value(least)}"
    elif most is not None:
        words += f" to {_value(most)}"
    words += ", or a mapping of low and high" if parameter.ends else ""
    return f"{words}, or none" if parameter.optional else words


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Ends):
        return f"{_value(value.low)} to {_value(value.high)}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Lines of one Markdown table; a bar or a line break within a cell would end it."""
    lines = [heads, ("---",) * len(heads)]
    lines += [tuple(cell.replace("|", r"\|").replace("\n", " ") or "—" for cell in r) for r in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
