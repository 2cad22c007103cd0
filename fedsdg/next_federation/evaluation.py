"""Evaluation: clients' own models on their own samples, and on the test set as they see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.next_federation.accuracy import accuracy_of_client
from fedsdg.next_federation.branches import branch_columns
from fedsdg.next_federation.clients import download
from fedsdg.next_federation.records import add_gates, facts_of_client
from fedsdg.next_federation.scoring import CLIENTS_PER_PASS, evaluate_logits, merged_weights
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.next_federation.store import ClientRows, PendingRows
from fedsdg.next_federation.tasks import Phase

EPOCHS_OF_NEW_CLIENTS = 2
"""Epochs of private training for a client that never takes part, before it is evaluated."""


@dataclass(frozen=True)
class EvaluationModels:
    """The models with which K clients are evaluated."""

    models: Tensor
    "[U, d]"
    which: np.ndarray
    "int64 [K], the model of each client"
    kept: ClientRows
    "what is read of their private rows"
    uses_private: np.ndarray
    "bool [K], clients that have a private row to use"
    steps: int = 0
    "local steps that were taken for the evaluation and are discarded"


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation yields."""

    columns: Mapping[str, Any]
    "of the round's record"
    models: EvaluationModels
    clients: np.ndarray
    "int64 [n], clients that were evaluated and have taken part or could have"
    right: np.ndarray
    "int64 [n], validation samples that each client's model gets right"


@dataclass(frozen=True)
class _Accuracies:
    """Accuracies of K clients; NaN of those that are not evaluated."""

    val: np.ndarray
    test: np.ndarray
    expected: np.ndarray
    val_right: np.ndarray


def evaluate(
    setup: Setup, server: Server, kept: ClientRows, t: int, rows: dict[int, dict[str, Any]]
) -> Evaluation:
    """Evaluate all honest clients after round t.

    Clients that never train are evaluated in the last quarter of the rounds, apart from the others.

    Args:
        setup: The federation.
        server: The server after the round.
        kept: What clients keep after it.
        t: The round.
        rows: The records of clients, to which columns and the missing clients are added.

    Raises:
        FloatingPointError: A result is not finite.
    """
    never = np.zeros(setup.num_clients, dtype=bool) if setup.held_out is None else setup.held_out
    regular = setup.honest & ~never
    new = setup.honest & never & setup.schedule.in_last_quarter(t)
    trained = kept.counts.trained > 0
    if setup.sharing.central:
        trained = np.ones_like(trained)
    models = evaluation_models(setup, server, kept, t, regular, new)
    clients = np.flatnonzero(regular | new)
    accuracies = _accuracies(setup, models, clients)
    columns: dict[str, Any] = summary(setup, accuracies, regular, new, trained)
    columns |= global_metrics(setup, server, np.flatnonzero(regular))
    for name, value in columns.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"round {t}: {name} is {value}; lower the learning rates")
    branches = branch_columns(setup, server, kept, np.flatnonzero(setup.honest & trained))
    for client in clients.tolist():
        row = rows.setdefault(client, facts_of_client(setup, t, client))
        row["val_accuracy"] = float(accuracies.val[client])
        row["test_accuracy"] = float(accuracies.test[client])
        if setup.test_views is not None:
            row["expected_accuracy"] = float(accuracies.expected[client])
        row["drawn"] = bool(trained[client])
        row["steps"] = int(kept.counts.steps[client])
        row |= branches.get(client, {})
    add_gates(setup, kept, np.array(sorted(rows)), rows)
    columns["evaluation_steps"] = models.steps
    counted = np.flatnonzero(regular)
    return Evaluation(columns, models, counted, accuracies.val_right[counted])


def _accuracies(setup: Setup, models: EvaluationModels, clients: np.ndarray) -> _Accuracies:
    """Ask each client's model once about its validation, its test and the global test samples."""
    views = setup.test_views
    lists = []
    for client in clients.tolist():
        parts = [setup.shards.val[client], setup.shards.test[client]]
        if views is not None:
            parts.append(views.index[client][views.weights[client] > 0])
        lists.append(np.concatenate(parts))
    labels = setup.samples.labels.cpu().numpy()
    val = np.full(setup.num_clients, np.nan)
    test = val.copy()
    expected = val.copy()
    val_right = np.zeros(setup.num_clients, dtype=np.int64)
    classes = predictions(setup, models, clients, lists)
    for client, numbers, predicted in zip(clients.tolist(), lists, classes, strict=True):
        right = predicted == labels[numbers]
        end_val = len(setup.shards.val[client])
        end_test = end_val + len(setup.shards.test[client])
        val_right[client] = right[:end_val].sum()
        val[client] = _mean(right[:end_val])
        test[client] = _mean(right[end_val:end_test])
        if views is not None:
            weights = views.weights[client]
            counted = weights > 0
            right_there = predicted[end_test:] == views.labels[client][counted]
            expected[client] = accuracy_of_client(right_there, weights[counted])
    return _Accuracies(val, test, expected, val_right)


def evaluation_models(
    setup: Setup, server: Server, kept: ClientRows, t: int, regular: np.ndarray, new: np.ndarray
) -> EvaluationModels:
    """Return the models with which clients are evaluated after round t; none is fed back.

    Usually a client uses what it would download with what it keeps. With fine-tuning it tunes a
    copy first. With `refresh`, and for clients that never take part, what is private is trained
    alone on the downloaded model first.

    Args:
        setup: The federation.
        server: The server after the round.
        kept: What clients keep after it.
        t: The round.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
    """
    everyone = np.arange(setup.num_clients)
    models = server.models
    which = np.zeros(len(everyone), dtype=np.int64)
    if len(models) > 1:
        mixing = setup.rule.mixing(server.state, everyone)
        mixtures, which = np.unique(mixing, axis=0, return_inverse=True)
        models = torch.from_numpy(mixtures).to(models) @ models
    trained = kept.counts.trained > 0
    usual = EvaluationModels(models, which.ravel(), kept, trained)
    if setup.personalisation.tuning_epochs:
        return _tuned(setup, server, usual, t, new)
    if not setup.layout.trains_private:
        return usual
    refreshed = usual
    for purpose, clients, epochs in (
        ("refresh", regular & trained, setup.schedule.refresh),
        ("new-clients", new, EPOCHS_OF_NEW_CLIENTS),
    ):
        if epochs and clients.any():
            numbers = np.flatnonzero(clients)
            refreshed = _refreshed(setup, server, refreshed, t, purpose, numbers, epochs)
    return refreshed


def _tuned(
    setup: Setup, server: Server, usual: EvaluationModels, t: int, new: np.ndarray
) -> EvaluationModels:
    """Let every client tune a copy of the model."""
    everyone = np.arange(setup.num_clients)
    clients = everyone
    if setup.held_out is not None:
        clients = np.flatnonzero(~setup.held_out | new)
    personalisation = setup.personalisation
    phases = (Phase(personalisation.tuning_epochs),)
    layout = setup.layout.of_copy(personalisation.head_alone)
    tasks = download(setup, server, usual.kept, clients, "evaluation", t, phases)
    results = setup.batcher.train(setup, layout, tasks, phases, f"round {t}, evaluation")
    models = usual.models[torch.from_numpy(usual.which)].clone()
    models[torch.from_numpy(clients).to(models.device)] = results.theta
    rows = {"private": results.private}
    kept = PendingRows(usual.kept, clients, rows, usual.kept.counts)
    steps = int(results.steps.sum())
    return replace(usual, models=models, which=everyone, kept=kept, steps=steps)


def _refreshed(
    setup: Setup,
    server: Server,
    before: EvaluationModels,
    t: int,
    purpose: str,
    clients: np.ndarray,
    epochs: int,
) -> EvaluationModels:
    """Let clients train what is private alone on the model that they would download."""
    phases = (setup.own_phase(epochs),)
    tasks = download(setup, server, before.kept, clients, purpose, t, phases)
    results = setup.batcher.train(setup, setup.layout, tasks, phases, f"round {t}, {purpose}")
    uses_private = before.uses_private.copy()
    uses_private[clients] = True
    rows = {"private": setup.own_rows(results)}
    return replace(
        before,
        kept=PendingRows(before.kept, clients, rows, before.kept.counts),
        uses_private=uses_private,
        steps=before.steps + int(results.steps.sum()),
    )


def predictions(
    setup: Setup, models: EvaluationModels, clients: np.ndarray, lists: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return for each client the classes that its model gives to the samples of its list.

    A model that clients share is asked once about each sample.

    Args:
        setup: The federation.
        models: The models of all clients.
        clients: [n] client numbers.
        lists: Sample numbers for each of the n clients.
    """
    predicted = [np.empty(0, dtype=np.int64)] * len(clients)
    if not setup.layout.own_parameters:
        for model in np.unique(models.which[clients]):
            users = np.flatnonzero(models.which[clients] == model)
            asked = [lists[k] for k in users]
            numbers, position = np.unique(np.concatenate(asked), return_inverse=True)
            classes = _classes(setup, models, clients[users[:1]], [numbers], private=True)
            for k, own in zip(users, _split(classes[position.ravel()], asked), strict=True):
                predicted[k] = own
        return predicted
    for private in (True, False):
        users = np.flatnonzero(models.uses_private[clients] == private).tolist()
        for begin in range(0, len(users), CLIENTS_PER_PASS):
            some = users[begin : begin + CLIENTS_PER_PASS]
            asked = [lists[k] for k in some]
            classes = _classes(setup, models, clients[some], asked, private=private)
            for k, own in zip(some, _split(classes, asked), strict=True):
                predicted[k] = own
    return predicted


def _classes(
    setup: Setup,
    models: EvaluationModels,
    clients: np.ndarray,
    lists: Sequence[np.ndarray],
    *,
    private: bool,
) -> np.ndarray:
    """Return the classes that the models of clients give to the samples of all lists."""
    theta = models.models[torch.from_numpy(models.which[clients])]
    rows = models.kept.read("private", clients)
    weights = merged_weights(setup, theta, rows, private=private)
    parts = evaluate_logits(setup, weights, lists, lambda logits, _: logits.argmax(1))
    return torch.cat(parts).cpu().numpy()


def global_metrics(setup: Setup, server: Server, clients: np.ndarray) -> dict[str, float]:
    """Return accuracy and loss of the server's model on the global test set.

    If there are several models, they are means over clients of the model that each downloads.

    Args:
        setup: The federation.
        server: The server.
        clients: [n] clients whose validation samples count.
    """
    if not setup.layout.global_model:
        return {}
    mixing = setup.rule.mixing(server.state, clients)
    mixtures, which = np.unique(mixing, axis=0, return_inverse=True)
    which = which.ravel()
    models = server.models
    if len(models) > 1:
        models = torch.from_numpy(mixtures).to(models) @ models
    test = setup.shards.global_test
    found = []
    for model, theta in enumerate(models):
        val = np.concatenate([setup.shards.val[k] for k in clients[which == model]])
        weights = merged_weights(setup, theta[None], setup.private[None], private=False)
        right, loss = _right_and_loss(setup, weights, test)
        right_val, _ = _right_and_loss(setup, weights, val)
        found.append((right / len(test), loss / len(test), right_val / len(val), len(val)))
    accuracy, loss, val_accuracy, val_sizes = np.array(found).T
    users = np.bincount(which) if len(models) > 1 else None
    return {
        "global_accuracy": float(np.average(accuracy, weights=users)),
        "global_loss": float(np.average(loss, weights=users)),
        "global_val_accuracy": float(np.average(val_accuracy, weights=val_sizes)),
    }


def _right_and_loss(setup: Setup, weights: Any, index: np.ndarray) -> tuple[float, float]:
    """Return the number of right answers and the sum of cross-entropies."""

    def sums(logits: Tensor, labels: Tensor) -> Tensor:
        right = (logits.argmax(1) == labels).sum()
        return torch.stack([right.to(logits), cross_entropy(logits, labels, reduction="sum")])

    parts = evaluate_logits(setup, weights, [index], sums)
    right, loss = torch.stack(parts).double().sum(0).tolist()
    return right, loss


def summary(
    setup: Setup, of: _Accuracies, regular: np.ndarray, new: np.ndarray, trained: np.ndarray
) -> dict[str, float]:
    """Return means over the evaluated clients, and over groups of them.

    Args:
        setup: The federation.
        of: The accuracies of clients.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
        trained: bool [K], clients that have taken part.
    """
    sizes = setup.shards.test_sizes[regular]
    found = {
        "personal_accuracy": float(of.test[regular].mean()),
        "personal_std": float(of.test[regular].std()),
        "personal_accuracy_weighted": float(np.average(of.test[regular], weights=sizes)),
        "val_accuracy": float(of.val[regular].mean()),
    }
    counted = regular & trained
    if counted.any():
        found["personal_worst_decile"] = worst_decile(of.test[counted])
    if setup.test_views is None:
        return found
    found["expected_accuracy"] = float(of.expected[regular].mean())
    found["expected_std"] = float(of.expected[regular].std())
    if counted.any():
        found["expected_worst_decile"] = worst_decile(of.expected[counted])
    groups = {"new": new}
    if "conflicts" in setup.facts:
        differs = setup.facts["conflicts"]
        groups |= {"a": regular & ~differs, "b": regular & differs}
    for name, members in groups.items():
        if members.any():
            found[f"expected_accuracy_{name}"] = float(of.expected[members].mean())
    return found


def worst_decile(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth of values [n], at least of one."""
    count = math.ceil(len(values) / 10)
    return float(np.sort(values)[:count].mean())


def _split(values: np.ndarray, lists: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Split values of all lists, one after the other, into those of each."""
    return np.split(values, np.cumsum([len(numbers) for numbers in lists])[:-1])


def _mean(right: np.ndarray) -> float:
    return float(right.mean()) if len(right) else math.nan
