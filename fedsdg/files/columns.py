"""How a part declares the columns that it adds to the records of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel


@dataclass(frozen=True)
class Column:
    """A column that a file of records has only if a part of the run fills it.

    It is an entry of ``columns`` of the rule, the condition or the observer that fills it.
    """

    table: Literal["rounds", "clients", "diagnostics"]
    """the file; "diagnostics" is what a rule says of each client under this name, which is recorded
    with the clients"""
    name: str
    "in the file"
    kind: Literal["int32", "int64", "float32", "float64", "bool", "list of float32"]
    "type of its values"
    meaning: str
    "in a few words, with the unit"


def columns_of(*parts: Any) -> tuple[Column, ...]:
    """Return the columns that parts, and the parts within them, declare; each once."""
    columns: dict[tuple[str, str], Column] = {}
    for part in parts:
        inner = columns_of(*dict(part).values()) if isinstance(part, BaseModel) else ()
        for column in (*getattr(part, "columns", ()), *inner):
            columns[column.table, column.name] = column
    return tuple(columns.values())
