"""Local training of a cohort: all clients together, phase by phase.

Within a phase clients stand by how many steps they take, longest first. Those still training are
therefore the first rows of every matrix, and the others cost nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsdg.next_federation.batches import Batches, Steps, all_batches, longest_first
from fedsdg.next_federation.client_axis import COMMON, ClientAxis
from fedsdg.next_federation.losses import Loss
from fedsdg.next_federation.model_names import (
    ClientModel,
    Layout,
    leaves,
    model_losses,
    offsets,
    root,
    separate_gates,
    sigmoid,
    training_context,
)
from fedsdg.next_federation.optimisers import descend
from fedsdg.next_federation.tasks import (
    BOTH,
    PRIVATE,
    SHARED,
    Phase,
    Results,
    Samples,
    Tasks,
    Turn,
    Work,
)
from fedsdg.next_federation.terms import Term

UNLIMITED = 2**62
"""More steps than any client takes."""
COUNTS = ("batches", "steps", "measured", "personal", "samples")
"""What is counted of each client; `batches`: those it has trained on for the server's model."""


@dataclass(frozen=True)
class Columns:
    """Where the parts of FedSDG's private branch stand in a private row."""

    factors: Tensor
    "bool [d_p], entries of private factors"
    gates: Tensor
    "int64 [L], the logits of gates"
    pairs: tuple[tuple[slice, tuple[int, ...], slice, tuple[int, ...]], ...]
    "for each adapted layer: place and shape of A_p, place and shape of B_p"

    @classmethod
    def from_layout(cls, layout: Layout, device: torch.device | str = "cpu") -> Columns:
        """Read the places off a layout."""
        places = offsets(layout.private)
        shapes = {spec.name: spec.shape for spec in layout.private}
        factors = torch.zeros(layout.d_private, dtype=torch.bool)
        gates: list[int] = []
        pairs = []
        for spec in layout.private:
            if spec.group == "gate":
                gates.append(places[spec.name].start)
            if spec.group != "private" or ".lora_" not in spec.name:
                continue
            factors[places[spec.name]] = True
            if spec.name.endswith("lora_A_private"):
                b = spec.name.replace("lora_A_private", "lora_B_private")
                pairs.append((places[spec.name], spec.shape, places[b], shapes[b]))
        logits = torch.tensor(gates, dtype=torch.int64, device=device)
        return cls(factors.to(device), logits, tuple(pairs))


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

    def without_gradients(self) -> Rows:
        """Return the same rows with zero gradients of their own."""
        return replace(
            self,
            theta_grad=torch.zeros_like(self.theta),
            private_grad=torch.zeros_like(self.private),
        )


def train(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    tasks: Tasks,
    work: Work,
    phases: Sequence[Phase],
    where: str,
) -> Results:
    """Train M clients, each on its own batches, through all phases.

    In each step of a client: the mean loss of its batch and the gradients of the terms; the whole
    gradient clipped to `clip_norm`; corrections of the terms; a step of the optimiser.

    Args:
        model: The model of all clients.
        layout: What the rows of the clients hold, and what of it trains.
        samples: All samples.
        tasks: What each client begins with, and its batches.
        work: Optimiser, rates, loss and terms.
        phases: The parts of the training, in their order.
        where: The beginning of errors, such as "round 3".

    Returns:
        What the clients return, in the order of the tasks.

    Raises:
        FloatingPointError: The loss of a client is not finite.
    """
    with training_context(model):
        cohort = CohortTraining(model, layout, samples, tasks, work, where)
        stage = 0
        for phase in phases:
            cohort.run_phase(phase, stage)
            stage += len(phase.turns)
        return cohort.results()


class CohortTraining:
    """Clients in training, in the order of their tasks."""

    def __init__(
        self,
        model: ClientModel,
        layout: Layout,
        samples: Samples,
        tasks: Tasks,
        work: Work,
        where: str,
    ) -> None:
        """Start clients; the arguments are those of `train`."""
        self.model = model
        self.layout = layout
        self.samples = samples
        self.tasks = tasks
        self.work = work
        self.where = where
        theta = tasks.first_values.clone()
        private = tasks.private.clone()
        kept = dict(tasks.kept)
        memory = self._fresh_memory(theta, private)
        for name in work.kept_memory(layout):
            memory[name] = kept.pop(name).to(memory[name].dtype, copy=True).to(memory[name].device)
        self.rows = Rows(
            theta=theta,
            private=private,
            theta_grad=theta.new_empty(len(tasks), 0),
            private_grad=private.new_empty(len(tasks), 0),
            start=tasks.start,
            kept=kept,
            received=tasks.received,
            memory=memory,
            log_shares=None,
            columns=Columns.from_layout(layout, theta.device),
        )
        self.rates = {}
        if layout.communicated:
            self.rates["shared"] = work.rates(layout.communicated, theta)
        if layout.private:
            self.rates["private"] = work.rates(layout.private, private)
        self.loss_sum = np.zeros(len(tasks))
        self.counts = {name: np.zeros(len(tasks), dtype=np.int64) for name in COUNTS}

    def _fresh_memory(self, theta: Tensor, private: Tensor) -> dict[str, Tensor]:
        memory = {}
        for row, values in (("shared", theta), ("private", private)):
            for name in self.work.optimiser_of(row).memory:
                memory[f"{row}.{name}"] = torch.zeros_like(values)
            memory[f"{row}.steps"] = torch.zeros(len(values), 1, dtype=torch.float64)
        return memory

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
            first_alone = self.tasks.batches_of(phase, stage)
            rest = []
            for whole, given in zip(batches, first_alone, strict=True):
                rest.append([] if whole else given)
            self._train_on(replace(phase, turns=phase.turns[:1]), rest)

    def _train_on(self, phase: Phase, batches: list[Batches]) -> None:
        """Train every client on its batches; one without any stays as it is."""
        order = longest_first(batches)
        if not len(order):
            return
        terms = self.work.terms if phase.terms is None else phase.terms
        steps = self._steps([batches[k] for k in order])
        block = self._block(order)
        if phase.balanced:
            block = replace(block, log_shares=self._log_class_shares(order))
        losses: list[Tensor] = []
        active = -1
        for step in range(len(steps.sizes)):
            if steps.active(step) != active:
                active = steps.active(step)
                rows = block.take(slice(active))
                parameters = [self._leaves(rows, turn) for turn in phase.turns]
            for turn, named in zip(phase.turns, parameters, strict=True):
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
        self._count(phase, order, steps, means)

    def _count(self, phase: Phase, order: np.ndarray, steps: Steps, means: np.ndarray) -> None:
        """Add a phase to the counts of its clients, in the order of the steps."""
        turns = len(phase.turns)
        self.counts["steps"][order] += steps.counts * turns
        self.counts["samples"][order] += steps.drawn * turns
        if phase.second:
            self.counts["personal"][order] += steps.counts * turns
            return
        self.counts["personal"][order] += steps.counts * phase.turns.count(PRIVATE)
        self.counts["batches"][order] += steps.counts
        for losses in means:  # step by step, so that sums do not depend on the other clients
            self.loss_sum[order] += losses

    def _move(self, rows: Rows, turn: Turn, terms: Sequence[Term]) -> None:
        """Take one step of clients whose rows have the gradients of the loss."""
        for term in terms:
            if not term.decoupled:
                term.add_gradient(rows)
        for name in BOTH:
            if name not in turn:
                rows.row(name)[1].zero_()
        square = rows.theta_grad.square().sum(1) + rows.private_grad.square().sum(1)
        scale = (self.work.clip_norm / (root(square) + 1e-6)).clamp_(max=1.0)[:, None]
        rows.theta_grad.mul_(scale)
        rows.private_grad.mul_(scale)
        for term in terms:
            term.correct(rows)
        self._step_along_decoupled(rows, turn, [term for term in terms if term.decoupled])
        for name in turn:
            if name in self.rates:
                parameters, gradients = rows.row(name)
                optimiser = self.work.optimiser_of(name)
                memory = {entry: rows.memory[f"{name}.{entry}"] for entry in optimiser.memory}
                step = rows.memory[f"{name}.steps"].add_(1)
                optimiser.move(parameters, gradients, self.rates[name], memory, step)

    def _step_along_decoupled(self, rows: Rows, turn: Turn, terms: Sequence[Term]) -> None:
        """Take the step theta <- theta - eta grad(term) of decoupled terms."""
        if not terms:
            return
        slopes = rows.without_gradients()
        for term in terms:
            term.add_gradient(slopes)
        for name in turn:
            if name in self.rates:
                parameters, slope = slopes.row(name)
                descend(parameters, slope, self.rates[name])

    def _train_until_inexact(self, phase: Phase, stage: int) -> None:
        """Train until ||grad h(w)|| <= gamma ||grad h(w_t)|| (Li et al. 2020, Definition 2).

        It is measured after each epoch, and only if a step can follow, since otherwise it decides
        nothing: where time is short, the first measurement needs time for itself, for an epoch,
        for the second measurement and for a step.
        """
        gamma = self.tasks.gamma
        assert gamma is not None
        per_epoch = np.array([len(epochs[0]) for epochs in self.tasks.batches])
        left = np.full(len(self.tasks), UNLIMITED)
        if self.tasks.limits is not None:
            left = self.tasks.limits[:, stage].copy()
        measures = left > 3 * per_epoch
        bound = gamma * self._gradient_norms(measures)
        left -= measures * per_epoch
        trains = left > 0
        for epoch in range(phase.epochs):
            batches = []
            for epochs, going, most in zip(self.tasks.batches, trains, left, strict=True):
                batches.append(epochs[phase.first + epoch][:most] if going else [])
            self._train_on(phase, batches)
            left -= [len(given) for given in batches]
            trains &= (left > 0) & (epoch + 1 < phase.epochs)
            measured = trains & measures & (left > per_epoch)
            if measured.any():
                norms = self._gradient_norms(measured)
                left -= measured * per_epoch
                trains &= ~measured | (norms > bound)

    def _gradient_norms(self, which: np.ndarray) -> np.ndarray:
        """Return ||grad h|| [M] over all samples of the clients `which`, unclipped; 0 of others."""
        norms = np.zeros(len(self.tasks))
        batches: list[Batches] = []
        for epochs, measured in zip(self.tasks.batches, which, strict=True):
            batches.append(epochs[0] if measured else [])
        order = longest_first(batches)
        if not len(order):
            return norms
        steps = self._steps([batches[k] for k in order], whole=True)
        block = self._block(order)
        for step in range(len(steps.sizes)):
            rows = block.take(slice(steps.active(step)))
            self._losses(steps, step, self._leaves(rows, BOTH), rows).sum().backward()
        for term in self.work.terms:
            term.add_gradient(block)
        square = block.theta_grad.double().square().sum(1)
        square += block.private_grad.double().square().sum(1)
        self.counts["measured"][order] += steps.counts
        self.counts["samples"][order] += steps.drawn
        norms[order] = square.sqrt().cpu().numpy()
        return norms

    def _steps(self, batches: list[Batches], *, whole: bool = False) -> Steps:
        """Lay out the batches of clients that stand longest first."""
        loss = self.work.loss
        labels = self.samples.labels
        weights = loss.weigh(labels) if isinstance(loss, Loss) else None
        return Steps.plan(batches, labels, weights, self.samples.for_gates, whole=whole)

    def _leaves(self, rows: Rows, turn: Turn) -> dict[str, Tensor]:
        """Return the named tensors of rows; only those that move get a gradient."""
        specs = {"shared": self.layout.communicated, "private": self.layout.private}
        named: dict[str, Tensor] = {}
        for name in BOTH:
            parameters, gradients = rows.row(name)
            slope = gradients if name in turn else None
            named |= leaves(parameters, slope, specs[name])
        return named

    def _losses(
        self, steps: Steps, step: int, named: dict[str, Tensor], rows: Rows, *, alone: bool = False
    ) -> Tensor:
        """Return the losses of a step's images over their masses; `alone`: of theta_g alone."""
        index, mass, sizes = steps[step]
        if alone and rows.log_shares is not None:
            named = {**named, "head.bias": named["head.bias"] + rows.log_shares}
        if self.samples.for_gates is not None:
            named = separate_gates(named)
        images = self.samples.images[index]
        labels = self.samples.labels[index]
        loss = self.work.loss
        return model_losses(self.model, images, labels, mass, sizes, named, loss, not alone)

    def _log_class_shares(self, clients: np.ndarray) -> Tensor:
        """Return the logarithms [a, classes] of class shares; 1e-9 samples of an absent class."""
        heads = [spec for spec in self.layout.communicated if spec.name == "head.bias"]
        labels = self.samples.labels.cpu().numpy()
        rows = []
        for client in clients.tolist():
            indices = np.unique(np.concatenate(all_batches(self.tasks.batches[client])))
            counts = np.bincount(labels[indices], minlength=heads[0].size)
            rows.append(np.log(np.maximum(counts, 1e-9) / counts.sum()))
        return torch.from_numpy(np.array(rows)).to(self.rows.theta)

    def _block(self, order: np.ndarray) -> Rows:
        """Return a copy of the rows of some clients, with gradients."""
        return self.rows.take(order).without_gradients()

    def _put_back(self, order: np.ndarray, block: Rows) -> None:
        """Let the clients `order` go on with the rows of a block."""
        place = torch.from_numpy(order)
        on_device = place.to(block.theta.device)
        self.rows.theta[on_device] = block.theta
        self.rows.private[on_device] = block.private
        for name, value in block.memory.items():
            self.rows.memory[name][place.to(value.device)] = value

    def _require_finite(self, means: np.ndarray, order: np.ndarray) -> None:
        """Raise an error for the first loss of [steps, a] that is not finite."""
        broken = np.argwhere(~np.isfinite(means))
        if len(broken):
            step, position = broken[0].tolist()
            client = order[position]
            step += 1 + int(self.counts["batches"][client])
            raise FloatingPointError(
                f"{self.where}, client {self.tasks.clients[client]}: the loss is not finite at "
                f"local step {step}; lower the learning rates (eta_g, eta_p, eta_m) or look at its "
                "data"
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
        samples = slice(steps.ends[step], steps.ends[step + 1])
        position = steps.owner[samples] % len(order)
        task = np.bincount(position, losses.double().cpu().numpy(), minlength=len(rows))
        penalties = {type(term).__name__: term.value(rows).tolist() for term in terms}
        gates = sigmoid(rows.private[:, rows.columns.gates])
        for row in range(len(rows)):
            client = self.tasks.clients[order[row]]
            values = {name: penalty[row] for name, penalty in penalties.items()}
            added = "".join(f" + {name} {value:.4g}" for name, value in values.items())
            line = f"{self.where}, client {client}, batch {step + 1}: task loss {task[row]:.4g}"
            line += f"{added} = {task[row] + sum(values.values()):.4g}"
            if gates.shape[1]:
                mine = gates[row]
                line += f"; gates {mine.min():.4g}, {mine.mean():.4g}, {mine.max():.4g}"
            print(line, file=sys.stderr, flush=True)

    def results(self) -> Results:
        """Return what the clients come back with."""
        rows = self.rows
        batches = self.counts["batches"]
        taken = torch.from_numpy(batches).to(rows.theta.device)
        kept = {name: rows.memory[name] for name in self.work.kept_memory(self.layout)}
        uploads: dict[str, Tensor] = {}
        for term in self.work.terms:
            sent, stays = term.finish(rows, taken, self.work.eta_g)
            uploads |= sent
            kept |= stays
        loss = np.full(len(batches), np.nan)
        np.divide(self.loss_sum, batches, out=loss, where=batches > 0)
        return Results(
            theta=rows.theta,
            private=rows.private,
            uploads=uploads,
            kept=kept,
            loss=loss,
            steps=self.counts["steps"],
            measured=self.counts["measured"],
            personal=self.counts["personal"],
            samples=self.counts["samples"],
        )
