"""Evaluation: each client's own model on its own shards and on the test set as that client sees it.

A client's own test shard is small: 22 digits give a standard error of 8 points. The global test
set as the client sees it (``Seen``) is large, and all clients are judged on the same images. The
global model alone is judged on the global test set and on validation samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.local_work import Samples
from fedsdg.federation.losses.loss import sample_weights
from fedsdg.federation.memory import halving
from fedsdg.federation.seen import Seen
from fedsdg.models.interface import ScoringModel
from fedsdg.models.parameters import Layout, views

#: Samples in one pass, and clients whose merged weights exist at the same time.
CHUNK = 1024
CLIENTS_PER_PASS = 25
#: Numbers of the images in one pass on a CPU at most: of large images what comes of a pass outgrows
#: the cache, and takes a gigabyte.
CPU_NUMBERS = 2**19


@dataclass(frozen=True)
class ClientAccuracies:
    """Share of right answers per client on its validation and its test samples, [K] each.

    ``expected``: on the global test set as the client sees it, where that is known. ``right``: for
    each client the images of that test set that its model gets right, bool [G]; False for those
    that weigh nothing for it, about which it is not asked.
    """

    val: np.ndarray
    test: np.ndarray
    expected: np.ndarray | None = None
    right: Sequence[np.ndarray] = ()

    def __getitem__(self, chosen: np.ndarray) -> ClientAccuracies:
        """Those of some clients (bool [K])."""
        expected = None if self.expected is None else self.expected[chosen]
        right = [own for own, some in zip(self.right, chosen, strict=False) if some]
        return ClientAccuracies(self.val[chosen], self.test[chosen], expected, right)


def _predictions(
    model: ScoringModel,
    samples: Samples,
    shards: Sequence[np.ndarray],
    weights: Mapping[str, Any],
) -> list[np.ndarray]:
    """For each client the classes that its model gives to the samples of its shard, int64."""
    parts = _scores(model, samples, shards, weights, lambda logits, _: logits.argmax(1))
    # Fetched once: a device need not wait for the host between two parts.
    return _divided(torch.cat(parts).cpu().numpy(), shards)


def _scores(
    model: ScoringModel,
    samples: Samples,
    shards: Sequence[np.ndarray],
    weights: Mapping[str, Any],
    look: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """``look(logits, labels)`` of the samples of all shards, at most ``CHUNK`` at a time.

    Client k's model is asked about the samples of its shard.
    """
    index = torch.from_numpy(np.concatenate(shards)).to(samples.labels.device)
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])

    def with_parts_of(chunk: int) -> list[Tensor]:
        found = []
        for begin in range(0, len(index), chunk):
            part = index[begin : begin + chunk]
            counts = np.bincount(owner[begin : begin + chunk], minlength=len(shards)).tolist()
            logits = model.forward(samples.images[part], counts, weights)
            found.append(look(logits, samples.labels[part]))
        return found

    size = CHUNK
    if samples.images.device.type == "cpu":
        size = min(size, max(1, CPU_NUMBERS // samples.images[0].numel()))
    return halving(with_parts_of, size)


class KnownScores:
    """Stands in for a model whose scores are known: its images are its scores [B, classes]."""

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Nothing is needed."""
        return {}

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """The scores themselves."""
        return images


@torch.no_grad()
def known_scores(
    model: ScoringModel,
    layout: Layout,
    samples: Samples,
    groups: Sequence[np.ndarray],
    theta: Tensor,
    private: Tensor,
) -> Samples:
    """The scores that one model gives to the samples of ``groups``, each computed once.

    Args:
        model: The model whose parameters are given.
        layout: The order of these parameters.
        samples: All samples.
        groups: Sample numbers, computed group by group in this order; later groups may repeat some.
        theta: [d] communicated parameters.
        private: [d_p] private parameters.

    Returns:
        Samples for ``KnownScores``, with scores [N, classes] in place of images; NaN for samples in
        none of the groups.
    """
    parameters = {
        **views(theta[None], layout.communicated),
        **views(private[None], layout.private),
    }
    weights = model.effective_weights(parameters)
    left = np.ones(len(samples.labels), dtype=bool)
    found: Tensor | None = None
    for group in groups:
        new = group[left[group]]
        new = new[np.sort(np.unique(new, return_index=True)[1])]
        left[new] = False
        if not len(new):
            continue
        scores = torch.cat(_scores(model, samples, [new], weights, lambda logits, _: logits))
        if found is None:
            found = scores.new_full((len(left), scores.shape[1]), math.nan)
        found[torch.from_numpy(new).to(found.device)] = scores
    assert found is not None
    return Samples(found, samples.labels)


def _divided(values: np.ndarray, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What belongs to each shard of values that stand shard by shard."""
    return np.split(values, np.cumsum([len(shard) for shard in shards])[:-1])


@torch.no_grad()
def personal_accuracies(
    model: ScoringModel,
    layout: Layout,
    samples: Samples,
    val: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    theta: Tensor,
    private: Callable[[Tensor], Tensor],
    trained: Tensor,
    seen: Seen | None = None,
    judged: np.ndarray | None = None,
) -> ClientAccuracies:
    """Accuracy of every client's own model on its own validation and test samples.

    With ``seen`` also the expected accuracy, Σ_i w_ki [model_k(x_ki) = y_ki] over the images of the
    global test set as client k sees them.

    ``theta`` is [d], one model for all, or [K, d], a model each. ``private(clients)`` are the rows
    [n, d_p] of some clients.
    A client with ``trained`` False has no private branch yet and is judged with θ alone. ``judged``
    (bool [K]; None: all): whose accuracies are wanted; those of others are NaN.
    """
    clients = len(val)
    judged = np.ones(clients, dtype=bool) if judged is None else judged
    val, test = _of_some(val, judged), _of_some(test, judged)
    whole, seen = seen, None if seen is None else that_count(seen, judged)
    shards = [np.concatenate([val[k], test[k]]) for k in range(clients)]
    answers: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * clients
    looked: list[np.ndarray] = list(answers)
    if theta.dim() == 1 and layout.own_parameters == 0:
        # One model serves everybody: one set of weights, all samples as if of one client.
        anybody = private(torch.zeros(1, dtype=torch.int64))
        weights = model.effective_weights(
            {**views(theta[None], layout.communicated), **views(anybody, layout.private)}
        )
        flat = _predictions(model, samples, [np.concatenate(shards)], weights)[0]
        answers = _divided(flat, shards)
        if seen is not None:
            # Of an image that many clients see the one model need be asked once.
            images, place = np.unique(np.concatenate(seen.index), return_inverse=True)
            flat = _predictions(model, samples, [images], weights)[0]
            looked = _divided(flat[place.ravel()], seen.index)
    else:
        models = theta.expand(clients, -1) if theta.dim() == 1 else theta
        for with_branch in (True, False):
            mine = (trained.cpu() == with_branch) & torch.from_numpy(judged)
            chosen = torch.nonzero(mine).flatten()
            for group in chosen.split(CLIENTS_PER_PASS):
                if not len(group):
                    continue
                place = group.to(models.device)
                parameters = {
                    **views(models[place], layout.communicated),
                    **views(private(group), layout.private),
                }
                # Merged once for what the clients have and what they see.
                weights = model.effective_weights(parameters, private=with_branch)
                numbers = group.tolist()
                own = _predictions(model, samples, [shards[k] for k in numbers], weights)
                for k, classes in zip(numbers, own, strict=True):
                    answers[k] = classes
                if seen is not None:
                    index = [seen.index[k] for k in numbers]
                    found = _predictions(model, samples, index, weights)
                    for k, classes in zip(numbers, found, strict=True):
                        looked[k] = classes
    labels = samples.labels.cpu().numpy()
    right = [answers[k] == labels[shards[k]] for k in range(clients)]
    accuracies = ClientAccuracies(
        val=np.array([_share(right[k][: len(val[k])]) for k in range(clients)]),
        test=np.array([_share(right[k][len(val[k]) :]) for k in range(clients)]),
    )
    if whole is None or seen is None:
        return accuracies
    answered = _right(whole, seen, looked, judged)
    return replace(accuracies, expected=_expected(whole, answered, judged), right=answered)


def _share(right: np.ndarray) -> float:
    """The share of right answers, NaN of none."""
    return float(right.mean()) if len(right) else math.nan


def _of_some(arrays: Sequence[np.ndarray], judged: np.ndarray) -> list[np.ndarray]:
    """The arrays of the judged clients, empty ones for the others."""
    return [own if wanted else own[:0] for own, wanted in zip(arrays, judged, strict=True)]


def that_count(seen: Seen, judged: np.ndarray) -> Seen:
    """What the judged clients see, without images that weigh nothing: of classes one lacks."""
    there = [(own > 0) & wanted for own, wanted in zip(seen.weights, judged, strict=True)]

    def left(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array[some] for array, some in zip(arrays, there, strict=True)]

    return Seen(left(seen.index), left(seen.labels), left(seen.weights))


def _right(
    whole: Seen, asked: Seen, classes: Sequence[np.ndarray], judged: np.ndarray
) -> list[np.ndarray]:
    """For each client which images of ``whole`` it gets right, bool [G].

    ``classes``: its answers about the images of ``asked``, which ``that_count`` made of ``whole``.
    """
    found = []
    for weights, labels, own, wanted in zip(
        whole.weights, asked.labels, classes, judged, strict=True
    ):
        right = np.zeros(len(weights), dtype=bool)
        if wanted:
            right[weights > 0] = own == labels
        found.append(right)
    return found


def _expected(seen: Seen, right: Sequence[np.ndarray], judged: np.ndarray) -> np.ndarray:
    """Σ of the weights of what each client gets right, [K]; NaN for those that are not judged."""
    # Rounded once, whatever the order: the same on every CPU.
    each = zip(seen.weights, right, judged, strict=True)
    return np.array([math.fsum(own[some]) if wanted else math.nan for own, some, wanted in each])


@torch.no_grad()
def global_metrics(
    model: ScoringModel,
    layout: Layout,
    samples: Samples,
    test: np.ndarray,
    theta: Tensor,
    private: Tensor,
) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) of θ_g [d] alone on the samples ``test``.

    ``private`` [d_p] only completes the names; its branch is left out.
    """
    parameters = {
        **views(theta[None], layout.communicated),
        **views(private[None], layout.private),
    }
    weights = model.effective_weights(parameters, private=False)
    right: list[Tensor] = []

    def look(logits: Tensor, labels: Tensor) -> Tensor:
        right.append((logits.argmax(1) == labels).sum())
        return cross_entropy(logits, labels, reduction="sum")

    parts = _scores(model, samples, [test], weights, look)
    # Of a call that was tried again the last answers count.
    count = sum(torch.stack(right[-len(parts) :]).tolist())
    return count / len(test), sum(torch.stack(parts).tolist()) / len(test)


@torch.no_grad()
def losses(
    model: ScoringModel,
    layout: Layout,
    samples: Samples,
    shards: Sequence[np.ndarray],
    theta: Tensor,
    private: Tensor,
    loss: Callable[..., Tensor],
) -> Tensor:
    """Return the mean loss of each model on its own shard.

    Args:
        model: The model whose parameters are given.
        layout: The order of these parameters.
        samples: All samples.
        shards: Sample numbers by model; several models may name the same.
        theta: [n, d] communicated parameters, a row for each model.
        private: [n, d_p] private parameters.
        loss: The loss of each sample, as in ``LocalWork``. Where it weighs samples, the sum of
            their losses is divided by the sum of their weights.

    Returns:
        [n] float64.
    """
    found: list[Tensor] = []
    for group in torch.arange(len(shards)).split(CLIENTS_PER_PASS):
        place = group.to(theta.device)
        parameters = {
            **views(theta[place], layout.communicated),
            **views(private[place], layout.private),
        }
        weights = model.effective_weights(parameters)
        own = [shards[k] for k in group.tolist()]
        owner = np.repeat(np.arange(len(own)), [len(shard) for shard in own])
        each = _scores(model, samples, own, weights, partial(loss, reduction="none"))
        sums = np.bincount(owner, torch.cat(each).double().cpu().numpy(), minlength=len(own))
        index = torch.from_numpy(np.concatenate(own)).to(samples.labels.device)
        counts = sample_weights(loss, samples.labels, index)
        found.append(torch.from_numpy(sums / np.bincount(owner, counts, minlength=len(own))))
    return torch.cat(found).to(theta.device)


def summary(
    accuracies: ClientAccuracies,
    test_sizes: np.ndarray,
    judged: np.ndarray,
    drawn: np.ndarray,
    groups: Mapping[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Personal metrics over the clients that are ``judged``: mean, deviation, worst decile, others.

    ``judged``, ``drawn`` and each of ``groups`` are bool [K]. The deviation is over clients
    (divisor n). The worst decile is the mean of the ⌈m/10⌉ lowest of the m judged clients that have
    ever been ``drawn``, and absent where none has. ``groups`` are clients whose expected accuracy
    is reported apart, as ``expected_accuracy_{name}``.
    """
    own = accuracies[judged]
    found = {
        "personal_accuracy": float(own.test.mean()),
        "personal_std": float(own.test.std()),
        "personal_accuracy_weighted": float(np.average(own.test, weights=test_sizes[judged])),
        "val_accuracy": float(own.val.mean()),
    }
    counted = judged & drawn
    if counted.any():
        found["personal_worst_decile"] = _worst_decile(accuracies.test[counted])
    if accuracies.expected is None or own.expected is None:
        return found
    found["expected_accuracy"] = float(own.expected.mean())
    found["expected_std"] = float(own.expected.std())
    if counted.any():
        found["expected_worst_decile"] = _worst_decile(accuracies.expected[counted])
    for name, chosen in (groups or {}).items():
        if chosen.any():
            found[f"expected_accuracy_{name}"] = float(accuracies.expected[chosen].mean())
    return found


def _worst_decile(values: np.ndarray) -> float:
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())
