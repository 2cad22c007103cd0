"""Printed names and order of methods, cells and data sets.

A record says in methods.json how its methods are called; ``METHODS`` has those of all records that
are open.
"""

from __future__ import annotations

import re
from typing import Any

#: Label → ``title``, ``family``, ``personal`` (ends with a model per client), ``oracle`` (knows
#: what others must find out), ``order``.
METHODS: dict[str, dict[str, Any]] = {}
_SKEWS = {
    "dirichlet": "α = {}",
    "classes": "{} classes per client",
    "quantity": "quantity β = {}",
    "column": "clients by {}",
    "iid": "IID",
}


def method_title(label: str) -> str:
    """Return a method in print: ``krum`` → Krum, ``fedsdg-softmax`` → FedSDG (softmax)."""
    return str(METHODS.get(label, {}).get("title", label))


def method_order(label: str) -> tuple[float, str]:
    """Return a sorting key: the order of the table of methods, variants after each."""
    return (METHODS.get(label, {}).get("order", float("inf")), label)


def is_oracle(label: str) -> bool:
    """Return whether a method knows the clusters of clients or has all data in one place."""
    return bool(METHODS.get(label, {}).get("oracle", False))


def cell_title(cell: str) -> str:
    """Return a cell in print: ``mnist:dirichlet~0.1@late`` → mnist, α = 0.1, late."""
    dataset, _, setting = cell.rpartition(":")
    skew, _, scenario = setting.partition("@")
    kind, *values = skew.split("~")
    parts = [dataset, _SKEWS.get(kind, skew).format(*values), scenario]
    return ", ".join(part for part in parts if part)


def natural_order(name: str) -> list[tuple[bool, float, str]]:
    """Return a sorting key that reads numbers: late-2 before late-10."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", name)
    return [(p[0].isdigit(), float(p) if p[0].isdigit() else 0.0, p) for p in parts]
