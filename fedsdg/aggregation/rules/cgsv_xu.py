"""CGSV as published: clients that contribute more download more of the aggregate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.rules.cgsv import contributions, over_norms, shares_of_data
from fedsdg.aggregation.types import Context, Largest, Plan, Rule, State
from fedsdg.files.columns import Column
from fedsdg.lazy import torch


class CgsvXu(Rule):
    """One model per client; model n moves by the q_n largest entries of the aggregate U.

    Every client takes part in every round. With u_n = Gamma Delta_n / ||Delta_n|| (0 for a zero
    update): U = sum_n w_n u_n, psi_n = cos(u_n, U), r_n <- alpha r_n + (1 - alpha) psi_n, clamped
    at `floor` and divided by its sum; q_n = floor(d tanh(beta r_n) / max_m tanh(beta r_m)), and
    step_n = U where |U| is among its q_n largest entries (of equal ones the first), else 0.
    In the first round w is the share of the data and r starts at 0; afterwards w is the last r.

    A client's own update is neither added to its model nor taken out of what it downloads:
    theta_n moves by its reward alone, as in the paper's algorithm and its authors' code (the
    authors' earlier systems, CFFL and RFFL, do both). The paper counts entries over the whole
    vector; its code takes the share q_n / d of each layer.

    psi is 0 for all if ||U|| is rounding noise. If no alpha r + (1 - alpha) psi is positive before
    the clamp, r is kept; as long as r is 0, w stays the share of the data and q_n = d.
    The authors have Gamma = 0.5 (MNIST), 0.15 (CIFAR), alpha = 0.95, a floor of 1e-3 (in the code),
    beta from 0.5 to 2, and so large a beta that all get everything (tanh = 1).

    State: r [K] float64. Weights: w. Diagnostics: alignment [M] (psi), contribution [M] (r after
    the round), reward [M] (q / d), update_norm [M].
    Source: Xu et al. 2021.
    """

    needs: ClassVar[str] = "client_samples"
    columns: ClassVar = (
        Column("diagnostics", "contribution", "float32", "r after the round, as published"),
    )

    gamma: Annotated[float, Field(ge=1e-06)] = 0.5
    "Γ, length of a normalised update"
    alpha: Annotated[float, Field(ge=0, le=0.999)] = 0.95
    "α of r ← α r + (1 − α) cos(Δ, U)"
    beta: Annotated[float, Field(ge=1e-06)] = 1.0
    "β, altruism of the rewards"
    floor: Annotated[float, Field(ge=0, le=0.999)] = 1e-3
    "least contribution r_n"

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        if cohort < clients:
            raise ValueError(
                f"cgsv-xu weighs all clients in every round, but {cohort} of the {clients} take "
                "part; set clients_per_round to the number of clients, or use 'cgsv'"
            )

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        return {"r": torch.zeros(len(shares_of_data(client_samples)), dtype=torch.float64)}

    def models(self, num_clients: int) -> int:
        """Return how many models the server holds."""
        return num_clients

    def mixing(self, state: State, clients: np.ndarray) -> np.ndarray:
        """Return [M, C] what each client downloads of the models."""
        return np.asarray(np.eye(len(state["r"]))[clients])

    def partial(self, state: State, clients: np.ndarray, d: int) -> np.ndarray:
        """Return [M] how many entries each client downloads."""
        return self._entries(state["r"].numpy(force=True), d)[clients]

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        cohort, updates = context.clients, rows["update"]
        self.require(len(set(cohort.tolist())), context.num_clients)
        r = state["r"].numpy(force=True)[cohort]
        weights = r if r.any() else shares_of_data(context.client_samples[cohort])
        norms = updates.measure().norms
        units = over_norms(weights, norms)
        psi = contributions(updates, units)
        renewed = self._renewed(r, psi)
        counts = self._entries(renewed, updates.d)
        by_client = np.argsort(cohort)  # All clients take part.
        return Plan(
            Largest(units * self.gamma, counts[by_client]),
            weights,
            {"r": torch.from_numpy(renewed[by_client])},
            {
                "alignment": psi,
                "contribution": renewed,
                "update_norm": norms,
                "reward": counts / max(updates.d, 1),
            },
        )

    def _renewed(self, r: np.ndarray, psi: np.ndarray) -> np.ndarray:
        renewed = self.alpha * r + (1 - self.alpha) * psi
        if not (renewed > 0).any():
            return r
        renewed = np.maximum(renewed, self.floor)
        return np.asarray(renewed / renewed.sum())

    def _entries(self, r: np.ndarray, d: int) -> np.ndarray:
        """[M] int64 q, after tanh(beta r) relative to the largest; all d as long as r is 0."""
        rewards = np.tanh(self.beta * r)
        rewards = rewards / rewards.max() if rewards.any() else np.ones_like(r)
        # The tolerance is for rewards that are whole numbers of entries except for rounding.
        return np.floor(d * rewards + 1e-9).astype(np.int64)
