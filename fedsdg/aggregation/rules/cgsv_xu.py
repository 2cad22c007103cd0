"""CGSV as published: whoever contributes more downloads more of the aggregate (Xu et al. 2021)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch

from fedsdg.aggregation.engines.ahead import Ahead, go_ahead
from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.rules.cgsv import ask_for_directions, check_shares, contributions
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload, require_finite
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part


@part
class CgsvXu(StatelessRule):
    """One model per client; model n moves by the q_n largest entries of the aggregate U.

    Every client takes part in every round. With u_n = Gamma Delta_n / ||Delta_n|| (0 for a zero
    update): U = sum_n w_n u_n, psi_n = cos(u_n, U), r_n <- alpha r_n + (1 - alpha) psi_n, clamped
    at `floor` and divided by its sum; q_n = floor(d tanh(beta r_n) / max_m tanh(beta r_m)), and
    step_n = U where |U| is among its q_n largest entries (of equal ones the first), else 0.
    In the first round w is the share of the data and r starts at 0; afterwards w is the last r.

    A client's own update is not added to its model, nor taken out of what it downloads: theta_n
    moves by its reward alone, as in the paper's algorithm and its authors' code (the authors'
    earlier systems, CFFL and RFFL, do both). The paper counts entries over the whole vector; its
    code takes the share q_n / d of each layer.

    psi is 0 for all when ||U|| is rounding noise. If no alpha r + (1 - alpha) psi is positive
    before the clamp, r is kept; as long as r is 0, w stays the share of the data and q_n = d.
    The authors have Gamma = 0.5 (MNIST), 0.15 (CIFAR), alpha = 0.95, a floor of 1e-3 (in the code),
    beta from 0.5 to 2, and so large a beta that all get everything (tanh = 1).
    State: r [K] float64. Weights: w. Diagnostics: alignment [M] (psi), contribution [M] (r after
    the round), reward [M] (q / d), update_norm [M].
    """

    needs: ClassVar[str] = "client_samples"
    columns: ClassVar = (
        Column("diagnostics", "contribution", "float64", "r after the round, as published"),
    )

    gamma: Annotated[float, Range(1e-6)] = 0.5
    "Γ, length of a normalised update"
    alpha: Annotated[float, Range(0, 0.999)] = 0.95
    "α of r ← α r + (1 − α) cos(Δ, U)"
    beta: Annotated[float, Range(1e-6)] = 1.0
    "β, altruism of the rewards"
    floor: Annotated[float, Range(0, 0.999)] = 1e-3
    "least contribution r_n"

    def require(self, cohort: int, clients: int) -> None:
        if cohort < clients:
            raise ValueError(
                f"cgsv-xu weighs all clients in every round, but {cohort} of the {clients} take "
                f"part; set clients_per_round to the number of clients, or use 'cgsv'"
            )

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        samples = np.asarray(client_samples, dtype=np.float64)
        if not (samples >= 0).all() or not samples.sum() > 0:
            raise ValueError(
                "client_samples must be >= 0 and sum to more than 0: the first weights are shares"
            )
        return {"r": torch.zeros(len(samples), dtype=torch.float64)}

    def models(self, num_clients: int) -> int:
        return num_clients

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        own: np.ndarray = np.eye(len(state["r"]))[clients]
        return own

    def partial(self, state: Mapping[str, torch.Tensor], clients: np.ndarray, d: int) -> np.ndarray:
        return self._entries(state["r"].numpy(force=True), d)[clients]

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = TensorRows(checked_upload(uploads, context, finite=False))
        check_shares(state)
        cohort = context.clients
        self.require(len(set(cohort.tolist())), context.num_clients)
        r = state["r"].numpy(force=True)[cohort]
        samples = np.asarray(context.client_samples, dtype=np.float64)[cohort]
        weights = r if r.any() else samples / samples.sum()

        def ahead(rows: Mapping[str, Ahead]) -> None:
            units = ask_for_directions(rows["update"], weights)[1]
            rows["update"].weighted_sum(units * self.gamma)

        go_ahead({"update": updates}, ahead)
        lengths = updates.measure()
        require_finite(updates, lengths.norms, context)
        moving = lengths.norms > 0
        units = np.where(moving, weights / np.where(moving, lengths.norms, 1.0), 0.0)
        psi = contributions(updates, units)
        renewed = self._renewed(r, psi)
        total = updates.weighted_sum(units * (self.gamma / lengths.unit))
        counts = self._entries(renewed, updates.shape[1])
        order, by_client = torch.from_numpy(cohort), torch.empty_like(state["r"])
        by_client[order] = torch.as_tensor(renewed).to(by_client)
        entries = np.empty_like(counts)
        entries[cohort] = counts
        return Aggregate(
            largest_entries(total, entries),
            weights,
            {"r": by_client},
            {
                "alignment": psi,
                "contribution": renewed,
                "reward": counts / max(updates.shape[1], 1),
                "update_norm": lengths.norms * lengths.unit,
            },
        )

    def _renewed(self, r: np.ndarray, psi: np.ndarray) -> np.ndarray:
        renewed = self.alpha * r + (1 - self.alpha) * psi
        if not (renewed > 0).any():
            return r
        clamped: np.ndarray = np.maximum(renewed, self.floor)
        return clamped / clamped.sum()

    def _entries(self, r: np.ndarray, d: int) -> np.ndarray:
        """[M] int64 q, after tanh(beta r) against the largest; all d as long as r is 0."""
        shares = np.tanh(self.beta * r)
        shares = shares / shares.max() if shares.any() else np.ones_like(r)
        # The tolerance is for shares that are whole numbers of entries but for rounding.
        counts: np.ndarray = np.floor(d * shares + 1e-9).astype(np.int64)
        return counts


def largest_entries(vector: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
    """[C, d]: row c holds the counts[c] largest entries of a vector [d] by magnitude, else 0.

    Of entries of equal magnitude the first ones count as larger.
    """
    order = torch.sort(vector.abs(), descending=True, stable=True).indices
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device)
    kept = ranks[None] < torch.as_tensor(counts, device=ranks.device)[:, None]
    return torch.where(kept, vector[None], torch.zeros((), dtype=vector.dtype).to(vector))
