"""The round loop: draw a cohort, train it, measure what is sent, aggregate, evaluate, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.branches import Branches
from fedsdg.federation.budget import round_stages
from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohorts import Shards, cohort_batches, draw_cohort
from fedsdg.federation.environment.attackers import AttackView
from fedsdg.federation.environment.circumstances import Attendance, Circumstances
from fedsdg.federation.environment.timing import Updates
from fedsdg.federation.evaluation import losses
from fedsdg.federation.exchange import exchange, forget, measure, merged, only
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.term import Term
from fedsdg.federation.own_models.own_model import OwnModel, Score
from fedsdg.federation.passes import Passes
from fedsdg.federation.pooling import Pooling, pooled_batches
from fedsdg.federation.probes import Probe
from fedsdg.federation.records import Answers, Records, Scribe
from fedsdg.federation.round_evaluation import add_shapley, evaluate
from fedsdg.federation.saved_models import SavedModels
from fedsdg.federation.schedule import Schedule
from fedsdg.federation.seen import Seen
from fedsdg.federation.server_step import arrive, take_step
from fedsdg.federation.together import step_together
from fedsdg.federation.trajectories import Trajectory
from fedsdg.files.columns import columns_of
from fedsdg.models.interface import ClientModel
from fedsdg.models.parameters import Layout, only_trained
from fedsdg.rng import stream


@dataclass
class Federation:
    """A server, its clients and a method, ready to run.

    ``theta`` is θ_g [d], or [C, d] where the rule serves C models; ``bank`` holds what clients
    keep, in a file in ``scratch`` if that is too much for the memory; ``state`` is the rule's;
    ``pending`` are updates on their way and ``now`` is the simulated time. ``run`` fills
    ``records`` as it goes, so that a run that fails still shows how far it came. Between rounds
    these are all there is: optimisers start afresh in each round or are kept by the clients,
    and every random stream is addressed by the round. ``clients_per_pass`` is chosen where it is
    None (see ``Passes``).
    """

    model: ClientModel
    layout: Layout
    samples: Samples
    shards: Shards
    rule: Rule
    work: LocalWork
    schedule: Schedule
    seed: int
    theta: Tensor
    private: Tensor
    probes: Sequence[Probe] = ()
    circumstances: Circumstances = field(default_factory=Circumstances)
    own: OwnModel = field(default_factory=OwnModel)
    #: How many of its training images a client compares others with when it is judged.
    anchors: int = 0
    pooling: Pooling = field(default_factory=Pooling)
    #: [K, d], where clients begin in the first round if not at the server's model.
    first: Tensor | None = None
    #: The global test set as each client sees it; None leaves out what is measured on it.
    seen: Seen | None = None
    scratch: Path | None = None
    records: Records = field(default_factory=Records)
    clients_per_pass: int | None = None

    def __post_init__(self) -> None:
        self.num_clients = len(self.shards.train)
        self.train_sizes = np.array([len(shard) for shard in self.shards.train])
        self.total_samples = int(self.train_sizes.sum())
        keeps = [name for term in self.work.terms for name in term.keeps]
        self.keeps = (*keeps, *self.own.keeps)
        own_work = replace(self.work, own_model=True)
        own_moments = own_work.moments(self.layout) if self.own.trains else {}
        self.bank = ClientBank(
            self.num_clients,
            self.private,
            self.keeps,
            self.layout.d,
            self.scratch,
            more=self.work.moments(self.layout) | own_moments,
        )
        on_server = "server" in getattr(self.rule, "reads", ())
        judges = on_server or any(probe.needs_benchmark for probe in self.probes)
        if judges and not len(self.shards.benchmark):
            raise ValueError(
                "the method judges clients on samples that the server holds, but there are none; "
                "set conditions.benchmark_images, for instance to 100"
            )
        self.branches = Branches(self.model, self.layout, self.models[0], self.private)
        self.state = self.rule.init(self.layout.d, self.train_sizes)
        many = self.rule.models(self.num_clients)
        if many > 1 and self.theta.dim() == 1:
            self.theta = self.theta.repeat(many, 1)
        self.stages = round_stages(self.work, self.schedule.epochs, self.probes, self.own)
        self.pending, self.now = Updates.none(), 0.0
        self.trajectory = Trajectory()
        self.saved: SavedModels | None = None
        self.answers: Answers | None = None
        self.records.client_storage_bytes = self.bank.bytes_per_client()
        self.gammas: np.ndarray | None = None
        if self.work.stopping is not None:
            draw = stream("stopping", self.seed)
            clock = self.circumstances.clock
            speeds = None if clock is None else clock.speeds
            self.gammas = self.work.stopping.draw(self.num_clients, draw, speeds)
        largest = int(self.train_sizes.max())
        batch = min(self.schedule.batch_size or largest, largest)
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

    @property
    def models(self) -> Tensor:
        """The server's models [C, d]."""
        return self.theta if self.theta.dim() == 2 else self.theta[None]

    def step(self, round_: int) -> dict[str, Any]:
        """One round, whole or not at all; returns its record.

        Whatever breaks it off, a signal included, leaves the federation as it was before it.
        """
        return step_together([self], round_)[0]

    def attendance(self, round_: int) -> Attendance:
        """The clients of a round: those that are drawn, and what keeps some from training."""
        size = self.schedule.clients_per_round
        held_out = self.circumstances.held_out
        drawn = draw_cohort(self.seed, round_, self.num_clients, size, held_out)
        if self.pooling.central:  # client 0 stands for the one place
            drawn = np.zeros(1, dtype=np.int64)
        found = self.circumstances.attendance(self.seed, round_, drawn, busy=self.pending.clients)
        budget = self.budget(found.present)
        if budget is None:
            return found
        lacking = found.present[(budget == 0).any(axis=1)]
        return replace(found, present=found.present[budget.any(axis=1)], out_of_time=lacking)

    def budget(self, clients: np.ndarray) -> np.ndarray | None:
        """Steps of these clients in each stage of a round, [n, stages].

        None where they do not train by the clock.
        """
        clock = self.circumstances.clock
        fit = None if clock is None else clock.steps_that_fit(clients)
        if fit is None:
            return None
        return self.stages.plan(fit, self.batches_per_epoch(clients), self.schedule.epochs)

    def batches_per_epoch(self, clients: np.ndarray) -> np.ndarray:
        """Batches of these clients in an epoch; at most, where one place trains on all samples."""
        sizes = self.train_sizes[clients]
        if self.pooling.central:
            sizes = np.full_like(sizes, self.total_samples)
        return self.batches_of(sizes)

    def cohort(self, round_: int) -> np.ndarray:
        """The clients that train in a round."""
        return self.attendance(round_).present

    def undo(self, cohort: np.ndarray) -> Callable[[], None]:
        """What brings back the state of now, if nothing but a round of ``cohort`` follows."""
        theta, state, clients = self.theta, self.state, torch.from_numpy(cohort)
        pending, now, trajectory = self.pending, self.now, self.trajectory
        saved, answers = self.saved, self.answers
        (private, kept), trained = self.bank.gather(clients), self.bank.trained[clients]
        tables = (self.records.rounds, self.records.clients, self.records.trace)
        lengths = [(table, len(table)) for table in (*tables, self.records.timings)]

        def undo() -> None:
            self.theta, self.state = theta, state
            self.pending, self.now, self.trajectory = pending, now, trajectory
            self.saved, self.answers = saved, answers
            self.bank.scatter(clients, private, kept)
            self.bank.trained[clients] = trained
            for table, length in lengths:
                del table[length:]
            if self.schedule.trajectory is not None:
                Trajectory.erase(self.records.rounds, self.records.clients)

        return undo

    def clients(self, round_: int, cohort: np.ndarray) -> Clients:
        """What a cohort trains on: batches, the server's model and vectors, what it has kept."""
        received = self.received()
        private, kept = self.bank.gather(torch.from_numpy(cohort))
        forget(self, cohort, kept)
        epochs = self.work.epochs(self.schedule.epochs)
        if self.pooling.central:
            batches = [self._pooled_batches(round_, epochs)] * len(cohort)
        else:
            batches = self._batches("batches", round_, cohort, epochs)
        downloaded = self.downloads(cohort)
        begin = None
        if self.own.keeps:
            has = self.bank.trained[torch.from_numpy(cohort)]
            begin = self.own.begin(downloaded, kept, has, self.score(cohort))
        if self.first is not None and round_ == 1:
            begin = self.first[cohort]
        return Clients(
            batches,
            downloaded,
            private,
            kept,
            {name: value.expand(len(cohort), -1) for name, value in received.items()},
            lambda k: f"round {round_}, client {cohort[k]}",
            None if self.gammas is None else self.gammas[cohort],
            begin,
            self.budget(cohort),
        )

    def downloads(self, clients: np.ndarray) -> Tensor:
        """The model that each client gets from the server, [n, d]: its mixture of the models."""
        if self.theta.dim() == 1:
            return self.theta.expand(len(clients), -1)
        mixing = torch.from_numpy(self.rule.mixing(self.state, clients))
        return mixing.to(self.theta) @ self.theta

    def take(
        self,
        round_: int,
        attendance: Attendance,
        asked: Clients,
        local: LocalResult,
        train_seconds: float,
    ) -> dict[str, Any]:
        """Measure, aggregate, evaluate and record what a cohort came back with."""
        begun = time.perf_counter()
        cohort, conditions = attendance.present, self.circumstances
        sends = ~np.isin(cohort, attendance.out_of_time)
        found = measure(self, round_, *only(sends, cohort, asked, local))
        sent = exchange(self, round_, attendance, asked, local, found)
        trained = time.perf_counter()
        senders, their, came = only(sends, cohort, asked, local)
        # Attackers know the rule as everybody does: by samples, by batches, or else equal weights.
        sizes = self.train_sizes[senders]
        counts = {"num_samples": sizes, "num_batches": self.batches_of(sizes)}
        shares = counts.get(getattr(self.rule, "needs", None) or "", np.ones(len(senders)))
        view = AttackView(shares / max(1, shares.sum()), their.start)
        now, made = self.layout.of_round(round_), came.theta - their.start
        update = conditions.sent(made, now, self.seed, round_, senders, view)
        if self.layout.turns:
            update = only_trained(update, now)
        extra = [came.uploads, *(one.vectors for one in found), *(one.numbers for one in found)]
        uploads = {"update": update, **merged(extra)}
        ending = arrive(self, round_, senders, came, uploads, len(attendance.out_of_time))
        before = self.models
        aggregate = take_step(self, round_, ending.arrived)
        aggregated = time.perf_counter()

        gammas = {} if self.gammas is None else {"gamma": self.gammas}
        facts = {**conditions.facts, **gammas}
        due = self.schedule.due(round_)
        scribe = Scribe(
            round_,
            self.layout,
            self.shards,
            self.bank,
            facts,
            columns_of(self.rule),
            gates=due or self.schedule.gates_of_every_round,
        )
        record: dict[str, Any] = {
            "bytes_up": sent.up,
            "bytes_down": sent.down,
            **scribe.round_record(local, ending.arrived.update, aggregate),
            **conditions.round_facts(
                attendance, ending, self.models - before, round_ == self.schedule.rounds
            ),
        }
        clients = scribe.participants(cohort, local, ending.arrived, aggregate, sends)
        if self.schedule.shapley and round_ == self.schedule.rounds:
            add_shapley(self, clients, before, ending.arrived)
        record["evaluated"] = due
        if due:
            found_now, steps = evaluate(self, round_, scribe, clients)
            record |= found_now | {"evaluation_steps": steps}
            record["personal_steps"] += steps
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
        self.pending, self.now = ending.pending, ending.end
        if self.schedule.trajectory is not None:
            self._follow(round_, cohort, asked, local)
        return record

    def _follow(self, round_: int, cohort: np.ndarray, asked: Clients, local: LocalResult) -> None:
        """Note where the clients' models began and ended, and where the server's is now."""
        begin = asked.start if asked.begin is None else asked.begin
        trajectory = Trajectory.of_tensors(self.trajectory.tensors())
        for models in (begin, local.theta):
            trajectory.clients(round_, cohort.tolist(), models)
        trajectory.aggregate(round_, self.models[0])
        if round_ == self.schedule.rounds:
            trajectory.write(self.records.rounds, self.records.clients)
        self.trajectory = trajectory

    def memory(self) -> dict[str, Tensor]:
        """What simulation has to remember beside the model, the rule's state and the bank.

        Empty before the first evaluation where nobody measures time, follows models or keeps any.
        """
        found = {f"pending.{name}": value for name, value in self.pending.tensors().items()}
        found |= {f"trajectory.{n}": value for n, value in self.trajectory.tensors().items()}
        if self.circumstances.clock is not None:
            found["now"] = torch.tensor(self.now, dtype=torch.float64)
        if self.saved is not None:
            found |= {f"saved.{name}": value for name, value in self.saved.memory().items()}
        if self.answers is not None:
            found |= {f"answers.{name}": value for name, value in self.answers.tensors().items()}
        return found

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Go on from what ``memory`` returned."""
        mark = "pending."
        rows = {n.removeprefix(mark): v for n, v in memory.items() if n.startswith(mark)}
        if rows:
            self.pending = Updates.of_tensors(rows, self.theta.device)
        mark = "trajectory."
        points = {n.removeprefix(mark): v for n, v in memory.items() if n.startswith(mark)}
        self.trajectory = Trajectory.of_tensors(points)
        mark = "saved."
        kept = {n.removeprefix(mark): v for n, v in memory.items() if n.startswith(mark)}
        self.saved = SavedModels.of_memory(kept) if kept else None
        mark = "answers."
        bits = {n.removeprefix(mark): v for n, v in memory.items() if n.startswith(mark)}
        self.answers = Answers.of_tensors(bits) if bits else None
        if "now" in memory:
            self.now = float(memory["now"])

    def received(self) -> dict[str, Tensor]:
        """The vectors [d] that the server sends beside the model."""
        return {name: v.to(self.theta) for name, v in self.rule.broadcast(self.state).items()}

    def train_on(self, clients: Clients, terms: tuple[Term, ...]) -> LocalResult:
        """Clients trained as usual, but on these terms.

        Raises ``ValueError`` where an own model trains without having declared it (``trains``).
        """
        if clients.budget is not None and not clients.budget.shape[1]:
            raise ValueError(
                f"{type(self.own).__name__} trains a model beside the one for the server, for "
                "which a client that trains by the clock has no time; let its `trains` say how "
                "many it trains"
            )
        work = replace(self.work, terms=terms, trace_every=0, own_model=True)
        return self.passes.train(self.model, self.layout, self.samples, clients, work)

    def score(self, clients: np.ndarray) -> Score:
        """The mean loss of a model for each of these clients on its validation samples."""
        val = [self.shards.val[client] for client in clients.tolist()]
        private = self.bank.private(torch.from_numpy(clients))
        common = (self.model, self.layout, self.samples, val)
        return lambda theta: losses(*common, theta, private, self.work.loss)

    def _pooled_batches(self, round_: int, epochs: int) -> list[np.ndarray]:
        return pooled_batches(
            self.shards.train,
            seed=self.seed,
            round_=round_,
            clients_per_round=self.schedule.clients_per_round,
            epochs=epochs,
            batch_size=self.schedule.batch_size,
            held_out=self.circumstances.held_out,
        )

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

    def batches_of(self, sizes: np.ndarray) -> np.ndarray:
        """Local steps per epoch of clients with so many samples."""
        return -(-sizes // (self.schedule.batch_size or sizes))
