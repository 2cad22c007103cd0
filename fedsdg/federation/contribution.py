"""What each player adds to a coalition: Shapley values, exactly or from random permutations.

A game has n players and a utility v of coalitions. The Shapley value of player i is its marginal
gain v(S ∪ {i}) − v(S), averaged over all n! orders in which the players may come together, S being
those before it (Shapley 1953). In federated learning the players are clients and v(S) is what a
model made from the updates of S alone is worth: the yardstick for measures that cost less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np

#: Enumeration takes 2^n utilities: 1024 for ten players, and twice as many for one more.
MAX_PLAYERS = 10

#: From a bool mask [n] of those who take part to what they are worth together.
Utility = Callable[[np.ndarray], float]


def check_players(players: int) -> None:
    """Raise ``ValueError`` where exact Shapley values are out of reach."""
    if not 1 <= players <= MAX_PLAYERS:
        raise ValueError(
            f"exact Shapley values are enumerated for 1 to {MAX_PLAYERS} players, got {players}: "
            "take fewer clients, or estimate them from permutations (federation.shapley: estimated)"
        )


def coalitions(players: int) -> np.ndarray:
    """All 2^n coalitions as a bool array [2^n, n]: row c holds player i where bit i of c is set.

    Raises ``ValueError`` for more than ``MAX_PLAYERS`` players.
    """
    check_players(players)
    return (np.arange(2**players)[:, None] >> np.arange(players) & 1).astype(bool)


def coalition_values(players: int, utility: Utility) -> np.ndarray:
    """The utility of every coalition [2^n], in the order of ``coalitions``."""
    return np.array([utility(mask) for mask in coalitions(players)], dtype=np.float64)


def shapley_values(values: np.ndarray) -> np.ndarray:
    """Exact Shapley values [n] from the utilities [2^n] of all coalitions.

    φ_i = Σ_{S ∌ i} |S|! (n − |S| − 1)! / n! · (v(S ∪ {i}) − v(S)). They sum to v(all) − v(∅).

    Raises:
        ValueError: the number of values is no power of two, there are too many players, or a
            value is not finite.
    """
    v = np.asarray(values, dtype=np.float64)
    players = v.size.bit_length() - 1
    if v.ndim != 1 or v.size != 2**players:
        raise ValueError(f"a game of n players has 2^n utilities, got an array of shape {v.shape}")
    members = coalitions(players)
    if not np.isfinite(v).all():
        place = int(np.flatnonzero(~np.isfinite(v))[0])
        raise ValueError(
            f"the utility of coalition {np.flatnonzero(members[place]).tolist()} is {v[place]}: "
            "every coalition needs a finite one"
        )
    size = np.arange(players)
    weight = np.array([factorial(s) * factorial(players - s - 1) for s in size], dtype=np.float64)
    weight /= factorial(players)
    sizes = members.sum(axis=1)
    phi = np.empty(players)
    for i in range(players):
        without = np.flatnonzero(~members[:, i])
        phi[i] = (weight[sizes[without]] * (v[without | 1 << i] - v[without])).sum()
    return phi


@dataclass(frozen=True)
class Estimate:
    """Estimated Shapley values: what permutations gave, how sure that is, and what it cost."""

    values: np.ndarray
    """[n] mean marginal gains."""
    standard_errors: np.ndarray
    """[n] sample deviation of a player's gains over √permutations; of the bias that truncation
    brings it knows nothing."""
    permutations: int
    calls: int
    """Coalitions whose utility was computed; none is computed twice."""


def truncated_monte_carlo(
    players: int,
    utility: Utility,
    permutations: int,
    generator: np.random.Generator,
    tolerance: float = 0.0,
    at_least: int = 0,
) -> Estimate:
    """Shapley values from random orders of the players (Ghorbani and Zou 2019, algorithm 1).

    Each order adds its players one by one and credits each with its marginal gain. Once the value
    is within ``tolerance`` of v(all), and ``at_least`` so many players have joined, the players
    left in that order are credited with 0, without a call. Where all together are worth little
    more than nobody, truncation before the first would credit everybody with 0. Tolerance 0
    truncates nothing and the estimate is unbiased; with truncation every order shifts the sum of
    the values by less than the tolerance.

    Raises:
        ValueError: no players, fewer than two permutations, or a negative tolerance.
    """
    if players < 1:
        raise ValueError(f"a game needs at least one player, got {players}")
    if permutations < 2:
        raise ValueError(f"a standard error needs two permutations or more, got {permutations}")
    if tolerance < 0:
        raise ValueError(f"the tolerance of truncation must be 0 or more, got {tolerance}")
    known: dict[bytes, float] = {}

    def value(mask: np.ndarray) -> float:
        if (key := mask.tobytes()) not in known:
            known[key] = float(utility(mask.copy()))
        return known[key]

    nobody, everybody = value(np.zeros(players, bool)), value(np.ones(players, bool))
    gains = np.zeros((permutations, players))
    for gain in gains:
        mask, before = np.zeros(players, bool), nobody
        for joined, player in enumerate(generator.permutation(players)):
            if joined >= at_least and abs(everybody - before) < tolerance:
                break
            mask[player] = True
            after = value(mask)
            gain[player], before = after - before, after
    errors = gains.std(axis=0, ddof=1) / np.sqrt(permutations)
    return Estimate(gains.mean(axis=0), errors, permutations, len(known))
