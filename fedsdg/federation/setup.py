"""What a federation is: what stays the same in a run, and what a round changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.federation.accuracy import ClientTestView
from fedsdg.federation.client_axis import ClientAxis
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.condition import ClientData, Condition
from fedsdg.federation.data_sharing import DataSharing
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.personalisation import Personalisation
from fedsdg.federation.phases import PRIVATE, SHARED, Phase
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.store import ClientStore
from fedsdg.federation.tasks import Results, Samples, Work
from fedsdg.federation.training import Columns
from fedsdg.files.columns import Column, columns_of
from fedsdg.models import ClientModel, Layout

Kind = TypeVar("Kind", bound=Condition)


@dataclass(frozen=True)
class Schedule:
    """Rounds, cohorts, local epochs, and when to evaluate."""

    rounds: int
    clients_per_round: int
    epochs: int
    "local epochs of a round"
    batch_size: int | None
    "None: all samples of a client"
    evaluate_every: int = 1
    evaluate_from: int = 0
    "the first round that may be evaluated"
    evaluate_at: tuple[int, ...] | None = None
    "rounds that are evaluated, in place of `evaluate_every`"
    evaluate: Literal["everything", "validation"] = "everything"
    "`validation`: no test accuracy is computed"
    refresh: int = 0
    "epochs in which what is private is trained alone before an evaluation, and then discarded"

    def evaluates(self, t: int) -> bool:
        """Return whether round t is evaluated; the last one always is."""
        chosen = t % self.evaluate_every == 0
        if self.evaluate_at is not None:
            chosen = t in self.evaluate_at
        return t == self.rounds or (chosen and t >= self.evaluate_from)


@dataclass(frozen=True)
class Updates(ClientAxis):
    """What n clients send."""

    clients: np.ndarray
    "[n] int64 client numbers"
    born: np.ndarray
    "[n] the round in which each has trained"
    due: np.ndarray
    "[n] simulated seconds at which each arrives"
    norms: np.ndarray
    "[n] norms of the parameters behind the updates, without the head if the rule ignores it"
    rows: dict[str, Tensor]
    "[n, width] by name: `update` [n, d], and what else is uploaded"

    @property
    def update(self) -> Tensor:
        """The updates [n, d]."""
        return self.rows["update"]


@dataclass(frozen=True)
class Server:
    """The server between two rounds."""

    models: Tensor
    "[C, d]"
    state: Mapping[str, Tensor]
    "of the aggregation rule"
    in_flight: Updates | None = None
    "updates that have not arrived yet"
    now: float = 0.0
    "simulated seconds"


@dataclass(frozen=True)
class Setup:
    """A method on the data of its clients: what stays the same in a run."""

    data: ClientData
    model: ClientModel
    layout: Layout
    samples: Samples
    test_views: ClientTestView
    "the global test set as each client sees it"
    rule: Rule
    state: Mapping[str, Tensor]
    "of the rule before the first round"
    personalisation: Personalisation
    work: Work
    schedule: Schedule
    first: Tensor
    "[C, d] the server's models before the first round"
    private: Tensor
    "[d_p] a client's private row before its first round"
    own_starts: Tensor | None = None
    "[K, d] where each client begins in the first round; None: at the server's model"
    conditions: tuple[Condition, ...] = ()
    "in the order in which they transform uploads"
    observers: tuple[Any, ...] = ()
    sharing: DataSharing = field(default_factory=DataSharing)
    stopping: Inexactness | None = None
    batcher: MicroBatcher = field(default_factory=MicroBatcher)

    @property
    def num_clients(self) -> int:
        """K."""
        return self.data.num_clients

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples of every client [K]."""
        return np.array([len(shard) for shard in self.data.train])

    @cached_property
    def held_out(self) -> np.ndarray:
        """Bool [K], clients that never train."""
        return self.data.flags("held_out")

    @cached_property
    def trainable(self) -> np.ndarray:
        """Clients that may train, sorted."""
        return np.flatnonzero(~self.held_out)

    @cached_property
    def honest(self) -> np.ndarray:
        """Bool [K], clients that do not attack."""
        return ~self.data.flags("attacker")

    @cached_property
    def columns(self) -> Columns:
        """Where the parts of the private branch stand in a private row."""
        return Columns.from_layout(self.layout, self.private.device)

    @cached_property
    def declared_columns(self) -> tuple[Column, ...]:
        """The columns of the records beyond those that every run has."""
        parts = (*self.conditions, self.stopping, self.sharing, *self.observers, self.rule)
        return columns_of(*parts)

    @cached_property
    def compute(self) -> Compute | None:
        """The simulated clock, if there is one."""
        return self.condition(Compute)

    def condition(self, kind: type[Kind]) -> Kind | None:
        """Return the condition of this kind, if there is one."""
        return next((one for one in self.conditions if isinstance(one, kind)), None)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """What a client trains in a round."""
        if self.stopping is not None:
            return (Phase(self.stopping.most_epochs, inexact=True),)
        return self.personalisation.phases(self.schedule.epochs)

    @cached_property
    def stages(self) -> tuple[Phase, ...]:
        """Phases turn by turn, and passes that measure gradients: what a client's time divides."""
        turns = [replace(phase, turns=(turn,)) for phase in self.phases for turn in phase.turns]
        return (*turns, *(Phase(1) for one in self.rule.probes if one.kind == "fisher"))

    def own_phase(self, epochs: int) -> Phase:
        """Return the training, for so many epochs, of what a client keeps alone."""
        moves = SHARED if self.personalisation.own_start == "mixture" else PRIVATE
        phase = next(
            phase for phase in self.phases if any(set(moves) <= set(turn) for turn in phase.turns)
        )
        return replace(
            phase,
            epochs=epochs,
            first=0,
            turns=(moves,),
            inexact=False,
        )

    def own_rows(self, results: Results) -> Tensor:
        """Return the private rows that clients keep of their training."""
        mixes = self.personalisation.own_start == "mixture"
        return results.theta if mixes else results.private

    def batches_per_epoch(self, clients: np.ndarray) -> np.ndarray:
        """Return the batches of an epoch of these clients."""
        sizes = self.sizes[clients]
        if self.sharing.central:
            sizes = np.full_like(sizes, self.sizes.sum())
        return -(-sizes // (self.schedule.batch_size or sizes))

    def downloads(self, server: Server, clients: np.ndarray) -> Tensor:
        """Return what each client downloads, [n, d]: a mixture of the server's models."""
        if len(server.models) == 1:
            return server.models.expand(len(clients), -1)
        mixing = torch.from_numpy(self.rule.mixing(server.state, clients))
        return mixing.to(server.models) @ server.models

    def received(self, server: Server) -> dict[str, Tensor]:
        """Return the vectors [d] that the server sends beside the model, by name."""
        sent = self.rule.broadcast(server.state).items()
        return {name: vector.to(server.models) for name, vector in sent}

    @cached_property
    def kept_widths(self) -> dict[str, int]:
        """How many numbers a client keeps beside its private row, by name."""
        widths = {name: self.layout.d for term in self.work.terms for name in term.keeps}
        return widths | self.work.kept_memory(self.layout)

    def initial(self, scratch: Path | None = None) -> tuple[Server, ClientStore]:
        """Return the server and what clients keep before the first round.

        Args:
            scratch: The folder of what clients keep, if it is too large for the memory.
        """
        zeros = {name: self.private.new_zeros(width) for name, width in self.kept_widths.items()}
        first = {"private": self.private, **zeros}
        return Server(self.first, self.state), ClientStore(self.num_clients, first, scratch)
