"""What the private branches of clients amount to.

A gate m alone says little, since it rescales B_p: only the product m B_p A_p is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.next_federation.model_names import block_views, offsets, sigmoid
from fedsdg.next_federation.setup import Server, Setup
from fedsdg.next_federation.store import ClientRows

CLIENTS_PER_PASS = 64


def branch_columns(
    setup: Setup, server: Server, kept: ClientRows, clients: np.ndarray
) -> dict[int, dict[str, Any]]:
    """Return columns of the records of clients, by client; none without a private branch.

    `private_shares`: per block ||m B_p A_p|| / (||m B_p A_p|| + ||B_g A_g||) in Frobenius norms, 0
    if both are 0. `private_ratio`: ||theta_p|| / ||theta_g|| over adapters alone, each A less its
    first value; 0 if both are 0, absent if only the second is. `private_penalty` and
    `gate_penalty`: those of Eq. 5 without their weights.

    Args:
        setup: The federation.
        server: The server after a round.
        kept: What clients keep after it.
        clients: [n] who is measured.
    """
    columns = setup.columns
    rows: dict[int, dict[str, Any]] = {}
    if not bool(columns.factors.any()):
        return rows
    for begin in range(0, len(clients), CLIENTS_PER_PASS):
        some = clients[begin : begin + CLIENTS_PER_PASS]
        theta = setup.downloads(server, some)
        private = kept.read("private", some)
        named = block_views(theta.contiguous(), setup.layout.communicated)
        named |= block_views(private, setup.layout.private)
        own, shared = setup.model.branch_norms(named)  # type: ignore[attr-defined]
        shares = (own / (own + shared)).nan_to_num(nan=0.0).cpu().tolist()
        penalties = (private.double().square() * columns.factors).sum(1).cpu().tolist()
        gates = sigmoid(private.double()[:, columns.gates]).sum(1).cpu().tolist()
        ratios = _ratios(setup, theta, private)
        for k, client in enumerate(some.tolist()):
            rows[client] = {"private_shares": shares[k], "private_penalty": penalties[k]}
            if ratios[k] is not None:
                rows[client]["private_ratio"] = ratios[k]
            if len(columns.gates):
                rows[client]["gate_penalty"] = gates[k]
    return rows


def _ratios(setup: Setup, theta: Tensor, private: Tensor) -> list[float | None]:
    """Return ||theta_p|| / ||theta_g|| of each client, each A less its first value."""
    moved = (private - setup.private * _is_private_a(setup)).double()
    own = (moved.square() * setup.columns.factors).sum(1)
    shared = torch.zeros_like(own)
    for name, place in offsets(setup.layout.communicated).items():
        if name.endswith("lora_A"):
            shared += (theta[:, place] - setup.first[0, place]).double().square().sum(1)
        elif name.endswith("lora_B"):
            shared += theta[:, place].double().square().sum(1)
    ratios: list[float | None] = []
    for mine, common in torch.stack([own, shared]).sqrt().cpu().numpy().T:
        if common > 0:
            ratios.append(float(mine / common))
        else:
            ratios.append(None if mine > 0 else 0.0)
    return ratios


def _is_private_a(setup: Setup) -> Tensor:
    """Return 1 [d_p] for the entries of private factors A, and 0 for all others."""
    mask = torch.zeros_like(setup.private)
    for name, place in offsets(setup.layout.private).items():
        if name.endswith("lora_A_private"):
            mask[place] = 1.0
    return mask
