"""The geometric median of the updates (Weiszfeld 1937; Vardi and Zhang 2000; Pillutla et al. 2022).

The minimiser of sum_i ||z - x_i|| lies in the convex hull of the rows, z = sum_i w_i x_i with sum
w = 1. All that the iteration needs of the rows are their squared distances D [M, M]:
||z - x_j||^2 = (D w)_j - w'Dw/2, and ||sum_i c_i x_i||^2 = -c'Dc/2 for sum c = 0. So the iteration
runs on M weights in float64 and the d-dimensional work is one Gram matrix and one weighted sum;
translation of the rows changes nothing. Rows far away from the others, as attackers send them, take
a few passes more (`centred_median`).
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.engines.centred_median import Solution, centred_median, middle_point
from fedsdg.aggregation.engines.rows import Rows, squares_suffice
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.parts import Range, part

DOUBT = 1e-8
"""So much, or `MARGIN` times their error if that is more, a residual may be off that squared
distances give; otherwise the points are looked at from close by."""
MARGIN = 100.0


def geometric_median(
    rows: Rows, context: Context, tolerance: float = 1e-9, max_iterations: int = 1000
) -> Solution:
    """The geometric median of the rows, whatever fewer than half of them are.

    From the squared distances, in one pass, where these are good enough for it; where far rows
    drown what the close ones differ by, from some more passes (`centred_median`). Raises
    NonFiniteError, naming the client.
    """
    distances, unit = rows.squared_distances()
    # Of one client there are no distances that could show what is not finite.
    require_finite(rows, distances if len(distances) > 1 else None, context)
    suffice, error = squares_suffice(distances, unit, rows), rows.distance_error
    allowed = max(DOUBT, MARGIN * error)
    if suffice and error * amplification(np.sqrt(distances)) <= allowed:
        found = geometric_median_weights(distances, tolerance, max_iterations)
        if doubt(distances, found.weights, error) <= allowed:
            return found._replace(objective=found.objective * unit, reach=found.reach * unit)
    if suffice:
        with np.errstate(divide="ignore"):
            logs = np.log2(distances) / 2
    else:
        logs = rows.log_distances()
    return centred_median(rows.centred_products, logs, tolerance, max_iterations)


def amplification(distances: np.ndarray) -> float:
    """By how much relative errors of squares grow in the distances from a centre of the points.

    ||z - x_j||^2 = (D w)_j - w'Dw/2 is a difference of numbers that are greater by 1 + 2 mean(r) /
    (mean(1/r) r_j^2), w being in proportion to 1/r; of this the mean, with the distances r from a
    data point among the majority for those from the median. distances: [M, M].
    """
    reach = distances[middle_point(distances)]
    reach = reach[reach > 0]
    if not len(reach):
        return 1.0
    return float((1 + 2 * reach.mean() / (1 / reach).mean() / reach**2).mean())


def doubt(distances: np.ndarray, weights: np.ndarray, error: float) -> float:
    """How far the residual at z = sum_i w_i x_i may be off, squared distances being so by `error`.

    Unit vectors are off by the errors of the distances from z, and the length of their sum is the
    root of a difference.
    """
    product = distances @ weights
    terms = product + weights @ product / 2
    squares = product - weights @ product / 2
    if not (squares[terms > 0] > 0).all():
        return np.inf
    reach = np.sqrt(squares[terms > 0])
    inverse = np.zeros(len(weights))
    inverse[terms > 0] = 1 / reach
    gradient = np.abs(weights * inverse.sum() - inverse)
    size = len(weights)
    spread = error * float(gradient @ distances @ gradient) / 2 / size**2
    signed = weights * inverse.sum() - inverse
    length = float(np.sqrt(max(-signed @ distances @ signed / 2, 0.0))) / size
    off = error * float((terms[terms > 0] / squares[terms > 0]).sum()) / size
    return off + (spread / (length + np.sqrt(spread)) if spread > 0 else 0.0)


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
        return Solution(np.full(size, 1.0 / size), 0.0, 0.0, 0, np.zeros(size))
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
        weights = best / best.sum()
        return Solution(weights, float(objectives.min()) * unit, 0.0, 0, _away(distances, weights))
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
    objective = float(_reach(pairs, weights).sum()) * unit
    return Solution(weights, objective, residual, iterations, _away(distances, weights))


def _away(distances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    product = distances @ weights
    return np.asarray(np.sqrt(np.maximum(product - weights @ product / 2, 0.0)))


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


@part
class GeometricMedian(PlannedRule):
    """step = argmin_z sum_k ||z - Delta_k||, a convex combination of the updates.

    The objective exceeds its minimum by at most the tolerance, relatively. Withstands fewer than
    half of the clients being arbitrary, at every finite scale.
    Diagnostics: objective (units of the updates), residual, iterations.
    """

    tolerance: Annotated[float, Range(1e-12, 0.1)] = 1e-6
    "relative subgradient residual at which the iteration stops"

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        solution = geometric_median(rows["update"], context, self.tolerance)
        return Plan(
            Combination(solution.weights),
            solution.weights,
            dict(state),
            {
                "objective": solution.objective,
                "residual": solution.residual,
                "iterations": float(solution.iterations),
            },
            checked=True,
        )
