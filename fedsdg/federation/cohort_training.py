"""A cohort in training: every client takes its own batches, with its own optimiser state.

One pass serves them all. Rows are worked on in the order of how many steps they have, longest
first, so that the clients still training are always a leading block of the matrices, and the others
cost nothing.

Between the first step and the last nothing travels between the host and the device: the batches
are sent at once before, and the losses are fetched and looked at afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.branches import gate_penalty, private_penalty
from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.local_work import LocalWork, Model, Samples, shares_of
from fedsdg.federation.losses.loss import sample_weights
from fedsdg.federation.optimisers.mover import Mover
from fedsdg.federation.optimisers.optimiser import descend
from fedsdg.federation.step_rows import ROWS, PrivateColumns, Rows
from fedsdg.federation.steps import Steps, longest_first
from fedsdg.models.adapters import apart
from fedsdg.models.interface import HasLosses
from fedsdg.models.parameters import Layout, leaves, offsets
from fedsdg.models.rounding import root, sigmoid


class CohortTraining:
    """The rows of a cohort, those that train next first.

    A step works on views of a leading block of the matrices. Rows are put in order only between two
    calls of ``train`` or ``gradient_norms``.
    """

    def __init__(
        self, model: Model, layout: Layout, samples: Samples, clients: Clients, work: LocalWork
    ) -> None:
        self._model, self._layout, self._samples, self._work = model, layout, samples, work
        self._name = clients.name
        self._numbers = longest_first(clients.batches)
        rows = torch.from_numpy(self._numbers).to(clients.start.device)
        self._start = clients.start[rows]
        theta = self._start if clients.begin is None else clients.begin[rows]
        self._theta, self._mine = theta.clone(), clients.private[rows].clone()
        self._theta_grad = torch.zeros_like(self._theta)
        self._mine_grad = torch.zeros_like(self._mine)
        self._kept = {key: value[rows] for key, value in clients.state.items()}
        self._sent = {key: value[rows] for key, value in clients.received.items()}
        self._columns = PrivateColumns.of(layout, self._start.device)
        # [M, classes], in the order of the rows like the matrices above.
        self._log_shares = None
        if work.balanced:
            classes = next(s.size for s in layout.communicated if s.name == "head.bias")
            own = [clients.batches[k] for k in self._numbers]
            self._log_shares = log_class_shares(own, samples.labels, classes).to(self._theta)
        self._movers = _optimisers(work, layout, self._theta, self._mine)
        # What is remembered of clients moves with their rows, in the optimiser's own matrices.
        self._moments = [name for name in work.moments(layout) if name in self._kept]
        if self._moments:
            kept = {name: self._kept.pop(name) for name in self._moments}
            self._movers[work.kept_row].resume({_plain(name): kept[name] for name in kept})
        self._losses: list[np.ndarray] = []
        self._trace: list[dict[str, Any]] = []
        self._steps = np.zeros(len(clients), dtype=np.int64)
        self._gradients = np.zeros(len(clients), dtype=np.int64)
        self._measured = np.zeros(len(clients), dtype=np.int64)
        self._personal = np.zeros(len(clients), dtype=np.int64)
        self._processed = np.zeros(len(clients), dtype=np.int64)

    def train(
        self,
        batches: Sequence[Sequence[np.ndarray]],
        turns: Sequence[Sequence[str]] = (ROWS,),
    ) -> None:
        """Train every client k on each of ``batches[k]``; one without batches stays as it is.

        Args:
            batches: The batches of each client.
            turns: With every batch, a step for each turn: the rows that it moves, ``shared`` and
                ``private``. The others stay as they are.
        """
        work, samples = self._work, self._samples
        numbers = longest_first(batches)
        if not len(numbers):
            return
        self._put_first(numbers)
        steps = Steps.of([batches[k] for k in numbers], samples.labels.device)
        steps = steps.weighed(sample_weights(work.loss, samples.labels, steps.index))
        steps = self._gates_apart(steps)
        shares: list[Tensor] = []
        trace: list[dict[str, Any]] = []
        active, rows = -1, None
        parameters: list[dict[str, Tensor]] = []
        for step, training in enumerate(steps.active()):
            if training != active:
                active = training
                rows = self._rows(slice(active))
                parameters = [self._parameters(rows, turn) for turn in turns]
            assert rows is not None
            for turn, named in zip(turns, parameters, strict=True):
                rows.theta_grad.zero_()
                rows.private_grad.zero_()
                alone = work.shared_alone and tuple(turn) == ("shared",)
                share = self._shares(steps, step, named, alone=alone)
                # Clients share no parameter: the gradient of the sum is every client's own.
                share.sum().backward()
                if turn == turns[-1]:
                    shares.append(share.detach())
                for term in work.terms:
                    if not term.decoupled:
                        term.add_gradient(rows)
                _fix(rows, turn)
                _clip(rows, work.clip_norm)
                for term in work.terms:
                    term.correct(rows)
                if work.trace_every and turn == turns[-1]:
                    trace.extend(self._traced(rows, step))
                self._decay(rows, turn)
                for row, mover in self._movers.items():
                    if row in turn:
                        mover.step(*rows.of(row))
        self._note(steps, steps.means(torch.cat(shares)), trace, turns)

    def _gates_apart(self, steps: Steps) -> Steps:
        """Every client as two where gates learn on samples of their own."""
        held = self._samples.for_gates
        return steps if held is None else steps.gates_apart(held[steps.index].cpu().numpy())

    def _shares(
        self, steps: Steps, step: int, named: dict[str, Tensor], *, alone: bool = False
    ) -> Tensor:
        """The losses of a step's samples over what divides them; ``alone``: of θ_g alone."""
        samples, sizes = self._samples, steps.sizes[step]
        index, size = steps.batch(step)
        if alone and self._log_shares is not None:
            bias = named["head.bias"]
            named = {**named, "head.bias": bias + self._log_shares[: len(bias)]}
        if samples.for_gates is not None:
            named = apart(named)
        which = {"private": False} if alone else {}
        images, labels = samples.images[index], samples.labels[index]
        loss = self._work.loss
        return shares_of(self._model, loss, images, labels, size, sizes, named, **which)

    def _decay(self, rows: Rows, moves: Sequence[str]) -> None:
        """Step along decoupled terms, θ ← θ − η ∇term(θ), as AdamW does with weight decay."""
        decoupled = [term for term in self._work.terms if term.decoupled]
        if not decoupled:
            return
        zeros = torch.zeros_like(rows.theta), torch.zeros_like(rows.private)
        slopes = replace(rows, theta_grad=zeros[0], private_grad=zeros[1])
        for term in decoupled:
            term.add_gradient(slopes)
        for row in moves:
            if row in self._movers:
                descend(*slopes.of(row), self._movers[row].rate)

    def gradient_norms(self, batches: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        """‖∇h‖ [M] float64 of every client with batches, where it is now; 0 for the others.

        h is the mean loss over all samples of ``batches[k]`` plus the terms, before clipping.
        """
        work, samples = self._work, self._samples
        measured = longest_first(batches)
        if not len(measured):
            return np.zeros(len(self._steps))
        self._put_first(measured)
        own = [batches[k] for k in measured]
        steps = Steps.of(own, samples.labels.device)
        steps = steps.weighed(sample_weights(work.loss, samples.labels, steps.index), of_all=True)
        steps = self._gates_apart(steps)
        self._theta_grad.zero_()
        self._mine_grad.zero_()
        for step, training in enumerate(steps.active()):
            parameters = self._parameters(self._rows(slice(training)), ROWS)
            self._shares(steps, step, parameters).sum().backward()
        rows = self._rows(slice(len(measured)))
        for term in work.terms:
            term.add_gradient(rows)
        square = rows.theta_grad.double().square().sum(1)
        square += rows.private_grad.double().square().sum(1)
        self._measured[measured] += steps.counts
        self._processed[measured] += steps.drawn
        norms = np.zeros(len(self._steps))
        norms[measured] = square.sqrt().cpu().numpy()
        return norms

    def result(self) -> LocalResult:
        """Return what the clients come back with; rows and entries by client."""
        rows = self._rows(slice(None))
        kept = self._movers[self._work.kept_row].remembered() if self._moments else {}
        uploads: dict[str, Tensor] = {}
        state = {name: kept[_plain(name)] for name in self._moments}
        steps = torch.from_numpy(self._steps[self._numbers]).to(rows.theta.device)
        for term in self._work.terms:
            added, stays = term.finish(rows, steps, self._work.eta_g)
            uploads |= added
            state |= stays
        back = self._places(np.argsort(self._numbers))
        # Added up step by step; np.sum would choose another order for a single client.
        sums = np.cumsum(np.concatenate([np.zeros((1, len(back))), *self._losses]), axis=0)[-1]
        means = np.full(len(back), np.nan)
        return LocalResult(
            theta=rows.theta[back],
            private=rows.private[back],
            uploads={name: value[back] for name, value in uploads.items()},
            state={name: value[back] for name, value in state.items()},
            loss=np.divide(sums, self._steps, out=means, where=self._steps > 0),
            steps=self._gradients,
            samples=self._processed,
            measured=self._measured,
            personal=self._personal,
            trace=self._trace,
        )

    def _put_first(self, numbers: np.ndarray) -> None:
        """Put these clients first, in this order, and the others behind them."""
        others = self._numbers[~np.isin(self._numbers, numbers)]
        order = np.concatenate([numbers, others])
        if np.array_equal(order, self._numbers):
            return
        row = np.argsort(self._numbers)
        places = self._places(row[order])
        for mover in self._movers.values():
            mover.keep(places)
        rows = self._rows(places)
        self._start, self._theta, self._mine = rows.start, rows.theta, rows.private
        self._theta_grad, self._mine_grad = rows.theta_grad, rows.private_grad
        self._kept, self._sent = dict(rows.state), dict(rows.received)
        if self._log_shares is not None:
            self._log_shares = self._log_shares[places]
        self._numbers = order

    def _places(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows).to(self._start.device)

    def _rows(self, chosen: slice | Tensor) -> Rows:
        """Some rows: views where ``chosen`` is a slice, copies where it is numbers."""
        return Rows(
            theta=self._theta[chosen],
            theta_grad=self._theta_grad[chosen],
            start=self._start[chosen],
            private=self._mine[chosen],
            private_grad=self._mine_grad[chosen],
            columns=self._columns,
            state={key: value[chosen] for key, value in self._kept.items()},
            received={key: value[chosen] for key, value in self._sent.items()},
        )

    def _parameters(self, rows: Rows, moves: Sequence[str]) -> dict[str, Tensor]:
        """The named tensors of these rows; only what moves gets a gradient."""
        named: dict[str, Tensor] = {}
        specs = {"shared": self._layout.communicated, "private": self._layout.private}
        for row, own in specs.items():
            values, gradients = rows.of(row)
            given = gradients if row in moves else None
            named |= leaves(values, given, own, by_kind=isinstance(self._model, HasLosses))
        return named

    def _note(
        self,
        steps: Steps,
        means: np.ndarray,
        trace: list[dict[str, Any]],
        turns: Sequence[Sequence[str]],
    ) -> None:
        """Write down what the first rows have done: ``means`` [steps, a] are their losses.

        ``turns``: the steps with every batch, as in ``train``.
        """
        numbers = self._numbers[: len(steps.counts)]
        losses = np.zeros((len(means), len(self._steps)))
        losses[:, numbers] = means
        _require_finite(losses, self._steps, self._name)
        for record in trace:
            client = record["client"]
            record["task_loss"] = float(losses[record["step"] - self._steps[client], client])
        self._losses.append(losses)
        self._trace.extend(trace)
        self._steps[numbers] += steps.counts
        self._gradients[numbers] += steps.counts * len(turns)
        self._personal[numbers] += steps.counts * sum(tuple(turn) == ("private",) for turn in turns)
        self._processed[numbers] += steps.drawn * len(turns)

    def _traced(self, rows: Rows, step: int) -> list[dict[str, Any]]:
        """Records of every ``trace_every``-th step of these clients, but for the losses."""
        numbers = self._numbers[: len(rows.theta)]
        own = (self._steps[numbers] + step).tolist()
        every = self._work.trace_every
        if all(count % every for count in own):
            return []
        return [row for row in _trace(rows, numbers, own) if row["step"] % every == 0]


def log_class_shares(
    batches: Sequence[Sequence[np.ndarray]], labels: Tensor, classes: int
) -> Tensor:
    """Return the logarithms of every client's class shares, [M, classes] float64.

    Of a class that a client lacks, the share counts as 1e-9 samples.
    """
    rows = []
    for own in batches:
        index = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *own]))
        counts = np.bincount(labels[index].cpu().numpy(), minlength=classes)
        rows.append(np.log(np.maximum(counts, 1e-9) / max(1, counts.sum())))
    return torch.from_numpy(np.array(rows).reshape(len(rows), classes))


def _plain(name: str) -> str:
    """The optimiser's own name of what is kept as ``private.{name}`` or ``own.{name}``."""
    return name.partition(".")[2]


def _require_finite(losses: np.ndarray, before: np.ndarray, name: Callable[[int], str]) -> None:
    """Raise for the first loss [steps, M] that is not finite, ``before`` [M] steps being done."""
    broken = np.argwhere(~np.isfinite(losses))
    if len(broken):
        step, client = broken[0].tolist()
        raise FloatingPointError(
            f"{name(client)}: the loss is not finite at local step {before[client] + step + 1}; "
            "lower the learning rates (eta_g, eta_p, eta_m) or look at its data"
        )


def _fix(rows: Rows, moves: Sequence[str]) -> None:
    """Take away what terms would do to a row that does not move; it is not clipped with either."""
    for row in ROWS:
        if row not in moves:
            rows.of(row)[1].zero_()


def _clip(rows: Rows, limit: float) -> None:
    """Scale every client's whole gradient to norm ``limit`` at most."""
    square = rows.theta_grad.square().sum(1) + rows.private_grad.square().sum(1)
    scale = (limit / (root(square) + 1e-6)).clamp_(max=1.0)[:, None]
    rows.theta_grad.mul_(scale)
    rows.private_grad.mul_(scale)


def _optimisers(work: LocalWork, layout: Layout, theta: Tensor, mine: Tensor) -> dict[str, Mover]:
    """What moves each of the two rows, where there is something to move."""
    rates = {"shared": work.eta_g, "private": work.eta_p, "gate": work.eta_m}
    rates |= {"own": work.eta_g, "frozen": 0.0, "measured": 0.0}
    # A factor that is not trained has no gradient, and a rate of 0 keeps it where it is.
    per_column = [rates[s.group] if s.trainable else 0.0 for s in layout.private]
    sizes = torch.tensor([spec.size for spec in layout.private], dtype=torch.int64)
    rate = torch.tensor(per_column, dtype=torch.float64).repeat_interleave(sizes).to(mine)
    movers: dict[str, Mover] = {}
    if layout.d:
        still = [spec for spec in layout.communicated if not spec.trainable]
        shared: Tensor | float = float(work.eta_g)
        if still:
            shared = torch.full((layout.d,), work.eta_g, dtype=torch.float64).to(theta)
            for spec in still:
                shared[offsets(layout.communicated)[spec.name]] = 0.0
        movers["shared"] = Mover(work.optimiser, theta, shared)
    if layout.d_private:
        movers["private"] = Mover(work.optimiser, mine, rate)
    return movers


def _trace(rows: Rows, numbers: np.ndarray, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Records of these clients at their steps, but for the losses, which are known afterwards."""
    gates = sigmoid(rows.private[:, rows.columns.gates]).cpu().numpy()
    gate = gate_penalty(rows.private, rows.columns).cpu().numpy()
    private = private_penalty(rows.private, rows.columns).cpu().numpy()
    records = []
    for k, client in enumerate(numbers):
        record: dict[str, Any] = {
            "client": int(client),
            "step": steps[k],
            "gate_penalty": float(gate[k]),
            "private_penalty": float(private[k]),
        }
        if gates.shape[1]:
            record |= {
                "gate_min": float(gates[k].min()),
                "gate_mean": float(gates[k].mean()),
                "gate_max": float(gates[k].max()),
            }
        records.append(record)
    return records
