"""The clients' side of a round: what they download, and what they keep."""

from __future__ import annotations

import numpy as np
import torch

from fedsdg.next_federation.batches import Epochs, draw_epochs
from fedsdg.next_federation.conditions.condition import Participation
from fedsdg.next_federation.data_sharing import pooled_batches
from fedsdg.next_federation.participation import draw_cohort
from fedsdg.next_federation.probes import Measured
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.next_federation.store import ClientRows, ClientStore, PendingRows
from fedsdg.next_federation.tasks import Phase, Results, Tasks
from fedsdg.rng import stream


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
    epochs = max(phase.first + phase.epochs for phase in phases)
    vectors = {name: kept.read(name, clients) for name in setup.kept_widths}
    absent = torch.from_numpy(kept.counts.sent[clients] < kept.counts.sent.max())
    for term in setup.work.terms:
        for name in term.reset_after_absence:
            vectors[name][absent.to(vectors[name].device)] = 0
    start = setup.downloads(server, clients)
    private = kept.read("private", clients)
    begin = None
    if setup.personalisation.own_start != "initial":
        new = torch.from_numpy(kept.counts.trained[clients] == 0).to(start.device)
        private = torch.where(new[:, None], start, private)
    if setup.personalisation.own_start == "mixture":
        begin = torch.lerp(start, private, setup.personalisation.mixed_weight or 0.0)
    if setup.own_starts is not None and t == 1 and purpose == "batches":
        begin = setup.own_starts[torch.from_numpy(clients).to(start.device)]
    received = setup.received(server)
    return Tasks(
        clients=clients,
        start=start,
        private=private,
        kept=vectors,
        received={name: vector.expand(len(clients), -1) for name, vector in received.items()},
        batches=[draw_batches(setup, purpose, t, client, epochs) for client in clients.tolist()],
        begin=begin,
        gamma=setup.facts["gamma"][clients] if setup.stopping is not None else None,
    )


def draw_batches(setup: Setup, purpose: str, t: int, client: int, epochs: int) -> Epochs:
    """Draw the batches of a client in round t; they do not depend on the other clients.

    Args:
        setup: The federation.
        purpose: The random stream, such as "batches" for training.
        t: The round.
        client: Its number.
        epochs: Number of epochs.
    """
    size = setup.schedule.batch_size
    if setup.sharing.central and purpose == "batches":
        train = setup.shards.train
        if setup.held_out is not None:
            train = [train[client] for client in np.flatnonzero(~setup.held_out)]
        cohorts = [draw_cohort(setup, past) for past in range(1, t + 1)]
        counts = [epochs * int(setup.sizes[cohort].sum()) for cohort in cohorts]
        return pooled_batches(np.concatenate(train), counts, size, setup.seed)
    generator = stream(purpose, setup.seed, t, client)
    return draw_epochs(setup.shards.train[client], size, epochs, generator)


def updated_rows(
    setup: Setup,
    store: ClientStore,
    t: int,
    participation: Participation,
    tasks: Tasks,
    results: Results,
    measured: list[Measured],
) -> PendingRows:
    """Return what clients keep after round t.

    Clients that sent nothing keep their previous term state. What a probe uploads under a name
    that clients keep, they keep.
    """
    sends = torch.from_numpy(participation.sends).to(results.theta.device)
    rows = {name: value.clone() for name, value in tasks.kept.items()}
    for name, value in results.kept.items():
        of_optimiser = name.startswith("private.")
        changed = torch.ones_like(sends) if of_optimiser else sends
        rows[name] = torch.where(changed[:, None], value.to(rows[name]), rows[name])
    for probe in measured:
        for name in probe.rows.keys() & rows.keys():
            rows[name][sends] = probe.rows[name].to(rows[name])
    rows["private"] = setup.own_rows(results)
    counts = store.counts.after(t, participation.present, participation.sends, results.steps)
    return PendingRows(store, participation.present, rows, counts)
