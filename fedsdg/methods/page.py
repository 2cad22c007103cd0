"""The page of all methods, docs/methods.md, from their declarations. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsdg.methods.declared import Row
from fedsdg.methods.markdown import allowed, default_of, in_words, table
from fedsdg.parts import Declared

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


def method_page(rows: Mapping[str, Row]) -> str:
    """Markdown: one row a method, and one row a parameter that methods share."""
    methods = table(
        ("method", "formula", "parameters", "sent up, down", "cost per round", "source"),
        (_method_row(name, row) for name, row in rows.items()),
    )
    shared: dict[tuple[str, Declared], list[str]] = {}
    for name, row in rows.items():
        for key, parameter in row.parameters.items():
            shared.setdefault((key, parameter), []).append(name)
    parameters = table(
        ("parameter", "default", "values", "meaning", "methods"),
        (_parameter_row(key, parameter, names) for (key, parameter), names in shared.items()),
    )
    return f"{_HEAD}{methods}{_BETWEEN}{parameters}"


def _method_row(name: str, row: Row) -> tuple[str, ...]:
    settings = [f"`{key}` = {default_of(p)}" for key, p in row.parameters.items()]
    settings += [f"`{k}` fixed at {in_words(v)}" for k, v in fixed_of(row).items()]
    server = f"; server: {row.server_cost}" if row.server_cost else ""
    return (
        f"{row.title} (`{name}`)",
        row.formula,
        ", ".join(settings),
        f"{row.up}, {row.down}",
        f"client: {row.client_cost}{server}",
        row.source,
    )


def fixed_of(row: Row) -> dict[str, Any]:
    """What a method prescribes, which no config may set for it, by name."""
    fixed: dict[str, Any] = {"optimiser": row.optimiser} if row.optimiser else {}
    fixed |= {"weight_decay": 0} if row.undecayed else {}
    fixed |= row.training
    fixed |= {key: held for key, held in row.fixed.items() if held is not None}
    return dict(sorted(fixed.items()))


def _parameter_row(key: str, parameter: Declared, names: Iterable[str]) -> tuple[str, ...]:
    return (
        f"`{key}`",
        default_of(parameter),
        allowed(parameter),
        parameter.meaning,
        ", ".join(f"`{name}`" for name in names),
    )
