"""Clusters of clients, each with a model of its own, and semi-global models between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedsdg.aggregation.rows import TensorRows
from fedsdg.aggregation.server_models import checked_scores, server_models
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload
from fedsdg.aggregation.weights import Weights, check_weights, client_counts


@dataclass(frozen=True)
class Clustered(StatelessRule):
    """C cluster models; theta_c <- sum_k (n_k / sum n) theta_k over the cohort's members of c.

    A client of cluster c starts from s_c = (1 - beta) theta_c + beta mean_c theta_c, a row of
    mixing; theta_k = s_c + Delta_k. beta = 0 gives plain clusters, whose clients never meet, beta
    in (0, 1] semi-global models. A cluster without a member in the cohort keeps its model.

    assignment: "loss": upload `scores` [M, C] holds the loss of each of the server's models on a
    client's training data, NaN where it was not measured; the client goes to the lowest, and stays
    where its own cluster's is as low or no score is there. Its update of this round counts for the
    cluster that it started from; it trains for the new one when it is next drawn. First assignments
    are random and as even as can be, so that no cluster starts empty. If all C models start equal,
    all losses tie and this first assignment stays until updates have told the models apart: start
    them apart. "known": the clusters are given up front, see `with_clusters`, and no scores are
    read. ValueError where they were not.

    weights: what n_k is, as in `Mean`. seed: of the random first assignment. Raises ValueError for
    fewer clients than clusters, and for members without samples.
    State: assignment [K] int64, -1 where it is not known. Weights: n_k / sum n over the cohort.
    Diagnostics: cluster [M], after this round.
    Source: Ghosh et al. 2020 (IFCA, model averaging) for "loss"; beta: semi-global models of the
    chapter on aggregation.
    """

    count: int = 3
    assignment: Literal["loss", "known"] = "loss"
    beta: float = 0.0
    seed: int = 0
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if self.count < 1:
            raise ValueError(f"count={self.count} must be >= 1: there is at least one cluster")
        if self.assignment not in ("loss", "known"):
            raise ValueError(f"assignment={self.assignment!r}: use 'loss' or 'known'")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta={self.beta} must be in [0, 1]; 0 gives plain clusters")

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        size = len(client_samples)
        if size < self.count:
            raise ValueError(
                f"{size} clients cannot fill {self.count} clusters: one would start empty; lower "
                f"count to at most {size}"
            )
        if self.assignment == "known":
            return {"assignment": torch.full((size,), -1, dtype=torch.int64)}
        dealt = np.random.default_rng(self.seed).permutation(np.arange(size) % self.count)
        return {"assignment": torch.from_numpy(dealt)}

    def with_clusters(
        self, state: Mapping[str, torch.Tensor], clusters: Sequence[int] | np.ndarray
    ) -> dict[str, torch.Tensor]:
        """The state with a given cluster 0 … C-1 for every client; ValueError if one is empty."""
        given = np.asarray(clusters)
        expected = tuple(state["assignment"].shape)
        if given.shape != expected or not np.isin(given, np.arange(self.count)).all():
            raise ValueError(
                f"the clusters {given.tolist()} must be {expected[0]} numbers from 0 to "
                f"{self.count - 1}, one for each client"
            )
        if empty := sorted(set(range(self.count)) - set(given.tolist())):
            raise ValueError(
                f"cluster {empty[0]} of {self.count} has no client; lower count or move clients"
            )
        return {**state, "assignment": torch.from_numpy(given.astype(np.int64))}

    def models(self, num_clients: int) -> int:
        return self.count

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        members = self._members(state, clients)
        starts: np.ndarray = self._starts()[members]
        return starts

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context)
        members = self._members(state, context.clients)
        models = server_models(context, self.count, updates)
        samples = client_counts(context, self.weights)
        rows, servers = TensorRows(updates), TensorRows(models)
        # theta_c moves by s_c - theta_c, which is 0 for beta = 0, and the mean of the updates.
        apart = self._starts() - np.eye(self.count)
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
        return Aggregate(
            steps,
            samples / samples.sum(),
            {"assignment": assignment},
            {"cluster": assignment.numpy(force=True)[context.clients]},
        )

    def _starts(self) -> np.ndarray:
        """[C, C]: a client of cluster c starts from row c times the models."""
        return (1 - self.beta) * np.eye(self.count) + self.beta / self.count

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
        scores = checked_scores(uploads, context, self.count)
        losses = np.where(np.isnan(scores), np.inf, scores)
        stays = losses[np.arange(len(members)), members] <= losses.min(axis=1)
        return np.where(stays, members, losses.argmin(axis=1))
