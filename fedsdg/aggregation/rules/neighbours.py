"""PENS: clients average with those whose models do well on their own data."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.server_models import checked_scores, server_models
from fedsdg.aggregation.types import Aggregate, Ask, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload
from fedsdg.parts import Range, part


@part
class Pens(StatelessRule):
    """The server keeps every client's latest model; a client starts from an average of some.

    theta_k, the model that client k comes back with, replaces row k of the bank [K, d].
    Phase 1, the first `phase_one` rounds: a client in the cohort scores `sample` models of the bank
    on its own training data and picks the `top` of lowest loss; the next time that it takes part it
    starts from the uniform mean of its own latest model and of the latest of those it picked last.
    Afterwards, phase 2: from the uniform mean of its own and of all its neighbours' latest models.
    Client j is a neighbour of k if k picked it more often than chance would have: more often than
    sum m / l over the rounds in which k scored j, l being how many models k scored in the round and
    m = min(top, l) how many it picked. A client without neighbours goes on alone.

    Models that nobody has trained yet are all the initial one and say nothing of their client:
    their scores are not counted, nor is a client's score of its own model. Equal scores: the lower
    id first. In the paper peers send their models and the averaging follows at once; here the bank
    stands between them, which also brings together clients that are never drawn for the same round.

    Uploads: update; in phase 1 scores [M, K], the loss of model j on client k's training data, NaN
    for models that were not scored. In the paper 10 are scored and 2 picked.
    State: rounds [1] (done so far), trained [K], picked [K, K] (how often), expected [K, K] (by
    chance), latest [K, K] (1 where k picked j last). No weights.
    Diagnostics: neighbours [M], how many other models the client's next start averages.
    Source: Onoszko et al. 2021.
    """

    phase_one: Annotated[int, Range(0)] = 10
    "rounds in which neighbours are sought"
    sample: Annotated[int, Range(1)] = 5
    "l, models that a client tries in a round"
    top: Annotated[int, Range(1)] = 2
    "m, models of them that it picks"

    @property
    def probes(self) -> tuple[Ask, ...]:
        return (Ask("scores", sample=self.sample, rounds=self.phase_one),)

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        size = len(client_samples)
        return {
            "rounds": torch.zeros(1, dtype=torch.int64),
            "trained": torch.zeros(size, dtype=torch.int64),
            "picked": torch.zeros(size, size, dtype=torch.int64),
            "expected": torch.zeros(size, size, dtype=torch.float64),
            "latest": torch.zeros(size, size, dtype=torch.int64),
        }

    def models(self, num_clients: int) -> int:
        return num_clients

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        others = self._others(state, clients)
        others[np.arange(len(clients)), clients] = 1.0
        rows: np.ndarray = others / others.sum(axis=1, keepdims=True)
        return rows

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context)
        models = server_models(context, context.num_clients, updates)
        cohort = torch.from_numpy(context.clients)
        # theta_k - model_k = (start_k - model_k) + Delta_k; the first is 0 for a client alone.
        apart = self.mixing(state, context.clients)
        apart[np.arange(len(cohort)), context.clients] -= 1.0
        steps, bank = torch.zeros_like(models), TensorRows(models)
        for k, client in enumerate(context.clients):
            steps[client] = updates[k]
            if apart[k].any():
                steps[client] += bank.weighted_sum(apart[k])
        renewed = {name: value.clone() for name, value in state.items()}
        renewed["rounds"] += 1
        if self._scoring(state):
            scores = checked_scores(uploads, context, len(models))
            picks, chance = self._picks(scores, state, context)
            scored = torch.from_numpy(chance.any(axis=1))
            renewed["picked"][cohort] += torch.from_numpy(picks).to(renewed["picked"])
            renewed["expected"][cohort] += torch.from_numpy(chance).to(renewed["expected"])
            # Who could score nothing of use keeps the last picks.
            last = torch.from_numpy(picks).to(renewed["latest"])
            renewed["latest"][cohort[scored]] = last[scored]
        renewed["trained"][cohort] = 1
        found = {"neighbours": self._others(renewed, context.clients).sum(axis=1)}
        return Aggregate(steps, None, renewed, found)

    def _scoring(self, state: Mapping[str, torch.Tensor]) -> bool:
        """Whether the next round belongs to phase 1."""
        return int(state["rounds"]) < self.phase_one

    def _others(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        """[M, K]: 1 for the other clients whose models the next start averages."""
        if self._scoring(state):
            return state["latest"].numpy(force=True)[clients].astype(np.float64)
        picked = state["picked"].numpy(force=True)[clients]
        # The margin is for sums of fractions that stand for the number of picks itself.
        more: np.ndarray = picked > state["expected"].numpy(force=True)[clients] + 1e-9
        return more.astype(np.float64)

    def _picks(
        self, losses: np.ndarray, state: Mapping[str, torch.Tensor], context: Context
    ) -> tuple[np.ndarray, np.ndarray]:
        """([M, K] 1 for picked models, [M, K] the chance with which a scored one is picked)."""
        trained = state["trained"].numpy(force=True).astype(bool)
        picks, chance = np.zeros_like(losses), np.zeros_like(losses)
        for k, client in enumerate(context.clients):
            scored = ~np.isnan(losses[k]) & trained
            scored[client] = False
            count = int(scored.sum())
            if count:
                order = np.argsort(np.where(scored, losses[k], np.inf), kind="stable")
                picks[k, order[: min(self.top, count)]] = 1.0
                chance[k, scored] = min(self.top, count) / count
        return picks, chance
