"""The clients' side of a round: who takes part, what clients download, and what they keep."""

import copy
from dataclasses import replace

import numpy as np
import torch

from fedsdg.federation.batches import Epochs, draw_epochs, pooled_batches
from fedsdg.federation.conditions.condition import Participation
from fedsdg.federation.observers.observer import RoundView
from fedsdg.federation.phases import Phase
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.store import ClientRows, PendingRows
from fedsdg.federation.tasks import Tasks
from fedsdg.rng import stream


def draw_cohort(setup: Setup, t: int) -> np.ndarray:
    """Draw the clients of round t without replacement, among those that may train, sorted."""
    generator = stream("cohort", setup.data.seed, t)
    drawn = generator.choice(len(setup.trainable), setup.schedule.clients_per_round, replace=False)
    return np.sort(setup.trainable[drawn])


def select_participants(setup: Setup, server: Server, t: int) -> Participation:
    """Return who trains in round t: of the drawn clients those that nothing keeps from it."""
    drawn = setup.trainable[:1] if setup.sharing.central else draw_cohort(setup, t)
    participation = Participation(drawn)
    if setup.compute is not None:
        busy = np.empty(0) if server.in_flight is None else server.in_flight.clients
        free = drawn[~np.isin(drawn, busy)]
        participation = Participation(free, row={"passed_over": len(drawn) - len(free)})
    for condition in setup.conditions:
        participation = condition.select_participants(setup, t, participation)
    clients = participation.present
    limits = None if setup.compute is None else setup.compute.limits(setup, clients)
    if limits is None:
        return participation
    silent = clients[(limits == 0).any(axis=1)]
    trains = limits.any(axis=1)
    row = {**participation.row, **({"out_of_time": len(silent)} if len(silent) else {})}
    return replace(
        participation, present=clients[trains], silent=silent, limits=limits[trains], row=row
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
    absent = torch.from_numpy(kept.counts.arrived[clients] < kept.counts.arrived.max())
    for name in (name for term in setup.work.terms for name in term.reset_after_absence):
        vectors[name][absent.to(vectors[name].device)] = 0
    method = setup.personalisation
    begin = start
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
        begin=begin,
        private=private,
        kept=vectors,
        received={name: vector.expand(len(clients), -1) for name, vector in received.items()},
        batches=[draw_batches(setup, purpose, t, client, epochs) for client in clients.tolist()],
        gamma=None if setup.stopping is None else setup.data.facts["gamma"][clients],
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
    shard = setup.data.train[client]
    if not len(shard):
        raise ValueError(
            f"client {client} has no training sample; give each client some with "
            "partition.min_samples"
        )
    if setup.sharing.central and purpose == "batches":
        pool = np.concatenate([setup.data.train[k] for k in setup.trainable])
        cohorts = [draw_cohort(setup, past) for past in range(1, t + 1)]
        counts = [epochs * int(setup.sizes[cohort].sum()) for cohort in cohorts]
        return pooled_batches(pool, counts, size, setup.data.seed)
    return draw_epochs(shard, size, epochs, stream(purpose, setup.data.seed, t, client))


def updated_rows(view: RoundView) -> PendingRows:
    """Return what clients keep after a round.

    Clients whose update is not sent, or is thrown away in this round, keep their previous term
    state. What a probe uploads under a name that clients keep, they keep.
    """
    results = view.results
    present = view.participation.present
    coming = [sent.clients for sent in (view.arrived, view.after.in_flight) if sent is not None]
    sending = view.participation.sends & np.isin(present, np.concatenate(coming))
    sends = torch.from_numpy(sending).to(results.theta.device)
    rows = {name: value.clone() for name, value in view.tasks.kept.items()}
    for name, value in results.kept.items():
        # The optimiser of what is private goes on whatever is sent.
        changed = torch.ones_like(sends) if name.startswith("private.") else sends
        rows[name] = torch.where(changed[:, None], value.to(rows[name]), rows[name])
    for probe in view.measured:
        for name in probe.rows.keys() & rows.keys():
            measured = probe.rows[name].to(rows[name])  # Of all that send.
            rows[name][sends] = measured[sends[view.participation.sends]]
    rows["private"] = view.setup.own_rows(results)
    counts = copy.deepcopy(view.store.counts)
    counts.trained[present] = view.t
    counts.arrived[view.arrived.clients] = view.t
    counts.steps[present] += results.counts["steps"]
    return PendingRows(view.store, present, rows, counts)
