"""Evaluation: clients' own models on their own samples, and on the test set as they see it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.batches import split_batches
from fedsdg.federation.clients import download
from fedsdg.federation.observers.observer import RoundView
from fedsdg.federation.phases import Phase
from fedsdg.federation.records import add_gates, facts_of_client
from fedsdg.federation.scoring import CLIENTS_PER_PASS, evaluate_logits, merged_weights
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.store import ClientRows, PendingRows
from fedsdg.federation.tasks import Results
from fedsdg.models import Layout

Answers = list[np.ndarray]
"""For each model that was asked, [3, n]: class, 1 if it is right, cross-entropy of n samples."""
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
        steps = self.steps + int(results.counts["steps"].sum())
        return replace(self, kept=kept, steps=steps, **changed)


def evaluate(view: RoundView) -> None:
    """Evaluate all honest clients after a round, and add to its records.

    Clients that never train are evaluated in the last quarter of the rounds, apart from the others.
    If only validation is asked for, no model sees a test image.

    Raises:
        FloatingPointError: A result is not finite.
    """
    setup = view.setup
    regular = setup.honest & ~setup.held_out
    new = setup.honest & setup.held_out & (4 * view.t > 3 * setup.schedule.rounds)
    trained = (view.kept.counts.trained > 0) | setup.sharing.central
    downloads = downloaded_models(setup, view.after, view.kept)
    models = evaluation_models(view, downloads, regular, new)
    clients = np.flatnonzero(regular | new)
    lists = _samples_of_clients(setup, clients)
    has_global = setup.layout.global_model and setup.schedule.evaluate == "everything"
    members = np.flatnonzero(regular & has_global)
    which = downloads.which[members]
    users = [members[which == number] for number in np.unique(which)]
    first = np.array([some[0] for some in users], dtype=np.int64)
    common = [_samples_of_server(setup, some) for some in users]
    if models.steps or setup.layout.own_parameters:
        given = answers(setup, models, clients, lists)
        given += answers(setup, downloads, first, common)
    else:  # Clients use the models of the server: each is asked once about an image.
        given = answers(setup, models, np.append(clients, first), lists + common)
    found = _accuracies(setup, clients, given)
    columns = {
        **means_over_clients(setup, found, regular, new, trained),
        **_global_metrics(setup, users, given[len(clients) :]),
    }
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
    view.evaluation = models


def _samples_of_clients(setup: Setup, clients: np.ndarray) -> list[np.ndarray]:
    """Return what clients' models are asked about; images that weigh nothing are left out."""
    data = setup.data
    if setup.schedule.evaluate == "validation":
        return [data.val[k] for k in clients]
    return [
        np.concatenate([data.val[k], data.test[k], setup.test_views.images(k)]) for k in clients
    ]


def _samples_of_server(setup: Setup, users: np.ndarray) -> np.ndarray:
    """Return the global test set, and the validation samples of the users of a model after it."""
    return np.concatenate([setup.data.global_test, *[setup.data.val[k] for k in users]])


def _accuracies(setup: Setup, clients: np.ndarray, given: Answers) -> dict[str, np.ndarray]:
    """Return accuracies on validation, test and global test samples, [K] each, by column.

    Those on tests are left out if only validation is asked for.
    """
    data = setup.data
    everything = setup.schedule.evaluate == "everything"
    validation, own_test, whole_test = np.full((3, setup.num_clients), np.nan)
    for client, (classes, right, _) in zip(clients, given, strict=False):
        ends = np.cumsum([len(data.val[client]), len(data.test[client])])
        validation[client] = right[: ends[0]].mean()
        if everything:
            own_test[client] = right[ends[0] : ends[1]].mean()
            whole_test[client] = setup.test_views.accuracy(client, classes[ends[1] :])
    tests = {"accuracy_own_test": own_test, "accuracy": whole_test} if everything else {}
    return {"val_accuracy": validation, **tests}


def evaluation_models(
    view: RoundView, downloads: EvaluationModels, regular: np.ndarray, new: np.ndarray
) -> EvaluationModels:
    """Return the models with which clients are evaluated after a round; none is fed back.

    Usually a client uses what it would download with what it keeps. With fine-tuning it tunes a
    copy first. With `refresh`, and for clients that never take part, what is private is trained
    alone on the downloaded model first.

    Args:
        view: The round.
        downloads: What clients would download.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
    """
    setup = view.setup
    trained = view.kept.counts.trained > 0
    found = replace(downloads, uses_private=trained)
    epochs, head_alone = setup.personalisation.tuning
    if epochs:
        tuned = np.flatnonzero(~setup.held_out | new)
        layout = setup.layout.of_copy(head_alone)
        results = _train(view, found, "evaluation", tuned, Phase(epochs), layout)
        copies = downloads.models[torch.from_numpy(downloads.which)].clone()
        copies[torch.from_numpy(tuned).to(copies.device)] = results.theta
        return found.after(
            results, tuned, results.private, models=copies, which=np.arange(len(copies))
        )
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


def downloaded_models(setup: Setup, server: Server, kept: ClientRows) -> EvaluationModels:
    """Return the distinct models that clients would download, used without private rows."""
    mixing = setup.rule.mixing(server.state, np.arange(setup.num_clients))
    mixtures, which = np.unique(mixing, axis=0, return_inverse=True)
    models = server.models
    if len(models) > 1:
        models = torch.from_numpy(mixtures).to(models) @ models
    return EvaluationModels(models, which.ravel(), kept, np.zeros(setup.num_clients, dtype=bool))


def answers(
    setup: Setup, models: EvaluationModels, clients: np.ndarray, lists: Sequence[np.ndarray]
) -> Answers:
    """Return for each client what its model says of the samples of its list.

    A model that clients share is asked once about each sample.

    Args:
        setup: The federation.
        models: The models of all clients.
        clients: [n] client numbers.
        lists: Sample numbers for each of the n clients.
    """
    shared = not setup.layout.own_parameters
    kinds = models.which[clients] if shared else models.uses_private[clients]
    found: dict[int, np.ndarray] = {}
    for kind in np.unique(kinds):
        users = np.flatnonzero(kinds == kind)
        for some in split_batches(users, None if shared else CLIENTS_PER_PASS):
            asked = [lists[k] for k in some]
            distinct, position = np.unique(np.concatenate(asked), return_inverse=True)
            tasks = [distinct] if shared else asked
            who = clients[some[: len(tasks)]]
            theta = models.models[torch.from_numpy(models.which[who])]
            private = models.kept.read("private", who)
            weights = merged_weights(setup, theta, private, private=shared or bool(kind))
            values = torch.cat(evaluate_logits(setup, weights, tasks, _answer)).cpu().numpy().T
            ends = np.cumsum([len(numbers) for numbers in asked])[:-1]
            answered = np.split(values[:, position.ravel()] if shared else values, ends, axis=1)
            found |= dict(zip(some.tolist(), answered, strict=True))
    return [found[k] for k in range(len(clients))]


def _answer(logits: Tensor, labels: Tensor) -> Tensor:
    """Return class, whether it is right, and cross-entropy, float64 [B, 3]."""
    classes = logits.argmax(1)
    losses = cross_entropy(logits, labels, reduction="none")
    return torch.stack([classes.double(), (classes == labels).double(), losses.double()], 1)


def _global_metrics(setup: Setup, users: list[np.ndarray], given: Answers) -> dict[str, float]:
    """Return accuracy and loss of the server's model on the global test set.

    If there are several models, they are means over clients of the model that each downloads.
    """
    if not users:
        return {}
    test = len(setup.data.global_test)
    found = []
    for some, (_, right, losses) in zip(users, given, strict=True):
        means = [right[:test].mean(), losses[:test].mean(), right[test:].mean()]
        found.append([*means, len(some), len(right) - test])
    accuracy, loss, val_accuracy, sizes, val_sizes = np.array(found).T
    return {
        "accuracy_shared": float(np.average(accuracy, weights=sizes)),
        "loss_shared": float(np.average(loss, weights=sizes)),
        "val_accuracy_shared": float(np.average(val_accuracy, weights=val_sizes)),
    }


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
        accuracies: [K] on validation, test and global test samples, by column; or on validation
            samples alone.
        regular: bool [K], evaluated clients that may take part.
        new: bool [K], evaluated clients that never do.
        trained: bool [K], clients that have taken part.
    """
    validation = float(accuracies["val_accuracy"][regular].mean())
    if "accuracy_own_test" not in accuracies:
        return {"val_accuracy": validation}
    sizes = setup.data.test_sizes[regular]
    own_test = accuracies["accuracy_own_test"]
    whole_test = accuracies["accuracy"]
    means = {
        "accuracy_own_test": own_test[regular].mean(),
        "accuracy_own_test_std": own_test[regular].std(),
        "accuracy_own_test_weighted": np.average(own_test[regular], weights=sizes),
        "val_accuracy": validation,
        "accuracy": whole_test[regular].mean(),
        "accuracy_std": whole_test[regular].std(),
    }
    if (regular & trained).any():
        means["worst_decile_own_test"] = worst_decile(own_test[regular & trained])
        means["worst_decile"] = worst_decile(whole_test[regular & trained])
    groups = {"new": new}
    if "conflicts" in setup.data.facts:
        differs = setup.data.facts["conflicts"]
        groups |= {"a": regular & ~differs, "b": regular & differs}
    for name, members in groups.items():
        if members.any():
            means[f"accuracy_{name}"] = whole_test[members].mean()
    return {name: float(value) for name, value in means.items()}


def worst_decile(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth of values [n], at least of one."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())
