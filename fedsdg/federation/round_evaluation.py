"""What is found of the models after a round, and which of them are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.contribution import MAX_PLAYERS
from fedsdg.federation.environment.timing import Updates
from fedsdg.federation.evaluation import (
    KnownScores,
    global_metrics,
    known_scores,
    personal_accuracies,
    summary,
    that_count,
)
from fedsdg.federation.judged_models import JudgedModels, judged_models
from fedsdg.federation.local_work import Samples
from fedsdg.federation.memory import trim
from fedsdg.federation.records import Answers, Scribe, local_steps
from fedsdg.federation.saved_models import take_models
from fedsdg.federation.shapley import client_contributions
from fedsdg.models.interface import ScoringModel
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation


def evaluate(
    one: Federation, round_: int, scribe: Scribe, rows: dict[int, dict[str, Any]]
) -> tuple[dict[str, float], int]:
    """What is found of the models after a round, and the steps of clients that train for this.

    ``rows`` of clients are filled in.
    """
    honest = one.circumstances.honest(one.num_clients)
    facts = one.circumstances.facts
    held_out = honest & facts.get("held_out", np.zeros_like(honest))
    judged = honest & ~held_out
    # Clients that never take part train for the occasion, which only what is reported is worth.
    new = held_out & one.schedule.in_last_quarter(round_)
    groups = {"new": new}
    if "conflicts" in facts:
        conflicts = facts["conflicts"].astype(bool)
        groups |= {"a": judged & ~conflicts, "b": judged & conflicts}
    # Where one place trains on the data of all, everybody has taken part.
    trained = one.bank.trained.numpy()
    drawn = np.ones_like(trained) if one.pooling.central else trained
    steps = local_steps([*one.records.clients, *rows.values()], one.num_clients)
    branches = one.branches.measure(
        np.flatnonzero(honest & trained), one.downloads, one.bank.private
    )
    models = judged_models(one, round_, judged, new)
    asked = judged | new
    model, samples = _asked_once(one, models, asked)
    accuracies = personal_accuracies(
        model,
        one.layout,
        samples,
        one.shards.val,
        one.shards.test,
        models.theta,
        models.private,
        models.branch,
        one.seen,
        asked,
    )
    scribe.add_accuracies(rows, accuracies, asked, drawn, steps, branches)
    sizes = one.shards.test_sizes
    if sizes is None:
        sizes = np.array([len(test) for test in one.shards.test])
    found = {
        **summary(accuracies, sizes, judged, drawn, groups),
        **_global_metrics(one, judged, model, samples),
    }
    for name, value in found.items():
        if not math.isfinite(value):
            raise FloatingPointError(
                f"round {round_}: {name} is {value}, since the server's model is beyond the range "
                "of its numbers; lower the learning rates or the rate of the server"
            )
    score = found["val_accuracy"]
    _keep_models(one, round_, models, score)
    if accuracies.right and (one.answers is None or score > one.answers.score):
        one.answers = Answers.of(round_, score, np.flatnonzero(asked), accuracies.right)
    trim()
    return found, models.steps


def _asked_once(
    one: Federation, models: JudgedModels, asked: np.ndarray
) -> tuple[ScoringModel, Samples]:
    """The model and the samples of an evaluation of the clients ``asked`` (bool [K]).

    Where all clients have the server's model, its scores stand in for both: the clients' own
    samples, the global test set and what clients see of it overlap.
    """
    if models.theta.dim() > 1 or one.layout.own_parameters:
        return one.model, one.samples
    shards = one.shards
    pairs = zip(shards.val, shards.test, asked, strict=True)
    own = [part for *pair, wanted in pairs if wanted for part in pair]
    groups = [np.concatenate(own), shards.global_test]
    if one.seen is not None:
        groups.append(np.concatenate(that_count(one.seen, asked).index))
    common = (one.model, one.layout, one.samples)
    return KnownScores(), known_scores(*common, groups, models.theta, one.private)


def _global_metrics(
    one: Federation, judged: np.ndarray, model: ScoringModel, samples: Samples
) -> dict[str, float]:
    """Of the one model; of several, the mean over clients of the model each downloads.

    ``global_val_accuracy`` is that of all validation samples of the ``judged`` clients, each
    with the labels that its client holds.
    """
    if not one.layout.global_model:
        return {}
    clients = np.flatnonzero(judged)
    thetas, of = one.models, np.zeros(len(clients), dtype=np.int64)
    shares: np.ndarray = np.ones(1)
    if one.theta.dim() == 2:
        rows, of = np.unique(one.rule.mixing(one.state, clients), axis=0, return_inverse=True)
        thetas, of = torch.from_numpy(rows).to(one.theta) @ one.theta, of.ravel()
        shares = np.bincount(of)

    def of_each(shards: Sequence[np.ndarray]) -> np.ndarray:
        """(accuracy, loss) of every model on its samples, [C, 2]."""
        common = (model, one.layout, samples)
        pairs = zip(thetas, shards, strict=True)
        return np.array([global_metrics(*common, own, t, one.private) for t, own in pairs])

    found = of_each([one.shards.global_test] * len(thetas))
    accuracy, loss = np.average(found, axis=0, weights=shares)
    pooled = [
        np.concatenate([one.shards.val[k] for k in clients[of == model]])
        for model in range(len(thetas))
    ]
    val = np.average(of_each(pooled)[:, 0], weights=[len(own) for own in pooled])
    return {
        "global_accuracy": float(accuracy),
        "global_loss": float(loss),
        "global_val_accuracy": float(val),
    }


def _keep_models(one: Federation, round_: int, models: JudgedModels, score: float) -> None:
    """Keep the models of a round, if they are those to be kept so far."""
    keep = {
        None: False,
        "last": round_ == one.schedule.rounds,
        "selected": one.saved is None or score > one.saved.score,
    }
    if keep[one.schedule.save]:
        one.saved = take_models(one, models, round_, score)


def add_shapley(
    one: Federation, rows: dict[int, dict[str, Any]], models: Tensor, arrived: Updates
) -> None:
    """Add the Shapley value of each update that arrived, by accuracy on all validation samples.

    The players are the clients whose updates arrived. Other clients have no value, and without any
    update no client has one. Late updates may bring more players than can be enumerated; then only
    the estimate is recorded.
    """
    if not len(arrived):
        return
    index = np.concatenate(one.shards.val)
    game = (one.model, one.layout, one.samples, index, models[0], arrived.update)
    draw = stream("contribution", one.seed)
    exactly = one.schedule.shapley is True and len(arrived) <= MAX_PLAYERS
    found = client_contributions(*game, one.private, draw, exactly=exactly)
    for name, values in found.items():
        for client, value in zip(arrived.clients.tolist(), values.tolist(), strict=True):
            rows[client][name] = value
