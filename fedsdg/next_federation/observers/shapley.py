"""What each update of the last round is worth: Shapley values of a game of clients.

The value v(S) of a coalition S is the accuracy, on the validation samples of all clients, of
theta + the uniform mean of the updates of S. The Shapley value of a player is its marginal gain
v(S + i) - v(S), averaged over all orders in which the players may come together.
"""

from collections.abc import Callable
from math import factorial
from typing import ClassVar

import numpy as np
import torch

from fedsdg.files.columns import Column
from fedsdg.next_federation.observers.observer import Observer, RoundView
from fedsdg.next_federation.scoring import CHUNK, CLIENTS_PER_PASS, merged_weights
from fedsdg.rng import stream

MOST_PLAYERS = 10
"""Exact values take 2^n accuracies."""
ORDERS = 50
"""Random orders of an estimate."""
TOLERANCE = 0.01
"""An order ends so close to the value of all, in accuracy, once half of the players have joined:
in a late round all together are worth hardly more than nobody."""


class Shapley(Observer):
    """Records the Shapley values of the clients whose updates arrived in the last round."""

    columns: ClassVar = (
        Column("clients", "shapley", "float64", "exact Shapley value of its update"),
        Column("clients", "shapley_estimate", "float64", "the same, estimated from random orders"),
    )

    def __init__(self, *, exact: bool = True) -> None:
        """Create one.

        Args:
            exact: Whether exact values are recorded beside the estimate, for at most 10 players.
        """
        super().__init__()
        self.exact = exact

    def observe(self, view: RoundView) -> None:
        """Add the values to the records of the clients."""
        players = len(view.arrived)
        if not view.last or not players:
            return
        values: dict[bytes, float] = {}

        def value_of(coalition: np.ndarray) -> float:
            key = coalition.tobytes()
            if key not in values:
                values[key] = float(coalition_accuracies(view, coalition[None])[0])
            return values[key]

        found = {}
        if self.exact and players <= MOST_PLAYERS:
            members = coalitions(players)
            worth = coalition_accuracies(view, members)
            keys = [coalition.tobytes() for coalition in members]
            values |= dict(zip(keys, worth.tolist(), strict=True))
            found["shapley"] = shapley_values(worth, members)
        generator = stream("contribution", view.setup.seed)
        found["shapley_estimate"] = estimated_values(players, value_of, generator)
        for k, client in enumerate(view.arrived.clients.tolist()):
            view.clients[client] |= {name: float(shares[k]) for name, shares in found.items()}


def coalitions(players: int) -> np.ndarray:
    """Return all 2^n coalitions, bool [2^n, n]: row c holds player i if bit i of c is set."""
    return (np.arange(2**players)[:, None] >> np.arange(players) & 1).astype(bool)


def shapley_values(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return exact Shapley values from the values of all coalitions.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

    Args:
        values: [2^n].
        members: bool [2^n, n], as `coalitions` returns them.

    Returns:
        [n]; they sum to v(all) - v(nobody).
    """
    players = members.shape[1]
    sizes = members.sum(axis=1)
    orders = [factorial(size) * factorial(players - size - 1) for size in range(players)]
    share = np.array(orders, dtype=np.float64) / factorial(players)
    phi = np.empty(players)
    for player in range(players):
        without = np.flatnonzero(~members[:, player])
        gains = values[without | 1 << player] - values[without]
        phi[player] = (share[sizes[without]] * gains).sum()
    return phi


def estimated_values(
    players: int, value_of: Callable[[np.ndarray], float], generator: np.random.Generator
) -> np.ndarray:
    """Return mean marginal gains over random orders (Ghorbani & Zou 2019, algorithm 1).

    Players that are left when an order ends early are credited with 0.

    Args:
        players: n.
        value_of: The value of a coalition, bool [n].
        generator: Source of randomness.
    """
    nobody = value_of(np.zeros(players, dtype=bool))
    everybody = value_of(np.ones(players, dtype=bool))
    gains = np.zeros((ORDERS, players))
    for gain in gains:
        coalition = np.zeros(players, dtype=bool)
        before = nobody
        for joined, player in enumerate(generator.permutation(players)):
            if joined >= (players + 1) // 2 and abs(everybody - before) < TOLERANCE:
                break
            coalition[player] = True
            after = value_of(coalition)
            gain[player] = after - before
            before = after
    return gains.mean(axis=0)


@torch.no_grad()
def coalition_accuracies(view: RoundView, members: np.ndarray) -> np.ndarray:
    """Return the value [B] of coalitions, bool [B, n], many in one pass."""
    setup = view.setup
    samples = setup.samples
    start = view.before.models[0]
    index = torch.from_numpy(np.concatenate(setup.shards.val)).to(samples.labels.device)
    values = []
    for some in torch.from_numpy(members).split(CLIENTS_PER_PASS):
        count = len(some)
        shares = some.double().to(start.device)
        shares /= shares.sum(dim=1, keepdim=True).clamp(min=1.0)
        theta = (start.double() + shares @ view.arrived.update.double()).to(start.dtype)
        weights = merged_weights(setup, theta, setup.private.expand(count, -1), private=False)
        right = torch.zeros(count, dtype=torch.int64, device=index.device)
        for chunk in index.split(max(CHUNK // count, 1)):
            images = samples.images[chunk].repeat(count, *[1] * (samples.images.dim() - 1))
            logits = setup.model.forward(images, [len(chunk)] * count, weights)
            right += (logits.argmax(1).view(count, -1) == samples.labels[chunk]).sum(dim=1)
        values.append(right.cpu().numpy() / len(index))
    return np.concatenate(values)
