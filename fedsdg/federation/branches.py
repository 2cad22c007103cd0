"""What clients' private branches amount to: the private share, the size, both penalties.

A gate m alone says little, for it rescales B_p: only the product m B_p A_p is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.step_rows import PrivateColumns
from fedsdg.files.columns import Column
from fedsdg.models.parameters import Layout, offsets, views
from fedsdg.models.rounding import sigmoid

#: Clients whose rows are looked at together.
AT_ONCE = 64


def gate_penalty(private: Tensor, columns: PrivateColumns) -> Tensor:
    """Σ_l |m_l| with m = σ(a), per client: [a, d_p] -> [a] (Eq. 5, second term without λ₁)."""
    return sigmoid(private[:, columns.gates]).sum(1)


def private_penalty(private: Tensor, columns: PrivateColumns) -> Tensor:
    """‖θ_p‖²: Σ of squares of all ``_private`` entries, per client (Eq. 5 without λ₂)."""
    return (private.square() * columns.factors).sum(1)


class Branches:
    """Measures private branches against the first values of θ_g [d] and of the private row [d_p].

    ``private_shares``: per block ‖m B_p A_p‖_F / (‖m B_p A_p‖_F + ‖B_g A_g‖_F), 0 where both are 0.
    ``private_ratio``: ‖θ_p‖ / ‖θ_g‖ over adapters alone, every A without its first value; 0 where
    both are 0, and absent where only θ_g is. ``gate_penalty`` Σ_l m_l and ``private_penalty``
    Σ θ_p² are those of Eq. 5 without λ₁ and λ₂. ``model``: a ``CohortModel`` where the layout has a
    private branch; others are never asked.
    """

    #: What it adds to the records.
    columns = (
        Column("clients", "gate_penalty", "float64", "Σ_l m_l over the gates of its branch"),
        Column("clients", "private_penalty", "float64", "Σ θ_p² over its private entries"),
        Column("clients", "private_shares", "list of float64", "the private share of each block"),
        Column("clients", "private_ratio", "float64", "‖θ_p‖ / ‖θ_g‖ over adapters alone"),
    )

    def __init__(self, model: Any, layout: Layout, theta: Tensor, private: Tensor) -> None:
        self._model, self._layout = model, layout
        self._columns = PrivateColumns.of(layout, private.device)
        communicated = offsets(layout.communicated)
        factors = [name for name in communicated if name.endswith(("lora_A", "lora_B"))]
        self._shared = [communicated[name] for name in factors]
        self._first_theta = torch.zeros_like(theta)
        for name in factors:
            if name.endswith("lora_A"):
                self._first_theta[communicated[name]] = theta[communicated[name]]
        self._first_private = torch.zeros_like(private)
        for name, place in offsets(layout.private).items():
            if name.endswith("lora_A_private"):
                self._first_private[place] = private[place]

    def measure(
        self,
        clients: np.ndarray,
        theta: Callable[[np.ndarray], Tensor],
        private: Callable[[Tensor], Tensor],
    ) -> dict[int, dict[str, Any]]:
        """Columns of the rows of these clients, by client; none without a private branch.

        ``theta(clients)`` are the shared models [n, d] they use, ``private(clients)`` their private
        rows [n, d_p].
        """
        if not bool(self._columns.factors.any()):
            return {}
        found: dict[int, dict[str, Any]] = {}
        for begin in range(0, len(clients), AT_ONCE):
            some = clients[begin : begin + AT_ONCE]
            columns = self._of(theta(some), private(torch.from_numpy(some)))
            for k, client in enumerate(some.tolist()):
                row = {name: values[k] for name, values in columns.items()}
                found[client] = {name: value for name, value in row.items() if value is not None}
        return found

    def _of(self, theta: Tensor, private: Tensor) -> dict[str, list[Any]]:
        parameters = {
            **views(theta.contiguous(), self._layout.communicated),
            **views(private, self._layout.private),
        }
        own, shared = self._model.branch_norms(parameters)
        columns: dict[str, list[Any]] = {
            "private_shares": (own / (own + shared)).nan_to_num(nan=0.0).cpu().tolist(),
            "private_ratio": self._ratios(theta, private),
            "private_penalty": private_penalty(private.double(), self._columns).cpu().tolist(),
        }
        if len(self._columns.gates):
            columns["gate_penalty"] = gate_penalty(private.double(), self._columns).cpu().tolist()
        return columns

    def _ratios(self, theta: Tensor, private: Tensor) -> list[float | None]:
        moved = (theta - self._first_theta).double()
        shared = sum(moved[:, place].square().sum(1) for place in self._shared)
        own = private_penalty((private - self._first_private).double(), self._columns)
        squares = torch.stack([own, torch.as_tensor(shared).expand_as(own)]).sqrt().cpu().numpy()
        return [
            float(mine / common) if common > 0 else (None if mine > 0 else 0.0)
            for mine, common in squares.T
        ]
