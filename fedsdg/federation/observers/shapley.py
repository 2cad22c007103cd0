"""What each update of the last round is worth: Shapley values of a game of clients.

The value v(S) of a coalition S is the accuracy, on the validation samples of all clients, of
theta + the uniform mean of the updates of S. The Shapley value of a player is its marginal gain
v(S + i) - v(S), averaged over all orders in which the players may come together.
"""

from collections.abc import Callable
from functools import cache
from math import factorial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.federation.scoring import evaluate_logits, is_right, merged_weights
from fedsdg.files.columns import Column
from fedsdg.rng import stream

MOST_PLAYERS = 10
"""Exact values take 2^n accuracies."""
ORDERS = 50
"""Random orders of an estimate."""
TOLERANCE = 0.01
"""An order ends so close to the value of all, in accuracy, once half of the players have joined:
in a late round all together are worth hardly more than nobody."""


class Shapley(Observer):
    """Records the Shapley values of the clients whose updates arrived in the last round.

    They are of the one model that the server sends; without such a model there are none.
    """

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
        one_model = len(view.before.models) == 1 and view.setup.layout.global_model
        if not (view.last and players and one_model):
            return
        updates = view.arrived.update.double()

        @cache
        def value_of(*members: bool) -> float:
            return coalition_accuracy(view, updates[list(members)])

        found = {}
        if self.exact and players <= MOST_PLAYERS:
            members = coalitions(players)
            values = np.array([value_of(*coalition) for coalition in members.tolist()])
            found["shapley"] = shapley_values(values, members)
        generator = stream("contribution", view.setup.data.seed)
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
    players: int, value_of: Callable[..., float], generator: np.random.Generator
) -> np.ndarray:
    """Return mean marginal gains over random orders (Ghorbani & Zou 2019, algorithm 1).

    Players that are left when an order ends early are credited with 0.

    Args:
        players: n.
        value_of: The value of a coalition, of n bools.
        generator: Source of randomness.
    """
    nobody = value_of(*[False] * players)
    everybody = value_of(*[True] * players)
    gains = np.zeros((ORDERS, players))
    for gain in gains:
        coalition = np.zeros(players, dtype=bool)
        before = nobody
        for joined, player in enumerate(generator.permutation(players)):
            if joined >= (players + 1) // 2 and abs(everybody - before) < TOLERANCE:
                break
            coalition[player] = True
            after = value_of(*coalition.tolist())
            gain[player] = after - before
            before = after
    return gains.mean(axis=0)


@torch.no_grad()
def coalition_accuracy(view: RoundView, updates: Tensor) -> float:
    """Return the value of a coalition whose members have sent updates [n, d], float64."""
    setup = view.setup
    start = view.before.models[:1]
    step = updates.sum(0) / max(len(updates), 1)
    theta = (start.double() + step).to(start.dtype)
    weights = merged_weights(setup, theta, setup.private[None], private=False)
    right = evaluate_logits(setup, weights, [np.concatenate(setup.data.val)], is_right)
    return float(torch.cat(right).double().mean())
