"""The clients' side of a round: who takes part, what clients download, and what they keep."""

from dataclasses import replace

import numpy as np
import torch

from fedsdg.next_federation.batches import Epochs, draw_epochs
from fedsdg.next_federation.conditions.condition import Participation
from fedsdg.next_federation.data_sharing import pooled_batches
from fedsdg.next_federation.observers.observer import RoundView
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.next_federation.store import ClientRows, PendingRows
from fedsdg.next_federation.tasks import Phase, Tasks
from fedsdg.rng import stream


def draw_cohort(setup: Setup, t: int) -> np.ndarray:
    """Draw the clients of round t without replacement, among those that may train, sorted."""
    generator = stream("cohort", setup.seed, t)
    drawn = generator.choice(len(setup.trainable), setup.schedule.clients_per_round, replace=False)
    return np.sort(setup.trainable[drawn])


def select_participants(setup: Setup, server: Server, t: int) -> Participation:
    """Return who trains in round t: of the drawn clients those that nothing keeps from it."""
    drawn = np.zeros(1, np.int64) if setup.sharing.central else draw_cohort(setup, t)
    participation = Participation(drawn)
    if setup.compute is not None:
        busy = np.empty(0) if server.in_flight is None else server.in_flight.clients
        free = drawn[~np.isin(drawn, busy)]
        participation = Participation(free, row={"passed_over": len(drawn) - len(free)})
    for condition in setup.conditions:
        participation = condition.select_participants(setup, t, participation)
    clients = participation.present
    limits = time_limits(setup, clients)
    if limits is None:
        return participation
    silent = clients[(limits == 0).any(axis=1)]
    trains = limits.any(axis=1)
    row = {**participation.row, **({"out_of_time": len(silent)} if len(silent) else {})}
    return replace(
        participation, present=clients[trains], silent=silent, limits=limits[trains], row=row
    )


def time_limits(setup: Setup, clients: np.ndarray) -> np.ndarray | None:
    """Return the steps [n, stages] for which these clients have time; None: no limit."""
    if setup.compute is None:
        return None
    speeds = setup.facts["speed"][clients]
    return setup.compute.limits(speeds, setup.batches_per_epoch(clients), setup.stages)


def require_time(setup: Setup) -> None:
    """Raise ValueError if no client could ever send an update in time."""
    compute = setup.compute
    if compute is None:
        return
    clients = setup.trainable[:1] if setup.sharing.central else setup.trainable
    speeds = setup.facts["speed"][clients]
    batches = setup.batches_per_epoch(clients)
    limits = time_limits(setup, clients)
    if limits is not None and (limits == 0).any(axis=1).all():
        most = int(compute.steps_in_time(speeds, batches).max())
        raise ValueError(
            f"conditions.compute.local_seconds = {compute.local_seconds:g} gives each client at "
            f"most {most} local steps in a round, but an update takes {limits.shape[1]} or more; "
            "raise it, max_epochs or the clients' speeds"
        )
    if setup.sharing.central:
        fewest = np.sort(setup.sizes)[: setup.schedule.clients_per_round].sum(keepdims=True)
        batches = -(-fewest // (setup.schedule.batch_size or fewest))
    # A stopping rule may end after the first epoch, before and after which it measures.
    least = sum(min(3, 2 * one.epochs) if one.inexact else one.epochs for one in setup.stages)
    soonest = float((least * batches / speeds).min())
    if limits is None and compute.deadline is not None and soonest > compute.deadline:
        raise ValueError(
            f"conditions.compute.deadline is {compute.deadline} simulated seconds, but the "
            f"soonest update takes {soonest:.3g}; raise the deadline or the clients' speeds"
        )


def download(
    setup: Setup,
    server: Server,
    kept: ClientRows,
    clients: np.ndarray,
    purpose: str,
    t: int,
    phases: tuple[Phase, ...],
) -> Tasks:
    """Return what clients would train in round t, after they have downloaded the server's model.

    Args:
        setup: The federation.
        server: The server before the round.
        kept: What clients keep.
        clients: [M] who downloads.
        purpose: The random stream of their batches.
        t: The round.
        phases: What they train.
    """
    start = setup.downloads(server, clients)
    private = kept.read("private", clients)
    vectors = {name: kept.read(name, clients) for name in setup.kept_widths}
    absent = torch.from_numpy(kept.counts.sent[clients] < kept.counts.sent.max())
    for name in (name for term in setup.work.terms for name in term.reset_after_absence):
        vectors[name][absent.to(vectors[name].device)] = 0
    method = setup.personalisation
    begin = None
    if method.own_start != "initial":
        new = torch.from_numpy(kept.counts.trained[clients] == 0).to(start.device)
        private = torch.where(new[:, None], start, private)
    if method.own_start == "mixture":
        begin = torch.lerp(start, private, method.mixed_weight or 0.0)
    if setup.own_starts is not None and t == 1 and purpose == "batches":
        begin = setup.own_starts[torch.from_numpy(clients).to(start.device)]
    received = setup.received(server)
    epochs = max(phase.first + phase.epochs for phase in phases)
    return Tasks(
        clients=clients,
        start=start,
        private=private,
        kept=vectors,
        received={name: vector.expand(len(clients), -1) for name, vector in received.items()},
        batches=[draw_batches(setup, purpose, t, client, epochs) for client in clients.tolist()],
        begin=begin,
        gamma=None if setup.stopping is None else setup.facts["gamma"][clients],
    )


def draw_batches(setup: Setup, purpose: str, t: int, client: int, epochs: int) -> Epochs:
    """Draw the batches of a client in round t; they do not depend on the other clients.

    Args:
        setup: The federation.
        purpose: The random stream, such as "batches" for training.
        t: The round.
        client: Its number.
        epochs: Number of epochs.

    Raises:
        ValueError: The client has no sample.
    """
    size = setup.schedule.batch_size
    train = setup.shards.train
    if not len(train[client]):
        raise ValueError(
            f"client {client} has no training sample; give each client some with "
            "partition.min_samples"
        )
    if setup.sharing.central and purpose == "batches":
        pool = np.concatenate([train[k] for k in setup.trainable])
        cohorts = [draw_cohort(setup, past) for past in range(1, t + 1)]
        counts = [epochs * int(setup.sizes[cohort].sum()) for cohort in cohorts]
        return pooled_batches(pool, counts, size, setup.seed)
    return draw_epochs(train[client], size, epochs, stream(purpose, setup.seed, t, client))


def updated_rows(view: RoundView) -> PendingRows:
    """Return what clients keep after a round.

    Clients that sent nothing keep their previous term state. What a probe uploads under a name
    that clients keep, they keep.
    """
    results = view.results
    present = view.participation.present
    sending = view.participation.sends
    sends = torch.from_numpy(sending).to(results.theta.device)
    rows = {name: value.clone() for name, value in view.tasks.kept.items()}
    for name, value in results.kept.items():
        # The optimiser of what is private goes on whatever is sent.
        changed = torch.ones_like(sends) if name.startswith("private.") else sends
        rows[name] = torch.where(changed[:, None], value.to(rows[name]), rows[name])
    for probe in view.measured:
        for name in probe.rows.keys() & rows.keys():
            rows[name][sends] = probe.rows[name].to(rows[name])
    rows["private"] = view.setup.own_rows(results)
    counts = view.store.counts.after(view.t, present, sending, results.steps)
    return PendingRows(view.store, present, rows, counts)
