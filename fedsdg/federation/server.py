"""The server's side of a round: what is sent to it, what arrives, and its step."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.errors import RuleFault
from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context
from fedsdg.federation.batches import draw_epochs
from fedsdg.federation.phases import BOTH, SHARED, Phase
from fedsdg.federation.probes import Measured, measure
from fedsdg.federation.scoring import mean_losses
from fedsdg.federation.setup import Server, Setup, Updates
from fedsdg.federation.tasks import Results, Tasks
from fedsdg.models import only_trained
from fedsdg.rng import stream


def upload(
    setup: Setup, server: Server, t: int, tasks: Tasks, results: Results
) -> tuple[Updates, list[Measured]]:
    """Return what the clients of round t send, as it arrives, and what they have measured.

    Args:
        setup: The federation.
        server: The server before the round.
        t: The round.
        tasks: What each of the clients that send something trained.
        results: What it returned.
    """
    requests = setup.rule.probes if len(tasks) else ()
    measured = [measure(setup, server, one, t, tasks, results) for one in requests]
    rows = {"update": results.theta - tasks.start, **results.uploads}
    for probe in measured:
        rows |= probe.rows
    compared = results.theta
    if ADAPTERS in setup.rule.reads:
        compared = compared[:, : setup.layout.before_head]
    due = np.zeros(len(tasks))
    if setup.compute is not None:
        gradients = results.counts["steps"] + results.counts["measured"]
        for probe in measured:
            gradients = gradients + probe.gradients
        speeds = setup.data.facts["speed"][tasks.clients]
        due = server.now + setup.compute.seconds(speeds, gradients)
    sent = Updates(
        clients=tasks.clients,
        born=np.full(len(tasks), t),
        due=due,
        norms=torch.linalg.vector_norm(compared, dim=1, dtype=torch.float64).cpu().numpy(),
        rows=rows,
    )
    for condition in setup.conditions:
        sent = condition.transform_upload(setup, t, sent, tasks)
    if "global_loss" in rows:  # The server measures the other side: what arrives, on its samples.
        losses = mean_losses(
            setup,
            [setup.data.benchmark] * len(tasks),
            results.theta + (sent.update - rows["update"]),
            results.private,
        )
        sent = replace(sent, rows={**sent.rows, "benchmark_loss": losses[:, None]})
    if setup.layout.turns:
        update = only_trained(sent.update, setup.layout.of_round(t))
        sent = replace(sent, rows={**sent.rows, "update": update})
    return sent, measured


def deliver(
    setup: Setup, server: Server, t: int, sent: Updates, silent: int
) -> tuple[Updates, Server, dict[str, Any]]:
    """Let time pass until round t ends.

    Args:
        setup: The federation.
        server: The server before the round.
        t: The round.
        sent: What the clients of the round send.
        silent: Number of clients without time for an update.

    Returns:
        The updates that arrived, the server with what is still on its way, columns of the record.
    """
    if setup.compute is None:
        return sent, server, {}
    waiting = sent if server.in_flight is None else server.in_flight.followed_by(sent)
    arrived, left, end, row = setup.compute.end_round(t, server.now, waiting, silent)
    if t == setup.schedule.rounds:
        row["discarded"] += len(left)
    row |= {"simulated_seconds": end, "arrived": len(arrived)}
    return arrived, replace(server, in_flight=left if len(left) else None, now=end), row


def aggregate(setup: Setup, server: Server, t: int, arrived: Updates) -> Aggregate:
    """Return the outcome of the rule for the updates that have arrived; nothing moves without any.

    Raises:
        ValueError: The rule cannot handle the cohort.
        RuleFault: The rule returned something that is no outcome.
        NonFiniteError: An update is not finite.
    """
    clients = arrived.clients
    if not len(clients):
        return Aggregate(torch.zeros_like(server.models), None, server.state, {})
    ages = t - arrived.born
    rounding = torch.finfo(arrived.update.dtype).eps / 2 * float(arrived.norms.max())
    context = Context(
        round=t,
        clients=clients,
        num_clients=setup.num_clients,
        num_samples=setup.sizes[clients],
        num_batches=setup.batches_per_epoch(clients),
        client_samples=setup.sizes,
        rounding=lambda update_norm: rounding,
        models=server.models,
        held_out=int(setup.held_out.sum()),
        ages=ages if ages.any() else None,
    )
    uploads = dict(arrived.rows)
    if ADAPTERS in setup.rule.reads:
        uploads[ADAPTERS] = arrived.update[:, : setup.layout.before_head]
    if "server" in setup.rule.reads:
        uploads["server"] = server_updates(setup, server, t)
    try:
        outcome = setup.rule(uploads, context, server.state)
        require_outcome(setup, outcome, arrived)
    except RuleFault as fault:
        raise RuleFault(f"round {t}: {fault}") from fault
    steps = outcome.steps.to(server.models)
    if setup.layout.turns:
        # A rule may add noise or momentum: parameters that no update trained stay as they are.
        steps = only_trained(steps, setup.layout.of_round(*arrived.born.tolist()))
    return outcome._replace(steps=steps)


def require_outcome(setup: Setup, outcome: Aggregate, arrived: Updates) -> None:
    """Raise an error unless a rule returned finite steps for all models, and sound diagnostics.

    A diagnostic of clients may hold NaN, for clients that the rule did not look at.

    Raises:
        RuleFault: The rule is at fault.
    """
    returned = f"the rule {type(setup.rule).__name__} returned"
    shape = [len(setup.first), arrived.update.shape[1]]
    if list(outcome.steps.shape) != shape or not bool(torch.isfinite(outcome.steps).all()):
        raise RuleFault(
            f"{returned} steps {list(outcome.steps.shape)}; return finite numbers {shape}, a row "
            "for each model of the server"
        )
    of_clients = {one.name for one in setup.declared_columns if one.table == "diagnostics"}
    for name, value in outcome.diagnostics.items():
        if name in of_clients | {"alignment"} and np.shape(value) != (len(arrived),):
            raise RuleFault(
                f"{returned} the diagnostic {name!r} of shape {list(np.shape(value))}; it is "
                f"recorded with the clients: return {[len(arrived)]}"
            )
        if np.ndim(value) == 0 and not np.isfinite(value):
            raise RuleFault(f"{returned} {value} as its diagnostic {name!r}; return a number")


def server_updates(setup: Setup, server: Server, t: int) -> Tensor:
    """Return the updates [C, d] of the server's models, trained on the server's own samples.

    They train as clients do, without the terms of the method; nothing is sent for it.
    """
    count = len(server.models)
    epochs = setup.schedule.epochs
    generator = stream("server", setup.data.seed, t)
    batches = draw_epochs(setup.data.benchmark, setup.schedule.batch_size, epochs, generator)
    tasks = Tasks(
        clients=np.arange(count),
        start=server.models,
        begin=server.models,
        private=setup.private.expand(count, -1),
        kept={},
        received={},
        batches=[batches] * count,
    )
    alone = replace(setup, work=replace(setup.work, terms=(), trace_every=0))
    where = f"round {t}, the server on its own samples"
    turn = SHARED if setup.layout.global_model else BOTH
    phases = (Phase(epochs, turns=(turn,), alone=True),)
    trained = setup.batcher.train(alone, setup.layout.of_round(t), tasks, phases, where)
    return trained.theta - server.models
