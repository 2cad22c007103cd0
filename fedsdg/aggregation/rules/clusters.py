"""Clusters of clients, each with a model of its own, and semi-global models between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context, Mixture, Plan, Prior, State, UploadRequest
from fedsdg.aggregation.weights import Weighed
from fedsdg.files.columns import Column
from fedsdg.lazy import torch
from fedsdg.parts import Count, Share


def even_assignment(size: int, clusters: int, seed: int = 0) -> np.ndarray:
    """Return [size] int64 a random cluster for every client, as even as can be."""
    return np.random.default_rng(seed).permutation(np.arange(size) % clusters)


def average_linkage(distances: np.ndarray, count: int) -> np.ndarray:
    """Return [C] a group 0 … count-1 for each object, given their distances [C, C].

    The two groups with the least mean distance between their members are joined until `count` are
    left (Sokal and Michener 1958).
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    condensed = squareform(distances, checks=False)
    return cut_tree(linkage(condensed, "average"), n_clusters=[count])[:, 0].astype(np.int64)


class Clustered(Weighed):
    """C cluster models; theta_c <- sum_k (n_k / sum n) theta_k over the cohort's members of c.

    A client of cluster c starts from s_c = (1 - beta) theta_c + beta mean_{j in G(c)} theta_j, a
    row of `mixing`; theta_k = s_c + Delta_k. beta = 0 gives plain clusters, whose clients never
    meet, beta in (0, 1] semi-global models. A cluster without a member in the cohort keeps its
    model.

    With one partial aggregate, G(c) is all clusters. With P > 1 partials the C clusters are divided
    into P groups of those nearest to each other (`average_linkage`), G(c) is the group of c, and
    beta = 1 leaves P models. Nearness is by the distance of the models, computed after each round
    (until the first one every cluster is a group), or by that of the labels that a cluster's
    clients hold, see `with_labels`.

    Assignment by loss: upload `scores` [M, C] holds the loss of each of the server's models on a
    client's training data, NaN if not measured. The client moves to the lowest, and stays if its
    own cluster's is as low or there is no score. Its update of this round counts for the cluster
    from which it started. First assignments are random and as even as can be, so that no cluster
    starts empty. If all C models start equal, all losses tie and the first assignment stays until
    updates have separated the models: start from different ones. Known assignment: the clusters
    are given up front, see `with_clusters`, and no scores are read.

    ValueError for fewer clients than clusters, for members without samples, and for clusters or
    labels that are not known.
    State: assignment [K] int64, -1 if not known; if partials > 1, group [C] int64, and labels [K,
    classes] if they are known. Weights: n_k / sum n over the cohort.
    Diagnostics: cluster [M], after this round.
    Source: Ghosh et al. 2020 (IFCA, model averaging) for "loss"; beta: semi-global models of the
    chapter on aggregation.
    """

    clusters: Annotated[int, Field(ge=2)] = 3
    "C, models of the server"
    assignment: Literal["loss", "known"] = "loss"
    """a client goes to the cluster of the least `loss`, or clusters are `known`: the groups of a
    label conflict or feature shift, else clusters of the label shares"""
    beta: Share = 0.0
    "β, share of the mean of the clusters in what a client starts from"
    partials: Count = 1
    """P, partial aggregates: that mean is of all clusters (1), or of the group of nearest clusters
    that a client's is in; with β = 1 so many models are left"""
    nearness: Literal["models", "labels"] = "models"
    """clusters are near by the distance of their `models`, or of the `labels` that their clients
    hold, which these then tell the server"""

    columns: ClassVar = (Column("diagnostics", "cluster", "int32", "its cluster after the round"),)

    def check_fields(self) -> None:
        """Check that fields go together."""
        if self.partials > self.clusters:
            raise ValueError(
                f"partials is {self.partials}, but must be at most clusters = {self.clusters}; "
                "lower partials or raise clusters"
            )

    @property
    def needs(self) -> None:  # type: ignore[override]
        """No field: only the federation serves C models, and it gives all counts."""

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The uploads that the plan looks at."""
        return ("update", "scores") if self.assignment == "loss" else ("update",)

    @property
    def probes(self) -> tuple[UploadRequest, ...]:  # type: ignore[override]
        """What clients measure for the rule."""
        return (UploadRequest("scores"),) if self.assignment == "loss" else ()

    @property
    def server_prior(self) -> tuple[Prior, ...]:  # type: ignore[override]
        """What the server must know before the first round."""
        needed = {"clusters": self.assignment == "known", "labels": self._uses_labels}
        return tuple(prior for prior, is_needed in needed.items() if is_needed)  # type: ignore[misc]

    @property
    def _uses_labels(self) -> bool:
        """Whether nearness of clusters is by the labels that their clients hold."""
        return self.partials > 1 and self.nearness == "labels"

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        if clients < self.clusters:
            raise ValueError(
                f"{clients} clients cannot fill {self.clusters} clusters: one would start empty; "
                f"lower clusters to at most {clients}"
            )

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        size = len(client_samples)
        self.require(size, size)
        state = {"assignment": torch.full((size,), -1, dtype=torch.int64)}
        if self.assignment == "loss":
            state["assignment"] = torch.from_numpy(even_assignment(size, self.clusters))
        if self.partials > 1:
            state["group"] = torch.arange(self.clusters)
        return state

    def with_clusters(self, state: State, clusters: Sequence[int] | np.ndarray) -> State:
        """Return the state with a known cluster for every client.

        Args:
            state: From `init`.
            clusters: [K] 0 … C-1.

        Raises:
            ValueError: A cluster is empty, or a number is none of a cluster.
        """
        given = np.asarray(clusters)
        expected = tuple(state["assignment"].shape)
        if given.shape != expected or not np.isin(given, np.arange(self.clusters)).all():
            raise ValueError(
                f"the clusters {given.tolist()} must be {expected[0]} numbers from 0 to "
                f"{self.clusters - 1}, one for each client"
            )
        empty = np.setdiff1d(np.arange(self.clusters), given)
        if empty.size:
            raise ValueError(
                f"cluster {empty[0]} of {self.clusters} has no client; lower clusters or move some"
            )
        return {**state, "assignment": torch.from_numpy(given.astype(np.int64))}

    def with_labels(self, state: State, labels: np.ndarray) -> State:
        """Return the state with the labels that clients hold, if `nearness` uses them.

        Args:
            state: From `init` or `with_clusters`.
            labels: [K, classes] how many samples of each class a client holds.
        """
        if not self._uses_labels:
            return dict(state)
        counts = torch.from_numpy(np.asarray(labels, dtype=np.float64))
        renewed = {**state, "labels": counts}
        return {**renewed, "group": self._groups(renewed, counts)}

    def models(self, num_clients: int) -> int:
        """Return how many models the server holds."""
        return self.clusters

    def mixing(self, state: State, clients: np.ndarray) -> np.ndarray:
        """Return [M, C] what each client downloads of the models."""
        return np.asarray(self._starts(state)[self._members(state, clients)])

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        members, samples = self._members(state, context.clients), self.counts(context)
        weights = np.where(members[None] == np.arange(self.clusters)[:, None], samples, 0.0)
        totals = weights.sum(axis=1, keepdims=True)
        empty = np.setdiff1d(members, np.flatnonzero(totals[:, 0]))
        if empty.size:
            raise ValueError(
                f"the clients of cluster {empty[0]} in round {context.round} have no samples; "
                "leave clients without samples out"
            )
        # theta_c moves by s_c - theta_c, which is 0 for beta = 0, and the mean of the updates.
        of_models = (self._starts(state) - np.eye(self.clusters)) * (totals > 0)
        step = Mixture(weights / np.where(totals > 0, totals, 1.0), of_models)
        after = members
        if self.assignment == "loss":
            after = self._reassigned(members, rows["scores"].numbers())
        assignment = state["assignment"].clone()
        assignment[torch.from_numpy(context.clients)] = torch.from_numpy(after).to(assignment)
        renewed = {**state, "assignment": assignment}
        if self.partials > 1:
            steps = step.apply(rows["update"], context.models)
            renewed["group"] = self._groups(renewed, context.models + steps)  # type: ignore[operator]
        return Plan(step, samples / samples.sum(), renewed, {"cluster": after})

    def _starts(self, state: State) -> np.ndarray:
        """[C, C]: a client of cluster c starts from row c times the models."""
        eye = np.eye(self.clusters)
        if self.partials == 1:
            return (1 - self.beta) * eye + self.beta / self.clusters
        group = state["group"].numpy(force=True)
        together = group[:, None] == group[None]
        means = together / together.sum(axis=1, keepdims=True)
        return np.asarray((1 - self.beta) * eye + self.beta * means)

    def _groups(self, state: State, models: torch.Tensor) -> torch.Tensor:
        """[C] int64: which clusters share a partial aggregate, by the new models [C, d]."""
        from scipy.spatial.distance import cdist

        if self.nearness == "models":
            points = models.numpy(force=True)
            distances = cdist(points, points)
        elif "labels" in state:
            distances = self._label_distances(state)
        else:
            raise ValueError(
                "the labels that clients hold are not known; give them up front (with_labels), or "
                "use nearness='models'"
            )
        return torch.from_numpy(average_linkage(distances, self.partials))

    def _label_distances(self, state: State) -> np.ndarray:
        """[C, C] total variation between the clusters' shares of the classes; 1 to an empty one."""
        from scipy.spatial.distance import cdist

        held, assignment = (state[n].numpy(force=True) for n in ("labels", "assignment"))
        counts = np.array([held[assignment == c].sum(axis=0) for c in range(self.clusters)])
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.where(totals > 0, totals, 1)
        distances = cdist(shares, shares, "cityblock") / 2
        empty = ~(totals[:, 0] > 0)
        distances[empty[:, None] | empty[None]] = 1.0
        np.fill_diagonal(distances, 0.0)
        return np.asarray(distances)

    def _members(self, state: State, clients: np.ndarray) -> np.ndarray:
        """[M] the clusters of the clients."""
        members = state["assignment"].numpy(force=True)[clients]
        if (members < 0).any():
            raise ValueError(
                f"the cluster of client {clients[members < 0][0]} is not known; give the clusters "
                "of all clients up front (with_clusters), or use assignment='loss'"
            )
        return np.asarray(members)

    def _reassigned(self, members: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """[M] the clusters after the round, by scores [M, C]."""
        if scores.shape[1] != self.clusters:
            raise ValueError(
                f"upload 'scores' has {scores.shape[1]} columns; give the loss of each of the "
                f"{self.clusters} models"
            )
        losses = np.where(np.isnan(scores), np.inf, scores)
        stays = losses[np.arange(len(members)), members] <= losses.min(axis=1)
        return np.where(stays, members, losses.argmin(axis=1))
