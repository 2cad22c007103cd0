"""The geometric median of points of which some may be arbitrarily far away, by re-centring.

Squared distances say nothing of points that are close to each other once others are far from both:
what an iteration makes of them cancels. So points are seen from a centre c close to the median, and
each in its own unit: y_k = (x_k - c) / 2^e_k, of a length near 1. With t_k = 2^(p - e_k), p the
scale of the close ones, and v = (z - c) / 2^p,

    (x_k - z) / 2^e_k = y_k - t_k v,    ||z - x_k|| = ||y_k - t_k v|| 2^p / t_k.

All that the iteration needs are the products <y_k, y_l> [M, M], and nothing in it cancels: a point
far away is a direction, whose t is next to 0. Weiszfeld's step from v is the combination
sum_k y_k / ||y_k - t_k v|| over sum_k t_k / ||y_k - t_k v||. Every new centre takes one pass over
the points; what is then known at it is the true residual, and the centre that has the least is the
result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PASSES = 8
"""Centres that are tried at most."""
FLOOR = 1e-12
"""A residual that is rounding."""
NEAREST = 400
"""Points that are so many powers of 2 closer to the centre than most are at it."""
NOWHERE = 1e-100
"""A length that is none, kept off 0 so that its inverse exists."""
SMALLEST = float(np.finfo(np.float64).tiny)

Products = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of weights of the centre and exponents e, <y_k, y_l>: `rows.Rows.centred_products`."""


class Solution(NamedTuple):
    """The minimiser as weights of the points, and how good it is."""

    weights: np.ndarray
    """[M] >= 0, summing to 1."""
    objective: float
    """sum_i ||z - x_i||."""
    residual: float
    """Norm of the (smallest) subgradient divided by M: in [0, 1], 0 at the minimum."""
    iterations: int
    reach: np.ndarray
    """[M] ||z - x_i||."""


def centred_median(
    products: Products, logs: np.ndarray, tolerance: float, max_iterations: int
) -> Solution:
    """The geometric median of M points, from passes over them.

    logs: [M, M] log2 ||x_i - x_j||. The first centre is a data point in the middle of a majority;
    if another data point has a lower objective, as seen from there, that one is looked at.
    """
    size = len(logs)
    if np.isneginf(logs).all():
        return Solution(np.full(size, 1.0 / size), 0.0, 0.0, 0, np.zeros(size))
    first = middle_point(logs)
    seen = _Seen.at_point(products, first, logs[first])
    visited = {first}
    while (better := seen.best_point()) not in (None, *visited) and len(visited) < PASSES:
        assert better is not None
        visited.add(better)
        seen = _Seen.at_point(products, better, seen.lengths_from(better))
    if seen.at_minimum:
        return seen.solution(0)
    iterations, best = 0, seen
    for _ in range(PASSES):
        coefficients, taken = seen.descended(tolerance, max_iterations - iterations)
        iterations += taken
        seen = seen.moved(products, coefficients)
        gained = seen.residual < 0.5 * best.residual
        best = min(best, seen, key=lambda each: each.residual)
        done = 2 * best.residual <= tolerance or best.residual <= FLOOR
        if done or not gained or iterations >= max_iterations:
            break
    return best.solution(iterations)


def middle_point(distances: np.ndarray) -> int:
    """The data point with a majority closest around it; distances: [M, M], or logarithms of them.

    Unlike the one of the lowest sum of distances it depends on no distance to a minority, which
    might drown the others.
    """
    return int(np.argmin(np.sort(distances, axis=1)[:, len(distances) // 2]))


@dataclass(frozen=True, eq=False)
class _Seen:
    """The points as they are seen from a centre."""

    weights: np.ndarray
    """[M] of the centre."""
    products: np.ndarray
    """[M, M] <y_k, y_l>."""
    exponents: np.ndarray
    """[M] int64 e."""
    scale: int
    """p."""
    start: np.ndarray
    """[M] coefficients b of the y with sum_k b_k y_k = 0, but for rounding."""

    @classmethod
    def at_point(cls, products: Products, point: int, lengths: np.ndarray) -> "_Seen":
        """From a data point; lengths: [M] log2 of the distances from it, about."""
        weights = np.zeros(len(lengths))
        weights[point] = 1.0
        # The radius that holds a majority, or the least where that is 0.
        radius = np.sort(lengths)[len(lengths) // 2]
        radius = radius if np.isfinite(radius) else lengths[np.isfinite(lengths)].min()
        scale = int(np.ceil(radius))
        exponents = _exponents(lengths, scale)
        return cls(weights, products(weights, exponents), exponents, scale, np.zeros(len(weights)))

    @property
    def t(self) -> np.ndarray:
        found: np.ndarray = np.ldexp(1.0, self.scale - self.exponents)
        return found

    @property
    def here(self) -> np.ndarray:
        """[M] which points are the centre."""
        found: np.ndarray = self.products.diagonal() == 0
        return found

    @property
    def at_minimum(self) -> bool:
        """Whether no direction pulls the centre with more than its multiplicity holds it."""
        pulled = self._norm(self._inverse(np.sqrt(self.products.diagonal())))
        return bool(pulled <= self.here.sum() * (1 + 1e-12))

    @property
    def residual(self) -> float:
        """The norm of the smallest subgradient at the centre over M.

        The coefficients of the gradient less a multiple of those of 0 (`start`): at the minimum
        they vanish one by one and not only their sum does, so that the norm is good far below the
        root of rounding.
        """
        inverse = self._inverse(np.sqrt(self.products.diagonal()))
        pull = self._norm(inverse - self.start * (self.t @ inverse))
        return max(pull - float(self.here.sum()), 0.0) / len(self.weights)

    def best_point(self) -> int | None:
        """The data point of the lowest objective, if that is lower than here."""
        gains = self._gains()
        best = int(np.argmin(gains))
        return best if gains[best] < 0 else None

    def lengths_from(self, point: int) -> np.ndarray:
        """[M] log2 of the distances from a data point, about."""
        reach = self._reach(self._to(point))
        return np.where(reach > NOWHERE, np.log2(reach) + self.exponents, -np.inf)

    def descended(self, tolerance: float, most: int) -> tuple[np.ndarray, int]:
        """([M] coefficients of the y that lead from the centre to the median, iterations)."""
        t, size = self.t, len(self.weights)
        b, value = self.start, 0.0
        here = self.here
        if here.any():
            # Vardi and Zhang: Weiszfeld's step without the points here, as far as these let go.
            inverse = self._inverse(np.sqrt(self.products.diagonal()))
            stay = min(here.sum() / self._norm(inverse), 1.0)
            b = (1 - stay) * inverse / (t @ inverse)
            value = self._change(b)
        iterations = 0
        for iterations in range(1, max(most, 1) + 1):  # noqa: B007
            inverse = 1 / self._reach(b)
            pull = t @ inverse
            if 2 * self._norm(inverse - b * pull) / size <= min(tolerance, FLOOR):
                break
            candidates = [inverse / pull, *self._newton(b, inverse)]
            values = [self._change(candidate) for candidate in candidates]
            if not min(values) < value:
                break
            b, value = candidates[int(np.argmin(values))], min(values)
        # Weiszfeld's map once more: convex weights in one canonical form.
        inverse = 1 / self._reach(b)
        return inverse / (t @ inverse), iterations

    def moved(self, products: Products, coefficients: np.ndarray) -> "_Seen":
        """The points from c + 2^p sum_k b_k y_k; the coefficients b are of Weiszfeld's form."""
        reach = self._reach(coefficients)
        exponents = _exponents(np.log2(reach) + self.exponents, self.scale)
        shares = coefficients * self.t
        start = np.ldexp(coefficients, exponents - self.exponents)
        if (shares < SMALLEST).any():  # The weights as they are stored are not those of `start`.
            start = np.zeros_like(start)
        weights = shares / shares.sum()
        return _Seen(weights, products(weights, exponents), exponents, self.scale, start)

    def solution(self, iterations: int) -> Solution:
        """The centre as the result; of several data points that are minima, their mean is one too:
        no order among the clients counts."""
        weights, residual = self.weights, self.residual
        reach = np.sqrt(self.products.diagonal())
        if self.here.any() and self.at_minimum:
            tied = self.here | (self._gains(slack=-1.0) <= 0)
            weights, residual = tied / tied.sum(), 0.0
            if (tied != self.here).any():
                reach = self._reach(np.where(self.here, 0.0, weights / self.t))
        with np.errstate(over="ignore"):
            reach = np.ldexp(np.where(reach > NOWHERE, reach, 0.0), self.exponents)
            objective = float(reach.sum())
        return Solution(weights, objective, residual, iterations, reach)

    def _gains(self, slack: float = 1.0) -> np.ndarray:
        """[M] by how much the objective of a data point is more than that of the centre, with
        `slack` times what may be rounding; infinite for points too far away to say."""
        gains = np.full(len(self.weights), np.inf)
        lengths, t = np.sqrt(self.products.diagonal()), self.t
        for k in np.flatnonzero((t > 2.0**-NEAREST) & (lengths > 0)):
            rounding = 1e-13 * len(gains) * lengths[k] / t[k]
            gains[k] = self._change(self._to(int(k))) + slack * rounding
        return gains

    def _to(self, point: int) -> np.ndarray:
        b = np.zeros(len(self.weights))
        b[point] = 1 / self.t[point]
        return b

    def _reach(self, b: np.ndarray) -> np.ndarray:
        """[M] ||y_k - t_k v||, kept off 0."""
        product, t = self.products @ b, self.t
        squares = self.products.diagonal() + t * (t * (b @ product) - 2 * product)
        return np.asarray(np.sqrt(np.maximum(squares, NOWHERE**2)))

    def _change(self, b: np.ndarray) -> float:
        """sum_k ||z - x_k|| - ||c - x_k|| in units of 2^p: of each the difference of squares over
        the sum, so that those far away hide nothing."""
        product, t = self.products @ b, self.t
        square = b @ product
        terms = t * square - 2 * product
        return float((terms / (self._reach(b) + np.sqrt(self.products.diagonal()))).sum())

    def _inverse(self, reach: np.ndarray) -> np.ndarray:
        """1 / reach, 0 for points at the centre."""
        here = self.here
        return np.where(here, 0.0, 1 / np.where(here, 1.0, reach))

    def _norm(self, coefficients: np.ndarray) -> float:
        """||sum_k a_k y_k||."""
        return float(np.sqrt(max(coefficients @ self.products @ coefficients, 0.0)))

    def _newton(self, b: np.ndarray, inverse: np.ndarray) -> list[np.ndarray]:
        """Newton's step, whole and halved; none where the Hessian is singular (collinear).

        With the unit vectors u_k = (y_k - t_k v) / ||y_k - t_k v||, K = <u_k, u_l>, s_k = t_k /
        ||y_k - t_k v||, the Hessian is sum s I - sum s_k u_k u_k' and the gradient -sum u_k, so the
        step is sum_k q_k u_k with (sum s I - diag(s) K) q = 1.
        """
        t = self.t
        units = inverse[:, None] * (np.eye(len(b)) - t[:, None] * b[None, :])
        pulls = t * inverse
        with np.errstate(over="ignore", invalid="ignore"):
            inner = units @ self.products @ units.T
            system = pulls.sum() * np.eye(len(b)) - pulls[:, None] * inner
        if not np.isfinite(system).all():
            return []
        try:
            q = np.linalg.solve(system, np.ones(len(b)))
        except np.linalg.LinAlgError:
            return []
        if not np.isfinite(q).all():
            return []
        return [b + share * (q @ units) for share in (1.0, 0.5)]


def _exponents(lengths: np.ndarray, scale: int) -> np.ndarray:
    """[M] int64 e for points at 2^lengths from the centre; `scale` for those at it."""
    known = np.isfinite(lengths)
    rounded = np.where(known, np.ceil(np.where(known, lengths, 0.0)), scale)
    lowest = max(scale - NEAREST, -1000)
    return np.clip(rounded, lowest, 1023).astype(np.int64)
