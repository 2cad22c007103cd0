"""Before the first round: the clients' data, what is evaluated, and what a server knows of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from fedsdg.data.datasets import stratified_choice
from fedsdg.data.images import Pictures
from fedsdg.data.partition import TEST, TRAIN, VAL, Partition
from fedsdg.federation.accuracy import ClientTestView, class_weights
from fedsdg.federation.conditions.condition import ClientData, clients_in
from fedsdg.rng import stream

LABEL_SKEWS = ("dirichlet", "classes", "column")
"""Skews under which clients hold the classes in shares of their own."""
_MOST_PASSES = 100


def client_data(
    partition: Partition, test: np.ndarray, benchmark: np.ndarray, held_out: float, seed: int
) -> ClientData:
    """Return the clients' data as the partition divides them.

    Args:
        partition: Who holds which sample.
        test: int64 [G] sample numbers of the global test set.
        benchmark: Sample numbers of the server.
        held_out: Share of the clients that never train; those of a smaller share are among them.
        seed: That of the run.
    """
    train = partition.shards(TRAIN)
    num_classes = partition.facts["num_classes"]
    facts = {}
    if held_out:
        count = clients_in(held_out, len(train))
        chosen = stream("held-out", seed).permutation(len(train))[:count]
        facts["held_out"] = np.isin(np.arange(len(train)), chosen)
    return ClientData(
        seed=seed,
        num_classes=num_classes,
        owner=partition.client,
        true_labels=partition.label,
        labels=partition.label.copy(),
        train=train,
        val=partition.shards(VAL),
        test=partition.shards(TEST),
        test_sizes=np.array([len(shard) for shard in partition.shards(TEST)]),
        global_test=test,
        benchmark=benchmark,
        class_names=np.tile(np.arange(num_classes), (len(train), 1)),
        by_class=partition.facts["skew"].partition("~")[0] in LABEL_SKEWS,
        facts=facts,
    )


def as_clients_see(
    data: ClientData, images: Tensor, pictures: Pictures
) -> tuple[Tensor, np.ndarray, ClientTestView]:
    """Return all images as their clients see them, and the global test set as each client sees it.

    Args:
        data: The clients' data.
        images: [n, ...] the images as a model takes them.
        pictures: The images as they are stored.

    Returns:
        Images and labels, to which the test images of each view are appended, and the test views.
    """

    def through(view: Any, numbers: np.ndarray) -> Tensor:
        seen = view(pictures.stored[numbers], numbers)
        return torch.from_numpy(pictures.prepared(seen)).to(images)

    test = data.global_test
    distinct = list(dict.fromkeys(data.views.values()))
    begins = {view: len(images) + k * len(test) for k, view in enumerate(distinct)}
    images = images.clone() if distinct else images
    for client, view in data.views.items():
        numbers = np.flatnonzero(data.owner == client)
        images[torch.from_numpy(numbers).to(images.device)] = through(view, numbers)
    index = [test] * data.num_clients
    for client, view in data.views.items():
        index[client] = np.arange(begins[view], begins[view] + len(test))
    classes = data.true_labels[test]
    views = ClientTestView(
        index=index,
        labels=[names[classes] for names in data.class_names],
        weights=[class_weights(data.held(k), classes) for k in range(data.num_clients)],
    )
    if distinct:
        images = torch.cat([images, *(through(view, test) for view in distinct)])
    labels = np.concatenate([data.labels, *([classes] * len(distinct))])
    return images, labels, views


def test_set(partition: Partition, wanted: int | None, seed: int) -> np.ndarray:
    """Return the global test set, or so many images of it.

    A test set that is fixed gives the same images for all seeds, stratified by class.

    Args:
        partition: The partition.
        wanted: Number of images; None: all.
        seed: That of the run.

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
    if partition.facts.get("test") != "fixed":
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


def prior_state(rule: Any, state: Mapping[str, Tensor], data: ClientData) -> dict[str, Tensor]:
    """Return the state of a rule before the first round, with what the rule is to know.

    A rule that asks for `clusters` gets the groups of clients that differ, if there are some, and
    otherwise clusters of the clients' class shares; one that asks for `labels` gets the number of
    training samples of each class.

    Args:
        rule: The aggregation rule, with `server_prior`, and `with_clusters` or `with_labels`.
        state: Its state.
        data: The clients' data.
    """
    known = dict(state)
    owned = [data.true_labels[shard] for shard in data.train]
    counts = np.array([np.bincount(labels, minlength=data.num_classes) for labels in owned])
    if "clusters" in rule.server_prior:
        group = data.facts.get("group", np.full(data.num_clients, -1))
        agreeing = int((group < 0).any())
        # Clients that agree are cluster 0; groups are assigned to the other clusters in turn.
        clusters = np.where(group < 0, 0, agreeing + group % (rule.clusters - agreeing))
        if (group < 0).all():
            clusters = label_clusters(counts, rule.clusters)
        known = rule.with_clusters(known, clusters)
    if "labels" in rule.server_prior:
        known = rule.with_labels(known, counts)
    return known


def label_clusters(counts: np.ndarray, count: int) -> np.ndarray:
    """Cluster clients by k-means (Lloyd) of their class shares p_kc = n_kc / n_k.

    Nothing is random: the first centre is the client nearest to the mean, each further one the
    client farthest from the centres so far (ties to the first). A cluster that loses all members
    gets the client farthest from its own centre.

    Args:
        counts: int64 [K, C], samples of each class that each client has.
        count: Number of clusters.

    Returns:
        int64 [K], the cluster 0 … count − 1 of every client; none is empty.

    Raises:
        ValueError: There are fewer clients than clusters, or a client has no samples.
    """
    if not 1 <= count <= len(counts) or not counts.any(axis=1).all():
        raise ValueError(
            f"{len(counts)} clients, the smallest of {counts.sum(axis=1).min()} samples, cannot "
            f"form {count} clusters; ask for fewer, and give each client a sample"
        )
    shares = counts / counts.sum(axis=1, keepdims=True)
    chosen = [int(cdist(shares, shares.mean(axis=0, keepdims=True), "sqeuclidean").argmin())]
    while len(chosen) < count:
        nearest = cdist(shares, shares[chosen], "sqeuclidean").min(axis=1)
        nearest[chosen] = -1.0  # Clients may have equal shares; none is a centre twice.
        chosen.append(int(nearest.argmax()))
    centres = shares[chosen]
    members = np.full(len(counts), -1)
    for _ in range(_MOST_PASSES):
        distances = cdist(shares, centres, "sqeuclidean")
        renewed = distances.argmin(axis=1)
        for cluster in range(count):
            if not (renewed == cluster).any():
                own = distances[np.arange(len(counts)), renewed]
                # The only member of a cluster stays there.
                own[np.bincount(renewed, minlength=count)[renewed] == 1] = -1.0
                renewed[int(own.argmax())] = cluster
        if np.array_equal(renewed, members):
            break
        members = renewed
        centres = np.array([shares[members == cluster].mean(axis=0) for cluster in range(count)])
    return members.astype(np.int64)
