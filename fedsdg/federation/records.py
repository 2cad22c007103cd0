"""What a run writes down: the rows of its tables, made from what a round computed anyway."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.types import Aggregate
from fedsdg.aggregation.weights import weight_summary
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.branches import gate_penalty, private_penalty
from fedsdg.federation.clients import LocalResult
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.environment.timing import Updates
from fedsdg.federation.evaluation import ClientAccuracies
from fedsdg.federation.step_rows import PrivateColumns
from fedsdg.files.columns import Column
from fedsdg.files.records import METRICS, METRICS_OF_GROUPS, recorded_diagnostics
from fedsdg.models.parameters import Layout


@dataclass
class Records:
    """Rows of the four tables of a run, and what its clients must store."""

    #: What every run adds to the schemas since they were made; older records lack it.
    columns: ClassVar[tuple[Column, ...]] = (
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
        Column(
            "clients",
            "answers",
            "binary",
            "in the round selected by validation: a bit for each image of the global test set, in "
            "its order and the first one highest, 1 where the client's own model is right about "
            "it as the client sees it; 0 also where the client holds no image of its class, and "
            "in what is left of the last byte",
        ),
    )
    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    client_storage_bytes: int = 0


@dataclass(frozen=True)
class Answers:
    """What clients' own models get right on the global test set, in the round selected so far.

    ``right``: by client the images as packed bits, the first one highest; ``score``: the mean
    validation accuracy of the round.
    """

    round: int
    score: float
    right: Mapping[int, bytes]

    @classmethod
    def of(
        cls, round_: int, score: float, clients: Iterable[int], right: Sequence[np.ndarray]
    ) -> Answers:
        """Of these clients; ``right``: of all K clients bool [G]."""
        packed = {int(client): np.packbits(right[client]).tobytes() for client in clients}
        return cls(round_, score, packed)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        lengths = [len(own) for own in self.right.values()]
        bits = np.frombuffer(b"".join(self.right.values()), dtype=np.uint8)
        return {
            "round": torch.tensor(self.round),
            "score": torch.tensor(self.score, dtype=torch.float64),
            "clients": torch.tensor(list(self.right), dtype=torch.int64),
            "lengths": torch.tensor(lengths, dtype=torch.int64),
            "bits": torch.from_numpy(bits.copy()),
        }

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Answers:
        """From what ``tensors`` returned."""
        ends = np.cumsum(tensors["lengths"].numpy())[:-1]
        parts = np.split(tensors["bits"].numpy(), ends)
        right = dict(
            zip(tensors["clients"].tolist(), (own.tobytes() for own in parts), strict=True)
        )
        return cls(int(tensors["round"]), float(tensors["score"]), right)

    def beside(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of clients, those of this round with the answers."""
        return [
            {**row, "answers": self.right.get(row["client"])}
            if row["round"] == self.round
            else dict(row)
            for row in rows
        ]


def diagnostics_by_client(own: Iterable[Column]) -> tuple[str, ...]:
    """Return the names of diagnostics recorded for each client; ``own``: the rule's columns."""
    own_names = (one.name for one in own if one.table == "diagnostics")
    return ("alignment", *recorded_diagnostics(), *own_names)


class Scribe:
    """Writes down one round."""

    def __init__(
        self,
        round_: int,
        layout: Layout,
        shards: Shards,
        bank: ClientBank,
        facts: Mapping[str, np.ndarray] | None = None,
        own: Iterable[Column] = (),
        *,
        gates: bool = True,
    ) -> None:
        """``facts``: columns [K] that are the same in every round; ``own``: those of the rule.

        ``gates``: whether rows of participants have their gates.
        """
        self._with_gates = gates
        self._round = round_
        self._diagnostics = diagnostics_by_client(own)
        self._facts = facts or {}
        self._layout = layout
        self._shards = shards
        self._bank = bank
        self._columns = PrivateColumns.of(layout, bank.device)
        self._gates: dict[int, Tensor] = {}

    def round_record(
        self, local: LocalResult, update: Tensor, aggregate: Aggregate
    ) -> dict[str, Any]:
        """Losses, penalties, norms, weights and alignment of the round.

        ``update`` [n, d] is what has arrived; the rest is about those who have trained.
        ``drift`` is the root mean square distance of the clients' parameters from their mean,
        √(mean ‖Δ_k‖² − ‖Δ̄‖²); penalties are means over the cohort, without λ₁ and λ₂.
        """
        diagnostics = aggregate.diagnostics
        record: dict[str, Any] = {
            "round": self._round,
            "local_steps": int(local.steps.sum()),
            "samples_processed": int(local.samples.sum()),
            "personal_steps": int(local.personal.sum()),
            "degenerate": float(diagnostics.get("degenerate", 0.0)),
        }
        trained = local.loss[~np.isnan(local.loss)]
        if len(trained):
            record["train_loss"] = float(trained.mean())
        if len(self._columns.gates) and len(local.loss):
            penalty = gate_penalty(local.private, self._columns)
            record["gate_penalty"] = float(penalty.double().mean())
        if bool(self._columns.factors.any()) and len(local.loss):
            penalty = private_penalty(local.private, self._columns)
            record["private_penalty"] = float(penalty.double().mean())
        if self._layout.d and len(update):
            statistics = MemoryRows.of_matrix(update).measure()
            spread = (statistics.norms**2).mean() - statistics.reference_norm**2
            record["update_norm_mean"] = float(statistics.norms.mean())
            record["update_norm_max"] = float(statistics.norms.max())
            record["drift"] = float(np.sqrt(max(spread, 0.0)))
        if aggregate.weights is not None:
            summary = weight_summary(aggregate.weights)
            record |= {f"weight_{name}": value for name, value in summary.items()}
        if "alignment" in diagnostics:
            scores = np.asarray(diagnostics["alignment"])
            scores = scores[~np.isnan(scores)]  # of clients that the rule did not look at
        if "alignment" in diagnostics and len(scores):
            record["alignment_mean"] = float(scores.mean())
            record["alignment_min"] = float(scores.min())
            record["alignment_max"] = float(scores.max())
        return record

    def participants(
        self,
        cohort: np.ndarray,
        local: LocalResult,
        arrived: Updates,
        aggregate: Aggregate,
        sends: np.ndarray | None = None,
    ) -> dict[int, dict[str, Any]]:
        """One row for each client that trained or whose update arrived, by client id.

        ``sends``: bool [M], which of the cohort had time for an update; None: all.
        """
        rows: dict[int, dict[str, Any]] = {}
        if self._with_gates:
            self._look_up_gates([*cohort.tolist(), *arrived.clients.tolist()])
        for k, client in enumerate(cohort.tolist()):
            row = self._row(client, participated=True)
            if not np.isnan(local.loss[k]):
                row["train_loss"] = float(local.loss[k])
            row["local_steps"] = int(local.steps[k])
            row["samples_processed"] = int(local.samples[k])
            if sends is not None and not sends[k]:
                row["out_of_time"] = True
            rows[client] = row
        names = self._diagnostics
        told = {name: values for name in names if (values := self._told(aggregate, name))}
        norms = torch.linalg.vector_norm(arrived.update, dim=1, dtype=torch.float64).cpu().numpy()
        for k, client in enumerate(arrived.clients.tolist()):
            row = rows.setdefault(client, self._row(client, participated=False))
            if aggregate.weights is not None:
                row["weight"] = float(aggregate.weights[k])
            row |= {name: values[k] for name, values in told.items()}
            if self._layout.d:
                row["update_norm"] = float(norms[k])
            if arrived.born[k] < self._round:
                row["age"] = self._round - int(arrived.born[k])
        return rows

    @staticmethod
    def _told(aggregate: Aggregate, name: str) -> list[Any]:
        """What the rule says of each client under this name; empty where it says nothing."""
        return np.asarray(aggregate.diagnostics.get(name, ())).tolist()

    def add_accuracies(
        self,
        rows: dict[int, dict[str, Any]],
        accuracies: ClientAccuracies,
        judged: np.ndarray,
        drawn: np.ndarray,
        steps: np.ndarray,
        branches: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add what evaluation found to the row of every client that is ``judged`` (bool [K]).

        ``drawn`` (bool [K]): who has ever trained; ``steps`` [K]: the local steps of each so far;
        ``branches``: what is known of private branches, by client (see ``Branches``). Who did not
        take part gets a row.
        """
        self._look_up_gates(np.flatnonzero(judged).tolist())
        for client in np.flatnonzero(judged).tolist():
            row = rows.setdefault(client, self._row(client, participated=False))
            row["val_accuracy"] = float(accuracies.val[client])
            row["test_accuracy"] = float(accuracies.test[client])
            if accuracies.expected is not None:
                row["expected_accuracy"] = float(accuracies.expected[client])
            row |= {"drawn": bool(drawn[client]), "steps": int(steps[client])}
            row |= (branches or {}).get(client, {})

    def _row(self, client: int, *, participated: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "round": self._round,
            "client": client,
            "participated": participated,
            "n_train": len(self._shards.train[client]),
            "n_val": len(self._shards.val[client]),
            "n_test": len(self._shards.test[client]),
        }
        row |= {name: values[client].item() for name, values in self._facts.items()}
        # A client that never took part has no gates yet.
        if client in self._gates:
            row["gates"] = torch.sigmoid(self._gates[client]).tolist()
        return row

    def _look_up_gates(self, clients: Iterable[int]) -> None:
        """Fetch the logits of the gates of these clients, of all in one copy from the device."""
        if not len(self._columns.gates):
            return
        trained = self._bank.trained.numpy()
        new = [k for k in dict.fromkeys(clients) if trained[k] and k not in self._gates]
        if new:
            logits = self._bank.entries(torch.tensor(new), self._columns.gates)
            self._gates |= dict(zip(new, logits.double().cpu(), strict=True))


def last_and_selected(rounds: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last evaluated round, and the first with the highest mean validation accuracy."""
    evaluated = [row for row in rounds if row["evaluated"]]
    selected = max(evaluated, key=lambda row: (row["val_accuracy"], -row["round"]))

    return _said(evaluated[-1]), _said(selected)


def gate_facts(rows: Sequence[Mapping[str, Any]], eta_m: float) -> dict[str, float]:
    """How far gates can have moved in a run, and where they stand in its last evaluation.

    Args:
        rows: The rows of clients. Those that were judged in the last evaluation count, less those
            that never train.
        eta_m: η_m, the learning rate of gates.

    Returns:
        ``gate_travel``: η_m × the local steps of a median client.
        ``gates_a``, ``gates_b``: the mean over blocks and over the clients that agree (all, where
        nobody differs) or differ of their gates, where they have any.
        Nothing where no gate is learned: only such gates are in the rows.
    """
    judged = [row for row in rows if row.get("val_accuracy") is not None]
    last = max((row["round"] for row in judged), default=0)
    final = [row for row in judged if row["round"] == last and not row.get("held_out")]
    if not any(row.get("gates") for row in final):
        return {}
    found = {"gate_travel": eta_m * float(np.median([row["steps"] for row in final]))}
    for name, differs in (("gates_a", False), ("gates_b", True)):
        gates = [
            math.fsum(row["gates"]) / len(row["gates"])
            for row in final
            if row.get("gates") and bool(row.get("conflicts")) == differs
        ]
        if gates:
            found[name] = math.fsum(gates) / len(gates)
    return found


def last_quarter(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the evaluations of the last quarter of R rounds, those of rounds > 3R/4.

    Of each metric the mean of its values, None where it has none. ``evaluations`` is how many
    there are, ``round`` the last of them; a last round is always evaluated, so there is one.
    """
    quarter = [row for row in rounds if row["evaluated"] and 4 * row["round"] > 3 * len(rounds)]
    means: dict[str, Any] = {"round": quarter[-1]["round"], "evaluated": True}
    for name in (*METRICS, *METRICS_OF_GROUPS):
        values = [row[name] for row in quarter if row.get(name) is not None]
        if values:
            means[name] = math.fsum(values) / len(values)
    return {**_said(means), "evaluations": len(quarter)}


def local_steps(rows: Iterable[Mapping[str, Any]], num_clients: int) -> np.ndarray:
    """How many local steps each client has taken according to its rows, [K] int64."""
    steps = np.zeros(num_clients, dtype=np.int64)
    for row in rows:
        steps[row["client"]] += row.get("local_steps") or 0
    return steps


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round and its metrics; those of groups only where there are such."""
    groups = {name: row[name] for name in METRICS_OF_GROUPS if row.get(name) is not None}
    return {"round": row["round"], **{name: row.get(name) for name in METRICS}, **groups}
