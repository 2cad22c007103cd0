"""Evaluation: clients' own models on their own samples, and on the test set as they see it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.next_federation.clients import download
from fedsdg.next_federation.model_names import Layout
from fedsdg.next_federation.observers.observer import RoundView
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

    def after(self, results: Results, clients: np.ndarray, private: Tensor, **changed: Any) -> Self:
        """Return the models after a training of some clients, with other private rows [n, d_p]."""
        kept = PendingRows(self.kept, clients, {"private": private}, self.kept.counts)
        return replace(self, kept=kept, steps=self.steps + int(results.steps.sum()), **changed)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation yields."""

    models: EvaluationModels
    clients: np.ndarray
    "int64 [n], evaluated clients that may take part"
    val_accuracy: np.ndarray
    "[n] the share of its validation samples that each client's model gets right"


def evaluate(view: RoundView) -> None:
    """Evaluate all honest clients after a round, and add to its records.

    Clients that never train are evaluated in the last quarter of the rounds, apart from the others.

    Raises:
        FloatingPointError: A result is not finite.
    """
    setup = view.setup
    regular = setup.honest & ~setup.held_out
    new = setup.honest & setup.held_out & setup.schedule.in_last_quarter(view.t)
    trained = (view.kept.counts.trained > 0) | setup.sharing.central
    models = evaluation_models(view, regular, new)
    clients = np.flatnonzero(regular | new)
    found = _accuracies(setup, models, clients)
    columns = means_over_clients(setup, found, regular, new, trained)
    columns |= global_metrics(setup, view.after, np.flatnonzero(regular))
    for name, value in columns.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"round {view.t}: {name} is {value}; lower the learning rates")
    view.row |= {**columns, "evaluation_steps": models.steps}
    view.row["personal_steps"] += models.steps
    for client in clients.tolist():
        view.clients.setdefault(client, facts_of_client(setup, view.t, client))
        view.clients[client] |= {
            "drawn": bool(trained[client]),
            "steps": int(view.kept.counts.steps[client]),
            **{name: float(values[client]) for name, values in found.items()},
        }
    add_gates(view)
    view.evaluation = Evaluation(models, np.flatnonzero(regular), found["val_accuracy"][regular])


def _accuracies(
    setup: Setup, models: EvaluationModels, clients: np.ndarray
) -> dict[str, np.ndarray]:
    """Return accuracies on validation, test and global test samples, [K] each, by column.

    Each client's model is asked once about all of its samples. Images of the global test set that
    weigh nothing for a client are left out.
    """
    shards = setup.shards
    views = setup.test_views
    lists = [np.concatenate([shards.val[k], shards.test[k], views.images(k)]) for k in clients]
    predicted = predictions(setup, models, clients, lists)
    labels = setup.samples.labels.cpu().numpy()
    val, test, expected = np.full((3, setup.num_clients), np.nan)
    for client, numbers, classes in zip(clients, lists, predicted, strict=True):
        right = classes == labels[numbers]
        ends = np.cumsum([len(shards.val[client]), len(shards.test[client])])
        val[client] = right[: ends[0]].mean()
        test[client] = right[ends[0] : ends[1]].mean()
        expected[client] = views.accuracy(client, classes[ends[1] :])
    return {"val_accuracy": val, "test_accuracy": test, "expected_accuracy": expected}


def evaluation_models(view: RoundView, regular: np.ndarray, new: np.ndarray) -> EvaluationModels:
    """Return the models with which clients are evaluated after a round; none is fed back.

    Usually a client uses what it would download with what it keeps. With fine-tuning it tunes a
    copy first. With `refresh`, and for clients that never take part, what is private is trained
    alone on the downloaded model first.

    Args:
        view: The round.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
    """
    setup = view.setup
    everyone = np.arange(setup.num_clients)
    trained = view.kept.counts.trained > 0
    models, which = distinct_downloads(setup, view.after, everyone)
    found = EvaluationModels(models, which, view.kept, trained)
    epochs, head_alone = setup.personalisation.tuning
    if epochs:
        tuned = np.flatnonzero(~setup.held_out | new)
        layout = setup.layout.of_copy(head_alone)
        results = _train(view, found, "evaluation", tuned, Phase(epochs), layout)
        copies = models[torch.from_numpy(which)].clone()
        copies[torch.from_numpy(tuned).to(copies.device)] = results.theta
        return found.after(results, tuned, results.private, models=copies, which=everyone)
    if not setup.layout.trains_private:
        return found
    for purpose, chosen, epochs in (
        ("refresh", regular & trained, setup.schedule.refresh),
        ("new-clients", new, EPOCHS_OF_NEW_CLIENTS),
    ):
        if epochs and chosen.any():
            clients = np.flatnonzero(chosen)
            results = _train(view, found, purpose, clients, setup.own_phase(epochs), setup.layout)
            uses_private = found.uses_private | chosen
            own = setup.own_rows(results)
            found = found.after(results, clients, own, uses_private=uses_private)
    return found


def _train(
    view: RoundView,
    models: EvaluationModels,
    purpose: str,
    clients: np.ndarray,
    phase: Phase,
    layout: Layout,
) -> Results:
    """Train clients for an evaluation."""
    setup = view.setup
    tasks = download(setup, view.after, models.kept, clients, purpose, view.t, (phase,))
    return setup.batcher.train(setup, layout, tasks, (phase,), f"round {view.t}, {purpose}")


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
    shared = not setup.layout.own_parameters
    kinds = models.which[clients] if shared else models.uses_private[clients]
    predicted: dict[int, np.ndarray] = {}
    for kind in np.unique(kinds):
        users = np.flatnonzero(kinds == kind)
        most = len(users) if shared else CLIENTS_PER_PASS
        for some in np.split(users, range(most, len(users), most)):
            asked = [lists[k] for k in some]
            distinct, position = np.unique(np.concatenate(asked), return_inverse=True)
            tasks = [distinct] if shared else asked
            who = clients[some[: len(tasks)]]
            theta = models.models[torch.from_numpy(models.which[who])]
            private = models.kept.read("private", who)
            weights = merged_weights(setup, theta, private, private=shared or bool(kind))
            parts = evaluate_logits(setup, weights, tasks, lambda logits, _: logits.argmax(1))
            classes = torch.cat(parts).cpu().numpy()
            ends = np.cumsum([len(numbers) for numbers in asked])[:-1]
            answers = np.split(classes[position.ravel()] if shared else classes, ends)
            predicted |= dict(zip(some.tolist(), answers, strict=True))
    return [predicted[k] for k in range(len(clients))]


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
    accuracies: Mapping[str, np.ndarray],
    regular: np.ndarray,
    new: np.ndarray,
    trained: np.ndarray,
) -> dict[str, float]:
    """Return means over the evaluated clients, and over groups of them.

    Args:
        setup: The federation.
        accuracies: [K] on validation, test and global test samples, by column.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
        trained: bool [K], clients that have taken part.
    """
    sizes = setup.shards.test_sizes[regular]
    personal = accuracies["test_accuracy"]
    expected = accuracies["expected_accuracy"]
    means = {
        "personal_accuracy": personal[regular].mean(),
        "personal_std": personal[regular].std(),
        "personal_accuracy_weighted": np.average(personal[regular], weights=sizes),
        "val_accuracy": accuracies["val_accuracy"][regular].mean(),
        "expected_accuracy": expected[regular].mean(),
        "expected_std": expected[regular].std(),
    }
    if (regular & trained).any():
        means["personal_worst_decile"] = worst_decile(personal[regular & trained])
        means["expected_worst_decile"] = worst_decile(expected[regular & trained])
    groups = {"new": new}
    if "conflicts" in setup.facts:
        differs = setup.facts["conflicts"]
        groups |= {"a": regular & ~differs, "b": regular & differs}
    for name, members in groups.items():
        if members.any():
            means[f"expected_accuracy_{name}"] = expected[members].mean()
    return {name: float(value) for name, value in means.items()}


def worst_decile(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth of values [n], at least of one."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())
