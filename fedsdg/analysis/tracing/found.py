"""What is known of a committed number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Trace:
    """A committed number and what stands behind it.

    ``unrounded`` is the recomputed value of the column ``of`` at ``where``; ``seeds`` are what the
    runs of each seed alone give for it (None where one seed allows no such number), ``runs`` the
    facts of ``runs.facts_of``.
    """

    file: str
    line: str
    experiment: str
    committed: str
    recomputed: str
    of: str
    where: dict[str, Any]
    unrounded: Any
    seeds: dict[int, Any]
    runs: list[dict[str, Any]]
