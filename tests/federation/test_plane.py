"""The plane of a trajectory: exact where the points lie in one, and the best one elsewhere."""

import numpy as np
import pytest

from fedsdg.federation.plane import principal_plane


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def in_space(points, d, seed=0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, points.shape[1])))
    return points @ basis.T + 7.0


def test_points_of_a_plane_keep_their_distances():
    points = np.random.default_rng(1).normal(size=(20, 2))
    plane = principal_plane(in_space(points, 300))
    np.testing.assert_allclose(distances(plane.points), distances(points), atol=1e-10)
    assert plane.share == pytest.approx(1.0)


def test_the_first_axis_varies_most_and_the_share_is_of_the_variance():
    spread = np.array([1.0, 5.0, 3.0])
    points = np.random.default_rng(2).normal(size=(4000, 3)) * spread
    plane = principal_plane(in_space(points, 40))
    values = np.sort(np.linalg.eigvalsh(np.cov(points.T)))[::-1]
    np.testing.assert_allclose(plane.points.var(axis=0, ddof=1), values[:2])
    assert plane.share == pytest.approx(values[:2].sum() / values.sum())
    assert plane.points.mean(axis=0) == pytest.approx([0, 0], abs=1e-9)


def test_no_distance_grows():
    vectors = np.random.default_rng(3).normal(size=(15, 50))
    plane = principal_plane(vectors)
    assert np.all(distances(plane.points) <= distances(vectors) + 1e-12)


def test_the_same_picture_whatever_the_sign():
    vectors = np.random.default_rng(4).normal(size=(9, 30))
    there, back = principal_plane(vectors), principal_plane(vectors @ -np.eye(30))
    longest = np.abs(there.points).argmax(axis=0)
    assert np.all(there.points[longest, [0, 1]] > 0)
    np.testing.assert_allclose(np.abs(there.points), np.abs(back.points), atol=1e-12)


def test_a_line_and_a_single_place():
    line = principal_plane(np.outer([0.0, 1.0, 3.0], [3.0, 4.0]))
    np.testing.assert_allclose(distances(line.points), 5 * distances(np.array([[0.0], [1], [3]])))
    np.testing.assert_allclose(line.points[:, 1], 0, atol=1e-12)
    still = principal_plane(np.ones((3, 5)))
    assert not still.points.any() and still.share == 1.0
    thin = principal_plane(np.array([[1.0], [2.0], [4.0]]))
    assert thin.points.shape == (3, 2) and thin.share == pytest.approx(1.0)


def test_bad_vectors_are_named():
    with pytest.raises(ValueError, match="at least two vectors"):
        principal_plane(np.ones((1, 4)))
    with pytest.raises(ValueError, match="vector 1 is not finite"):
        principal_plane(np.array([[1.0, 2.0], [np.nan, 1.0]]))
