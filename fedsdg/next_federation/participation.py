"""Which clients take part in a round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsdg.next_federation.conditions.condition import Participation
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.rng import stream


def draw_cohort(setup: Setup, t: int) -> np.ndarray:
    """Draw the clients of round t without replacement, among those that may train, sorted."""
    generator = stream("cohort", setup.seed, t)
    size = setup.schedule.clients_per_round
    if setup.held_out is None:
        drawn = generator.choice(setup.num_clients, size, replace=False)
        return np.sort(drawn).astype(np.int64)
    training = np.flatnonzero(~setup.held_out)
    return np.sort(training[generator.choice(len(training), size, replace=False)])


def select_participants(setup: Setup, server: Server, t: int) -> Participation:
    """Return who trains in round t: of the drawn clients those that nothing keeps from it."""
    clients = np.zeros(1, np.int64) if setup.sharing.central else draw_cohort(setup, t)
    participation = Participation(clients)
    if setup.compute is not None:
        if server.in_flight is not None:
            clients = clients[~np.isin(clients, server.in_flight.clients)]
        busy = len(participation.present) - len(clients)
        participation = Participation(clients, row={"passed_over": busy})
    for condition in setup.conditions:
        participation = condition.select_participants(setup, t, participation)
    return _limit_to_time(setup, participation)


def _limit_to_time(setup: Setup, participation: Participation) -> Participation:
    """Set the steps for which clients have time, and leave out those without any."""
    limits = time_limits(setup, participation.present)
    if limits is None:
        return participation
    clients = participation.present
    trains = limits.any(axis=1)
    silent = clients[(limits == 0).any(axis=1)]
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
    clients = np.arange(setup.num_clients)
    if setup.held_out is not None:
        clients = np.flatnonzero(~setup.held_out)
    if setup.sharing.central:
        clients = clients[:1]  # stands for the one place
    limits = time_limits(setup, clients)
    speeds = setup.facts["speed"][clients]
    batches = setup.batches_per_epoch(clients)
    if limits is not None:
        if (limits == 0).any(axis=1).all():
            most = int(compute.steps_in_time(speeds, batches).max())
            raise ValueError(
                f"conditions.compute.local_seconds = {compute.local_seconds:g} gives each client "
                f"at most {most} local steps in a round, but an update takes {limits.shape[1]} or "
                "more; raise it, max_epochs or the clients' speeds"
            )
        return
    if setup.sharing.central:
        fewest = np.sort(setup.sizes)[: setup.schedule.clients_per_round].sum(keepdims=True)
        batches = -(-fewest // (setup.schedule.batch_size or fewest))
    # A stopping rule may end after the first epoch, before and after which it measures.
    least = sum(min(3, 2 * one.epochs) if one.inexact else one.epochs for one in setup.stages)
    soonest = float((least * batches / speeds).min())
    if compute.deadline is not None and soonest > compute.deadline:
        raise ValueError(
            f"conditions.compute.deadline is {compute.deadline} simulated seconds, but the "
            f"soonest update takes {soonest:.3g}; raise the deadline or the clients' speeds"
        )
