"""FedSDG's weights: the specification's example, closed forms, and the definition in numpy."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.screened import Screened

from ..api_cases import beside_a_large_head, without_head

EXAMPLE = torch.tensor([[0.5, 0.3], [0.6, 0.4], [-0.5, -0.2]], dtype=torch.float64)


def run(updates, cohort, parameter_norm=None, **options):
    context = dataclasses.replace(cohort(len(updates)), parameter_norm=parameter_norm)
    return Alignment(**options)({"update": updates}, context, {})


def softmax(values):
    powers = np.exp(values - np.max(values))
    return powers / powers.sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.4984, 0.5016, 0.0]),
        ({"reference": "leave_one_out"}, [0.6033, 0.3967, 0.0]),
        ({"reference": "leave_one_out", "transform": "softmax"}, [0.9969, 0.0031, 0.0]),
    ],
)
def test_worked_example(options, expected, cohort):
    aggregate = run(EXAMPLE, cohort, **options)
    np.testing.assert_allclose(aggregate.weights, expected, atol=5e-5)
    np.testing.assert_allclose(aggregate.steps[0], expected @ EXAMPLE.numpy(), atol=5e-5)
    assert aggregate.diagnostics["degenerate"] == 0


def test_worked_example_alignments(cohort):
    aggregate = run(EXAMPLE, cohort)
    alpha = [0.45 / np.sqrt(0.34 * 0.61), 0.56 / np.sqrt(0.52 * 0.61), 0]
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], alpha, rtol=1e-6)
    np.testing.assert_allclose(aggregate.steps[0], [0.55016, 0.35016], atol=5e-6)
    assert aggregate.diagnostics["cosine"][2] < -0.9


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(2, 8),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    reference=st.sampled_from(["mean", "leave_one_out"]),
    transform=st.sampled_from(["relu", "softmax"]),
    smoothing=st.sampled_from([0.0, 0.3]),
)
def test_matches_the_definition(cohort, size, d, seed, reference, transform, smoothing):
    x = np.random.default_rng(seed).normal(size=(size, d)) + 0.3
    cosines = []
    for k in range(size):
        z = x.mean(0) if reference == "mean" else np.delete(x, k, axis=0).mean(0)
        cosines.append(x[k] @ z / (np.linalg.norm(x[k]) * np.linalg.norm(z) + 1e-8))
    alpha = np.maximum(cosines, 0)
    if transform == "softmax":
        expected = softmax(np.array(cosines) / 0.2)
    else:
        expected = alpha / alpha.sum() if alpha.sum() >= 1e-6 else np.full(size, 1 / size)
    expected = (1 - smoothing) * expected + smoothing / size
    options = {"reference": reference, "transform": transform, "smoothing": smoothing}
    aggregate = run(torch.tensor(x), cohort, temperature=0.2, **options)
    np.testing.assert_allclose(aggregate.weights, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(aggregate.diagnostics["cosine"], cosines, atol=1e-7)


def test_epsilon_is_inside_the_cosine_only(cohort):
    """Two equal updates with ||Delta|| ||mean|| = epsilon: alpha = 1/2 each, weights sum to 1."""
    aggregate = run(torch.full((2, 1), 0.1, dtype=torch.float64), cohort, epsilon=0.01)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [0.5, 0.5])
    assert aggregate.weights.sum() == pytest.approx(1, abs=1e-15)


def test_orthogonal_updates_weigh_the_same(cohort):
    aggregate = run(torch.eye(4, dtype=torch.float64), cohort)
    np.testing.assert_allclose(aggregate.weights, np.full(4, 0.25))
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], np.full(4, 0.5), rtol=1e-6)


def test_opposite_updates_are_degenerate(cohort):
    update = torch.randn(1, 30, dtype=torch.float64)
    aggregate = run(torch.cat([update, -update]), cohort)
    np.testing.assert_array_equal(aggregate.weights, [0.5, 0.5])
    assert aggregate.diagnostics["degenerate"] == 1
    assert not aggregate.steps.any()


@pytest.mark.parametrize(
    ("total", "weights"), [(0.98e-6, [1 / 2, 1 / 2]), (1.02e-6, [2 / 3, 1 / 3])]
)
def test_weights_are_uniform_below_a_sum_of_alignments_of_a_millionth(total, weights, cohort):
    """Of (1, 2t) and (-1, t) the mean is (0, 3t/2), so the alignments are 2t and t."""
    t = total / 3
    updates = 1e6 * torch.tensor([[1, 2 * t], [-1, t]], dtype=torch.float64)
    aggregate = run(updates, cohort)
    np.testing.assert_allclose(aggregate.weights, weights, rtol=1e-9)
    assert aggregate.diagnostics["alignment"].sum() == pytest.approx(total)
    assert aggregate.diagnostics["degenerate"] == (total < 1e-6)


def test_a_zero_update_weighs_nothing_beside_others(cohort):
    updates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    assert run(updates, cohort).weights[0] == 0


@pytest.mark.parametrize("options", [{}, {"reference": "leave_one_out"}, {"transform": "softmax"}])
def test_one_client_has_all_the_weight(options, cohort):
    assert run(EXAMPLE[:1], cohort, **options).weights.tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_noise_guard(dtype, cohort):
    """Uniform if ||mean|| <= 1/2 eps max||theta||, and not just above."""
    updates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0]], dtype=dtype)
    mean_norm = np.sqrt(2) / 3
    limit = mean_norm / (0.5 * torch.finfo(dtype).eps)
    below = run(updates, cohort, parameter_norm=limit * (1 - 1e-6))
    above = run(updates, cohort, parameter_norm=limit * (1 + 1e-6))
    assert (below.diagnostics["degenerate"], above.diagnostics["degenerate"]) == (0, 1)
    np.testing.assert_array_equal(above.weights, np.full(3, 1 / 3))
    assert below.weights[0] > 0.4


def test_leave_one_out_without_direction_has_cosine_zero(cohort):
    """The others of client 2 cancel: whatever the scale, their direction is no direction."""
    generator = torch.Generator().manual_seed(0)
    v, w = torch.randn(2, 1000, generator=generator, dtype=torch.float64)
    for scale in (1.0, 1e12, 1e100):
        updates = torch.stack([v, -v, w]) * scale
        cosine = run(updates, cohort, reference="leave_one_out").diagnostics["cosine"]
        assert abs(cosine[2]) < 1e-6


def test_max_weight_and_smoothing(cohort):
    np.testing.assert_allclose(run(EXAMPLE, cohort, max_weight=0.4).weights, [0.4, 0.4, 0.2])
    np.testing.assert_allclose(run(EXAMPLE, cohort, smoothing=1.0).weights, np.full(3, 1 / 3))
    for cap in (0.3, 0.0):
        with pytest.raises(ValueError, match=r"below 1/3.*use at least 0.333"):
            run(EXAMPLE, cohort, max_weight=cap)


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.0},
        {"epsilon": 0.011},
        {"epsilon": float("nan")},
        {"reference": "median"},
        {"transform": "none"},
        {"temperature": 0.0},
        {"max_weight": -0.1},
        {"max_weight": 1.1},
        {"smoothing": -0.1},
        {"smoothing": 1.1},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Alignment(**options)


def test_adapters_alone_may_decide_over_the_whole_update(cohort):
    generator = torch.Generator().manual_seed(3)
    updates = torch.randn(6, 40, generator=generator, dtype=torch.float64) + 0.2
    adapters = updates[:, :25]
    context = cohort(6)
    rule = Alignment(scope="adapters")
    found = rule({"update": updates, "adapters": adapters}, context, {})
    alone = Alignment()({"update": adapters}, context, {})
    np.testing.assert_array_equal(found.weights, alone.weights)
    assert not np.allclose(found.weights, Alignment()({"update": updates}, context, {}).weights)
    np.testing.assert_allclose(found.steps[0], found.weights @ updates.numpy(), rtol=1e-12)
    with pytest.raises(ValueError, match="adapters"):
        rule({"update": updates}, context, {})
    broken = updates.clone()
    broken[2, -1] = torch.nan  # outside the adapters
    with pytest.raises(ValueError, match="finite"):
        rule({"update": broken, "adapters": broken[:, :25]}, context, {})
    with pytest.raises(ValueError, match="scope is 'head', but must be one of all, adapters"):
        Alignment(scope="head")


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("kind", ["arrays in memory", "matrices"])
def test_noise_is_that_of_the_columns_that_are_compared(kind, noise):
    """Weights over the adapters are those of the same adapters without any head."""
    theta, *clients = beside_a_large_head(noise)
    rule = Alignment(scope="adapters", epsilon=1e-30)
    if kind == "matrices":  # A rule that is not planned gets them.
        rule = Screened(rule, threshold=1e6)
    options = {"num_clients": 4} if kind == "matrices" else {}
    found = aggregate(rule, theta, clients, **options)
    alone = [without_head(params) for params in (theta, *clients)]
    expected = aggregate(Alignment(epsilon=1e-30), alone[0], alone[1:])
    assert found.diagnostics["degenerate"] == expected.diagnostics["degenerate"] == noise
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-6)
    mean = np.average([params["head.w"] for params in clients], axis=0, weights=found.weights)
    np.testing.assert_allclose(found.parameters["head.w"], mean, rtol=1e-6)


def test_parameters_that_are_a_head_alone_have_no_adapters_to_compare():
    theta, *clients = ({"head.w": np.ones(3) * k} for k in range(4))
    found = aggregate(Alignment(scope="adapters"), theta, clients)
    assert found.diagnostics["degenerate"] == 1 and found.weights == [1 / 3] * 3


def test_adapters_are_formed_and_not_given():
    theta, *clients = beside_a_large_head()
    with pytest.raises(ValueError, match="'adapters', which is formed from client_params"):
        aggregate(Alignment(scope="adapters"), theta, clients, uploads={"adapters": clients})
