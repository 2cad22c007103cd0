"""Local training of a whole cohort at once: clients are rows, and one pass serves them all.

Every client takes its own batches with its own optimiser state. Rows are worked on in the order
of how many steps they have, longest first, so that the clients still training are always a
leading block of the matrices: whoever has finished costs nothing, and no batch is padded.

Between the first step and the last nothing travels between the host and the device: the batches
are sent at once before, and the losses are fetched and looked at afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.optimisers import OPTIMISERS, Optimiser
from fedsdg.federation.rows import PrivateColumns, Rows
from fedsdg.federation.terms import Term, gate_penalty, private_penalty
from fedsdg.models.parameters import Layout, leaves


class Model(Protocol):
    """What is trained: predictions for samples that stand client by client (see CohortModel)."""

    def logits(
        self, images: Tensor, counts: Sequence[int], parameters: Mapping[str, Tensor]
    ) -> Tensor:
        """Predictions [B, ...] of ``images`` [B, ...], ``counts[k]`` of them of client k."""


@dataclass(frozen=True)
class LocalWork:
    """How clients train: optimiser, learning rates of Eq. 6-8, clipping, objective terms.

    ``loss(logits, labels, reduction="none")`` is the task loss per sample.
    """

    optimiser: str
    eta_g: float
    eta_p: float
    eta_m: float
    clip_norm: float
    terms: tuple[Term, ...] = ()
    trace_every: int = 0
    loss: Callable[..., Tensor] = cross_entropy


@dataclass(frozen=True)
class Samples:
    """The samples all clients draw from: ``images`` [n, C, H, W], ``labels`` [n] int64."""

    images: Tensor
    labels: Tensor


def _numbered(k: int) -> str:
    return f"row {k}"


@dataclass(frozen=True)
class Clients:
    """M clients to be trained, one row each.

    ``batches[k]`` are client k's sample indices, step by step; ``start`` [M, d] and ``private``
    [M, d_p] its parameters; ``state[name]`` [M, d] what the terms keep for it; ``received[name]``
    [M, d] what its server sent beside the model. ``name(k)`` names client k in errors.
    """

    batches: Sequence[Sequence[np.ndarray]]
    start: Tensor
    private: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    received: Mapping[str, Tensor] = field(default_factory=dict)
    name: Callable[[int], str] = _numbered

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, chosen: np.ndarray) -> Clients:
        """The clients in the rows ``chosen`` (int64), in that order."""
        rows = torch.from_numpy(chosen).to(self.start.device)
        name, numbers = self.name, chosen.tolist()
        return Clients(
            [self.batches[k] for k in numbers],
            self.start[rows],
            self.private[rows],
            {key: value[rows] for key, value in self.state.items()},
            {key: value[rows] for key, value in self.received.items()},
            lambda k: name(numbers[k]),
        )

    @classmethod
    def joined(cls, groups: Sequence[Clients]) -> Clients:
        """The clients of all groups, one group after another."""
        rows = [(group, k) for group in groups for k in range(len(group))]
        first = groups[0]
        return cls(
            [own for group in groups for own in group.batches],
            torch.cat([group.start for group in groups]),
            torch.cat([group.private for group in groups]),
            {key: torch.cat([group.state[key] for group in groups]) for key in first.state},
            {key: torch.cat([group.received[key] for group in groups]) for key in first.received},
            lambda k: rows[k][0].name(rows[k][1]),
        )


@dataclass
class LocalResult:
    """What a cohort comes back with, one row or entry a client, in the order it was given.

    ``theta`` [M, d], ``private`` [M, d_p]; ``uploads`` and ``state`` from the terms ([M, d] each);
    ``loss`` [M] mean task loss over a client's batches; ``steps``, ``samples`` [M];
    ``trace`` records of every ``trace_every``-th batch.
    """

    theta: Tensor
    private: Tensor
    uploads: dict[str, Tensor]
    state: dict[str, Tensor]
    loss: np.ndarray
    steps: np.ndarray
    samples: np.ndarray
    trace: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, chosen: np.ndarray) -> LocalResult:
        """The clients in the rows ``chosen`` (int64), in that order."""
        rows = torch.from_numpy(chosen).to(self.theta.device)
        place = {client: k for k, client in enumerate(chosen.tolist())}
        return LocalResult(
            self.theta[rows],
            self.private[rows],
            {key: value[rows] for key, value in self.uploads.items()},
            {key: value[rows] for key, value in self.state.items()},
            self.loss[chosen],
            self.steps[chosen],
            self.samples[chosen],
            [
                {**row, "client": place[row["client"]]}
                for row in self.trace
                if row["client"] in place
            ],
        )

    @classmethod
    def nobody(cls, clients: Clients) -> LocalResult:
        """What no client at all comes back with."""
        none = np.empty(0, dtype=np.int64)
        state = dict(clients.state)
        return cls(clients.start, clients.private, {}, state, np.empty(0), none, none)

    @classmethod
    def joined(cls, results: Sequence[LocalResult]) -> LocalResult:
        """The clients of all results, one after another; the trace goes step by step."""
        starts = np.cumsum([0, *(len(result.steps) for result in results)]).tolist()
        trace = [
            {**row, "client": row["client"] + start}
            for start, result in zip(starts, results, strict=False)
            for row in result.trace
        ]
        first = results[0]
        return cls(
            torch.cat([result.theta for result in results]),
            torch.cat([result.private for result in results]),
            {key: torch.cat([result.uploads[key] for result in results]) for key in first.uploads},
            {key: torch.cat([result.state[key] for result in results]) for key in first.state},
            np.concatenate([result.loss for result in results]),
            np.concatenate([result.steps for result in results]),
            np.concatenate([result.samples for result in results]),
            sorted(trace, key=lambda row: row["step"]),
        )


def train_cohort(
    model: Model,
    layout: Layout,
    samples: Samples,
    batches: Sequence[Sequence[np.ndarray]],
    start: Tensor,
    private: Tensor,
    work: LocalWork,
    *,
    state: Mapping[str, Tensor] | None = None,
    received: Mapping[str, Tensor] | None = None,
    name: Callable[[int], str] = _numbered,
) -> LocalResult:
    """Train M clients, each on its own batches, from ``start`` [M, d] and ``private`` [M, d_p].

    Per step and client: the mean cross-entropy of its batch, plus the terms' gradients; the
    gradient over all of the client's parameters is clipped to ``clip_norm``; the terms may then
    correct it; the optimiser moves the client. Inputs are not modified.

    ``batches[k]`` are client k's sample indices, step by step. ``received`` holds a vector [d] for
    all clients, or a row each [M, d]. ``name(k)`` names client k in errors. Raises
    ``FloatingPointError`` when a client's loss was not finite, and ``ValueError`` when a client has
    no batch.
    """
    sent = {key: value.expand(len(batches), -1) for key, value in (received or {}).items()}
    clients = Clients(batches, start, private, dict(state or {}), sent, name)
    return train_clients(model, layout, samples, clients, work)


def train_clients(
    model: Model, layout: Layout, samples: Samples, clients: Clients, work: LocalWork
) -> LocalResult:
    """``train_cohort`` of clients that have been put together already."""
    schedule = _Schedule.of(clients, samples.labels.device)
    order, counts = schedule.order, schedule.counts
    back = torch.from_numpy(np.argsort(order))
    rows_of = torch.from_numpy(order).to(clients.start.device)

    begun = clients.start[rows_of]
    theta, mine = begun.clone(), clients.private[rows_of].clone()
    theta_grad, mine_grad = torch.zeros_like(theta), torch.zeros_like(mine)
    kept = {key: value[rows_of] for key, value in clients.state.items()}
    sent = {key: value[rows_of] for key, value in clients.received.items()}
    columns = PrivateColumns.of(layout, begun.device)
    movers = _optimisers(work, layout, theta, mine)

    shares: list[Tensor] = []
    trace: list[dict[str, Any]] = []
    active, parameters, rows = -1, {}, None
    for step, sizes in enumerate(schedule.sizes):
        if len(sizes) != active:
            active = len(sizes)
            parameters = {
                **leaves(theta[:active], theta_grad[:active], layout.communicated),
                **leaves(mine[:active], mine_grad[:active], layout.private),
            }
            rows = Rows(
                theta=theta[:active],
                theta_grad=theta_grad[:active],
                start=begun[:active],
                private=mine[:active],
                private_grad=mine_grad[:active],
                columns=columns,
                state={key: value[:active] for key, value in kept.items()},
                received={key: value[:active] for key, value in sent.items()},
            )
        assert rows is not None
        rows.theta_grad.zero_()
        rows.private_grad.zero_()
        index, size = schedule.batch(step)
        logits = model.logits(samples.images[index], sizes, parameters)
        each = work.loss(logits, samples.labels[index], reduction="none")
        share = each / size.to(each.dtype)
        # Clients share no parameter: the gradient of the sum is every client's own gradient.
        share.sum().backward()
        shares.append(share.detach())
        for term in work.terms:
            term.add_gradient(rows)
        _clip(rows, work.clip_norm)
        for term in work.terms:
            term.correct(rows)
        if work.trace_every and step % work.trace_every == 0:
            trace.extend(_trace(rows, order[:active], step))
        for mover, values, gradients in movers:
            mover.step(values[:active], gradients(rows))

    losses = schedule.means(torch.cat(shares))
    _require_finite(losses, clients.name)
    for record in trace:
        record["task_loss"] = float(losses[record["step"], record["client"]])

    everyone = Rows(theta, theta_grad, begun, mine, mine_grad, columns, kept, sent)
    uploads: dict[str, Tensor] = {}
    kept_next: dict[str, Tensor] = {}
    steps = torch.from_numpy(counts[order]).to(begun.device)
    for term in work.terms:
        added, stays = term.finish(everyone, steps, work.eta_g)
        uploads |= {key: value[back] for key, value in added.items()}
        kept_next |= {key: value[back] for key, value in stays.items()}
    return LocalResult(
        theta=theta[back],
        private=mine[back],
        uploads=uploads,
        state=kept_next,
        # Added up step by step; np.sum would choose another order for a single client.
        loss=np.cumsum(losses, axis=0)[-1] / counts,
        steps=counts,
        samples=np.array([sum(map(len, own)) for own in clients.batches], dtype=np.int64),
        trace=trace,
    )


@dataclass(frozen=True)
class _Schedule:
    """The batches of all steps, on the device: step by step, in a step by ``order``.

    ``order`` [M]: clients by their number of steps, longest first; ``counts`` [M]: those numbers,
    by client; ``sizes[step]``: batch sizes of the clients still training. ``index`` and ``size``
    [n, on the device], ``owner`` [n]: of every sample drawn its index, the size of its batch, and
    step · M + client.
    """

    order: np.ndarray
    counts: np.ndarray
    sizes: list[list[int]]
    ends: np.ndarray
    index: Tensor
    size: Tensor
    owner: np.ndarray

    @classmethod
    def of(cls, clients: Clients, device: torch.device) -> _Schedule:
        for k, own in enumerate(clients.batches):
            if not own:
                raise ValueError(
                    f"{clients.name(k)} has no training batch; give every client a sample"
                )
        counts = np.array([len(own) for own in clients.batches])
        order = np.argsort(-counts, kind="stable")
        batches: list[np.ndarray] = []
        sizes: list[list[int]] = []
        owners: list[int] = []
        for step in range(int(counts.max())):
            active = order[: int((counts > step).sum())].tolist()
            drawn = [clients.batches[k][step] for k in active]
            batches += drawn
            sizes.append([len(batch) for batch in drawn])
            owners += [step * len(counts) + k for k in active]
        lengths = np.array([len(batch) for batch in batches])
        return cls(
            order=order,
            counts=counts,
            sizes=sizes,
            ends=np.cumsum([0, *(sum(step) for step in sizes)]),
            index=torch.from_numpy(np.concatenate(batches)).to(device),
            size=torch.from_numpy(np.repeat(lengths, lengths)).to(device),
            owner=np.repeat(owners, lengths),
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(sample indices, size of each sample's batch) of all clients still training."""
        part = slice(self.ends[step], self.ends[step + 1])
        return self.index[part], self.size[part]

    def means(self, shares: Tensor) -> np.ndarray:
        """Mean loss by step and client [steps, M], 0 after a client's last step.

        ``shares`` [n]: loss of every sample over the size of its batch; added up in float64.
        """
        places = len(self.sizes) * len(self.counts)
        sums = np.bincount(self.owner, shares.double().cpu().numpy(), minlength=places)
        return sums.reshape(len(self.sizes), len(self.counts))


def _require_finite(losses: np.ndarray, name: Callable[[int], str]) -> None:
    """Raise for the first loss [steps, M] that is not finite."""
    broken = np.argwhere(~np.isfinite(losses))
    if len(broken):
        step, client = broken[0].tolist()
        raise FloatingPointError(
            f"{name(client)}: the loss is not finite at local step {step + 1}; "
            "lower the learning rates (eta_g, eta_p, eta_m) or look at its data"
        )


def _clip(rows: Rows, limit: float) -> None:
    """Scale every client's whole gradient to norm ``limit`` at most."""
    square = rows.theta_grad.square().sum(1) + rows.private_grad.square().sum(1)
    scale = (limit / (square.sqrt() + 1e-6)).clamp_(max=1.0)[:, None]
    rows.theta_grad.mul_(scale)
    rows.private_grad.mul_(scale)


def _optimisers(
    work: LocalWork, layout: Layout, theta: Tensor, mine: Tensor
) -> list[tuple[Optimiser, Tensor, Callable[[Rows], Tensor]]]:
    make = OPTIMISERS[work.optimiser]
    rates = {"shared": work.eta_g, "private": work.eta_p, "gate": work.eta_m}
    # A frozen private factor has no gradient, and a rate of 0 keeps it where it is.
    per_column = [rates[s.group] if s.trainable else 0.0 for s in layout.private]
    sizes = torch.tensor([spec.size for spec in layout.private], dtype=torch.int64)
    rate = torch.tensor(per_column, dtype=torch.float64).repeat_interleave(sizes).to(mine)
    movers: list[tuple[Optimiser, Tensor, Callable[[Rows], Tensor]]] = []
    if layout.d:
        movers.append((make(theta, float(work.eta_g)), theta, lambda rows: rows.theta_grad))
    if layout.d_private:
        movers.append((make(mine, rate), mine, lambda rows: rows.private_grad))
    return movers


def _trace(rows: Rows, order: np.ndarray, step: int) -> list[dict[str, Any]]:
    """Records of this step, but for the losses, which are known when all steps are done."""
    gates = torch.sigmoid(rows.private[:, rows.columns.gates]).cpu().numpy()
    gate = gate_penalty(rows.private, rows.columns).cpu().numpy()
    private = private_penalty(rows.private, rows.columns).cpu().numpy()
    records = []
    for k, client in enumerate(order):
        record: dict[str, Any] = {
            "client": int(client),
            "step": step,
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
