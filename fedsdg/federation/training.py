"""Local training of a cohort: all clients together, phase by phase.

Within a phase clients stand by how many steps they take, longest first. Those still training are
therefore the first rows of every matrix, and the others cost nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from fedsdg import models
from fedsdg.federation.batches import Batches, Steps, all_batches, longest_first
from fedsdg.federation.client_axis import COMMON, ClientAxis
from fedsdg.federation.optimisers import descend
from fedsdg.federation.phases import BOTH, PRIVATE, SHARED, Phase, Turn
from fedsdg.federation.tasks import Results, Tasks
from fedsdg.federation.terms import Term

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup

UNLIMITED = 2**62
"""More steps than any client takes."""


@dataclass(frozen=True)
class Columns:
    """Where the parts of FedSDG's private branch stand in a private row."""

    factors: Tensor
    "bool [d_p], entries of private factors"
    factors_b: Tensor
    "bool [d_p], those of B_p"
    gates: Tensor
    "int64 [L], the logits of gates"
    specs: tuple[models.ParameterSpec, ...]
    "the parameters of a private row"

    @classmethod
    def from_layout(cls, layout: models.Layout, device: torch.device | str = "cpu") -> Self:
        """Read the places off a layout."""
        specs = layout.private
        places = models.offsets(specs)
        gates = [places[spec.name].start for spec in specs if spec.group == "gate"]
        sizes = [spec.size for spec in specs]

        def factors(name: str) -> Tensor:
            chosen = [spec.group == "private" and name in spec.name for spec in specs]
            return torch.from_numpy(np.repeat(np.array(chosen, dtype=bool), sizes)).to(device)

        return cls(
            factors=factors(".lora_"),
            factors_b=factors(".lora_B_"),
            gates=torch.tensor(gates, dtype=torch.int64, device=device),
            specs=specs,
        )


@dataclass(frozen=True)
class Rows(ClientAxis):
    """Clients in training, one row for each."""

    theta: Tensor
    "[a, d]"
    private: Tensor
    "[a, d_p]"
    theta_grad: Tensor
    "[a, d]"
    private_grad: Tensor
    "[a, d_p]"
    start: Tensor
    "[a, d] the downloaded model"
    kept: dict[str, Tensor]
    "[a, width] what terms keep between rounds, by name"
    received: dict[str, Tensor]
    "[a, width] what the server sent beside the model, by name"
    memory: dict[str, Tensor]
    "[a, width] of the optimisers, `{row}.{name}`; the steps so far of a row on the CPU"
    log_shares: Tensor | None
    "[a, classes] logarithms of class shares, for the balanced softmax"
    columns: Columns = field(metadata=COMMON)

    def row(self, name: str) -> tuple[Tensor, Tensor]:
        """Return values and gradients of the `shared` or the `private` row."""
        if name == "shared":
            return self.theta, self.theta_grad
        return self.private, self.private_grad

    def without_gradients(self) -> Self:
        """Return the same rows with zero gradients of their own."""
        return replace(
            self,
            theta_grad=torch.zeros_like(self.theta),
            private_grad=torch.zeros_like(self.private),
        )


def train(
    setup: Setup, layout: models.Layout, tasks: Tasks, phases: Sequence[Phase], where: str
) -> Results:
    """Train M clients, each on its own batches, through all phases.

    In each step of a client: the mean loss of its batch and the gradients of the terms; the whole
    gradient clipped to `clip_norm`; corrections of the terms; a step of the optimiser.

    Args:
        setup: The federation, with model, samples, optimiser, rates, loss and terms.
        layout: What the rows of the clients hold, and what of it trains.
        tasks: What each client begins with, and its batches.
        phases: The parts of the training, in their order.
        where: The beginning of errors, such as "round 3".

    Returns:
        What the clients return, in the order of the tasks.

    Raises:
        FloatingPointError: The loss of a client is not finite.
    """
    cohort = CohortTraining(setup, layout, tasks, where)
    for number, phase in enumerate(phases):
        stage = sum(len(before.turns) for before in phases[:number])
        cohort.run_phase(phase, stage)
    return cohort.results()


@dataclass
class CohortTraining:
    """Clients in training, in the order of their tasks; the fields are the arguments of `train`."""

    setup: Setup
    layout: models.Layout
    tasks: Tasks
    where: str

    def __post_init__(self) -> None:
        """Give every client its rows, and fresh or kept memory to its optimisers."""
        tasks = self.tasks
        self.work = self.setup.work
        values = {"shared": tasks.begin.clone(), "private": tasks.private.clone()}
        memory = {}
        for row in BOTH:
            memory[f"{row}.steps"] = torch.zeros(len(tasks), 1, dtype=torch.float64)
            for name in self.work.optimiser_of(row).memory:
                memory[f"{row}.{name}"] = torch.zeros_like(values[row])
        self.kept_memory = memory.keys() & tasks.kept.keys()
        for name in self.kept_memory:
            memory[name] = tasks.kept[name].to(memory[name], copy=True)
        self.rows = Rows(
            theta=values["shared"],
            private=values["private"],
            theta_grad=values["shared"][:, :0],
            private_grad=values["private"][:, :0],
            start=tasks.start,
            kept={name: value for name, value in tasks.kept.items() if name not in memory},
            received=tasks.received,
            memory=memory,
            log_shares=None,
            columns=self.setup.columns,
        )
        self.specs = {"shared": self.layout.communicated, "private": self.layout.private}
        self.rates = {
            row: self.work.rates(specs, values[row]) for row, specs in self.specs.items() if specs
        }
        self.loss_sum = np.zeros(len(tasks))
        names = ("steps", "batches", "shared", "personal", "measured", "samples")
        self.counts = {name: np.zeros(len(tasks), dtype=np.int64) for name in names}

    def run_phase(self, phase: Phase, stage: int) -> None:
        """Train a phase, whose turns are the stages of the round from `stage` on.

        A client without time for the last turn of a phase takes its first turn alone.
        """
        if phase.inexact:
            self._train_until_inexact(phase, stage)
            return
        last = stage + len(phase.turns) - 1
        batches = self.tasks.batches_of(phase, last)
        self._train_on(phase, batches)
        if last > stage:
            pairs = zip(batches, self.tasks.batches_of(phase, stage), strict=True)
            rest = [[] if whole else first_alone for whole, first_alone in pairs]
            self._train_on(replace(phase, turns=phase.turns[:1]), rest)

    def _train_on(self, phase: Phase, batches: list[Batches]) -> None:
        """Train every client on its batches; one without any stays as it is."""
        order = longest_first(batches)
        if not len(order):
            return
        terms = self.work.terms if phase.terms is None else phase.terms
        steps = Steps.plan([batches[k] for k in order], self.setup.samples)
        block = self.rows.take(order).without_gradients()
        if phase.balanced:
            block = replace(block, log_shares=self._log_class_shares(order))
        losses: list[Tensor] = []
        active = -1
        for step in range(len(steps.sizes)):
            if steps.active(step) != active:
                active = steps.active(step)
                rows = block.take(slice(active))
                leaves_by_turn = [self._leaves(rows, turn) for turn in phase.turns]
            for turn, named in zip(phase.turns, leaves_by_turn, strict=True):
                rows.theta_grad.zero_()
                rows.private_grad.zero_()
                alone = phase.alone and turn == SHARED
                loss = self._losses(steps, step, named, rows, alone=alone)
                loss.sum().backward()  # clients share no parameter: each gets its own gradient
                if turn == phase.turns[-1]:
                    losses.append(loss.detach())
                    self._trace(order, steps, step, losses[-1], rows, terms)
                self._move(rows, turn, terms)
        self._put_back(order, block)
        means = steps.mean_losses(torch.cat(losses))
        self._require_finite(means, order)
        turns = len(phase.turns)
        self.counts["steps"][order] += steps.counts * turns
        self.counts["samples"][order] += steps.drawn * turns
        stays = turns if phase.second else phase.turns.count(PRIVATE)
        self.counts["personal"][order] += steps.counts * stays
        self.counts["shared"][order] += steps.counts * sum("shared" in turn for turn in phase.turns)
        if not phase.second:
            self.counts["batches"][order] += steps.counts
            for now in means:  # step by step, so that sums do not depend on the other clients
                self.loss_sum[order] += now

    def _move(self, rows: Rows, turn: Turn, terms: Sequence[Term]) -> None:
        """Take one step of clients whose rows have the gradients of the loss."""
        for term in terms:
            if not term.decoupled:
                term.add_gradient(rows)
        for resting in set(BOTH) - set(turn):
            rows.row(resting)[1].zero_()
        square = rows.theta_grad.square().sum(1) + rows.private_grad.square().sum(1)
        scale = (self.work.clip_norm / (models.root(square) + 1e-6)).clamp_(max=1.0)[:, None]
        rows.theta_grad.mul_(scale)
        rows.private_grad.mul_(scale)
        for term in terms:
            term.correct(rows)
        moving = [name for name in turn if name in self.rates]
        decoupled = [term for term in terms if term.decoupled]
        if decoupled:  # theta <- theta - eta grad(term)
            slopes = rows.without_gradients()
            for term in decoupled:
                term.add_gradient(slopes)
            for name in moving:
                descend(*slopes.row(name), self.rates[name])
        for name in moving:
            optimiser = self.work.optimiser_of(name)
            memory = {entry: rows.memory[f"{name}.{entry}"] for entry in optimiser.memory}
            step = rows.memory[f"{name}.steps"].add_(1)
            optimiser.move(*rows.row(name), self.rates[name], memory, step)

    def _train_until_inexact(self, phase: Phase, stage: int) -> None:
        """Train until ||grad h(w)|| <= gamma ||grad h(w_t)|| (Li et al. 2020, Definition 2).

        It is measured after each epoch, and only if a step can follow, since otherwise it decides
        nothing: where time is short, the first measurement needs time for itself, for an epoch,
        for the second measurement and for a step.
        """
        tasks = self.tasks
        assert tasks.gamma is not None
        if not len(tasks):
            return
        per_epoch = np.array([len(epochs[0]) for epochs in tasks.batches])
        limits = tasks.limits
        left = np.full(len(tasks), UNLIMITED) if limits is None else limits[:, stage].copy()
        measures = left > 3 * per_epoch
        bound = tasks.gamma * self._gradient_norms(measures)
        left -= measures * per_epoch
        trains = left > 0
        for epoch in range(phase.first, phase.first + phase.epochs):
            each = zip(tasks.batches, trains, left, strict=True)
            batches = [epochs[epoch][:most] if going else [] for epochs, going, most in each]
            self._train_on(phase, batches)
            left -= [len(given) for given in batches]
            trains &= (left > 0) & (epoch + 1 < phase.first + phase.epochs)
            measured = trains & measures & (left > per_epoch)
            if measured.any():
                norms = self._gradient_norms(measured)
                left -= measured * per_epoch
                trains &= ~measured | (norms > bound)

    def _gradient_norms(self, which: np.ndarray) -> np.ndarray:
        """Return ||grad h|| [M] over all samples of the clients `which`, unclipped; 0 of others."""
        norms = np.zeros(len(self.tasks))
        pairs = zip(self.tasks.batches, which, strict=True)
        batches = [epochs[0] if measured else [] for epochs, measured in pairs]
        order = longest_first(batches)
        if not len(order):
            return norms
        steps = Steps.plan([batches[k] for k in order], self.setup.samples, whole=True)
        block = self.rows.take(order).without_gradients()
        for step in range(len(steps.sizes)):
            rows = block.take(slice(steps.active(step)))
            self._losses(steps, step, self._leaves(rows, BOTH), rows).sum().backward()
        for term in self.work.terms:
            term.add_gradient(block)
        gradients = torch.cat([block.theta_grad, block.private_grad], dim=1).double()
        self.counts["measured"][order] += steps.counts
        self.counts["samples"][order] += steps.drawn
        norms[order] = torch.linalg.vector_norm(gradients, dim=1).cpu().numpy()
        return norms

    def _leaves(self, rows: Rows, turn: Turn) -> dict[str, Tensor]:
        """Return the named tensors of rows; only those that move get a gradient."""
        named: dict[str, Tensor] = {}
        for name, specs in self.specs.items():
            parameters, gradients = rows.row(name)
            named |= models.leaves(parameters, gradients if name in turn else None, specs)
        return named

    def _losses(
        self, steps: Steps, step: int, named: dict[str, Tensor], rows: Rows, *, alone: bool = False
    ) -> Tensor:
        """Return the losses of a step's images over their masses; `alone`: of theta_g alone."""
        index, mass, sizes = steps[step]
        if alone and rows.log_shares is not None:
            named = {**named, "head.bias": named["head.bias"] + rows.log_shares}
        if self.setup.samples.for_gates is not None:
            named = models.separate_gates(named)
        weights = self.setup.model.effective_weights(named, not alone)
        images, labels = self.setup.samples.images[index], self.setup.samples.labels[index]
        return self.setup.model.losses(images, labels, mass, sizes, weights, self.work.loss)

    def _log_class_shares(self, clients: np.ndarray) -> Tensor:
        """Return the logarithms [a, classes] of class shares; 1e-9 samples of an absent class."""
        sizes = {spec.name: spec.size for spec in self.layout.communicated}
        labels = self.setup.samples.labels.cpu().numpy()
        batches = [np.concatenate(all_batches(self.tasks.batches[k])) for k in clients]
        counts = np.array(
            [np.bincount(labels[np.unique(own)], minlength=sizes["head.bias"]) for own in batches]
        )
        shares = np.maximum(counts, 1e-9) / counts.sum(1, keepdims=True)
        return torch.from_numpy(np.log(shares)).to(self.rows.theta)

    def _put_back(self, order: np.ndarray, block: Rows) -> None:
        """Let the clients `order` go on with the rows of a block."""
        pairs = [(self.rows.theta, block.theta), (self.rows.private, block.private)]
        pairs += [(self.rows.memory[name], value) for name, value in block.memory.items()]
        for values, changed in pairs:
            values[torch.from_numpy(order).to(values.device)] = changed

    def _require_finite(self, means: np.ndarray, order: np.ndarray) -> None:
        """Raise an error for the first loss of [steps, a] that is not finite."""
        for step, position in np.argwhere(~np.isfinite(means)).tolist():
            client = order[position]
            number = step + 1 + int(self.counts["batches"][client])
            raise FloatingPointError(
                f"{self.where}, client {self.tasks.clients[client]}: the loss is not finite at "
                f"local step {number}; lower the learning rates (eta_g, eta_p, eta_m) or look at "
                "its data"
            )

    def _trace(
        self,
        order: np.ndarray,
        steps: Steps,
        step: int,
        losses: Tensor,
        rows: Rows,
        terms: Sequence[Term],
    ) -> None:
        """Print loss, penalties, their sum and the gates of each client in a traced batch."""
        if not self.work.trace_every or (step + 1) % self.work.trace_every:
            return
        position = steps.owner[steps.ends[step] : steps.ends[step + 1]] % len(order)
        task = np.bincount(position, losses.double().cpu().numpy(), minlength=len(rows))
        table = {type(term).__name__: term.value(rows).cpu().numpy() for term in terms}
        table = {"task loss": task, **table, "sum": task + sum(table.values())}
        gates = models.sigmoid(rows.private[:, rows.columns.gates]).cpu().numpy()
        if gates.shape[1]:
            table |= {
                "gates min": gates.min(1),
                "mean": gates.mean(1),
                "max": gates.max(1),
            }
        for row, client in enumerate(self.tasks.clients[order][: len(rows)]):
            values = ", ".join(f"{name} {column[row]:.4g}" for name, column in table.items())
            print(f"{self.where}, client {client}, batch {step + 1}: {values}", file=sys.stderr)

    def results(self) -> Results:
        """Return what the clients come back with."""
        rows = self.rows
        batches = self.counts["batches"]
        taken = torch.from_numpy(self.counts["shared"]).to(rows.theta.device)
        uploads: dict[str, Tensor] = {}
        kept = {name: rows.memory[name] for name in self.kept_memory}
        for term in self.work.terms:
            sent, stays = term.finish(rows, taken, self.work.eta_g)
            for name, value in (*sent.items(), *stays.items()):
                if value.shape != rows.theta.shape:
                    raise ValueError(
                        f"the term {type(term).__name__} returned {name!r} of shape "
                        f"{list(value.shape)}; return {list(rows.theta.shape)}"
                    )
            uploads |= sent
            kept |= stays
        return Results(
            theta=rows.theta,
            private=rows.private,
            uploads=uploads,
            kept=kept,
            loss=np.where(batches > 0, self.loss_sum / np.maximum(batches, 1), np.nan),
            counts=self.counts,
        )
