"""Evaluation: each client's own model on its own shards, the global model on the global test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.local_training import Samples
from fedsdg.models.interface import ClientModel
from fedsdg.models.parameters import Layout, views

#: Samples in one pass, and clients whose merged weights exist at the same time.
CHUNK = 1024
CLIENTS_PER_PASS = 25


@dataclass(frozen=True)
class ClientAccuracies:
    """Share of right answers per client on its validation and its test samples, [K] each."""

    val: np.ndarray
    test: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> ClientAccuracies:
        """Those of some clients (bool [K])."""
        return ClientAccuracies(self.val[chosen], self.test[chosen])


def _correct(
    model: ClientModel,
    samples: Samples,
    shards: Sequence[np.ndarray],
    parameters: dict[str, Tensor],
    private: bool,
) -> list[np.ndarray]:
    """For each client a bool array: which samples of its shard its model gets right."""
    weights = model.effective_weights(parameters, private)
    answers: list[Tensor] = []
    index = torch.from_numpy(np.concatenate(shards)).to(samples.labels.device)
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    for begin in range(0, len(index), CHUNK):
        part = index[begin : begin + CHUNK]
        counts = np.bincount(owner[begin : begin + CHUNK], minlength=len(shards)).tolist()
        logits = model.forward(samples.images[part], counts, weights)
        answers.append(logits.argmax(1) == samples.labels[part])
    # Fetched once: a device need not wait for the host between two parts.
    flags = torch.cat(answers).cpu().numpy()
    return np.split(flags, np.cumsum([len(s) for s in shards])[:-1])


@torch.no_grad()
def personal_accuracies(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    val: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    theta: Tensor,
    private: Callable[[Tensor], Tensor],
    trained: Tensor,
) -> ClientAccuracies:
    """Accuracy of every client's own model on its own validation and test samples.

    ``theta`` is [d], one model for all, or [K, d], a model each. ``private(clients)`` are the rows
    [n, d_p] of some clients.
    A client with ``trained`` False has no private branch yet and is judged with θ alone.
    """
    clients = len(val)
    shards = [np.concatenate([val[k], test[k]]) for k in range(clients)]
    answers: list[np.ndarray] = [np.empty(0, dtype=bool)] * clients
    if theta.dim() == 1 and layout.d_private == 0:
        # One model serves everybody: one set of weights, all samples as if of one client.
        parameters = views(theta[None], layout.communicated)
        flat = _correct(model, samples, [np.concatenate(shards)], parameters, private=True)[0]
        answers = np.split(flat, np.cumsum([len(shard) for shard in shards])[:-1])
    else:
        models = theta.expand(clients, -1) if theta.dim() == 1 else theta
        for with_branch in (True, False):
            chosen = torch.nonzero(trained.cpu() == with_branch).flatten()
            for group in chosen.split(CLIENTS_PER_PASS):
                if not len(group):
                    continue
                place = group.to(models.device)
                parameters = {
                    **views(models[place], layout.communicated),
                    **views(private(group), layout.private),
                }
                own = [shards[k] for k in group.tolist()]
                right = _correct(model, samples, own, parameters, private=with_branch)
                for k, flags in zip(group.tolist(), right, strict=True):
                    answers[k] = flags
    return ClientAccuracies(
        val=np.array([answers[k][: len(val[k])].mean() for k in range(clients)]),
        test=np.array([answers[k][len(val[k]) :].mean() for k in range(clients)]),
    )


@torch.no_grad()
def global_metrics(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    test: np.ndarray,
    theta: Tensor,
    private: Tensor,
) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) of θ_g [d] alone on the global test set.

    ``private`` [d_p] only completes the names; its branch is left out.
    """
    parameters = {
        **views(theta[None], layout.communicated),
        **views(private[None], layout.private),
    }
    weights = model.effective_weights(parameters, private=False)
    index = torch.from_numpy(test).to(samples.labels.device)
    right: list[Tensor] = []
    losses: list[Tensor] = []
    for part in index.split(CHUNK):
        logits = model.forward(samples.images[part], [len(part)], weights)
        labels = samples.labels[part]
        right.append((logits.argmax(1) == labels).sum())
        losses.append(cross_entropy(logits, labels, reduction="sum"))
    count, loss = sum(torch.stack(right).tolist()), sum(torch.stack(losses).tolist())
    return count / len(index), loss / len(index)


@torch.no_grad()
def losses(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    shards: Sequence[np.ndarray],
    theta: Tensor,
    private: Tensor,
) -> Tensor:
    """Mean cross-entropy of the models θ [n, d], private [n, d_p], each on its shard: [n] float64.

    A shard may stand there for several models.
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
        index = torch.from_numpy(np.concatenate(own)).to(samples.labels.device)
        owner = np.repeat(np.arange(len(own)), [len(shard) for shard in own])
        each = [
            cross_entropy(
                model.forward(
                    samples.images[index[begin : begin + CHUNK]],
                    np.bincount(owner[begin : begin + CHUNK], minlength=len(own)).tolist(),
                    weights,
                ),
                samples.labels[index[begin : begin + CHUNK]],
                reduction="none",
            )
            for begin in range(0, len(index), CHUNK)
        ]
        sums = np.bincount(owner, torch.cat(each).double().cpu().numpy(), minlength=len(own))
        found.append(torch.from_numpy(sums / [len(shard) for shard in own]))
    return torch.cat(found).to(theta.device)


def summary(accuracies: ClientAccuracies, test_sizes: np.ndarray) -> dict[str, float]:
    """Personal metrics over clients: mean, deviation, worst decile, by samples, validation.

    The worst decile is the mean of the ⌈K/10⌉ lowest clients; the deviation is over clients
    (divisor K).
    """
    test = accuracies.test
    worst = np.sort(test)[: math.ceil(len(test) / 10)]
    return {
        "personal_accuracy": float(test.mean()),
        "personal_std": float(test.std()),
        "personal_worst_decile": float(worst.mean()),
        "personal_accuracy_weighted": float(np.average(test, weights=test_sizes)),
        "val_accuracy": float(accuracies.val.mean()),
    }
