"""How whoever fills a column of the records declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A column that a file of records has only where somebody fills it.

    It is an entry of ``columns`` of the rule, the condition or the observer that does. ``make
    documents`` writes all of them into ``fedsdg/declarations.json``, where ``files.records`` reads
    them. ``table``: "diagnostics" is what a rule says of each client under this name, which is
    recorded with the clients.
    """

    table: Literal["rounds", "clients", "diagnostics"]
    name: str
    kind: Literal["int32", "float64", "bool", "list of float64"]
    meaning: str
