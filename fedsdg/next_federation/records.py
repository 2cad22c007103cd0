"""What a run records of a round beside its evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.types import Aggregate
from fedsdg.aggregation.weights import weight_summary
from fedsdg.files import hint
from fedsdg.files.columns import Column
from fedsdg.files.records import CLIENTS_SCHEMA, METRICS_OF_GROUPS, ROUNDS_SCHEMA
from fedsdg.next_federation.conditions.condition import Participation
from fedsdg.next_federation.model_names import sigmoid
from fedsdg.next_federation.setup import Server, Setup, Updates
from fedsdg.next_federation.store import ClientRows
from fedsdg.next_federation.tasks import Results

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
    Column("clients", "gate_penalty", "float64", "Σ_l m_l over the gates of its branch"),
    Column("clients", "private_penalty", "float64", "Σ θ_p² over its private entries"),
    Column("clients", "private_shares", "list of float64", "the private share of each block"),
    Column("clients", "private_ratio", "float64", "‖θ_p‖ / ‖θ_g‖ over adapters alone"),
)
"""What every run adds to the schemas of the records."""


def round_row(
    setup: Setup,
    t: int,
    results: Results,
    arrived: Updates,
    outcome: Aggregate,
    before: Server,
    after: Server,
) -> dict[str, Any]:
    """Return the record of round t: losses, penalties, norms, weights and alignment.

    Args:
        setup: The federation.
        t: The round.
        results: Of the clients that have trained.
        arrived: The updates that the server has aggregated.
        outcome: Of the rule.
        before: The server before the round.
        after: The server after it.
    """
    row: dict[str, Any] = {
        "round": t,
        "local_steps": int(results.steps.sum()),
        "samples_processed": int(results.samples.sum()),
        "personal_steps": int(results.personal.sum()),
        "degenerate": float(outcome.diagnostics.get("degenerate", 0.0)),
        "evaluated": setup.schedule.evaluates(t),
    }
    if not np.isnan(results.loss).all():
        row["train_loss"] = float(np.nanmean(results.loss))
    columns = setup.columns
    if len(results) and len(columns.gates):  # both penalties of Eq. 5, without their weights
        gates = sigmoid(results.private[:, columns.gates])
        row["gate_penalty"] = float(gates.sum(1).double().mean())
    if len(results) and bool(columns.factors.any()):
        squares = (results.private.square() * columns.factors).sum(1)
        row["private_penalty"] = float(squares.double().mean())
    if setup.layout.d and len(arrived):
        statistics = MemoryRows.of_matrix(arrived.update).measure()
        spread = (statistics.norms**2).mean() - statistics.reference_norm**2
        row["update_norm_mean"] = float(statistics.norms.mean())
        row["update_norm_max"] = float(statistics.norms.max())
        row["drift"] = float(np.sqrt(max(spread, 0.0)))
    if outcome.weights is not None:
        summary = weight_summary(outcome.weights)
        row |= {f"weight_{name}": value for name, value in summary.items()}
    alignment = np.asarray(outcome.diagnostics.get("alignment", ()), dtype=np.float64)
    alignment = alignment[~np.isnan(alignment)]  # of clients that the rule did not look at
    if len(alignment):
        functions = {"mean": np.mean, "min": np.min, "max": np.max}
        row |= {f"alignment_{name}": float(of(alignment)) for name, of in functions.items()}
    if "attacker" in setup.facts:
        honest = setup.honest[arrived.clients]
        row["attackers"] = int((~honest).sum())
        if len(after.models) == 1 and honest.any():
            mean = arrived.take(honest).update.double().mean(0)
            step = (after.models - before.models)[0].double()
            row["honest_distance"] = float((step - mean).norm())
    return row


def client_rows(
    setup: Setup,
    t: int,
    participation: Participation,
    results: Results,
    arrived: Updates,
    outcome: Aggregate,
) -> dict[int, dict[str, Any]]:
    """Return a record for each client that trained or whose update arrived, by client.

    Args:
        setup: The federation.
        t: The round.
        participation: Who took part.
        results: Of the clients that have trained.
        arrived: The updates that the server has aggregated.
        outcome: Of the rule.
    """
    present = participation.present
    both = np.union1d(present, arrived.clients).tolist()
    rows = {client: facts_of_client(setup, t, client) for client in both}
    for k, client in enumerate(present.tolist()):
        row = rows[client]
        row["participated"] = True
        row["local_steps"] = int(results.steps[k])
        row["samples_processed"] = int(results.samples[k])
        if not np.isnan(results.loss[k]):
            row["train_loss"] = float(results.loss[k])
        if not participation.sends[k]:
            row["out_of_time"] = True
    declared = {column.name for column in setup.declared_columns if column.table == "diagnostics"}
    values: dict[str, Any] = {
        name: np.asarray(value).tolist()
        for name, value in outcome.diagnostics.items()
        if name in declared | {"alignment"}
    }
    if outcome.weights is not None:
        values["weight"] = outcome.weights.tolist()
    if setup.layout.d:
        norms = torch.linalg.vector_norm(arrived.update, dim=1, dtype=torch.float64)
        values["update_norm"] = norms.tolist()
    for k, client in enumerate(arrived.clients.tolist()):
        rows[client] |= {name: given[k] for name, given in values.items()}
        if arrived.born[k] < t:
            rows[client]["age"] = t - int(arrived.born[k])
    return rows


def facts_of_client(setup: Setup, t: int, client: int) -> dict[str, Any]:
    """Return the columns of a client that its training does not change."""
    facts = {name: values[client].item() for name, values in setup.facts.items()}
    return {
        "round": t,
        "client": client,
        "participated": False,
        "n_train": len(setup.shards.train[client]),
        "n_val": len(setup.shards.val[client]),
        "n_test": len(setup.shards.test[client]),
        **facts,
    }


def add_gates(
    setup: Setup, kept: ClientRows, clients: np.ndarray, rows: Mapping[int, dict[str, Any]]
) -> None:
    """Add the gates of the clients that have trained to their records."""
    trained = clients[kept.counts.trained[clients] > 0]
    if not len(setup.columns.gates) or not len(trained):
        return
    logits = kept.read("private", trained)[:, setup.columns.gates].double().cpu()
    for client, own in zip(trained.tolist(), logits, strict=True):
        rows[client]["gates"] = torch.sigmoid(own).tolist()


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
