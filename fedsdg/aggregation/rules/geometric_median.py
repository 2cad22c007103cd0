"""The geometric median of the updates (Weiszfeld 1937; Vardi and Zhang 2000; Pillutla et al. 2022).

The minimiser of sum_i ||z - x_i|| lies in the convex hull of the rows, z = sum_i w_i x_i with sum
w = 1. All that the iteration needs of the rows are their squared distances D [M, M]:
||z - x_j||^2 = (D w)_j - w'Dw/2, and ||sum_i c_i x_i||^2 = -c'Dc/2 for sum c = 0. So the iteration
runs on M weights in float64 and the d-dimensional work is one Gram matrix and one weighted sum;
translation of the rows changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite


class Solution(NamedTuple):
    """The minimiser as weights of the points, and how good it is."""

    weights: np.ndarray
    """[M] >= 0, summing to 1."""
    objective: float
    """sum_i ||z - x_i||, in the units of sqrt(pairs)."""
    residual: float
    """Norm of the (smallest) subgradient divided by M: in [0, 1], 0 at the minimum."""
    iterations: int


def geometric_median_weights(
    distances: np.ndarray, tolerance: float = 1e-9, max_iterations: int = 1000
) -> Solution:
    """Convex weights of the geometric median of M points from their squared distances D [M, M].

    First every data point is tried: x_j is the minimum if and only if ||sum_{i: x_i != x_j} of the
    unit vectors from x_j to x_i|| <= its multiplicity (Vardi and Zhang). Otherwise their step
    leaves the best data point to below every data point's objective; from there each iteration
    takes the better of Weiszfeld's step and Newton's. It stops when the subgradient g has
    2 ||g|| / M <= tolerance, which bounds the relative excess of the objective (for
    f - f* <= ||g|| ||z - z*|| and M ||z - z*|| <= f + f*), or when rounding leaves nothing to gain.
    """
    size = len(distances)
    scale = distances.max(initial=0.0)
    if scale == 0:
        return Solution(np.full(size, 1.0 / size), 0.0, 0.0, 0)
    pairs = distances / scale
    roots = np.sqrt(pairs)
    objectives = roots.sum(axis=1)
    best = objectives <= objectives.min() * (1 + 1e-13)
    start = int(np.argmax(best))
    length, pulls = _pull(pairs, roots[start])
    same = pairs[start] == 0
    unit = float(np.sqrt(scale))
    if length <= same.sum() * (1 + 1e-12):
        # All tied data points are minima, and so is their mean: no order among the clients counts.
        return Solution(best / best.sum(), float(objectives.min()) * unit, 0.0, 0)
    stay = same.sum() / length
    weights = (1 - stay) * pulls / pulls.sum() + stay * same / same.sum()
    iterations, residual = 0, np.inf
    for iterations in range(1, max_iterations + 1):  # noqa: B007
        reach = _reach(pairs, weights)
        inverse = 1.0 / reach
        # g = sum_i (z - x_i) / ||z - x_i|| as coefficients of the points.
        gradient = weights * inverse.sum() - inverse
        residual = float(np.sqrt(max(-gradient @ pairs @ gradient / 2, 0.0))) / size
        if 2 * residual <= tolerance:
            break
        candidates = [inverse / inverse.sum(), *_newton(pairs, weights, reach)]
        values = [_reach(pairs, candidate).sum() for candidate in candidates]
        if min(values) >= reach.sum() * (1 - 1e-15):
            break
        weights = candidates[int(np.argmin(values))]
    # Weiszfeld's map once more: convex weights in one canonical form, and no larger objective.
    inverse = 1.0 / _reach(pairs, weights)
    weights = inverse / inverse.sum()
    return Solution(weights, float(_reach(pairs, weights).sum()) * unit, residual, iterations)


def _pull(pairs: np.ndarray, reach: np.ndarray) -> tuple[float, np.ndarray]:
    """Length of the sum of unit vectors from a data point to the others, and 1/distance to each."""
    pulls = np.where(reach > 0, 1.0 / np.where(reach > 0, reach, 1.0), 0.0)
    coefficients = pulls.copy()
    coefficients[int(np.argmin(reach))] -= pulls.sum()
    return float(np.sqrt(max(-coefficients @ pairs @ coefficients / 2, 0.0))), pulls


def _reach(pairs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[M] ||z - x_j||, kept off zero so that its inverse exists."""
    product = pairs @ weights
    return np.sqrt(np.maximum(product - weights @ product / 2, 1e-200))


def _newton(pairs: np.ndarray, weights: np.ndarray, reach: np.ndarray) -> list[np.ndarray]:
    """Newton's step from z, whole and halved; none where the Hessian is singular (collinear).

    With r_i = z - x_i, K = <r_i, r_j> and s = sum 1/||r_i||, the Hessian is
    s I - sum r_i r_i' / ||r_i||^3, so the step sum_i b_i r_i solves
    (s I - diag(||r||^-3) K) b = -1/||r||.
    """
    inner = (reach[:, None] ** 2 + reach[None, :] ** 2 - pairs) / 2
    with np.errstate(over="ignore"):
        system = (1.0 / reach).sum() * np.eye(len(pairs)) - inner / reach[:, None] ** 3
    if not np.isfinite(system).all():
        return []
    try:
        b = np.linalg.solve(system, -1.0 / reach)
    except np.linalg.LinAlgError:
        return []
    if not np.isfinite(b).all():
        return []
    return [weights + t * (weights * b.sum() - b) for t in (1.0, 0.5)]


@dataclass(frozen=True)
class GeometricMedian(PlannedRule):
    """step = argmin_z sum_k ||z - Delta_k||, a convex combination of the updates.

    tolerance: bound on the relative excess of the objective. max_iterations: of the M-weight
    iteration. Withstands fewer than half of the clients being arbitrary.
    Diagnostics: objective (units of the updates), residual, iterations.
    """

    tolerance: float = 1e-9
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance={self.tolerance} must be in (0, 1); the default is 1e-9")
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations={self.max_iterations} must be at least 1")

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates = rows["update"]
        distances, unit = updates.squared_distances()
        # Of one client there are no distances that could show what is not finite.
        require_finite(updates, distances if len(distances) > 1 else None, context)
        solution = geometric_median_weights(distances, self.tolerance, self.max_iterations)
        return Plan(
            Combination(solution.weights),
            solution.weights,
            dict(state),
            {
                "objective": solution.objective * unit,
                "residual": solution.residual,
                "iterations": float(solution.iterations),
            },
            checked=True,
        )
