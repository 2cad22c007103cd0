"""The server in a round: what arrives in time, and what the rule makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.errors import RuleFault
from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context
from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohorts import draw_batches
from fedsdg.federation.environment.timing import Ending, Updates, end_of_round, everything_arrives
from fedsdg.federation.outcome import check_aggregate
from fedsdg.federation.records import diagnostics_by_client
from fedsdg.files.columns import columns_of
from fedsdg.models.parameters import only_trained
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation


def arrive(
    one: Federation,
    round_: int,
    cohort: np.ndarray,
    local: LocalResult,
    uploads: Mapping[str, Tensor],
    out_of_time: int = 0,
) -> Ending:
    """What of this round's updates, and of those on their way, the server has at its end.

    An update takes the time of all gradients of its client. ``out_of_time``: clients beside the
    ``cohort`` that send nothing.
    """
    theta = local.theta
    if ADAPTERS in getattr(one.rule, "reads", ()):
        theta = theta[:, : one.layout.before_head]
    norms = torch.linalg.vector_norm(theta, dim=1, dtype=torch.float64).cpu().numpy()
    born = np.full(len(cohort), round_)
    clock = one.circumstances.clock
    if clock is None:
        return everything_arrives(Updates(cohort, born, norms * 0, norms, uploads))
    due = one.now + clock.seconds(cohort, local.gradients)
    sent = Updates(cohort, born, due, norms, uploads)
    return end_of_round(clock, round_, one.now, sent, one.pending, out_of_time)


def take_step(one: Federation, round_: int, arrived: Updates) -> Aggregate:
    """Move the server's models and the rule's state on by what has arrived, if anything has."""
    clients = arrived.clients
    if not len(clients):
        return Aggregate(torch.zeros_like(one.models), None, one.state, {})
    sizes = one.train_sizes[clients]
    ages = round_ - arrived.born
    rounding = torch.finfo(arrived.update.dtype).eps / 2 * float(arrived.norms.max())
    context = Context(
        round=round_,
        clients=clients,
        num_clients=one.num_clients,
        num_samples=sizes,
        num_batches=one.batches_of(sizes),
        client_samples=one.train_sizes,
        rounding=lambda update_norm: rounding,
        models=one.models,
        held_out=one.circumstances.num_held_out,
        ages=ages if ages.any() else None,
    )
    uploads = dict(arrived.rows)
    if ADAPTERS in getattr(one.rule, "reads", ()):
        uploads[ADAPTERS] = arrived.update[:, : one.layout.before_head]
    if "server" in getattr(one.rule, "reads", ()):
        uploads["server"] = _trained_by_server(one, round_)
    try:
        aggregate = one.rule(uploads, context, one.state)
        by_client = diagnostics_by_client(columns_of(one.rule))
        check_aggregate(one.rule, aggregate, len(one.models), len(clients), by_client)
    except RuleFault as fault:
        raise RuleFault(f"round {round_}: {fault}") from fault
    steps = aggregate.steps.to(one.theta.dtype)
    if one.layout.turns:
        # A rule may add noise or momentum: parameters that no update trained stay as they are.
        steps = only_trained(steps, one.layout.of_round(*arrived.born.tolist()))
    one.theta = one.theta + (steps if one.theta.dim() == 2 else steps[0])
    one.state = aggregate.state
    return aggregate


def _trained_by_server(one: Federation, round_: int) -> Tensor:
    """[C, d] update of each server model, trained on the server's samples as clients train theirs.

    The loss is the run's, without the terms that the method adds; parameters that rest in this
    round stay as they are. Nothing is sent for it.
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
    layout = one.layout.of_round(round_)
    trained = one.passes.train(one.model, layout, one.samples, trainer, plain)
    return trained.theta - models
