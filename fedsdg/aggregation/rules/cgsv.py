"""Contribution-weighted aggregation by cosine gradient Shapley values (CGSV)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedsdg.aggregation.engines.ahead import Ahead
from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.parts import Range, part


@part
class Cgsv(PlannedRule):
    """Weights r that follow the cosine between a client's update and the aggregate.

    r^0_n = the client's share of all data. In a round with cohort S, on that cohort:
    u_n = Delta_n / ||Delta_n|| (0 for a zero update), w_n = r_n / sum_S r, U = sum_S w_n u_n,
    psi_n = cos(u_n, U), r_n <- gamma_t r_n + (1 - gamma_t) psi_n with
    gamma_t = 1 - (1 - gamma0) / t and t that client's own participations, this one included (so
    gamma_1 = gamma0). Then r is clamped at `floor` and the participants are rescaled to their
    previous total mass, so that sum r stays 1; if no r is positive before the clamp, r is kept.
    Clients outside the cohort keep their r.

    psi is 0 for a zero update, and for all when ||U|| <= 1/2 eps(dtype): unit vectors that cancel
    leave only rounding. gamma0 = 1 keeps the shares of data.
    step = U times the cohort's mean ||Delta|| ("mean-norm"), or U ("unit").
    State: r [K] float64, participations [K] int64. The weights returned are w, of the unit updates.
    Diagnostics: alignment [M] (psi), update_norm [M], gamma [M].
    Source: Xu et al. 2021 (cosine gradient Shapley value), with the decaying trade-off gamma_t.
    """

    needs: ClassVar[str] = "client_samples"

    gamma0: Annotated[float, Range(0, 1)] = 0.5
    "γ₀ of γ_t = 1 − (1 − γ₀)/t"
    floor: Annotated[float, Range(0, 0.999)] = 1e-3
    "least contribution r_n"
    step_scale: Literal["mean-norm", "unit"] = "mean-norm"
    "length of the step: `mean-norm` or `unit`"

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        samples = np.asarray(client_samples, dtype=np.float64)
        if not (samples >= 0).all() or not samples.sum() > 0:
            raise ValueError(
                "client_samples must be >= 0 and sum to more than 0: r starts as shares"
            )
        return {
            "r": torch.from_numpy(samples / samples.sum()),
            "participations": torch.zeros(len(samples), dtype=torch.int64),
        }

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates = rows["update"]
        check_shares(state)
        cohort = context.clients
        shares, weights = _shares(state, cohort)
        lengths = updates.measure()
        require_finite(updates, lengths.norms, context)
        moving = lengths.norms > 0
        # Coefficients of U on the updates as measured: w_n / ||Delta_n||.
        coefficients = np.where(moving, weights / np.where(moving, lengths.norms, 1.0), 0.0)
        psi = contributions(updates, coefficients)
        times = state["participations"].numpy(force=True)[cohort] + 1
        gamma = 1 - (1 - self.gamma0) / times
        scale = lengths.norms.mean() if self.step_scale == "mean-norm" else 1 / lengths.unit
        r, participations = state["r"].clone(), state["participations"].clone()
        r[cohort] = torch.as_tensor(self._renewed(shares, gamma, psi)).to(r)
        participations[cohort] = torch.as_tensor(times).to(participations)
        return Plan(
            Combination(coefficients * scale),
            weights,
            {"r": r, "participations": participations},
            {"alignment": psi, "update_norm": lengths.norms * lengths.unit, "gamma": gamma},
            checked=True,
        )

    def ahead(
        self, rows: Mapping[str, Ahead], context: Context, state: Mapping[str, torch.Tensor]
    ) -> None:
        _, weights = _shares(state, context.clients)
        lengths, units = ask_for_directions(rows["update"], weights)
        scaled = units * lengths.mean() if self.step_scale == "mean-norm" else units
        rows["update"].weighted_sum(scaled)

    def _renewed(self, r: np.ndarray, gamma: np.ndarray, psi: np.ndarray) -> np.ndarray:
        renewed = gamma * r + (1 - gamma) * psi
        if not (renewed > 0).any():
            return r
        renewed = np.maximum(renewed, self.floor)
        return renewed * (r.sum() / renewed.sum())


def _shares(state: Mapping[str, torch.Tensor], cohort: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([M] r of the cohort, [M] w)."""
    shares = state["r"].numpy(force=True)[cohort]
    even = np.full(len(cohort), 1 / len(cohort))
    return shares, shares / shares.sum() if shares.sum() > 0 else even


def ask_for_directions(rows: Ahead, weights: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """([M] ||Delta_n||, [M] w_n / ||Delta_n||, 0 for a zero update), and what psi needs."""
    lengths = rows.measure().norms
    moving = lengths > 0
    units = torch.where(moving, rows.sent(weights) / torch.where(moving, lengths, 1.0), 0.0)
    rows.measure(units)
    return lengths, units


def check_shares(state: Mapping[str, torch.Tensor]) -> None:
    """ValueError for a state that holds less than nothing."""
    for name, values in state.items():
        if (values < 0).any():
            raise ValueError(
                f"state {name!r} holds negative numbers; pass the state that the last call returned"
            )


def contributions(updates: Rows, coefficients: np.ndarray) -> np.ndarray:
    """[M] psi_k = cos(Delta_k, U), U = sum_k c_k Delta_k of unit length or less.

    0 for a zero update, and for all when ||U|| is no more than rounding noise.
    """
    s = updates.measure(coefficients)
    if s.reference_norm <= 0.5 * torch.finfo(updates.dtype).eps:
        return np.zeros(updates.shape[0])
    moving = s.norms > 0
    cosine = s.dots / np.where(moving, s.norms * s.reference_norm, 1.0)
    return np.where(moving, np.clip(cosine, -1.0, 1.0), 0.0)
