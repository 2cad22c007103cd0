"""Contribution-weighted aggregation by cosine gradient Shapley values (CGSV)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State
from fedsdg.lazy import torch
from fedsdg.parts import Share


class Cgsv(Rule):
    """Weights r that follow the cosine between a client's update and the aggregate.

    Before the first round r_n is client n's share of all data. In a round with cohort S, on that
    cohort: u_n = Delta_n / ||Delta_n|| (0 for a zero update), w_n = r_n / sum_S r,
    U = sum_S w_n u_n, psi_n = cos(u_n, U), r_n <- gamma_t r_n + (1 - gamma_t) psi_n with
    gamma_t = 1 - (1 - gamma0) / t, t being that client's own participations, this one included.
    Then r is clamped at `floor` and the participants are rescaled to their previous total mass, so
    that sum r stays 1; if no r is positive before the clamp, r is kept. Clients outside the cohort
    keep their r. psi is 0 for a zero update, and for all if ||U|| <= 1/2 eps(dtype).
    step = U times the cohort's mean ||Delta|| ("mean-norm"), or U ("unit").

    State: r [K] float64, participations [K] int64. Weights: w, of the unit updates.
    Diagnostics: alignment [M] (psi), update_norm [M], gamma [M].
    Source: Xu et al. 2021 (cosine gradient Shapley value), with the decaying trade-off gamma_t.
    """

    needs: ClassVar[str] = "client_samples"

    gamma0: Share = 0.5
    "γ₀ of γ_t = 1 − (1 − γ₀)/t"
    floor: Annotated[float, Field(ge=0, le=0.999)] = 1e-3
    "least contribution r_n"
    step_scale: Literal["mean-norm", "unit"] = "mean-norm"
    "length of the step: `mean-norm` or `unit`"

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        return {
            "r": torch.from_numpy(shares_of_data(client_samples)),
            "participations": torch.zeros(len(client_samples), dtype=torch.int64),
        }

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        cohort, updates = context.clients, rows["update"]
        r, participations = (state[n].numpy(force=True).copy() for n in ("r", "participations"))
        weights = np.full(len(cohort), 1 / len(cohort))
        if r[cohort].sum() > 0:
            weights = r[cohort] / r[cohort].sum()
        norms = updates.measure().norms
        units = over_norms(weights, norms)
        psi = contributions(updates, units)
        participations[cohort] += 1
        gamma = 1 - (1 - self.gamma0) / participations[cohort]
        r[cohort] = self.renewed(r[cohort], gamma, psi)
        scale = norms.mean() if self.step_scale == "mean-norm" else 1.0
        return Plan(
            Combination(units * scale),
            weights,
            {"r": torch.from_numpy(r), "participations": torch.from_numpy(participations)},
            {"alignment": psi, "update_norm": norms, "gamma": gamma},
        )

    def renewed(self, r: np.ndarray, gamma: np.ndarray, psi: np.ndarray) -> np.ndarray:
        """Return [M] the contributions after the round."""
        renewed = gamma * r + (1 - gamma) * psi
        if not (renewed > 0).any():
            return r
        renewed = np.maximum(renewed, self.floor)
        return renewed * (r.sum() / renewed.sum())


def shares_of_data(client_samples: np.ndarray) -> np.ndarray:
    """Return [K] n_k / sum n.

    Raises:
        ValueError: The counts are not all at least 0 with a positive sum.
    """
    samples = np.asarray(client_samples, dtype=np.float64)
    if not (samples >= 0).all() or not samples.sum() > 0:
        raise ValueError(
            "client_samples must be at least 0 and not all 0: contributions start from the shares "
            "of the data"
        )
    return samples / samples.sum()


def over_norms(weights: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return [M] w_k / ||Delta_k||, 0 for a zero update."""
    return np.divide(weights, norms, where=norms > 0, out=np.zeros_like(norms))


def contributions(updates: Rows, coefficients: np.ndarray) -> np.ndarray:
    """Return [M] psi_k = cos(Delta_k, U) for U = sum_k c_k Delta_k.

    0 for a zero update, and for all if ||U||, at most 1, is no more than rounding noise.
    """
    s = updates.measure(coefficients)
    if s.reference_norm <= 0.5 * torch.finfo(updates.dtype).eps:
        return np.zeros(updates.size)
    return np.clip(over_norms(s.dots, s.norms * s.reference_norm), -1.0, 1.0)
