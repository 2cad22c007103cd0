"""The geometric median of the updates.

The minimiser of sum_i ||z - x_i|| lies in the convex hull of the rows, z = sum_i w_i x_i with
sum w = 1. Relative to a data point c, y_i = x_i - c, the iteration needs only the products
P = <y_i, y_j> [M, M]: ||z - x_i||^2 = P_ii - 2 (P w)_i + w'Pw. So it runs on M weights in float64,
and the d-dimensional work is a pass for squared distances D, from which
P_ij = (D_ci + D_cj - D_ij) / 2, and one weighted sum. If distances in float32 are not accurate
enough, because some rows are far away from the others, P takes a pass of its own in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State

FAR = 100.0
"""Squared distances do not resolve rows so many times closer to the median than others are."""
EXACT = 1e6
"""Errors of products in float64 may grow by this factor; beyond, they are computed again, relative
to the median so far."""
PASSES = 4
"""Most passes for products in float64."""
TINY = 1e-150
"""Lower bound on distances, so that reciprocals stay finite."""
ROUNDING = 1e-15
"""A squared distance below this share of the numbers it is the difference of is 0."""


class Solution(NamedTuple):
    """The minimiser as weights of the points, and how accurate it is."""

    weights: np.ndarray
    "[M] at least 0, summing to 1"
    reach: np.ndarray
    "[M] ||z - x_i||"
    residual: float
    "norm of the smallest subgradient divided by M: in [0, 1], 0 at the minimum"
    iterations: int


class GeometricMedian(Rule):
    """step = argmin_z sum_k ||z - Delta_k||, a convex combination of the updates.

    The objective exceeds its minimum by at most the tolerance, relatively. Withstands fewer than
    half of the clients being arbitrary. Diagnostics: objective (units of the updates), residual,
    iterations.
    Source: Pillutla et al. 2022; Weiszfeld 1937; Vardi and Zhang 2000.
    """

    tolerance: Annotated[float, Field(ge=1e-12, le=0.1)] = 1e-6
    "relative subgradient residual at which the iteration stops"

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        solution = geometric_median(rows["update"], self.tolerance)
        return Plan(
            Combination(solution.weights),
            solution.weights,
            state,
            {
                "objective": float(solution.reach.sum()),
                "residual": solution.residual,
                "iterations": float(solution.iterations),
            },
        )


def geometric_median(rows: Rows, tolerance: float, max_iterations: int = 1000) -> Solution:
    """Return the geometric median of the rows, even if fewer than half of them are arbitrary.

    Args:
        rows: M vectors.
        tolerance: Relative excess of the objective at which the iteration stops.
        max_iterations: Most iterations on one set of products.
    """
    distances = rows.distances()
    # The data point with the closest majority around it: no distance to a minority counts.
    point = int(np.argmin(np.sort(distances, axis=1)[:, len(distances) // 2]))
    squares, centre = distances[point], np.eye(len(distances))[point]
    products = (squares[:, None] + squares[None, :] - distances) / 2
    solution = minimise(products, tolerance, max_iterations)
    nearest = squares[squares > 0].min(initial=np.inf)
    limit = FAR if squares.max() <= FAR**2 * nearest else 0.0
    for _ in range(PASSES):
        if _amplification(products, solution) <= limit:
            break
        products, limit = rows.gram(centre), EXACT
        solution = minimise(products, tolerance, max_iterations)
        centre = solution.weights
    return solution


def minimise(products: np.ndarray, tolerance: float, max_iterations: int) -> Solution:
    """Return the geometric median of M points.

    First the best data point is tried: x_j is the minimum if and only if the sum of the unit
    vectors from x_j to the others is no longer than its multiplicity (Vardi and Zhang). Otherwise
    their step leaves it; from there each iteration takes the better of Weiszfeld's step and
    Newton's. It stops when the subgradient g has 2 ||g|| / M <= tolerance, which bounds the
    relative excess of the objective (f - f* <= ||g|| ||z - z*|| and M ||z - z*|| <= f + f*), or
    when rounding leaves nothing to gain.

    Args:
        products: [M, M] <y_i, y_j>, relative to a data point.
        tolerance: Of the residual.
        max_iterations: Most iterations.
    """
    size = len(products)
    lengths = np.sqrt(np.maximum(products.diagonal(), 0.0))
    values = np.array([_change(products, lengths, corner) for corner in np.eye(size)])
    best = values <= values.min() + 1e-13 * size * np.median(lengths)
    point = np.eye(size)[int(np.argmax(best))]
    reach = _reach(products, point)
    at_point = reach <= TINY
    inverse = np.where(at_point, 0.0, 1 / np.where(at_point, 1.0, reach))
    pull = _norm(products, inverse - point * inverse.sum())
    if pull <= at_point.sum() * (1 + 1e-12):
        # Tied data points are minima, and so is their mean: the order of the clients is irrelevant.
        weights = best / best.sum()
        return Solution(weights, _reach(products, weights), 0.0, 0)
    stay = at_point.sum() / pull
    weights = (1 - stay) * inverse / inverse.sum() + stay * at_point / at_point.sum()
    return _iterate(products, lengths, weights, tolerance, max_iterations)


def _iterate(
    products: np.ndarray,
    lengths: np.ndarray,
    weights: np.ndarray,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    value, residual, iterations = _change(products, lengths, weights), np.inf, 0
    for iterations in range(1, max_iterations + 1):  # noqa: B007
        inverse = 1 / np.maximum(_reach(products, weights), TINY)
        residual = _norm(products, inverse - weights * inverse.sum()) / len(products)
        if 2 * residual <= tolerance:
            break
        candidates = [inverse / inverse.sum(), *_newton(products, weights, inverse)]
        values = [_change(products, lengths, candidate) for candidate in candidates]
        if not min(values) < value:
            break
        weights, value = candidates[int(np.argmin(values))], min(values)
    # Weiszfeld's map once more: convex weights in one canonical form.
    inverse = 1 / np.maximum(_reach(products, weights), TINY)
    weights = inverse / inverse.sum()
    return Solution(weights, _reach(products, weights), residual, iterations)


def _reach(products: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[M] ||z - x_i||."""
    product, squared_lengths = products @ weights, products.diagonal()
    square = weights @ product
    squares = squared_lengths - 2 * product + square
    return np.sqrt(np.where(squares > ROUNDING * (squared_lengths + square), squares, 0.0))


def _change(products: np.ndarray, lengths: np.ndarray, weights: np.ndarray) -> float:
    """sum_i ||z - x_i|| - ||c - x_i||.

    Each term is the difference of squares over the sum, so that distant points hide nothing.
    """
    product = products @ weights
    terms = weights @ product - 2 * product
    sums = _reach(products, weights) + lengths
    return float(np.divide(terms, sums, where=sums > 0, out=np.zeros_like(sums)).sum())


def _norm(products: np.ndarray, coefficients: np.ndarray) -> float:
    """||sum_i a_i y_i||."""
    return float(np.sqrt(max(coefficients @ products @ coefficients, 0.0)))


def _newton(products: np.ndarray, weights: np.ndarray, inverse: np.ndarray) -> list[np.ndarray]:
    """Newton's step, whole and halved; none if the Hessian is singular (collinear points).

    With the unit vectors u_i = (x_i - z) s_i, s_i = 1 / ||x_i - z||, the Hessian is sum s I - sum
    s_i u_i u_i' and the gradient -sum u_i, so the step is sum_i q_i u_i with (sum s I - diag(s) K)
    q = 1, K = <u_i, u_j>.
    """
    eye = np.eye(len(weights))
    units = inverse[:, None] * (eye - weights[None, :])
    with np.errstate(over="ignore", invalid="ignore"):
        system = inverse.sum() * eye - inverse[:, None] * (units @ products @ units.T)
        try:
            step = np.linalg.solve(system, np.ones(len(weights))) @ units
        except np.linalg.LinAlgError:
            return []
    return [weights + share * step for share in (1.0, 0.5)] if np.isfinite(step).all() else []


def _amplification(products: np.ndarray, solution: Solution) -> float:
    """By how much a relative error of products grows in squared distances from the median."""
    squares = products.diagonal() + solution.weights @ products @ solution.weights
    return float((squares / np.maximum(solution.reach, TINY) ** 2).max(initial=1.0))
