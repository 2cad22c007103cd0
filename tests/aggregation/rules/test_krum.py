"""Krum against the definition of Blanchard et al. (2017), written out by brute force."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.krum import Krum, MultiKrum, best_scored, krum_scores


def blanchard(x, f):
    """Scores: for each i the sum of squared distances to its n - f - 2 nearest j != i."""
    n = len(x)
    scores = []
    for i in range(n):
        to_others = sorted(((x[i] - x[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(to_others[: n - f - 2]))
    return np.array(scores)


def test_a_thousand_random_cases(cohort):
    generator = np.random.default_rng(0)
    for _ in range(1000):
        f = int(generator.integers(0, 4))
        n = int(generator.integers(2 * f + 3, 2 * f + 9))
        x = generator.normal(size=(n, int(generator.integers(1, 8))))
        x[: f + 1] *= 10.0 ** generator.integers(-2, 5)
        scores = blanchard(x, f)
        updates = {"update": torch.tensor(x)}
        krum = Krum(f)(updates, cohort(n), {})
        winner = int(np.argmin(scores))
        assert krum.weights.tolist() == np.eye(n)[winner].tolist()
        assert krum.diagnostics["winner"] == winner
        np.testing.assert_array_equal(krum.steps[0].numpy(), x[winner])
        np.testing.assert_allclose(krum.diagnostics["score"], scores, rtol=1e-9)
        best = np.argsort(scores, kind="stable")[: n - f]
        multi = MultiKrum(f)(updates, cohort(n), {})
        assert set(np.flatnonzero(multi.weights)) == set(best)
        np.testing.assert_allclose(multi.weights[best], 1 / (n - f))
        np.testing.assert_allclose(multi.steps[0], x[best].mean(0), rtol=1e-9, atol=1e-12)


def test_exact_ties_go_to_the_lowest_index(cohort):
    """Points of a small grid: integer scores, many of them tied and some points equal."""
    generator = np.random.default_rng(1)
    tied = 0
    for _ in range(500):
        n = int(generator.integers(5, 10))
        x = generator.integers(0, 3, size=(n, 2)).astype(float)
        scores = blanchard(x, 1)
        order = np.argsort(scores, kind="stable")
        tied += scores[order[0]] == scores[order[1]]
        updates = {"update": torch.tensor(x)}
        assert Krum(1)(updates, cohort(n), {}).weights[order[0]] == 1
        multi = MultiKrum(1, m=3)(updates, cohort(n), {})
        assert set(np.flatnonzero(multi.weights)) == set(order[:3])
    assert tied > 50


@pytest.mark.parametrize("d", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_high_dimension_small_updates(d, cohort):
    """Updates of scale 3e-5 around parameters of order one, differenced in float32."""
    generator = np.random.default_rng(2)
    origin = generator.normal(size=d).astype(np.float32)
    for _ in range(3):
        client = origin + (3e-5 * generator.normal(size=(9, d))).astype(np.float32)
        updates = client - origin
        scores = blanchard(updates.astype(np.float64), 2)
        krum = Krum(2)({"update": torch.tensor(updates)}, cohort(9), {})
        assert krum.weights.argmax() == scores.argmin()
        # Nine rows of a million numbers are large enough for the kernels.
        rtol = 1e-9 if d < 1_000_000 else 1e-7
        np.testing.assert_allclose(krum.diagnostics["score"], scores, rtol=rtol)


@pytest.mark.parametrize("d", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [1.0, 3e-5])
def test_large_common_direction(d, scale, cohort):
    """Spread / common = 1e-4: a float32 Gram, or an uncentred one, loses the winner."""
    generator = np.random.default_rng(3)
    for _ in range(3):
        spread = 1e-4 * generator.normal(size=(9, d)) * generator.uniform(0.999, 1.001, (9, 1))
        updates = (scale * (generator.normal(size=d) + spread)).astype(np.float32)
        scores = blanchard(updates.astype(np.float64), 2)
        krum = Krum(2)({"update": torch.tensor(updates)}, cohort(9), {})
        assert krum.weights.argmax() == scores.argmin()
        rtol = 1e-8 if d < 1_000_000 else 1e-7
        np.testing.assert_allclose(krum.diagnostics["score"], scores, rtol=rtol)


@pytest.mark.parametrize("far", [1e3, 1e8, 1e15])
def test_far_attackers_do_not_blur_the_honest(far, cohort):
    generator = np.random.default_rng(4)
    for _ in range(20):
        x = generator.normal(size=(9, 40))
        x[:2] *= far
        krum = Krum(2)({"update": torch.tensor(x)}, cohort(9), {})
        honest = 2 + int(np.argmin(blanchard(x[2:], 0)))  # 7 honest rows, their 5 nearest each
        assert krum.weights.argmax() == honest


@pytest.mark.parametrize(("n", "f"), [(4, 1), (2, 0), (6, 2)])
def test_too_few_clients_are_refused(n, f, cohort):
    for rule in (Krum(f), MultiKrum(f)):
        with pytest.raises(ValueError, match=rf"needs at least 2f\+3 = {2 * f + 3} .* has {n}"):
            rule({"update": torch.randn(n, 3)}, cohort(n), {})


def test_impossible_options_are_refused(cohort):
    for make in (lambda: Krum(-1), lambda: MultiKrum(-1), lambda: MultiKrum(1, 0)):
        with pytest.raises(ValueError, match="must be at least"):
            make()
    with pytest.raises(ValueError, match="m=5 must be at most n - f = 4"):
        MultiKrum(1, 5)({"update": torch.randn(5, 3)}, cohort(5), {})


def test_scores_and_order_by_hand():
    """Points 0, 1, 2, 10, 11 on a line, f = 1: two nearest others each."""
    x = np.array([0.0, 1, 2, 10, 11])
    scores = krum_scores((x[:, None] - x) ** 2, f=1)
    assert scores.tolist() == [5, 2, 5, 65, 82]
    assert best_scored(scores, 3).tolist() == [1, 0, 2]
    assert best_scored(np.array([1.0, 1.0 - 1e-15, 0.5]), 2).tolist() == [2, 0]


def test_the_winner_is_a_client_id(cohort):
    context = cohort(clients=[30, 7, 12, 5, 21])
    updates = torch.tensor([[0.0], [1], [2], [10], [11]])
    assert Krum()({"update": updates}, context, {}).diagnostics["winner"] == 7
