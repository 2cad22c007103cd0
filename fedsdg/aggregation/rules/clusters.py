"""Clusters of clients, each with a model of its own, and semi-global models between them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.server_models import checked_scores, server_models
from fedsdg.aggregation.types import Aggregate, Ask, Context, Known, StatelessRule
from fedsdg.aggregation.uploads import checked_upload
from fedsdg.aggregation.weights import Weighed
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part


def nearest_groups(distances: np.ndarray, count: int) -> np.ndarray:
    """[C] int64, a group 0 … count-1 for each of C things with these distances [C, C].

    From groups of one the two with the least mean distance between their members are joined until
    so many are left (average linkage, Sokal & Michener 1958); of equal ones the first. Groups are
    numbered by their first member.
    """
    groups = [[one] for one in range(len(distances))]
    while len(groups) > count:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i + 1, len(groups))]
        apart = [distances[np.ix_(groups[i], groups[j])].mean() for i, j in pairs]
        i, j = pairs[int(np.argmin(apart))]
        groups[i] += groups.pop(j)
    members = np.empty(len(distances), dtype=np.int64)
    for number, group in enumerate(sorted(groups, key=min)):
        members[group] = number
    return members


def dealt(size: int, clusters: int, seed: int = 0) -> np.ndarray:
    """[size] int64: a random cluster for every client, as many in each as can be."""
    return np.random.default_rng(seed).permutation(np.arange(size) % clusters)


@part
class Clustered(Weighed, StatelessRule):
    """C cluster models; theta_c <- sum_k (n_k / sum n) theta_k over the cohort's members of c.

    A client of cluster c starts from s_c = (1 - beta) theta_c + beta mean_{j in G(c)} theta_j, a
    row of mixing; theta_k = s_c + Delta_k. beta = 0 gives plain clusters, whose clients never meet,
    beta in (0, 1] semi-global models. A cluster without a member in the cohort keeps its model.

    With one partial aggregate each G(c) is all clusters. With more, P, the C clusters are divided
    into P groups of those nearest to each other (`nearest_groups`), G(c) is the group of c, and
    beta = 1 leaves P models, each over a subset of the cluster models. Nearness is by the distance
    of the models, anew after each round (until the first one every cluster is by itself), or by
    that of the labels that a cluster's clients hold, see `with_labels`.

    Assignment by loss: upload `scores` [M, C] holds the loss of each of the server's models on a
    client's training data, NaN where it was not measured; the client goes to the lowest, and stays
    where its own cluster's is as low or no score is there. Its update of this round counts for the
    cluster that it started from; it trains for the new one when it is next drawn. First assignments
    are random and as even as can be (`dealt`), so that no cluster starts empty. If all C models
    start equal, all losses tie and this first assignment stays until updates have told the models
    apart: start them apart. Known assignment: the clusters are given up front, see `with_clusters`,
    and no scores are read. ValueError where they were not.

    Raises ValueError for fewer clients than clusters, and for members without samples.
    State: assignment [K] int64, -1 where it is not known; where partials > 1, group [C] int64, and
    labels [K, classes] where they are known. Weights: n_k / sum n over the cohort.
    Diagnostics: cluster [M], after this round.
    Source: Ghosh et al. 2020 (IFCA, model averaging) for "loss"; beta: semi-global models of the
    chapter on aggregation.
    """

    clusters: Annotated[int, Range(2)] = 3
    "C, models of the server"
    assignment: Literal["loss", "known"] = "loss"
    """a client goes to the cluster of the least `loss`, or clusters are `known`: the groups of a
    label conflict or feature shift, else the domain, or clusters of the label shares"""
    beta: Annotated[float, Range(0, 1)] = 0.0
    "β, share of the mean of the clusters in what a client starts from"
    partials: Annotated[int, Range(1)] = 1
    """P, partial aggregates: that mean is of all clusters (1), or of the group of nearest clusters
    that a client's is in; with β = 1 so many models are left"""
    nearness: Literal["models", "labels"] = "models"
    """clusters are near by the distance of their `models`, or of the `labels` that their clients
    hold, which these then tell the server"""

    columns: ClassVar = (Column("diagnostics", "cluster", "int32", "its cluster after the round"),)

    def __post_init__(self) -> None:
        if self.partials > self.clusters:
            raise ValueError(
                f"partials is {self.partials}, but must be at most clusters = {self.clusters}; "
                f"lower partials or raise clusters"
            )

    @property
    def needs(self) -> None:
        """Nothing: no door serves it, and whoever attacks it takes all clients for alike."""

    @property
    def probes(self) -> tuple[Ask, ...]:
        return (Ask("scores"),) if self.assignment == "loss" else ()

    @property
    def knowledge(self) -> tuple[Known, ...]:
        clusters: tuple[Known, ...] = ("clusters",) if self.assignment == "known" else ()
        return (*clusters, "labels") if self._labels_tell else clusters

    @property
    def _labels_tell(self) -> bool:
        """Whether it is the labels that clients hold that tell which clusters are near."""
        return self.partials > 1 and self.nearness == "labels"

    def require(self, cohort: int, clients: int) -> None:
        if clients < self.clusters:
            raise ValueError(
                f"{clients} clients cannot fill {self.clusters} clusters: one would start empty; "
                f"lower clusters to at most {clients}"
            )

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        size = len(client_samples)
        self.require(size, size)
        alone = {} if self.partials == 1 else {"group": torch.arange(self.clusters)}
        if self.assignment == "known":
            return {"assignment": torch.full((size,), -1, dtype=torch.int64), **alone}
        return {"assignment": torch.from_numpy(dealt(size, self.clusters)), **alone}

    def with_clusters(
        self, state: Mapping[str, torch.Tensor], clusters: Sequence[int] | np.ndarray
    ) -> dict[str, torch.Tensor]:
        """The state with a given cluster 0 … C-1 for every client; ValueError if one is empty."""
        given = np.asarray(clusters)
        expected = tuple(state["assignment"].shape)
        if given.shape != expected or not np.isin(given, np.arange(self.clusters)).all():
            raise ValueError(
                f"the clusters {given.tolist()} must be {expected[0]} numbers from 0 to "
                f"{self.clusters - 1}, one for each client"
            )
        if empty := sorted(set(range(self.clusters)) - set(given.tolist())):
            raise ValueError(
                f"cluster {empty[0]} of {self.clusters} has no client; lower clusters or move some"
            )
        return {**state, "assignment": torch.from_numpy(given.astype(np.int64))}

    def with_labels(
        self, state: Mapping[str, torch.Tensor], labels: np.ndarray
    ) -> dict[str, torch.Tensor]:
        """The state with the labels [K, classes] that clients hold, how many of each.

        They alone tell which clusters are near, where `nearness` says so; else they are let go.
        """
        if not self._labels_tell:
            return dict(state)
        told = {**state, "labels": torch.from_numpy(np.asarray(labels, dtype=np.float64))}
        return {**told, "group": self._groups(told, told["labels"])}

    def models(self, num_clients: int) -> int:
        return self.clusters

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        members = self._members(state, clients)
        starts: np.ndarray = self._starts(state)[members]
        return starts

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context)
        members = self._members(state, context.clients)
        models = server_models(context, self.clusters, updates)
        samples = self.counts(context)
        rows, servers = TensorRows(updates), TensorRows(models)
        # theta_c moves by s_c - theta_c, which is 0 for beta = 0, and the mean of the updates.
        apart = self._starts(state) - np.eye(self.clusters)
        steps = torch.zeros_like(models)
        for cluster in np.unique(members):
            weights = np.where(members == cluster, samples, 0.0)
            if not weights.sum() > 0:
                raise ValueError(
                    f"the clients of cluster {cluster} in round {context.round} have no samples; "
                    f"leave clients without samples out"
                )
            steps[cluster] = rows.weighted_sum(weights / weights.sum())
            if apart[cluster].any():
                steps[cluster] += servers.weighted_sum(apart[cluster])
        assignment = state["assignment"].clone()
        assignment[torch.from_numpy(context.clients)] = torch.from_numpy(
            self._reassigned(members, uploads, context)
        ).to(assignment)
        renewed = {**state, "assignment": assignment}
        if self.partials > 1:
            renewed["group"] = self._groups(renewed, models.double() + steps.double())
        return Aggregate(
            steps,
            samples / samples.sum(),
            renewed,
            {"cluster": assignment.numpy(force=True)[context.clients]},
        )

    def _starts(self, state: Mapping[str, torch.Tensor]) -> np.ndarray:
        """[C, C]: a client of cluster c starts from row c times the models."""
        if self.partials == 1:
            return (1 - self.beta) * np.eye(self.clusters) + self.beta / self.clusters
        group = state["group"].numpy(force=True)
        together = group[:, None] == group[None]
        means = together / together.sum(axis=1, keepdims=True)
        starts: np.ndarray = (1 - self.beta) * np.eye(self.clusters) + self.beta * means
        return starts

    def _groups(self, state: Mapping[str, torch.Tensor], models: torch.Tensor) -> torch.Tensor:
        """[C] int64: which clusters share a partial aggregate, by the new `models` [C, d]."""
        if self.nearness == "models":
            exact = "donot_use_mm_for_euclid_dist"  # squared distances would cancel
            distances = torch.cdist(models, models, compute_mode=exact).numpy(force=True)
        elif "labels" not in state:
            raise ValueError(
                "the labels that clients hold are not known; give them up front (with_labels), or "
                "use nearness='models'"
            )
        else:
            distances = self._label_distances(state)
        return torch.from_numpy(nearest_groups(distances, self.partials))

    def _label_distances(self, state: Mapping[str, torch.Tensor]) -> np.ndarray:
        """[C, C] total variation between the clusters' shares of the classes; 1 to an empty one."""
        held, member = (state[name].numpy(force=True) for name in ("labels", "assignment"))
        counts = np.array([held[member == cluster].sum(axis=0) for cluster in range(self.clusters)])
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.where(totals > 0, totals, 1)
        distances = np.abs(shares[:, None] - shares[None]).sum(axis=2) / 2
        empty = ~(totals[:, 0] > 0)
        distances[empty[:, None] | empty[None]] = 1.0
        np.fill_diagonal(distances, 0.0)
        return distances

    def _members(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        """[M] the clusters of the clients."""
        members: np.ndarray = state["assignment"].numpy(force=True)[clients]
        if (members < 0).any():
            raise ValueError(
                f"the cluster of client {clients[members < 0][0]} is not known; give the clusters "
                f"of all clients up front (with_clusters), or use assignment='loss'"
            )
        return members

    def _reassigned(
        self, members: np.ndarray, uploads: Mapping[str, torch.Tensor], context: Context
    ) -> np.ndarray:
        if self.assignment == "known":
            return members
        scores = checked_scores(uploads, context, self.clusters)
        losses = np.where(np.isnan(scores), np.inf, scores)
        stays = losses[np.arange(len(members)), members] <= losses.min(axis=1)
        return np.where(stays, members, losses.argmin(axis=1))
