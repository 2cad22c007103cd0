"""What an observer is, and what it looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedsdg.files.columns import Column

if TYPE_CHECKING:
    from fedsdg.aggregation.types import Aggregate
    from fedsdg.federation.conditions.condition import Participation
    from fedsdg.federation.evaluation import EvaluationModels
    from fedsdg.federation.probes import Measured
    from fedsdg.federation.setup import Server, Setup, Updates
    from fedsdg.federation.store import ClientRows, ClientStore
    from fedsdg.federation.tasks import Results, Tasks


@dataclass
class RoundView:
    """A round after the server's step, with its records as they are filled."""

    setup: Setup
    t: int
    participation: Participation
    tasks: Tasks
    "of the clients that trained"
    results: Results
    "of the clients that trained"
    sent: Updates
    measured: list[Measured]
    arrived: Updates
    outcome: Aggregate
    "of the rule"
    before: Server
    after: Server
    store: ClientStore
    "what clients kept before the round"
    kept: ClientRows
    "what clients keep after it"
    row: dict[str, Any]
    "the round's record, to which columns may be added"
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)
    "the records of its clients, to which columns may be added"
    evaluation: EvaluationModels | None = None
    "the models with which clients were evaluated, if they were"

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
