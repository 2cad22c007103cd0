"""What comes back from a process, where a grid cannot go on without it."""

from __future__ import annotations

from typing import Any

from fedsdg.experiment.machine.processes import Failed


class GridError(ValueError):
    """The grid cannot go on: what all of its runs, or many, depend on cannot be had."""


def needed(outcome: Any, what: str) -> Any:
    """The outcome; raises ``GridError`` with ``what`` it is where the process failed."""
    if isinstance(outcome, Failed):
        raise GridError(f"{what}: {outcome}")
    return outcome
