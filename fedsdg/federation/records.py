"""What a run records of a round beside its evaluation."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.weights import weight_summary
from fedsdg.errors import hint
from fedsdg.federation.observers.observer import RoundView
from fedsdg.federation.setup import Setup
from fedsdg.files.columns import Column
from fedsdg.files.records import CLIENTS_SCHEMA, METRICS_OF_GROUPS, ROUNDS_SCHEMA
from fedsdg.models import sigmoid

COLUMNS = (
    Column(
        "rounds",
        "personal_steps",
        "int64",
        "steps beyond those on what all methods train: of a second model and of private "
        "parameters alone, which local_steps counts as well, and those of evaluation_steps",
    ),
    Column(
        "rounds",
        "evaluation_steps",
        "int64",
        "steps before this evaluation, whose result is discarded; local_steps leaves them out",
    ),
    Column("clients", "held_out", "bool", "whether it never trains"),
)
"""What every run adds to the schemas of the records."""


def add_records(view: RoundView) -> None:
    """Add losses, penalties, norms, weights and alignment to the records of a round.

    Every client that trained, or whose update arrived, gets a record.
    """
    counts = view.results.counts
    view.row |= {
        "round": view.t,
        "local_steps": int(counts["steps"].sum()),
        "samples_processed": int(counts["samples"].sum()),
        "personal_steps": int(counts["personal"].sum()),
        "degenerate": float(view.outcome.diagnostics.get("degenerate", 0.0)),
        "evaluated": view.setup.schedule.evaluates(view.t),
    }
    _add_losses_and_penalties(view)
    _add_updates_and_weights(view)
    both = np.union1d(view.participation.present, view.arrived.clients)
    view.clients |= {k: facts_of_client(view.setup, view.t, k) for k in both.tolist()}
    _add_training(view)
    _add_aggregation(view)


def _add_losses_and_penalties(view: RoundView) -> None:
    """Add means over the clients that trained; penalties are without their weights."""
    columns = view.setup.columns
    private = view.results.private
    if not np.isnan(view.results.loss).all():
        view.row["train_loss"] = float(np.nanmean(view.results.loss))
    if len(private) and len(columns.gates):
        gates = sigmoid(private[:, columns.gates])
        view.row["gate_penalty"] = float(gates.sum(1).double().mean())
    if len(private) and bool(columns.factors.any()):
        squares = (private.square() * columns.factors).sum(1)
        view.row["private_penalty"] = float(squares.double().mean())


def _add_updates_and_weights(view: RoundView) -> None:
    """Add norms of the updates that arrived, summaries of weights and alignment, and attacks."""
    arrived = view.arrived
    finite = np.flatnonzero(arrived.update.isfinite().all(1).cpu())  # A rule may leave others out.
    if view.setup.layout.d and len(finite):
        statistics = MemoryRows.of_matrix(arrived.update).subset(finite.tolist()).measure()
        spread = (statistics.norms**2).mean() - statistics.reference_norm**2
        view.row |= {
            "update_norm_mean": float(statistics.norms.mean()),
            "update_norm_max": float(statistics.norms.max()),
            "drift": float(np.sqrt(max(spread, 0.0))),
        }
    if view.outcome.weights is not None:
        summary = weight_summary(view.outcome.weights).items()
        view.row |= {f"weight_{name}": value for name, value in summary}
    alignment = np.asarray(view.outcome.diagnostics.get("alignment", ()), dtype=np.float64)
    alignment = alignment[~np.isnan(alignment)]  # of clients that the rule did not look at
    if len(alignment):
        view.row |= {
            "alignment_mean": float(alignment.mean()),
            "alignment_min": float(alignment.min()),
            "alignment_max": float(alignment.max()),
        }
    if "attacker" in view.setup.data.facts:
        honest = view.setup.honest[arrived.clients]
        view.row["attackers"] = int((~honest).sum())
        if len(view.after.models) == 1 and honest.any():
            mean = arrived.take(honest).update.double().mean(0)
            step = (view.after.models - view.before.models)[0].double()
            view.row["honest_distance"] = float((step - mean).norm())


def _add_training(view: RoundView) -> None:
    """Add to the records of clients what they have trained."""
    sends = view.participation.sends
    for k, client in enumerate(view.participation.present.tolist()):
        view.clients[client] |= {
            "participated": True,
            "local_steps": int(view.results.counts["steps"][k]),
            "samples_processed": int(view.results.counts["samples"][k]),
        }
        if not np.isnan(view.results.loss[k]):
            view.clients[client]["train_loss"] = float(view.results.loss[k])
        if not sends[k]:
            view.clients[client]["out_of_time"] = True


def _add_aggregation(view: RoundView) -> None:
    """Add to the records of clients what the server made of their updates."""
    arrived = view.arrived
    declared = {one.name for one in view.setup.declared_columns if one.table == "diagnostics"}
    given = {n: v for n, v in view.outcome.diagnostics.items() if n in declared | {"alignment"}}
    if view.outcome.weights is not None:
        given["weight"] = view.outcome.weights
    if view.setup.layout.d:
        norms = torch.linalg.vector_norm(arrived.update, dim=1, dtype=torch.float64)
        given["update_norm"] = norms.cpu()
    values = {name: np.asarray(value).tolist() for name, value in given.items()}
    for k, client in enumerate(arrived.clients.tolist()):
        view.clients[client] |= {name: value[k] for name, value in values.items()}
        if arrived.born[k] < view.t:
            view.clients[client]["age"] = view.t - int(arrived.born[k])


def facts_of_client(setup: Setup, t: int, client: int) -> dict[str, Any]:
    """Return the columns of a client that its training does not change."""
    return {
        "round": t,
        "client": client,
        "participated": False,
        "n_train": len(setup.data.train[client]),
        "n_val": len(setup.data.val[client]),
        "n_test": len(setup.data.test[client]),
        **{name: values[client].item() for name, values in setup.data.facts.items()},
    }


def add_gates(view: RoundView) -> None:
    """Add the gates of the clients that have trained to their records."""
    clients = np.array([k for k in view.clients if view.kept.counts.trained[k]], dtype=np.int64)
    if not len(view.setup.columns.gates) or not len(clients):
        return
    logits = view.kept.read("private", clients)[:, view.setup.columns.gates].double().cpu()
    for client, own in zip(clients.tolist(), logits, strict=True):
        view.clients[client]["gates"] = torch.sigmoid(own).tolist()


def require_declared(
    setup: Setup, round_: Mapping[str, Any], clients: Iterable[Mapping[str, Any]]
) -> None:
    """Raise an error for a column that nobody declares, before it could be lost with a run.

    Args:
        setup: The federation.
        round_: The record of a round.
        clients: The records of its clients.

    Raises:
        ValueError: A column is not declared.
    """
    declared = (*COLUMNS, *setup.declared_columns)
    of_rounds = {column.name for column in declared if column.table == "rounds"}
    of_clients = {column.name for column in declared if column.table != "rounds"}
    for table, rows, known in (
        ("rounds", [round_], {*ROUNDS_SCHEMA.names, *METRICS_OF_GROUPS, *of_rounds}),
        ("clients", clients, {*CLIENTS_SCHEMA.names, *of_clients}),
    ):
        for name in sorted(set().union(*rows) - known):
            raise ValueError(
                f"the column {name!r} of {table} is not declared{hint(name, known)}; add it to the "
                "`columns` of the condition, observer or rule that fills it"
            )
