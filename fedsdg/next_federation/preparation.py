"""The clients' data before the first round: what conditions make of them, what is evaluated."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.data.datasets import stratified_choice
from fedsdg.data.images import Pictures
from fedsdg.data.partition import TRAIN, VAL, Partition
from fedsdg.next_federation.accuracy import ClientTestView, class_weights
from fedsdg.next_federation.client_groups import clients_in
from fedsdg.next_federation.conditions.condition import ClientData
from fedsdg.rng import stream

LABEL_SKEWS = ("dirichlet", "classes", "column")
"""Skews under which clients hold the classes in shares of their own."""


def client_data(partition: Partition, num_classes: int, held_out: float, seed: int) -> ClientData:
    """Return the clients' data as the partition divides them.

    Args:
        partition: Who holds which sample.
        num_classes: C.
        held_out: Share of the clients that never train; those of a smaller share are among them.
        seed: That of the run.
    """
    train = partition.shards(TRAIN)
    everyone = np.arange(len(train))
    facts = {}
    if held_out:
        order = stream("held-out", seed).permutation(len(train))
        facts["held_out"] = np.isin(everyone, order[: clients_in(held_out, len(train))])
    return ClientData(
        seed=seed,
        num_classes=num_classes,
        owner=partition.client,
        true_labels=partition.label,
        labels=partition.label.copy(),
        train=train,
        val=partition.shards(VAL),
        class_names=np.tile(np.arange(num_classes), (len(train), 1)),
        facts=facts,
    )


def as_clients_see(
    data: ClientData, images: Tensor, pictures: Pictures, test: np.ndarray, skew: str
) -> tuple[Tensor, np.ndarray, ClientTestView]:
    """Return all images as their clients see them, and the global test set as each client sees it.

    Args:
        data: The clients' data.
        images: [n, ...] the images as a model takes them.
        pictures: The images as they are stored.
        test: int64 [G] sample numbers of the global test set.
        skew: How clients differ in their classes; under label skew test images weigh by them.

    Returns:
        Images and labels, to which the test images of each view are appended, and the test views.
    """

    def through(view: Any, numbers: np.ndarray) -> Tensor:
        seen = view(pictures.stored[numbers], numbers)
        return torch.from_numpy(pictures.prepared(seen)).to(images)

    distinct = list({id(view): view for view in data.views.values()}.values())
    begins = {id(view): len(images) + k * len(test) for k, view in enumerate(distinct)}
    images = images.clone() if distinct else images
    for client, view in data.views.items():
        numbers = np.flatnonzero(data.owner == client)
        images[torch.from_numpy(numbers).to(images.device)] = through(view, numbers)
    index = [test] * data.num_clients
    for client, view in data.views.items():
        index[client] = np.arange(begins[id(view)], begins[id(view)] + len(test))
    classes = data.true_labels[test]
    owners = [data.true_labels[data.owner == client] for client in range(data.num_clients)]
    shares = [np.bincount(labels, minlength=data.num_classes) for labels in owners]
    by_class = skew.partition("~")[0] in LABEL_SKEWS
    views = ClientTestView(
        index=index,
        labels=[names[classes] for names in data.class_names],
        weights=[class_weights(held if by_class else None, classes) for held in shares],
    )
    images = torch.cat([images, *(through(view, test) for view in distinct)])
    labels = np.concatenate([data.labels, *([classes] * len(distinct))])
    return images, labels, views


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
