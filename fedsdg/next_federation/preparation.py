"""The clients' data before the first round: what conditions make of them, what is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.data.datasets import stratified_choice
from fedsdg.data.images import Pictures
from fedsdg.data.partition import TRAIN, VAL, Partition
from fedsdg.next_federation.accuracy import ClientTestView, class_weights
from fedsdg.next_federation.conditions.condition import ClientData, Condition
from fedsdg.rng import stream

LABEL_SKEWS = ("dirichlet", "classes", "column")
"""Skews under which clients hold the classes in shares of their own."""


def prepared_data(
    partition: Partition, num_classes: int, conditions: Sequence[Condition], seed: int
) -> ClientData:
    """Return the clients' data after all conditions, in their order.

    Args:
        partition: Who holds which sample.
        num_classes: C.
        conditions: In the order in which they change the data.
        seed: That of the run.
    """
    train = partition.shards(TRAIN)
    data = ClientData(
        seed=seed,
        num_classes=num_classes,
        owner=partition.client,
        labels=partition.label.copy(),
        train=train,
        val=partition.shards(VAL),
        class_names=np.tile(np.arange(num_classes), (len(train), 1)),
    )
    for condition in conditions:
        data = condition.prepare(data)
    return data


def images_as_seen(data: ClientData, images: Tensor, pictures: Pictures) -> Tensor:
    """Return the images [n, ...] with each client's own as it sees them."""
    if not data.views:
        return images
    seen = images.clone()
    for client, view in data.views.items():
        held = np.flatnonzero(data.owner == client)
        seen[torch.from_numpy(held).to(images.device)] = _through(view, held, images, pictures)
    return seen


def with_test_views(
    data: ClientData,
    images: Tensor,
    pictures: Pictures,
    true_labels: np.ndarray,
    test: np.ndarray,
    *,
    by_class: bool,
) -> tuple[Tensor, np.ndarray, ClientTestView]:
    """Return the global test set as each client sees it.

    Args:
        data: The clients' data.
        images: [n, ...] all images, with each client's own as it sees them.
        pictures: The images as they are stored.
        true_labels: int64 [n].
        test: int64 [G] sample numbers of the global test set.
        by_class: Whether images weigh by the client's class shares.

    Returns:
        Images and labels, to which the test images of each view are appended, and the test views.
    """
    begins: dict[int, int] = {}
    all_images = [images]
    all_labels = [data.labels]
    for view in data.views.values():
        if id(view) not in begins:
            begins[id(view)] = sum(len(labels) for labels in all_labels)
            all_images.append(_through(view, test, images, pictures))
            all_labels.append(true_labels[test])
    classes = true_labels[test]
    index: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for client in range(data.num_clients):
        seen = test
        if client in data.views:
            begin = begins[id(data.views[client])]
            seen = np.arange(begin, begin + len(test))
        index.append(seen)
        held = np.bincount(true_labels[data.owner == client], minlength=data.num_classes)
        weights.append(class_weights(held if by_class else None, classes))
    labels = [names[classes] for names in data.class_names]
    views = ClientTestView(index, labels, weights)
    return torch.cat(all_images), np.concatenate(all_labels), views


def _through(view: Any, numbers: np.ndarray, like: Tensor, pictures: Pictures) -> Tensor:
    """Return the images with these sample numbers through a view, as a model takes them."""
    seen = view(pictures.stored[numbers], numbers)
    return torch.from_numpy(pictures.prepared(seen)).to(like)


def test_set(partition: Partition, wanted: int | None, seed: int, *, fixed: bool) -> np.ndarray:
    """Return the global test set, or so many images of it.

    Args:
        partition: The partition.
        wanted: Number of images; None: all.
        seed: That of the run.
        fixed: Whether the images are the same for all seeds, stratified by class.

    Raises:
        ValueError: There are fewer images than wanted.
    """
    whole = partition.global_test()
    if wanted is None:
        return whole
    if wanted > len(whole):
        raise ValueError(
            f"federation.global_images is {wanted}, but the global test set has {len(whole)} "
            "images; lower it, or set it to null for all of them"
        )
    if not fixed:
        chosen = stream("evaluation", seed).choice(len(whole), wanted, replace=False)
        return whole[np.sort(chosen)]
    labels = partition.label[whole]
    return whole[stratified_choice(labels, wanted, stream("test-split", 0))]


def evaluated_samples(
    partition: Partition, split: int, most: int | None, seed: int
) -> list[np.ndarray]:
    """Return the samples of a split on which each client is evaluated.

    Args:
        partition: The partition.
        split: VAL or TEST.
        most: Number of samples of a client at most, drawn so that those of a lower number are
            among them; None: all.
        seed: That of the run.
    """
    shards = partition.shards(split)
    if most is None:
        return shards
    chosen = []
    for client, shard in enumerate(shards):
        order = stream("own-images", seed, split, client).permutation(shard)
        chosen.append(np.sort(order[:most]))
    return chosen


def samples_for_gates(
    train: Sequence[np.ndarray], labels: np.ndarray, seed: int, every: int = 4
) -> np.ndarray:
    """Choose the training samples that teach gates alone: a stratified quarter of each client's.

    A client's samples are sorted by label, equal ones in random order, and every fourth is taken
    from a random position on: at least one of a client with two or more samples.

    Args:
        train: Training samples of every client.
        labels: int64 [n] of all samples.
        seed: That of the run.
        every: The inverse of the share.

    Returns:
        bool [n].
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for client, shard in enumerate(train):
        generator = stream("gate-samples", seed, client)
        order = np.lexsort((generator.permutation(len(shard)), labels[shard]))
        if len(shard) > 1:
            first = generator.integers(min(every, len(shard)))
            chosen[shard[order[first::every]]] = True
    return chosen
