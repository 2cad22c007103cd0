"""Server rules by brute force, in float64: what the doors have to give for small cohorts."""

import itertools

import numpy as np


def mean(x, counts):
    counts = np.asarray(counts, np.float64)
    return [(counts[:, None] * x).sum(0) / counts.sum()]


def median(x):
    return [np.array([np.median(column) for column in x.T])]


def trimmed_mean(x, f):
    return [np.array([np.mean(sorted(column)[f : len(column) - f]) for column in x.T])]


def multikrum(x, f, count):
    """Every mean of `count` rows that ties of the scores allow."""
    size = len(x)
    scores = []
    for k in range(size):
        others = sorted(((x[k] - x[j]) ** 2).sum() for j in range(size) if j != k)
        scores.append(sum(others[: size - f - 2]))
    scores = np.array(scores)
    # Rounding of the updates may decide between scores this close.
    slack = 1e-4 * scores + 1e-12 * (x**2).sum(1)
    found = []
    for chosen in itertools.combinations(range(size), count):
        worst = max(chosen, key=lambda k: scores[k])
        left = [k for k in range(size) if k not in chosen]
        if all(scores[k] >= scores[worst] - slack[k] - slack[worst] for k in left):
            found.append(x[list(chosen)].mean(0))
    return found


def fedsdg_weights(x, reference, noise, transform="relu", temperature=0.05):
    """Eq. 10 and 11; where the mean may be rounding alone, the uniform weights as well."""
    size = len(x)
    length = np.linalg.norm(x.mean(0))
    scores = []
    for k in range(size):
        others = [j for j in range(size) if reference == "mean" or j != k or size == 1]
        z = x[others].mean(0)
        lengths = np.linalg.norm(x[k]) * np.linalg.norm(z)
        scores.append(np.clip(x[k] @ z / (lengths + 1e-8), -1, 1))
    scores = np.array(scores)
    if transform == "softmax":
        weights = np.exp((scores - scores.max()) / temperature)
    else:
        weights = np.maximum(scores, 0)
    found = []
    if transform == "softmax" or weights.sum() > 0.5e-6:
        found = [weights / weights.sum()]
    # Within a factor of 4 of either limit rounding decides.
    if length <= 4 * noise or (transform == "relu" and weights.sum() < 2e-6):
        found.append(np.full(size, 1 / size))
    return found


def fedsdg(x, reference, transform, temperature, noise):
    """The steps of these weights."""
    return [w @ x for w in fedsdg_weights(x, reference, noise, transform, temperature)]


def capped(weights, cap):
    """min(cap, λ w_k) with the λ that makes it sum to 1, by bisection; evenly where w_k is 0."""
    weights, low, high = np.asarray(weights), 1e-18, 1e18
    heavy = (weights > 0).sum()
    if cap * heavy < 1:
        return np.where(weights > 0, cap, (1 - cap * heavy) / max(1, len(weights) - heavy))
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if np.minimum(cap, middle * weights).sum() > 1 else (middle, high)
    return np.minimum(cap, high * weights)


def cgsv(x, counts):
    """The first round: r is the share of the data, U the weighted sum of the directions."""
    weights = np.asarray(counts, np.float64) / np.sum(counts)
    lengths = np.linalg.norm(x, axis=1)
    directions = x / np.where(lengths > 0, lengths, 1)[:, None]
    return [lengths.mean() * weights @ directions]


def far_from_median(x, z, tolerance, room):
    """Whether the sum of distances from z is larger than it has to be.

    By more than this share of it and this room: no point that Weiszfeld comes to from z on, nor any
    of the rows, may be better.
    """

    def total(point):
        return np.sqrt(((x - point) ** 2).sum(1)).sum()

    best, point = total(z), z.copy()
    for candidate in (*x, x.mean(0), np.median(x, axis=0)):
        best = min(best, total(candidate))
    for _ in range(200):
        distances = np.maximum(np.sqrt(((x - point) ** 2).sum(1)), 1e-300)
        point = (x / distances[:, None]).sum(0) / (1 / distances).sum()
        if not np.isfinite(point).all():
            break
        best = min(best, total(point))
    return total(z) > best * (1 + tolerance) + room
