"""The dict-of-tensors door: the specification's example, its edge cases, and its errors."""

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsdg.aggregation.engines.memory.state_dicts
from fedsdg.aggregation import fedsdg_server_aggregate
from fedsdg.aggregation.engines.backends import backend

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def example(dtype=torch.float64):
    theta = {"w": torch.tensor([1.0, 2.0], dtype=dtype)}
    clients = [[1.5, 2.3], [1.6, 2.4], [0.5, 1.8]]
    return theta, [{"w": torch.tensor(client, dtype=dtype)} for client in clients]


def parameters(seed, dtype=torch.float64, scale=1.0):
    generator = np.random.default_rng(seed)
    shapes = {"blocks.0.lora_A": (3, 4), "head.bias": (5,), "scalar": (), "empty": (0, 2)}
    return {
        name: torch.tensor(scale * generator.normal(size=shape), dtype=dtype)
        for name, shape in shapes.items()
    }


def flat(params):
    return np.concatenate([tensor.double().numpy().ravel() for tensor in params.values()])


def test_docstring_examples():
    result = doctest.testmod(fedsdg.aggregation.engines.memory.state_dicts)
    assert result.attempted >= 5
    assert result.failed == 0


def test_worked_example():
    aggregated, weights = fedsdg_server_aggregate(*example())
    assert isinstance(weights, list)
    np.testing.assert_allclose(weights, [0.4984, 0.5016, 0], atol=5e-5)
    np.testing.assert_allclose(aggregated["w"], [1.55016, 2.35016], atol=5e-6)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 7), seed=st.integers(0, 10**6), epsilon=st.sampled_from([1e-10, 0.01]))
def test_matches_the_definition(size, seed, epsilon):
    theta = parameters(seed)
    clients = [parameters(seed + 1 + k) for k in range(size)]
    updates = np.array([flat(client) - flat(theta) for client in clients])
    mean = updates.mean(0)
    norms = np.linalg.norm(updates, axis=1)
    alpha = np.maximum(0, updates @ mean / (norms * np.linalg.norm(mean) + epsilon))
    expected = alpha / alpha.sum()
    aggregated, weights = fedsdg_server_aggregate(theta, clients, epsilon)
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(flat(aggregated), flat(theta) + expected @ updates, rtol=1e-9)
    assert {name: tensor.shape for name, tensor in aggregated.items()} == {
        name: tensor.shape for name, tensor in theta.items()
    }
    order = np.random.default_rng(seed).permutation(size)
    again, permuted = fedsdg_server_aggregate(theta, [clients[k] for k in order], epsilon)
    np.testing.assert_allclose(permuted, np.array(weights)[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(flat(again), flat(aggregated), rtol=1e-9)


def test_a_mapping_gives_weights_by_client():
    theta, clients = example()
    by_id = dict(zip(["c", 7, (1, 2)], clients, strict=True))
    aggregated, weights = fedsdg_server_aggregate(theta, by_id)
    in_order, listed = fedsdg_server_aggregate(theta, clients)
    assert weights == dict(zip(["c", 7, (1, 2)], listed, strict=True))
    assert torch.equal(aggregated["w"], in_order["w"])


def test_no_clients_give_a_copy():
    theta, _ = example()
    for none, weights in (([], []), ({}, {})):
        aggregated, received = fedsdg_server_aggregate(theta, none)
        assert received == weights
        assert type(received) is type(weights)
        assert torch.equal(aggregated["w"], theta["w"])
        aggregated["w"].zero_()
        assert theta["w"].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_client_gives_its_parameters(dtype):
    theta, client = parameters(0, dtype), parameters(1, dtype)
    aggregated, weights = fedsdg_server_aggregate(theta, [client])
    assert weights == [1.0]
    assert all(torch.equal(aggregated[name], client[name]) for name in client)
    assert all(aggregated[name].data_ptr() != client[name].data_ptr() for name in ("scalar",))
    unchanged, weights = fedsdg_server_aggregate(theta, [theta])
    assert weights == [1.0]
    assert all(torch.equal(unchanged[name], theta[name]) for name in theta)


@pytest.mark.parametrize("dtype", DTYPES)
def test_identical_clients_give_their_parameters(dtype):
    client = parameters(1, dtype)
    aggregated, weights = fedsdg_server_aggregate(parameters(0, dtype), [client] * 4)
    np.testing.assert_allclose(weights, np.full(4, 0.25), rtol=1e-9)
    eps = torch.finfo(dtype).eps
    for name in client:
        torch.testing.assert_close(aggregated[name], client[name], rtol=2 * eps, atol=0)


def test_orthogonal_updates_weigh_the_same():
    theta = {"w": torch.zeros(4)}
    weights = fedsdg_server_aggregate(theta, [{"w": row} for row in torch.eye(4)])[1]
    np.testing.assert_allclose(weights, np.full(4, 0.25), rtol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_opposite_updates_weigh_the_same_despite_rounding(dtype):
    """theta + v and theta - v do not have exactly opposite differences: their mean is rounding."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        theta = torch.randn(200, generator=generator, dtype=torch.float64).to(dtype)
        v = 0.1 * torch.randn(200, generator=generator, dtype=torch.float64).to(dtype)
        _, weights, facts = fedsdg_server_aggregate(
            {"w": theta}, [{"w": theta + v}, {"w": theta - v}], debug=True
        )
        assert weights == [0.5, 0.5]
        assert facts["degenerate"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_is_kept_and_accumulated_exactly(dtype):
    theta, clients = parameters(0, dtype), [parameters(k, dtype) for k in (1, 2, 3)]
    aggregated, weights = fedsdg_server_aggregate(theta, clients)
    exact = sum(w * flat(client) for w, client in zip(weights, clients, strict=True))
    assert all(tensor.dtype == dtype for tensor in aggregated.values())
    # Both sums round in float64 where terms cancel: θ + Σ w_k (θ_k − θ) against Σ w_k θ_k.
    size = np.abs(flat(theta)).max() + max(np.abs(flat(client)).max() for client in clients)
    eps = torch.finfo(dtype).eps
    atol = 8 * size * torch.finfo(torch.float64).eps
    np.testing.assert_allclose(flat(aggregated), exact, rtol=eps, atol=atol)


def test_mixed_dtypes_keep_each_tensors_own():
    theta, client = parameters(0, torch.float32), parameters(1, torch.float32)
    for params in (theta, client):
        params["scalar"] = params["scalar"].to(torch.bfloat16)
        params["head.bias"] = params["head.bias"].double()
    aggregated, _ = fedsdg_server_aggregate(theta, [client, client])
    assert [t.dtype for t in aggregated.values()] == [t.dtype for t in theta.values()]


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1e10, 1e25])
def test_extreme_update_scales_in_float32(scale):
    theta = {"w": torch.zeros(1000)}
    updates = np.random.default_rng(0).normal(size=(5, 1000)) + 0.3
    clients = [{"w": torch.tensor(scale * u, dtype=torch.float32)} for u in updates]
    aggregated, weights = fedsdg_server_aggregate(theta, clients)
    step = aggregated["w"].double().numpy() / scale
    np.testing.assert_allclose(step, np.array(weights) @ updates, rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(step) > 1


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e300])
def test_extreme_scales_in_float64(scale):
    updates = np.random.default_rng(0).normal(size=(5, 30)) + 0.3
    clients = [{"w": torch.tensor(scale * u)} for u in updates]
    theta = {"w": torch.zeros(30, dtype=torch.float64)}
    aggregated, weights, facts = fedsdg_server_aggregate(theta, clients, debug=True)
    step = aggregated["w"].numpy() / scale
    np.testing.assert_allclose(step, np.array(weights) @ updates, rtol=1e-9)
    assert facts["degenerate"] == (scale < 1)


def test_inputs_are_not_modified():
    theta, clients = parameters(0), [parameters(k) for k in (1, 2, 3)]
    copies = [{name: t.clone() for name, t in params.items()} for params in (theta, *clients)]
    aggregated, _ = fedsdg_server_aggregate(theta, clients, clip_norm=0.5, debug=True)[:2]
    for tensor in aggregated.values():
        tensor.fill_(7.0)
    for params, copy in zip((theta, *clients), copies, strict=True):
        assert all(torch.equal(params[name], copy[name]) for name in copy)


def test_gradients_views_and_order_of_keys_do_not_matter():
    theta, clients = parameters(0), [parameters(k) for k in (1, 2)]
    expected, weights = fedsdg_server_aggregate(theta, clients)
    odd = [dict(reversed(client.items())) for client in clients]
    odd[0]["blocks.0.lora_A"] = odd[0]["blocks.0.lora_A"].T.contiguous().T.requires_grad_()
    trainable = {name: torch.nn.Parameter(tensor) for name, tensor in theta.items()}
    aggregated, again = fedsdg_server_aggregate(trainable, odd)
    assert again == weights
    for name in theta:
        assert torch.equal(aggregated[name], expected[name])
        assert not aggregated[name].requires_grad


def test_returned_parts():
    theta, clients = example()
    alone = fedsdg_server_aggregate(theta, clients, return_weights=False)
    aggregated, weights, facts = fedsdg_server_aggregate(theta, clients, debug=True)
    both = fedsdg_server_aggregate(theta, clients, 1e-8, False, debug=True)
    assert torch.equal(alone["w"], aggregated["w"])
    assert torch.equal(both[0]["w"], aggregated["w"])
    assert len(both) == 2
    alpha = [0.45 / np.sqrt(0.34 * 0.61), 0.56 / np.sqrt(0.52 * 0.61), 0]
    np.testing.assert_allclose(facts["alpha"], alpha, rtol=1e-6)
    np.testing.assert_allclose(facts["mean"]["w"], [0.2, 1 / 6])
    np.testing.assert_allclose(facts["norms"], np.sqrt([0.34, 0.52, 0.29]))
    assert facts["mean_norm"] == pytest.approx(math.hypot(0.2, 1 / 6))
    assert facts["weights"].tolist() == weights
    assert facts["degenerate"] is False
    assert facts["clients"] == [0, 1, 2]
    assert fedsdg_server_aggregate(theta, [], debug=True)[2]["clients"] == []


def test_variants_reach_the_rule():
    loo = {"reference": "leave_one_out"}
    weights = fedsdg_server_aggregate(*example(), **loo)[1]
    np.testing.assert_allclose(weights, [0.6033, 0.3967, 0], atol=5e-5)
    weights = fedsdg_server_aggregate(*example(), **loo, transform="softmax", temperature=0.05)[1]
    np.testing.assert_allclose(weights, [0.9969, 0.0031, 0], atol=5e-5)
    weights = fedsdg_server_aggregate(*example(), smoothing=1.0)[1]
    np.testing.assert_allclose(weights, np.full(3, 1 / 3))


def test_max_weight():
    weights = fedsdg_server_aggregate(*example(), max_weight=0.4)[1]
    np.testing.assert_allclose(weights, [0.4, 0.4, 0.2])
    with pytest.raises(ValueError, match="below 1/3"):
        fedsdg_server_aggregate(*example(), max_weight=0.33)


def test_clip_norm():
    """Every update longer than the limit is scaled to it; then the definition as ever."""
    theta, clients = parameters(0), [parameters(k, scale=s) for k, s in ((1, 0.1), (2, 1), (3, 9))]
    limit = 2.0
    updates = np.array([flat(client) - flat(theta) for client in clients])
    norms = np.linalg.norm(updates, axis=1)
    clipped = updates * np.minimum(1, limit / norms)[:, None]
    assert (norms > limit).any()
    aggregated, weights, facts = fedsdg_server_aggregate(
        theta, clients, clip_norm=limit, debug=True
    )
    mean = clipped.mean(0)
    cosine = clipped @ mean / (np.linalg.norm(clipped, axis=1) * np.linalg.norm(mean) + 1e-8)
    expected = np.maximum(cosine, 0) / np.maximum(cosine, 0).sum()
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    np.testing.assert_allclose(flat(aggregated), flat(theta) + expected @ clipped, rtol=1e-9)
    np.testing.assert_allclose(facts["norms"], norms)
    loose = fedsdg_server_aggregate(theta, clients, clip_norm=1e6)
    assert loose[1] == fedsdg_server_aggregate(theta, clients)[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_parameters_follow_the_definition(dtype):
    """Read by the kernels where they lie: weights, clipping, the mean, to five digits."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=90_000)
    rows = [theta + s * (0.2 + generator.normal(size=90_000)) for s in (0.1, 0.2, 0.3)]

    def named(row):
        tensor = torch.tensor(row, dtype=dtype)
        return {"w": tensor[:89_000].view(890, 100).clone(), "b": tensor[89_000:].clone()}

    origin, clients = named(theta), [named(row) for row in rows]
    updates = np.array([flat(client) - flat(origin) for client in clients])
    norms = np.linalg.norm(updates, axis=1)
    for limit in (None, 50.0):
        clipped = updates if limit is None else updates * np.minimum(1, limit / norms)[:, None]
        mean = clipped.mean(0)
        cosine = clipped @ mean / (np.linalg.norm(clipped, axis=1) * np.linalg.norm(mean) + 1e-8)
        with backend("numba"):
            aggregated, weights, facts = fedsdg_server_aggregate(
                origin, clients, clip_norm=limit, debug=True
            )
        np.testing.assert_allclose(weights, cosine / cosine.sum(), rtol=1e-5)
        exact = flat(origin) + np.array(weights) @ clipped
        eps = torch.finfo(dtype).eps
        np.testing.assert_allclose(flat(aggregated), exact, rtol=eps, atol=eps)
        np.testing.assert_allclose(facts["norms"], norms, rtol=1e-5)
        np.testing.assert_allclose(flat(facts["mean"]), mean, rtol=1e-5, atol=1e-5)
        noise = 0.5 * eps * max(np.linalg.norm(flat(c)) for c in clients)
        if limit is None:
            assert facts["noise_norm"] == pytest.approx(noise, rel=1e-5)
    with backend("numba"):
        alone, weights = fedsdg_server_aggregate(origin, clients[:1])
        equal, _ = fedsdg_server_aggregate(origin, clients[1:2] * 4)
    for name in origin:
        assert torch.equal(alone[name], clients[0][name])
        assert torch.equal(equal[name], clients[1][name])


@pytest.mark.parametrize(
    "epsilon", [0, -1e-8, 0.0101, float("nan"), float("inf"), "1e-8", None, True]
)
def test_epsilon_out_of_range(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        fedsdg_server_aggregate(*example(), epsilon)
    assert fedsdg_server_aggregate(*example(), 0.01)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf"), "1"])
def test_clip_norm_out_of_range(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        fedsdg_server_aggregate(*example(), clip_norm=clip_norm)


OK = {"w": torch.zeros(2)}


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([OK, {}], r"client 1: tensor 'w' is missing; send"),
        ({"eve": {**OK, "b": torch.ones(1)}}, r"client eve: tensor 'b' is not in global_params"),
        ([{"w": torch.zeros(2, 1)}], r"client 0: tensor 'w' has shape \(2, 1\), expected \(2,\)"),
        ([OK, {"w": torch.tensor([1.0, torch.nan])}], r"client 1: tensor 'w' has 1 non-finite"),
        ([OK, {"w": torch.tensor([torch.inf, torch.nan])}], r"client 1: .* has 2 non-finite"),
        ([{"w": np.zeros(2)}], r"client 0: 'w' is a ndarray; convert it with torch.as_tensor"),
        ([{"w": torch.zeros(2, dtype=torch.int64)}], r"client 0: tensor 'w' is torch.int64"),
        ([{"w": torch.zeros(2, dtype=torch.complex64)}], r"client 0: .* is torch.complex64"),
        ([{"w": torch.zeros(2).to_sparse()}], r"client 0: tensor 'w' .*sparse"),
        ([OK, None], r"client 1: parameters are a NoneType; give a dict"),
        (OK, r"client w: parameters are a Tensor; give a dict"),
        (None, r"client_params is a NoneType; give a list"),
        ("clients", r"client_params is a str; give a list"),
        ((OK for _ in range(2)), r"client_params is a generator; give a list"),
    ],
)
def test_errors_name_the_client_the_tensor_and_the_remedy(clients, message):
    with pytest.raises(ValueError, match=message):
        fedsdg_server_aggregate(OK, clients)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (None, "global_params is a NoneType"),
        ([torch.zeros(2)], "global_params is a list"),
        ({}, "global_params holds no tensors"),
        ({"w": torch.tensor([torch.nan, 0])}, "global parameters: tensor 'w' has 1 non-finite"),
        ({"n": torch.tensor(3)}, "global parameters: tensor 'n' is torch.int64"),
    ],
)
def test_errors_of_the_global_parameters(params, message):
    for clients in ([], [OK]):
        with pytest.raises(ValueError, match=message):
            fedsdg_server_aggregate(params, clients)


def test_non_finite_is_a_floating_point_error_too():
    with pytest.raises(FloatingPointError):
        fedsdg_server_aggregate(OK, [{"w": torch.full((2,), torch.inf)}])


def test_an_overflowing_difference_is_an_error():
    largest = torch.full((2,), torch.finfo(torch.float32).max)
    with pytest.raises(ValueError, match=r"client 0: the update of tensor 'w' overflows"):
        fedsdg_server_aggregate({"w": -largest}, [{"w": largest}, {"w": -largest}])
