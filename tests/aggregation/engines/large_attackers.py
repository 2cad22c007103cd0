"""Updates of which fewer than half are anything, and what a geometric median of them is worth."""

import numpy as np
from mpmath import mp, mpf, sqrt

HONEST = 1.0
"""Standard deviation of a number of an honest update."""


def attacked(size, attackers, d, scale, kind, seed=0):
    """[M, d] float64: normal numbers, and attackers of numbers up to `scale`."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(size, d))
    if kind == "alike":
        x[:attackers] = scale * generator.uniform(-1, 1, size=d)
    else:
        x[:attackers] = scale * generator.uniform(-1, 1, size=(attackers, d))
    if kind == "of all sizes":
        x[:attackers] *= 10.0 ** -generator.uniform(0, 20, size=(attackers, 1))
    return x


def true_residual(x, weights):
    """||sum of the unit vectors from z to the points|| less the multiplicity of z, over M, for
    z = sum_k w_k x_k: in numbers of 60 digits and any size."""
    with mp.workdps(60):
        points = [[mpf(float(number)) for number in row] for row in x]
        total = sum(mpf(float(weight)) for weight in weights)
        shares = [mpf(float(weight)) / total for weight in weights]
        z = [
            sum(w * row[j] for w, row in zip(shares, points, strict=True)) for j in range(len(x[0]))
        ]
        pull, at = [mpf(0)] * len(z), 0
        for row in points:
            away = [number - centre for number, centre in zip(row, z, strict=True)]
            length = sqrt(sum(number**2 for number in away))
            if length < mpf(10) ** -40 * sqrt(sum(number**2 for number in row)):
                at += 1
                continue
            pull = [sum_ + number / length for sum_, number in zip(pull, away, strict=True)]
        return max(float(sqrt(sum(number**2 for number in pull))) - at, 0.0) / len(x)
