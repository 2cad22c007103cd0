"""Local training of a whole cohort at once: clients are rows, and one pass serves them all.

Every client takes its own batches with its own optimiser state. Rows are worked on in the order
of how many steps they have, longest first, so that the clients still training are always a
leading block of the matrices: whoever has finished costs nothing, and no batch is padded.
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
    name: Callable[[int], str] = "row {}".format,
) -> LocalResult:
    """Train M clients, each on its own batches, from ``start`` [M, d] and ``private`` [M, d_p].

    Per step and client: the mean cross-entropy of its batch, plus the terms' gradients; the
    gradient over all of the client's parameters is clipped to ``clip_norm``; the terms may then
    correct it; the optimiser moves the client. Inputs are not modified.

    ``batches[k]`` are client k's sample indices, step by step. ``name(k)`` names client k in
    errors. Raises ``FloatingPointError`` when a client's loss is not finite, and ``ValueError``
    when a client has no batch.
    """
    for k, own in enumerate(batches):
        if not own:
            raise ValueError(f"{name(k)} has no training batch; give every client a sample")
    counts = np.array([len(own) for own in batches])
    order = np.argsort(-counts, kind="stable")
    back = torch.from_numpy(np.argsort(order))
    rows_of = torch.from_numpy(order).to(start.device)

    begun = start[rows_of]
    theta, mine = begun.clone(), private[rows_of].clone()
    theta_grad, mine_grad = torch.zeros_like(theta), torch.zeros_like(mine)
    kept = {key: value[rows_of] for key, value in (state or {}).items()}
    columns = PrivateColumns.of(layout, start.device)
    movers = _optimisers(work, layout, theta, mine)

    losses = np.zeros(len(batches))
    seen = np.zeros(len(batches), dtype=np.int64)
    trace: list[dict[str, Any]] = []
    active, parameters, rows = -1, {}, None
    for step in range(int(counts.max())):
        if (now := int((counts > step).sum())) != active:
            active = now
            parameters = {
                **leaves(theta[:now], theta_grad[:now], layout.communicated),
                **leaves(mine[:now], mine_grad[:now], layout.private),
            }
            rows = Rows(
                theta=theta[:now],
                theta_grad=theta_grad[:now],
                start=begun[:now],
                private=mine[:now],
                private_grad=mine_grad[:now],
                columns=columns,
                state={key: value[:now] for key, value in kept.items()},
                received=dict(received or {}),
            )
        assert rows is not None
        drawn = [batches[order[k]][step] for k in range(active)]
        sizes = [len(batch) for batch in drawn]
        rows.theta_grad.zero_()
        rows.private_grad.zero_()
        loss = _backward(model, samples, drawn, sizes, parameters, work.loss)
        if not np.isfinite(loss).all():
            culprit = int(order[int(np.flatnonzero(~np.isfinite(loss))[0])])
            raise FloatingPointError(
                f"{name(culprit)}: the loss is not finite at local step {step + 1}; "
                "lower the learning rates (eta_g, eta_p, eta_m) or look at its data"
            )
        for term in work.terms:
            term.add_gradient(rows)
        _clip(rows, work.clip_norm)
        for term in work.terms:
            term.correct(rows)
        losses[order[:active]] += loss
        seen[order[:active]] += sizes
        if work.trace_every and step % work.trace_every == 0:
            trace.extend(_trace(rows, order[:active], step, loss))
        for mover, values, gradients in movers:
            mover.step(values[:active], gradients(rows))

    everyone = Rows(theta, theta_grad, begun, mine, mine_grad, columns, kept, dict(received or {}))
    uploads: dict[str, Tensor] = {}
    kept_next: dict[str, Tensor] = {}
    steps = torch.from_numpy(counts[order]).to(start.device)
    for term in work.terms:
        sent, stays = term.finish(everyone, steps, work.eta_g)
        uploads |= {key: value[back] for key, value in sent.items()}
        kept_next |= {key: value[back] for key, value in stays.items()}
    return LocalResult(
        theta=theta[back],
        private=mine[back],
        uploads=uploads,
        state=kept_next,
        loss=losses / counts,
        steps=counts,
        samples=seen,
        trace=trace,
    )


def _backward(
    model: Model,
    samples: Samples,
    drawn: Sequence[np.ndarray],
    sizes: Sequence[int],
    parameters: Mapping[str, Tensor],
    task_loss: Callable[..., Tensor],
) -> np.ndarray:
    """Accumulate the gradient of each client's mean task loss; return those means, [a]."""
    device = samples.labels.device
    index = torch.from_numpy(np.concatenate(drawn)).to(device)
    logits = model.logits(samples.images[index], sizes, parameters)
    each = task_loss(logits, samples.labels[index], reduction="none")
    repeats = torch.tensor(sizes, device=device)
    shares = each / repeats.to(each.dtype).repeat_interleave(repeats)
    # Clients share no parameter: the gradient of the sum is every client's own gradient.
    shares.sum().backward()
    owner = torch.arange(len(sizes), device=device).repeat_interleave(repeats)
    means = torch.zeros(len(sizes), dtype=torch.float64, device=device)
    return means.index_add_(0, owner, shares.detach().double()).cpu().numpy()


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


def _trace(rows: Rows, order: np.ndarray, step: int, loss: np.ndarray) -> list[dict[str, Any]]:
    gates = torch.sigmoid(rows.private[:, rows.columns.gates]).cpu().numpy()
    gate = gate_penalty(rows.private, rows.columns).cpu().numpy()
    private = private_penalty(rows.private, rows.columns).cpu().numpy()
    records = []
    for k, client in enumerate(order):
        record: dict[str, Any] = {
            "client": int(client),
            "step": step,
            "task_loss": float(loss[k]),
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
