"""What the private branches of clients amount to.

A gate m alone says little, since it rescales B_p: only the product m B_p A_p is used.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.batches import split_batches
from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.federation.setup import Setup
from fedsdg.files.columns import Column
from fedsdg.models import ParameterSpec, block_views, offsets, sigmoid

CLIENTS_PER_PASS = 64


class Branches(Observer):
    """Measures private branches at evaluations.

    `private_shares`: per block ||m B_p A_p|| / (||m B_p A_p|| + ||B_g A_g||) in Frobenius norms, 0
    if both are 0. `private_ratio`: ||theta_p|| / ||theta_g|| over adapters alone, each A less its
    first value; 0 if both are 0, absent if only the second is. `private_penalty` and
    `gate_penalty`: those of Eq. 5 without their weights.
    """

    columns: ClassVar = (
        Column("clients", "gate_penalty", "float32", "Σ_l m_l over the gates of its branch"),
        Column("clients", "private_penalty", "float32", "Σ θ_p² over its private entries"),
        Column("clients", "private_shares", "list of float32", "the private share of each block"),
        Column("clients", "private_ratio", "float32", "‖θ_p‖ / ‖θ_g‖ over adapters alone"),
    )

    def observe(self, view: RoundView) -> None:
        """Add the columns to the records of evaluated clients that have trained."""
        setup = view.setup
        measured = bool(setup.columns.factors.any())
        rows = [k for k, row in view.clients.items() if measured and row.get("drawn")]
        clients = np.array(sorted(rows), dtype=np.int64)
        for some in split_batches(clients, CLIENTS_PER_PASS):
            theta = setup.downloads(view.after, some)
            private = view.kept.read("private", some)
            named = block_views(theta.contiguous(), setup.layout.communicated)
            named |= block_views(private, setup.layout.private)
            own, shared = setup.model.branch_norms(named)  # type: ignore[attr-defined]
            wide = private.double()
            values = {
                "private_shares": (own / (own + shared)).nan_to_num(nan=0.0),
                "private_ratio": _ratios(setup, theta, private),
                "private_penalty": (wide.square() * setup.columns.factors).sum(1),
            }
            if len(setup.columns.gates):
                values["gate_penalty"] = sigmoid(wide[:, setup.columns.gates]).sum(1)
            lists = {name: value.tolist() for name, value in values.items()}
            for k, client in enumerate(some.tolist()):
                view.clients[client] |= {name: value[k] for name, value in lists.items()}
                if not math.isfinite(lists["private_ratio"][k]):
                    del view.clients[client]["private_ratio"]


def _ratios(setup: Setup, theta: Tensor, private: Tensor) -> Tensor:
    """Return ||theta_p|| / ||theta_g|| of each client, each A less its first value."""
    own = _squared_change(private, setup.private, setup.layout.private, "_private")
    shared = _squared_change(theta, setup.first[0], setup.layout.communicated, "")
    ratio = own.sqrt() / shared.sqrt()
    return torch.where(own > 0, ratio, torch.zeros_like(ratio))


def _squared_change(
    rows: Tensor, first: Tensor, specs: Sequence[ParameterSpec], suffix: str
) -> Tensor:
    """Return the sum of squares [n] of adapters in rows [n, width], each A less its first value."""
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    for name, place in offsets(specs).items():
        if name.endswith((f"lora_A{suffix}", f"lora_B{suffix}")):
            start = first[place] if name.endswith(f"lora_A{suffix}") else 0.0
            total += (rows[:, place] - start).double().square().sum(1)
    return total
