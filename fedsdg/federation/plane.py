"""A plane to draw the way of models in: the two directions in which they differ most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Plane(NamedTuple):
    """Points in the plane of their two first principal components."""

    points: np.ndarray
    """[n, 2] coordinates around the mean of all points; the first axis varies most."""
    share: float
    """Share of the points' total variance that lies in the plane, in [0, 1]."""


def principal_plane(vectors: np.ndarray) -> Plane:
    """Project vectors [n, d] onto the plane that keeps most of their variance.

    Distances in the plane are at most those in space. Each axis points to where its longest
    coordinate is positive, so that the same vectors give the same picture.

    Raises:
        ValueError: fewer than two vectors, or one that is not finite.
    """
    x = np.asarray(vectors, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"a plane needs at least two vectors [n, d], got shape {x.shape}")
    if not np.isfinite(x).all():
        first = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise ValueError(f"vector {first} is not finite, so that it has no place in a plane")
    centred = x - x.mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(x), 2))
    rank = min(2, len(lengths))
    points[:, :rank] = left[:, :rank] * lengths[:rank]
    longest = points[np.abs(points).argmax(axis=0), [0, 1]]
    points *= np.where(longest < 0, -1.0, 1.0)
    total = float((lengths**2).sum())
    return Plane(points, float((lengths[:2] ** 2).sum()) / total if total else 1.0)
