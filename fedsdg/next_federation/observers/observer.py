"""What an observer is, and what it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedsdg.files.columns import Column

if TYPE_CHECKING:
    from fedsdg.next_federation.evaluation import Evaluation
    from fedsdg.next_federation.setup import Server, Setup, Updates
    from fedsdg.next_federation.tasks import Results, Tasks


@dataclass(frozen=True)
class RoundView:
    """A round when it is over."""

    setup: Setup
    t: int
    before: Server
    after: Server
    tasks: Tasks
    results: Results
    arrived: Updates
    evaluation: Evaluation | None
    row: dict[str, Any]
    "the round's record, to which columns may be added"
    clients: dict[int, dict[str, Any]]
    "the records of its clients, to which columns may be added"

    @property
    def last(self) -> bool:
        """Whether it is the last round."""
        return self.t == self.setup.schedule.rounds


class Observer:
    """Base of observers; this one sees nothing.

    An observer remembers by `state`, named tensors that are part of checkpoints.
    """

    columns: ClassVar[tuple[Column, ...]] = ()
    "columns that it adds to the records"

    def __init__(self) -> None:
        """Start without memories."""
        self.state: dict[str, Tensor] = {}

    def observe(self, view: RoundView) -> None:
        """Look at a round, and add columns to its records."""

    def complete(self, rounds: list[dict[str, Any]], clients: list[dict[str, Any]]) -> None:
        """Add columns that are known at the end to the records of all rounds and clients."""
