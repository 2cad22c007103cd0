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
from fedsdg.next_federation.model_names import Layout
from fedsdg.next_federation.records import add_gates, facts_of_client
from fedsdg.next_federation.scoring import CLIENTS_PER_PASS, evaluate_logits, merged_weights
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.next_federation.store import ClientRows, PendingRows
from fedsdg.next_federation.tasks import Phase, Results

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
    "int64 [n], evaluated clients that may take part"
    right: np.ndarray
    "int64 [n], validation samples that each client's model gets right"


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
    trained = (kept.counts.trained > 0) | setup.sharing.central
    models = evaluation_models(setup, server, kept, t, regular, new)
    clients = np.flatnonzero(regular | new)
    val, test, expected, val_right = _accuracies(setup, models, clients)
    columns: dict[str, Any] = means_over_clients(setup, val, test, expected, regular, new, trained)
    columns |= global_metrics(setup, server, np.flatnonzero(regular))
    for name, value in columns.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"round {t}: {name} is {value}; lower the learning rates")
    branches = branch_columns(setup, server, kept, np.flatnonzero(setup.honest & trained))
    for client in clients.tolist():
        row = rows.setdefault(client, facts_of_client(setup, t, client))
        row["val_accuracy"] = float(val[client])
        row["test_accuracy"] = float(test[client])
        if setup.test_views is not None:
            row["expected_accuracy"] = float(expected[client])
        row["drawn"] = bool(trained[client])
        row["steps"] = int(kept.counts.steps[client])
        row |= branches.get(client, {})
    add_gates(setup, kept, np.array(sorted(rows)), rows)
    columns["evaluation_steps"] = models.steps
    return Evaluation(columns, models, np.flatnonzero(regular), val_right[regular])


def _accuracies(
    setup: Setup, models: EvaluationModels, clients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return accuracies on validation, test and global test samples, and right answers, [K] each.

    Each client's model is asked once about all of its samples.
    """
    val, test, expected = np.full((3, setup.num_clients), np.nan)
    val_right = np.zeros(setup.num_clients, dtype=np.int64)
    shards = setup.shards
    lists = [
        np.concatenate([shards.val[client], shards.test[client], _test_images(setup, client)])
        for client in clients
    ]
    labels = setup.samples.labels.cpu().numpy()
    predicted = predictions(setup, models, clients, lists)
    for client, numbers, classes in zip(clients, lists, predicted, strict=True):
        right = classes == labels[numbers]
        ends = np.cumsum([len(shards.val[client]), len(shards.test[client])])
        val_right[client] = right[: ends[0]].sum()
        val[client] = right[: ends[0]].mean()
        test[client] = right[ends[0] : ends[1]].mean()
        if setup.test_views is not None:
            weights = setup.test_views.weights[client]
            names = setup.test_views.labels[client][weights > 0]
            right = classes[ends[1] :] == names
            expected[client] = accuracy_of_client(right, weights[weights > 0])
    return val, test, expected, val_right


def _test_images(setup: Setup, client: int) -> np.ndarray:
    """Return the images of the global test set that count for a client."""
    if setup.test_views is None:
        return np.empty(0, dtype=np.int64)
    return setup.test_views.index[client][setup.test_views.weights[client] > 0]


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
    models, which = distinct_downloads(setup, server, everyone)
    trained = kept.counts.trained > 0
    found = EvaluationModels(models, which, kept, trained)
    method = setup.personalisation
    if method.tuning_epochs:
        tuned = everyone if setup.held_out is None else np.flatnonzero(~setup.held_out | new)
        phase = Phase(method.tuning_epochs)
        layout = setup.layout.of_copy(method.head_alone)
        results = _train(setup, server, kept, t, "evaluation", tuned, phase, layout)
        copies = models[torch.from_numpy(which)].clone()
        copies[torch.from_numpy(tuned).to(copies.device)] = results.theta
        rows = PendingRows(kept, tuned, {"private": results.private}, kept.counts)
        steps = int(results.steps.sum())
        return replace(found, models=copies, which=everyone, kept=rows, steps=steps)
    if not setup.layout.trains_private:
        return found
    for purpose, chosen, epochs in (
        ("refresh", regular & trained, setup.schedule.refresh),
        ("new-clients", new, EPOCHS_OF_NEW_CLIENTS),
    ):
        if epochs and chosen.any():
            clients = np.flatnonzero(chosen)
            phase = setup.own_phase(epochs)
            results = _train(setup, server, found.kept, t, purpose, clients, phase, setup.layout)
            own = {"private": setup.own_rows(results)}
            found = replace(
                found,
                kept=PendingRows(found.kept, clients, own, kept.counts),
                uses_private=found.uses_private | chosen,
                steps=found.steps + int(results.steps.sum()),
            )
    return found


def _train(
    setup: Setup,
    server: Server,
    kept: ClientRows,
    t: int,
    purpose: str,
    clients: np.ndarray,
    phase: Phase,
    layout: Layout,
) -> Results:
    """Train clients for an evaluation."""
    tasks = download(setup, server, kept, clients, purpose, t, (phase,))
    return setup.batcher.train(setup, layout, tasks, (phase,), f"round {t}, {purpose}")


def distinct_downloads(
    setup: Setup, server: Server, clients: np.ndarray
) -> tuple[Tensor, np.ndarray]:
    """Return the distinct models [U, d] that n clients would download, and which [n] each would."""
    mixing = setup.rule.mixing(server.state, clients)
    mixtures, which = np.unique(mixing, axis=0, return_inverse=True)
    models = server.models
    if len(models) > 1:
        models = torch.from_numpy(mixtures).to(models) @ models
    return models, which.ravel()


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

    def ask(users: np.ndarray, lists: list[np.ndarray], *, private: bool) -> np.ndarray:
        theta = models.models[torch.from_numpy(models.which[clients[users]])]
        rows = models.kept.read("private", clients[users])
        weights = merged_weights(setup, theta, rows, private=private)
        parts = evaluate_logits(setup, weights, lists, lambda logits, _: logits.argmax(1))
        return torch.cat(parts).cpu().numpy()

    def note(users: np.ndarray, classes: np.ndarray) -> None:
        ends = np.cumsum([len(lists[k]) for k in users])
        for k, own in zip(users, np.split(classes, ends[:-1]), strict=True):
            predicted[k] = own

    if not setup.layout.own_parameters:
        for model in np.unique(models.which[clients]):
            users = np.flatnonzero(models.which[clients] == model)
            numbers = np.concatenate([lists[k] for k in users])
            distinct, position = np.unique(numbers, return_inverse=True)
            note(users, ask(users[:1], [distinct], private=True)[position.ravel()])
        return predicted
    for private in (True, False):
        users = np.flatnonzero(models.uses_private[clients] == private)
        for some in np.split(users, range(CLIENTS_PER_PASS, len(users), CLIENTS_PER_PASS)):
            if len(some):
                note(some, ask(some, [lists[k] for k in some], private=private))
    return predicted


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
    models, which = distinct_downloads(setup, server, clients)
    test = setup.shards.global_test
    found = []
    for number, theta in enumerate(models):
        val = np.concatenate([setup.shards.val[k] for k in clients[which == number]])
        weights = merged_weights(setup, theta[None], setup.private[None], private=False)
        right, loss = _right_and_loss(setup, weights, test)
        right_val, _ = _right_and_loss(setup, weights, val)
        found.append((right / len(test), loss / len(test), right_val / len(val), len(val)))
    accuracy, loss_of, val_accuracy, val_sizes = np.array(found).T
    users = np.bincount(which) if len(models) > 1 else None
    return {
        "global_accuracy": float(np.average(accuracy, weights=users)),
        "global_loss": float(np.average(loss_of, weights=users)),
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


def means_over_clients(
    setup: Setup,
    val: np.ndarray,
    test: np.ndarray,
    expected: np.ndarray,
    regular: np.ndarray,
    new: np.ndarray,
    trained: np.ndarray,
) -> dict[str, float]:
    """Return means over the evaluated clients, and over groups of them.

    Args:
        setup: The federation.
        val: [K] accuracies on validation samples.
        test: [K] accuracies on test samples.
        expected: [K] accuracies on the global test set as each client sees it.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
        trained: bool [K], clients that have taken part.
    """
    sizes = setup.shards.test_sizes[regular]
    found = {
        "personal_accuracy": test[regular].mean(),
        "personal_std": test[regular].std(),
        "personal_accuracy_weighted": np.average(test[regular], weights=sizes),
        "val_accuracy": val[regular].mean(),
    }
    counted = regular & trained
    if counted.any():
        found["personal_worst_decile"] = worst_decile(test[counted])
    if setup.test_views is not None:
        found["expected_accuracy"] = expected[regular].mean()
        found["expected_std"] = expected[regular].std()
        if counted.any():
            found["expected_worst_decile"] = worst_decile(expected[counted])
        differs = setup.facts.get("conflicts", np.zeros(0, dtype=bool))
        groups = {"new": new}
        if len(differs):
            groups |= {"a": regular & ~differs, "b": regular & differs}
        for name, members in groups.items():
            if members.any():
                found[f"expected_accuracy_{name}"] = expected[members].mean()
    return {name: float(value) for name, value in found.items()}


def worst_decile(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth of values [n], at least of one."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())
