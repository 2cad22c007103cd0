"""PENS: clients average with those whose models do well on their own data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context, Mixture, Plan, Rule, State, UploadRequest
from fedsdg.lazy import torch
from fedsdg.parts import Count, Natural


class Pens(Rule):
    """The server keeps every client's latest model; a client starts from an average of some.

    theta_k, the model that client k comes back with, replaces row k of the models [K, d].
    Phase 1, the first `phase_one` rounds: a client in the cohort scores `sample` of the models on
    its own training data and picks the `top` of lowest loss; the next time that it takes part it
    starts from the uniform mean of its own latest model and of the latest of those that it picked
    last. Phase 2: from the uniform mean of its own and of all its neighbours' latest models. Client
    j is a neighbour of k if k picked it more often than chance would have: more often than
    sum m / l over the rounds in which k scored j, l being how many models k scored in the round and
    m = min(top, l) how many it picked. A client without neighbours continues alone.

    Models that nobody has trained yet are all the initial one and say nothing of their client:
    their scores are not counted, nor is a client's score of its own model. Of equal scores the
    lower id counts first. In the paper peers send their models and the averaging follows at once;
    here the server's models are in between, which also joins clients that are never drawn for the
    same round.

    Uploads: update; in phase 1 scores [M, K], the loss of model j on client k's training data, NaN
    for models that were not scored. In the paper 10 are scored and 2 picked.
    State: rounds [1] (done so far), trained [K], picked [K, K] (how often), expected [K, K] (by
    chance), latest [K, K] (1 if k picked j last). No weights.
    Diagnostics: neighbours [M], how many other models the client's next start averages.
    Source: Onoszko et al. 2021.
    """

    phase_one: Natural = 10
    "rounds in which neighbours are sought"
    sample: Count = 5
    "l, models that a client tries in a round"
    top: Count = 2
    "m, models of them that it picks"

    @property
    def probes(self) -> tuple[UploadRequest, ...]:  # type: ignore[override]
        """What clients measure for the rule."""
        return (UploadRequest("scores", sample=self.sample, rounds=self.phase_one),)

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        size = len(client_samples)
        return {
            "rounds": torch.zeros(1, dtype=torch.int64),
            "trained": torch.zeros(size, dtype=torch.int64),
            "picked": torch.zeros(size, size, dtype=torch.int64),
            "expected": torch.zeros(size, size, dtype=torch.float64),
            "latest": torch.zeros(size, size, dtype=torch.int64),
        }

    def models(self, num_clients: int) -> int:
        """Return how many models the server holds."""
        return num_clients

    def mixing(self, state: State, clients: np.ndarray) -> np.ndarray:
        """Return [M, C] what each client downloads of the models."""
        averaged = self._neighbours(state, clients)
        averaged[np.arange(len(clients)), clients] = 1.0
        return np.asarray(averaged / averaged.sum(axis=1, keepdims=True))

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        size, total = len(context.clients), context.num_clients
        cohort = torch.from_numpy(context.clients)
        # theta_k - model_k = (start_k - model_k) + Delta_k; the first is 0 for a client alone.
        weights = np.zeros((total, size))
        weights[context.clients, np.arange(size)] = 1.0
        of_models = np.zeros((total, total))
        of_models[context.clients] = self.mixing(state, context.clients)
        of_models[context.clients, context.clients] -= 1.0
        renewed = {name: value.clone() for name, value in state.items()}
        # Rounds in which no update arrived count, too.
        number = max(context.round, int(state["rounds"]) + 1)
        renewed["rounds"].fill_(number)
        if number <= self.phase_one:
            picks, chance = self._picks(self._scores(rows, total), state, context)
            renewed["picked"][cohort] += torch.from_numpy(picks).to(renewed["picked"])
            renewed["expected"][cohort] += torch.from_numpy(chance).to(renewed["expected"])
            # Clients that could score nothing of use keep their last picks.
            scored = torch.from_numpy(chance.any(axis=1))
            renewed["latest"][cohort[scored]] = torch.from_numpy(picks).long()[scored]
        renewed["trained"][cohort] = 1
        facts = {"neighbours": self._neighbours(renewed, context.clients).sum(axis=1)}
        return Plan(Mixture(weights, of_models), None, renewed, facts)

    def _in_phase_one(self, state: State) -> bool:
        """Whether the next round belongs to phase 1."""
        return int(state["rounds"]) < self.phase_one

    def _scores(self, rows: Mapping[str, Rows], total: int) -> np.ndarray:
        if "scores" not in rows:
            raise ValueError("upload 'scores' is missing; phase 1 reads update, scores")
        scores = rows["scores"].numbers()
        if scores.shape[1] != total:
            raise ValueError(
                f"upload 'scores' has {scores.shape[1]} columns; give the loss of each of the "
                f"{total} models"
            )
        return scores

    def _neighbours(self, state: State, clients: np.ndarray) -> np.ndarray:
        """[M, K]: 1 for the other clients whose models the next start averages."""
        if self._in_phase_one(state):
            return state["latest"].numpy(force=True)[clients].astype(np.float64)
        picked, expected = (state[n].numpy(force=True)[clients] for n in ("picked", "expected"))
        # The margin is for sums of fractions that equal the number of picks.
        return np.asarray(picked > expected + 1e-9).astype(np.float64)

    def _picks(
        self, losses: np.ndarray, state: State, context: Context
    ) -> tuple[np.ndarray, np.ndarray]:
        """([M, K] 1 for picked models, [M, K] the chance with which a scored one is picked)."""
        trained = state["trained"].numpy(force=True).astype(bool)
        picks, chance = np.zeros_like(losses), np.zeros_like(losses)
        for k, client in enumerate(context.clients):
            scored = ~np.isnan(losses[k]) & trained
            scored[client] = False
            count = int(scored.sum())
            if not count:
                continue
            order = np.lexsort((losses[k], ~scored))
            picks[k, order[: min(self.top, count)]] = 1.0
            chance[k, scored] = min(self.top, count) / count
        return picks, chance
