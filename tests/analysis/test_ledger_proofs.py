"""Claims of the ledger that arithmetic decides: `claims.yaml` names these tests as their proof."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.aggregation import aggregate


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=20),
    st.sampled_from([1e-8, 1e-4, 1e-2]),
)
def test_weights_with_epsilon_beside_the_sum_do_not_sum_to_one(alpha, epsilon):
    """Σ α_k / (Σ α_j + ε) = 1 − ε / (Σ α_j + ε) < 1 for every ε > 0."""
    total = sum(alpha)
    weights = [a / (total + epsilon) for a in alpha]
    assert sum(weights) == pytest.approx(1 - epsilon / (total + epsilon), rel=1e-12)
    assert 1 - epsilon / (total + epsilon) < 1


def test_the_gate_penalty_pushes_every_gate_down():
    """d/da |σ(a)| > 0 for every logit, beyond one half too: descent closes gates and opens none."""
    logits = torch.linspace(-8, 8, 101, dtype=torch.float64, requires_grad=True)
    torch.sigmoid(logits).abs().sum().backward()
    assert logits.grad is not None
    assert bool((logits.grad > 0).all())


def test_factors_that_are_both_zero_never_learn():
    """∂L/∂B = G Aᵀ and ∂L/∂A = Bᵀ G for the gradient G of W + BA: both zero at A = B = 0."""
    a = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 5)))
    y = torch.arange(7) % 4
    loss = torch.nn.functional.cross_entropy(torch.sigmoid(logit) * x @ (b @ a).T, y)
    loss.backward()
    for gradient in (a.grad, b.grad, logit.grad):
        assert gradient is not None
        assert not gradient.any()


@given(st.floats(0, 0.99), st.integers(1, 200))
def test_gamma_rises_with_the_rounds(gamma0, t):
    """γ_t = 1 − (1 − γ₀)/t rises towards 1 from γ_1 = γ₀, for every γ₀ < 1."""
    gamma = [1 - (1 - gamma0) / k for k in (t, t + 1)]
    assert gamma[0] < gamma[1] <= 1
    assert gamma0 == pytest.approx(1 - (1 - gamma0) / 1)


def test_normalised_updates_are_not_the_mean_of_the_models():
    """θ + Σ r_k Δ_k is Σ r_k θ_k, but with Δ_k / ‖Δ_k‖ for Δ_k it is another point."""
    theta, shares = np.array([1.0, 2.0]), np.array([0.5, 0.5])
    models = np.array([[4.0, 6.0], [1.0, 2.5]])
    updates = models - theta
    mean = shares @ models
    np.testing.assert_allclose(theta + shares @ updates, mean)
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    scaled = shares @ unit * np.linalg.norm(updates, axis=1).mean()
    for step in (shares @ unit, scaled):
        assert np.linalg.norm(theta + step - mean) > 0.1 * np.linalg.norm(mean - theta)


@given(st.integers(0, 2**32 - 1), st.integers(2, 10), st.floats(1, 30))
def test_half_that_agree_on_a_point_carry_the_geometric_median_there(seed, half, distance):
    """z minimises Σ_k ‖z − Δ_k‖ if its own rows outweigh the pull ‖Σ unit vectors‖ of the others.

    With as many rows at z as elsewhere the pull is below their number for every z, as long as the
    others lie in two directions from it: z is the only minimum, wherever it lies.
    """
    random = np.random.default_rng(seed)
    honest, way = random.normal(size=(half, 5)), random.normal(size=5)
    z = distance * way / np.linalg.norm(way)
    rows = np.vstack([honest, np.tile(z, (half, 1))])
    found = aggregate("geometric-median", np.zeros(5), rows).parameters
    pull = np.linalg.norm(sum((row - z) / np.linalg.norm(row - z) for row in honest))
    assert pull < half
    np.testing.assert_allclose(found, z, atol=1e-3 * distance)
