"""The round loop: draw a cohort, train it, measure what is sent, aggregate, evaluate, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.cohorts import Shards, cohort_batches, draw_cohort
from fedsdg.federation.evaluation import (
    ClientAccuracies,
    global_metrics,
    personal_accuracies,
    summary,
)
from fedsdg.federation.local_training import Clients, LocalResult, LocalWork, Samples
from fedsdg.federation.messages import serialise
from fedsdg.federation.passes import Passes
from fedsdg.federation.records import Records, Scribe
from fedsdg.models.cohort import CohortModel
from fedsdg.models.parameters import Layout


@dataclass(frozen=True)
class Schedule:
    """Rounds, cohorts, local epochs and when to evaluate."""

    rounds: int
    clients_per_round: int
    epochs: int
    batch_size: int
    evaluate_every: int
    personal_epochs: int = 0


@dataclass
class Federation:
    """A server model, its clients and a method, ready to run.

    ``theta`` [d] is θ_g; ``bank`` holds what clients keep, in a file in ``scratch`` if that is too
    much for the memory; ``state`` is the rule's. ``run`` fills
    ``records`` as it goes, so that a run that fails still shows how far it came. Between rounds
    these four are all there is: optimisers start afresh in each round, and every random stream is
    addressed by the round. ``clients_per_pass`` is chosen where it is None (see ``Passes``).
    """

    model: CohortModel
    layout: Layout
    samples: Samples
    shards: Shards
    rule: Rule
    work: LocalWork
    schedule: Schedule
    seed: int
    theta: Tensor
    private: Tensor
    scratch: Path | None = None
    records: Records = field(default_factory=Records)
    clients_per_pass: int | None = None

    def __post_init__(self) -> None:
        self.num_clients = len(self.shards.train)
        self.train_sizes = np.array([len(shard) for shard in self.shards.train])
        self.total_samples = int(self.train_sizes.sum())
        keeps = [name for term in self.work.terms for name in term.keeps]
        self.bank = ClientBank(self.num_clients, self.private, keeps, self.layout.d, self.scratch)
        self.state = self.rule.init(self.layout.d, self.train_sizes)
        self.records.client_storage_bytes = self.bank.bytes_per_client()
        batch = min(self.schedule.batch_size, int(self.train_sizes.max()))
        self.passes = Passes(batch, self.clients_per_pass)

    def run(self, progress: Callable[[int, dict[str, Any]], None] = lambda *_: None) -> Records:
        """Run the rounds that are left; ``progress(round, record)`` is called after each."""
        for round_ in range(self.rounds_done + 1, self.schedule.rounds + 1):
            record = self.step(round_)
            progress(round_, record)
        return self.records

    @property
    def rounds_done(self) -> int:
        """Number of the last round that was recorded; 0 before the first."""
        return len(self.records.rounds)

    def step(self, round_: int) -> dict[str, Any]:
        """One round, whole or not at all; returns its record.

        Whatever breaks it off, a signal included, leaves the federation as it was before it.
        """
        return step_together([self], round_)[0]

    def cohort(self, round_: int) -> np.ndarray:
        """The clients of a round."""
        return draw_cohort(self.seed, round_, self.num_clients, self.schedule.clients_per_round)

    def undo(self, cohort: np.ndarray) -> Callable[[], None]:
        """What brings back the state of now, if nothing but a round of ``cohort`` follows."""
        theta, state, clients = self.theta, self.state, torch.from_numpy(cohort)
        (private, kept), trained = self.bank.gather(clients), self.bank.trained[clients]
        tables = (self.records.rounds, self.records.clients, self.records.trace)
        lengths = [(table, len(table)) for table in (*tables, self.records.timings)]

        def undo() -> None:
            self.theta, self.state = theta, state
            self.bank.scatter(clients, private, kept)
            self.bank.trained[clients] = trained
            for table, length in lengths:
                del table[length:]

        return undo

    def clients(self, round_: int, cohort: np.ndarray) -> Clients:
        """What a cohort trains on: batches, the server's model and vectors, what it has kept."""
        received = self._received()
        private, kept = self.bank.gather(torch.from_numpy(cohort))
        return Clients(
            self._batches("batches", round_, cohort, self.schedule.epochs),
            self.theta.expand(len(cohort), -1),
            private,
            kept,
            {name: value.expand(len(cohort), -1) for name, value in received.items()},
            lambda k: f"round {round_}, client {cohort[k]}",
        )

    def take(
        self, round_: int, cohort: np.ndarray, local: LocalResult, train_seconds: float
    ) -> dict[str, Any]:
        """Measure, aggregate, evaluate and record what a cohort came back with."""
        begun = time.perf_counter()
        sent_down, sent_up = self._exchange(cohort, local)
        trained = time.perf_counter()
        update = local.theta - self.theta
        aggregate = self._aggregate(round_, cohort, local, update)
        aggregated = time.perf_counter()

        scribe = Scribe(round_, self.layout, self.shards, self.bank)
        record: dict[str, Any] = {
            "bytes_up": sent_up,
            "bytes_down": sent_down,
            **scribe.round_record(local, update, aggregate),
        }
        clients = scribe.participants(cohort, local, update, aggregate)
        due = round_ % self.schedule.evaluate_every == 0 or round_ == self.schedule.rounds
        record["evaluated"] = due
        if due:
            accuracies = self._personal_accuracies(round_)
            scribe.add_accuracies(clients, accuracies)
            record |= summary(accuracies, np.array([len(test) for test in self.shards.test]))
            record |= self._global_metrics()
        self.records.rounds.append(record)
        self.records.clients.extend(clients[k] for k in sorted(clients))
        self.records.trace.extend(
            {**row, "round": round_, "client": int(cohort[row["client"]])} for row in local.trace
        )
        self.records.timings.append(
            {
                "round": round_,
                "train_seconds": train_seconds + trained - begun,
                "aggregate_seconds": aggregated - trained,
                "evaluate_seconds": time.perf_counter() - aggregated,
            }
        )
        return record

    def _received(self) -> dict[str, Tensor]:
        """The vectors [d] that the server sends beside the model."""
        return {name: v.to(self.theta) for name, v in self.rule.broadcast(self.state).items()}

    def _exchange(self, cohort: np.ndarray, local: LocalResult) -> tuple[int, int]:
        """Let the clients keep what is theirs; returns the bytes sent (down, up)."""
        message = serialise({"": self.theta, **self._received()}, self.layout)
        up = 0
        for k in range(len(cohort)):
            extra = {name: rows[k] for name, rows in local.uploads.items()}
            up += len(serialise({"": local.theta[k], **extra}, self.layout))
        self.bank.scatter(torch.from_numpy(cohort), local.private, local.state)
        return len(cohort) * len(message), up

    def _batches(
        self, purpose: str, round_: int, clients: np.ndarray, epochs: int
    ) -> list[list[np.ndarray]]:
        return cohort_batches(
            self.shards.train,
            clients.tolist(),
            purpose=purpose,
            seed=self.seed,
            round_=round_,
            batch_size=self.schedule.batch_size,
            epochs=epochs,
        )

    def _aggregate(
        self, round_: int, cohort: np.ndarray, local: LocalResult, update: Tensor
    ) -> Aggregate:
        sizes = self.train_sizes[cohort]
        norms = torch.linalg.vector_norm(local.theta, dim=1, dtype=torch.float64)
        context = Context(
            round=round_,
            clients=cohort,
            num_clients=self.num_clients,
            num_samples=sizes,
            total_samples=self.total_samples,
            num_batches=-(-sizes // self.schedule.batch_size),
            client_samples=self.train_sizes,
            parameter_norm=float(norms.max()),
        )
        aggregate = self.rule({"update": update, **local.uploads}, context, self.state)
        self.theta = self.theta + aggregate.steps[0].to(self.theta.dtype)
        self.state = aggregate.state
        return aggregate

    def _personal_accuracies(self, round_: int) -> ClientAccuracies:
        theta = self.theta
        if self.schedule.personal_epochs:
            everyone = np.arange(self.num_clients)
            copies = Clients(
                self._batches("evaluation", round_, everyone, self.schedule.personal_epochs),
                theta.expand(self.num_clients, -1),
                self.bank.private(torch.from_numpy(everyone)),
                name=lambda k: f"round {round_}, fine-tuning client {k}",
            )
            theta = self.passes.train(
                self.model, self.layout, self.samples, copies, self.work
            ).theta
        return personal_accuracies(
            self.model,
            self.layout,
            self.samples,
            self.shards.val,
            self.shards.test,
            theta,
            self.bank.private,
            self.bank.trained,
        )

    def _global_metrics(self) -> dict[str, float]:
        if not self.layout.d:  # nothing is shared, so there is no global model
            return {}
        accuracy, loss = global_metrics(
            self.model,
            self.layout,
            self.samples,
            self.shards.global_test,
            self.theta,
            self.private,
        )
        return {"global_accuracy": accuracy, "global_loss": loss}


def step_together(federations: Sequence[Federation], round_: int) -> list[dict[str, Any]]:
    """One round of several federations whose clients train in common; returns their records.

    The federations are alike (see ``require_alike``), such as the seeds of one method: seeds are
    one more group on the client axis. A round happens to all of them or to none.
    """
    cohorts = [one.cohort(round_) for one in federations]
    undos = [one.undo(cohort) for one, cohort in zip(federations, cohorts, strict=True)]
    try:
        return _step(federations, round_, cohorts)
    except BaseException:
        for undo in undos:
            undo()
        raise


def _step(
    federations: Sequence[Federation], round_: int, cohorts: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    begun = time.perf_counter()
    first = federations[0]
    asked = [one.clients(round_, cohort) for one, cohort in zip(federations, cohorts, strict=True)]
    local = first.passes.train(
        first.model, first.layout, first.samples, Clients.joined(asked), first.work
    )
    # A federation's share of the time that all have spent together.
    seconds = (time.perf_counter() - begun) / len(federations)
    records, end = [], 0
    for one, cohort in zip(federations, cohorts, strict=True):
        begin, end = end, end + len(cohort)
        own = local[np.arange(begin, end)]
        records.append(one.take(round_, cohort, own, seconds))
    return records


def require_alike(federations: Sequence[Federation]) -> None:
    """Raise ``ValueError`` unless the federations can train in common.

    They must share samples, backbone, layout, work and schedule; seeds and shards are their own.
    """
    first = federations[0]
    for other in federations[1:]:
        for what in ("samples", "layout", "work", "schedule"):
            mine, its = getattr(first, what), getattr(other, what)
            if its is not mine and (what == "samples" or its != mine):
                raise ValueError(
                    f"seeds {first.seed} and {other.seed} cannot train together: they differ in "
                    f"their {what}; run them one by one"
                )
