"""The server in a round: what arrives in time, and what the rule makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Aggregate, Context
from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohorts import draw_batches
from fedsdg.federation.environment.timing import Ending, Updates, end_of_round, everything_arrives
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation


def arrive(
    one: Federation,
    round_: int,
    cohort: np.ndarray,
    local: LocalResult,
    uploads: Mapping[str, Tensor],
) -> Ending:
    """What of this round's updates, and of those on their way, the server has at its end."""
    norms = torch.linalg.vector_norm(local.theta, dim=1, dtype=torch.float64).cpu().numpy()
    born = np.full(len(cohort), round_)
    clock = one.circumstances.clock
    if clock is None:
        return everything_arrives(Updates(cohort, born, norms * 0, norms, uploads))
    due = one.now + local.steps / clock.speeds[cohort]
    sent = Updates(cohort, born, due, norms, uploads)
    return end_of_round(clock, round_, one.now, sent, one.pending)


def take_step(one: Federation, round_: int, arrived: Updates) -> Aggregate:
    """Move the server's models and the rule's state on by what has arrived, if anything has."""
    clients = arrived.clients
    if not len(clients):
        return Aggregate(torch.zeros_like(one.models), None, one.state, {})
    sizes = one.train_sizes[clients]
    ages = round_ - arrived.born
    context = Context(
        round=round_,
        clients=clients,
        num_clients=one.num_clients,
        num_samples=sizes,
        total_samples=one.total_samples,
        num_batches=one.batches_of(sizes),
        client_samples=one.train_sizes,
        parameter_norm=float(arrived.norms.max()),
        models=one.models,
        held_out=one.circumstances.num_held_out,
        ages=ages if ages.any() else None,
    )
    uploads = dict(arrived.rows)
    if "adapters" in getattr(one.rule, "reads", ()):
        uploads["adapters"] = arrived.update[:, : one.layout.before_head]
    if "server" in getattr(one.rule, "reads", ()):
        uploads["server"] = _trained_by_server(one, round_)
    aggregate = one.rule(uploads, context, one.state)
    steps = aggregate.steps.to(one.theta.dtype)
    one.theta = one.theta + (steps if one.theta.dim() == 2 else steps[0])
    one.state = aggregate.state
    return aggregate


def _trained_by_server(one: Federation, round_: int) -> Tensor:
    """[C, d]: what training as the clients do it makes of each model of the server.

    On the samples that the server holds, by cross-entropy alone; nobody sends anything for it.
    """
    models = one.models
    batches = draw_batches(
        one.shards.benchmark,
        batch_size=one.schedule.batch_size,
        epochs=one.work.epochs(one.schedule.epochs),
        generator=stream("server", one.seed, round_),
    )
    private = one.private.expand(len(models), -1).clone()
    where = f"round {round_}, the server on its own samples"
    trainer = Clients([batches] * len(models), models, private, name=lambda _: where)
    plain = replace(one.work, terms=(), stopping=None, trace_every=0, private_optimiser="restart")
    trained = one.passes.train(one.model, one.layout, one.samples, trainer, plain)
    return trained.theta - models
