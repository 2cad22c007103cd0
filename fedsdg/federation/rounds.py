"""A round: who trains and with what (`begin`), and what the server makes of it (`finish`)."""

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fedsdg.federation.clients import download, select_participants, updated_rows
from fedsdg.federation.conditions.condition import Participation
from fedsdg.federation.evaluation import evaluate
from fedsdg.federation.observers.observer import RoundView
from fedsdg.federation.records import add_records, require_declared
from fedsdg.federation.server import aggregate, deliver, upload
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.store import ClientStore, PendingRows
from fedsdg.federation.tasks import Results, Tasks
from fedsdg.federation.traffic import add_traffic


@dataclass(frozen=True)
class RoundRecord:
    """What a round adds to the records."""

    round: dict[str, Any]
    clients: list[dict[str, Any]]
    timings: dict[str, Any]


def begin(setup: Setup, server: Server, store: ClientStore, t: int) -> tuple[Participation, Tasks]:
    """Draw the cohort of round t, and let it download the model.

    Args:
        setup: The federation.
        server: The server before the round.
        store: What clients keep.
        t: The round, from 1.

    Returns:
        Who takes part, and what each client that trains begins with, and on which batches.
    """
    participation = select_participants(setup, server, t)
    tasks = download(setup, server, store, participation.present, "batches", t, setup.phases)
    return participation, replace(tasks, limits=participation.limits)


def finish(
    setup: Setup,
    server: Server,
    store: ClientStore,
    t: int,
    participation: Participation,
    tasks: Tasks,
    results: Results,
) -> tuple[Server, PendingRows, RoundRecord]:
    """Send the updates, aggregate those that arrive, and evaluate the models.

    Nothing is changed: neither the server nor the store.

    Args:
        setup: The federation.
        server: The server before the round.
        store: What clients keep.
        t: The round.
        participation: Who takes part.
        tasks: What the clients trained.
        results: What they returned.

    Returns:
        The server after the round, what clients keep after it, and the records.
    """
    started = time.perf_counter()
    sends = participation.sends
    sent, measured = upload(setup, server, t, tasks.take(sends), results.take(sends))
    arrived, after, row = deliver(setup, server, t, sent, len(participation.silent))
    outcome = aggregate(setup, after, t, arrived)
    after = replace(after, models=after.models + outcome.steps, state=outcome.state)
    view = RoundView(
        setup=setup,
        t=t,
        participation=participation,
        tasks=tasks,
        results=results,
        sent=sent,
        measured=measured,
        arrived=arrived,
        outcome=outcome,
        before=server,
        after=after,
        store=store,
        kept=store,
        row={**participation.row, **row},
    )
    kept = updated_rows(view)
    view.kept = kept
    add_records(view)
    add_traffic(view)
    aggregated = time.perf_counter()
    if setup.schedule.evaluates(t):
        evaluate(view)
    for observer in setup.observers:
        observer.observe(view)
    clients = [view.clients[client] for client in sorted(view.clients)]
    require_declared(setup, view.row, clients)
    timings = {
        "round": t,
        "aggregate_seconds": aggregated - started,
        "evaluate_seconds": time.perf_counter() - aggregated,
    }
    return after, kept, RoundRecord(view.row, clients, timings)


def run(
    setup: Setup, server: Server, store: ClientStore, done: int = 0
) -> Iterator[tuple[Server, RoundRecord]]:
    """Run the rounds that are left; the store is written at the end of each round.

    A round that is broken off changes nothing.

    Args:
        setup: The federation.
        server: The server after the rounds that are done.
        store: What clients keep after them.
        done: Number of rounds that are done.

    Yields:
        The server after each round, and the records of the round.

    Raises:
        ValueError: A part tried to end the program, or cannot handle the round.
    """
    for t in range(done + 1, setup.schedule.rounds + 1):
        started = time.perf_counter()
        layout = setup.layout.of_round(t)
        try:
            participation, tasks = begin(setup, server, store, t)
            results = setup.batcher.train(setup, layout, tasks, setup.phases, f"round {t}")
            seconds = time.perf_counter() - started
            server, kept, record = finish(setup, server, store, t, participation, tasks, results)
        except SystemExit as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            part = frame.f_code.co_qualname
            raise ValueError(
                f"round {t}: {part} tried to end the program; let it raise an error"
            ) from error
        store.write(kept.rows, kept.clients, kept.counts)
        record.timings["train_seconds"] = seconds
        yield server, record
