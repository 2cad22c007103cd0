"""One oracle for all doors: the rules on updates [M, d] by their definitions, in numpy float64."""

import numpy as np
from scipy.optimize import minimize


def unit(vector):
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector * 0


def cosine(a, b):
    return float(unit(a) @ unit(b))


def mean(updates, samples=None):
    weights = np.ones(len(updates)) if samples is None else np.asarray(samples, dtype=float)
    weights = weights / weights.sum()
    return weights @ updates, weights


def fedsdg(updates, reference="mean", epsilon=1e-8):
    scores = []
    for k, update in enumerate(updates):
        others = updates if reference == "mean" else np.delete(updates, k, axis=0)
        against = others.mean(axis=0)
        length = np.linalg.norm(update) * np.linalg.norm(against) + epsilon
        scores.append(max(0.0, update @ against / length))
    scores = np.array(scores)
    weights = np.full(len(updates), 1 / len(updates))
    if scores.sum() >= 1e-6:
        weights = scores / scores.sum()
    return weights @ updates, weights


def krum_order(updates, f=1):
    n = len(updates)
    scores = []
    for k in range(n):
        others = [j for j in range(n) if j != k]
        squares = sorted(((updates[k] - updates[j]) ** 2).sum() for j in others)
        scores.append(sum(squares[: n - f - 2]))
    return np.argsort(scores, kind="stable"), np.array(scores)


def krum(updates, f=1):
    order, _ = krum_order(updates, f)
    weights = np.zeros(len(updates))
    weights[order[0]] = 1.0
    return updates[order[0]], weights


def multikrum(updates, f=1):
    order, _ = krum_order(updates, f)
    chosen = order[: len(updates) - f]
    weights = np.zeros(len(updates))
    weights[chosen] = 1 / len(chosen)
    return updates[chosen].mean(axis=0), weights


def coordinate_median(updates):
    return np.median(updates, axis=0), None


def trimmed_mean(updates, f=1):
    ordered = np.sort(updates, axis=0)
    return ordered[f : len(updates) - f].mean(axis=0), None


def objective(updates, z):
    return float(np.linalg.norm(updates - z, axis=1).sum())


def geometric_median(updates):
    """By scipy on the objective, in the basis of the updates; and each data point."""
    if len(updates) == 1:
        return updates[0], None
    base = updates.mean(axis=0)
    basis, coordinates = _coordinates(updates - base)
    start = coordinates.mean(axis=0)
    best = minimize(
        lambda z: np.linalg.norm(coordinates - z, axis=1).sum(), start, method="BFGS", tol=1e-12
    ).x
    points = [base + best @ basis, *updates]
    return min(points, key=lambda z: objective(updates, z)), None


def _coordinates(rows):
    _, values, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[values > 1e-12 * max(values.max(initial=0), 1e-300)]
    return basis, rows @ basis.T


def cgsv(updates, samples, floor=1e-3, gamma0=0.5):
    """The first round: (step, weights, r after it)."""
    shares = np.asarray(samples, dtype=float) / np.sum(samples)
    norms = np.linalg.norm(updates, axis=1)
    aggregate = shares @ np.array([unit(update) for update in updates])
    psi = np.array([cosine(update, aggregate) for update in updates])
    r = gamma0 * shares + (1 - gamma0) * psi
    if (r > 0).any():
        r = np.maximum(r, floor)
        r = r / r.sum()
    else:
        r = shares
    return norms.mean() * aggregate, shares, r


RULES = {
    "fedavg": lambda updates, samples: mean(updates, samples),
    "fedavg-uniform": lambda updates, samples: mean(updates),
    "fedsdg": lambda updates, samples: fedsdg(updates),
    "krum": lambda updates, samples: krum(updates),
    "multikrum": lambda updates, samples: multikrum(updates),
    "coordinate-median": lambda updates, samples: coordinate_median(updates),
    "trimmed-mean": lambda updates, samples: trimmed_mean(updates),
    "geometric-median": lambda updates, samples: geometric_median(updates),
    "cgsv": lambda updates, samples: cgsv(updates, samples)[:2],
}
"""(step, weights or None) of a rule by name."""
