"""What holds for every rule through the generic door."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fedsdg.aggregation import fedsdg_server_aggregate
from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Context

from .api_cases import EVERY_RULE, KINDS, call, draw, flat, form, leaves, needs

each_rule = pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
cohorts = st.tuples(st.integers(0, 10**6), st.integers(5, 8), st.integers(8, 12))


def slack(rule):
    """How far two results of a rule that iterates may lie apart: it stops where it may."""
    return 1e-7 + 100 * getattr(make_rule(rule), "tolerance", 0.0)


def same_results(one, two, rtol=None):
    """Equal bit by bit, or to a relative tolerance."""
    close = np.testing.assert_array_equal if rtol is None else np.testing.assert_allclose
    tolerance = {} if rtol is None else {"rtol": rtol, "atol": 1e-2 * rtol}
    close(flat(one.parameters), flat(two.parameters), **tolerance)
    assert type(one.weights) is type(two.weights)
    if isinstance(one.weights, dict):
        assert set(one.weights) == set(two.weights)
        close(list(one.weights.values()), [two.weights[name] for name in one.weights], **tolerance)
    elif one.weights is not None:
        close(one.weights, two.weights, **tolerance)
    assert one.state.keys() == two.state.keys()
    for name, value in one.state.items():
        close(value.numpy(), two.state[name].numpy(), **tolerance)


@each_rule
@settings(max_examples=10, deadline=None)
@given(cohort=cohorts)
def test_the_result_is_the_origin_plus_the_rules_step(rule, cohort):
    theta, clients = draw(*cohort)
    size, d = clients.shape
    options = needs(rule, size)
    samples = np.array(options.get("client_samples") or options.get("num_samples") or [1.0] * size)
    context = Context(
        round=1,
        clients=np.arange(size),
        num_clients=size,
        num_samples=samples,
        total_samples=int(samples.sum()),
        num_batches=np.array(options.get("num_batches", [1] * size)),
        client_samples=samples,
        parameter_norm=float(np.linalg.norm(clients, axis=1).max()),
    )
    made = make_rule(rule)
    uploads = dict.fromkeys(made.reads, torch.tensor(clients))
    uploads["update"] = torch.tensor(clients - theta)
    expected = made(uploads, context, made.init(d, samples))
    result = call(rule, theta, clients)
    np.testing.assert_allclose(result.parameters, theta + expected.steps[0].numpy(), rtol=1e-12)
    if expected.weights is None:
        assert result.weights is None
    else:
        assert result.weights == expected.weights.tolist()
    assert result.diagnostics.keys() == expected.diagnostics.keys()
    for name, value in expected.diagnostics.items():
        np.testing.assert_array_equal(result.diagnostics[name], value)
    assert result.dropped == {}


@each_rule
@settings(max_examples=12, deadline=None)
@given(cohort=cohorts)
def test_the_order_of_a_mapping_does_not_matter(rule, cohort):
    theta, clients = draw(*cohort)
    size = len(clients)
    order = np.random.default_rng(cohort[0]).permutation(size).tolist()
    results = []
    for ids in (list(range(size)), order):
        by_id = {k: clients[k] for k in ids}
        options = needs(rule, size, controls=by_id)
        for name in ("num_samples", "num_batches"):
            if name in options:
                options[name] = dict(enumerate(options[name]))
        results.append(aggregate(rule, theta, by_id, **options))
    one, two = results
    same_results(one, two, slack(rule))
    for name, value in one.diagnostics.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(
                two.diagnostics[name],
                value[order],
                rtol=10 * slack(rule),
                atol=slack(rule),
                err_msg=name,
            )
    assert one.diagnostics.get("winner") == two.diagnostics.get("winner")


@each_rule
@settings(max_examples=12, deadline=None)
@given(cohort=cohorts, shift=st.floats(-50, 50))
def test_translation_of_the_parameters(rule, cohort, shift):
    """All parameters moved by the same vector: so is the result, and nothing else changes."""
    theta, clients = draw(*cohort)
    vector = shift * draw(cohort[0] + 1, 1, len(theta))[0]
    controls = needs(rule, len(clients), controls=list(clients))
    one = call(rule, theta, clients, **controls)
    two = call(rule, theta + vector, clients + vector, **controls)
    np.testing.assert_allclose(
        two.parameters, one.parameters + vector, rtol=slack(rule), atol=slack(rule)
    )
    if one.weights is not None:
        np.testing.assert_allclose(
            two.weights, one.weights, rtol=10 * slack(rule), atol=10 * slack(rule)
        )


@each_rule
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_every_kind_gives_the_same_in_its_own_form(rule, dtype):
    """A dict is the flat vector cut into pieces, numpy is torch: bit by bit."""
    theta, clients = draw(3, 6, 13)
    kinds = [kind for kind in KINDS if dtype != "bfloat16" or "tensor" in kind]
    expected = call(rule, theta, clients, kind="tensor", dtype=dtype)
    for kind in kinds:
        result = call(rule, theta, clients, kind=kind, dtype=dtype)
        same_results(result, expected)
        like = form(theta, kind, dtype)
        assert type(result.parameters) is type(like)
        if isinstance(like, dict):
            assert list(result.parameters) == list(like)
        for one, two in zip(leaves(result.parameters), leaves(like), strict=True):
            assert type(one) is type(two)
            assert one.dtype == two.dtype
            assert tuple(one.shape) == tuple(two.shape)


@each_rule
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_not_modified(rule, kind):
    theta, clients = draw(5, 6)
    origin, rows = form(theta, kind), [form(row, kind) for row in clients]
    options = needs(rule, 6, controls=rows)
    first = aggregate(rule, origin, rows, **options)
    state = {name: value.clone() for name, value in first.state.items()}
    second = aggregate(rule, origin, rows, **{**options, "state": first.state})
    for params in (first.parameters, second.parameters):
        for leaf in leaves(params):
            leaf[...] = 7.0
    for value in second.state.values():
        value += 1
    np.testing.assert_array_equal(flat(origin), theta)
    for params, row in zip(rows, clients, strict=True):
        np.testing.assert_array_equal(flat(params), row)
    assert all(torch.equal(first.state[name], state[name]) for name in state)


@each_rule
@pytest.mark.parametrize("kind", KINDS)
def test_out_receives_what_would_be_returned(rule, kind):
    theta, clients = draw(6, 7)
    expected = call(rule, theta, clients, kind=kind)
    out = form(np.full(len(theta), np.nan), kind)
    result = call(rule, theta, clients, kind=kind, out=out)
    assert result.parameters is out
    same_results(result, expected)
    origin, rows = form(theta, kind), [form(row, kind) for row in clients]
    filled = [leaf for leaf in leaves(origin) if np.asarray(leaf).size]  # Others lie nowhere.
    places = [np.asarray(leaf).ctypes.data for leaf in filled]
    inplace = aggregate(rule, origin, rows, **needs(rule, 7, controls=rows), out=origin)
    assert inplace.parameters is origin
    filled = [leaf for leaf in leaves(inplace.parameters) if np.asarray(leaf).size]
    assert [np.asarray(leaf).ctypes.data for leaf in filled] == places
    same_results(inplace, expected)


class Allocations(TorchDispatchMode):
    """Every new floating storage of at least `least` bytes made by an operation of torch."""

    def __init__(self, least):
        super().__init__()
        self.least, self.kept, self.sizes = least, [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for value in results if isinstance(results, tuple | list) else (results,):
            # An output that is an alias of an input, or written to with out=, is none.
            alias = any(r.alias_info is not None for r in function._schema.returns)
            if isinstance(value, torch.Tensor) and not alias and value.is_floating_point():
                size = value.untyped_storage().nbytes()
                if size >= self.least:
                    self.sizes.append(size)
        return results


D = 1_500_000
"""With five clients more than is formed at once."""


@each_rule
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_nothing_of_the_size_of_the_parameters_is_made_but_the_result(rule, dtype):
    """No update is ever formed as a whole, nor is the step: of size d there is only the result,
    with out= not even that, and what the rule keeps as its state."""
    theta, clients = draw(7, 5, D)
    origin = form(theta, "dict of tensors", dtype)
    rows = [form(row, "dict of tensors", dtype) for row in clients]
    options = needs(rule, 5, controls=rows)
    returned = (D - 7) * origin["scalar"].element_size()  # The last tensor of the dict.
    sizes = []
    for out in (None, {name: tensor.clone() for name, tensor in origin.items()}, origin):
        with Allocations(returned) as counted:
            aggregate(rule, origin, rows, **options, out=out)
        sizes.append(sorted(counted.sizes))
    assert sizes[0] == sorted([*sizes[1], returned])
    assert sizes[1] == sizes[2]
    if any(value.numel() == D for value in make_rule(rule).init(D, np.ones(5)).values()):
        assert set(sizes[1]) <= {4 * D, 8 * D}
    else:
        assert sizes[1] == []


@each_rule
def test_out_allocates_no_result_of_arrays(rule):
    theta, clients = draw(8, 5, D)
    rows = list(clients)
    options = needs(rule, 5, controls=rows)
    peaks = []
    tracemalloc.start()
    for out in (None, np.empty_like(theta), theta):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        aggregate(rule, theta, rows, **options, out=out)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert peaks[0] >= theta.nbytes
    assert max(peaks[1:]) < theta.nbytes / 8


@each_rule
def test_one_client_zero_updates_and_identical_updates(rule):
    theta, clients = draw(9, 5)
    name = getattr(make_rule(rule), "step_scale", "mean-norm")
    still = call(rule, theta, np.array([theta] * 5))
    np.testing.assert_array_equal(still.parameters, theta)
    equal = call(rule, theta, np.array([clients[0]] * 5))
    if rule == "local-only":
        np.testing.assert_array_equal(equal.parameters, theta)
    elif name == "mean-norm":
        np.testing.assert_allclose(equal.parameters, clients[0], rtol=1e-12)
    for result in (still, equal):
        assert result.weights is None or sum(result.weights) == pytest.approx(1)
        assert all(np.isfinite(value).all() for value in result.diagnostics.values())
    if "krum" in str(rule).lower():
        with pytest.raises(ValueError, match=r"needs at least 2f\+3 = 5 clients per round and has"):
            call(rule, theta, clients[:1])
        return
    if rule == "trimmed-mean":
        with pytest.raises(ValueError, match=r"needs at least 2f\+1 = 3 clients per round and has"):
            call(rule, theta, clients[:1])
        return
    if getattr(rule, "max_weight", None) is not None:
        with pytest.raises(ValueError, match=r"max_weight=0\.4 is below 1/1"):
            call(rule, theta, clients[:1])
        return
    alone = call(rule, theta, clients[:1])
    assert alone.weights in (None, [1.0])
    if rule != "local-only" and name == "mean-norm":
        np.testing.assert_allclose(alone.parameters, clients[0], rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(cohort=cohorts)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_fedsdg_is_the_server_aggregation_of_state_dicts(dtype, cohort):
    """The same weights, and where updates cancel the same notion of what is rounding."""
    theta, clients = draw(*cohort)
    clients = np.concatenate([clients[:2], 2 * theta - clients[:2]]) if cohort[0] % 2 else clients
    origin = form(theta, "dict of tensors", dtype)
    rows = [form(row, "dict of tensors", dtype) for row in clients]
    parameters, weights = fedsdg_server_aggregate(origin, rows)
    result = aggregate("fedsdg", origin, rows)
    np.testing.assert_allclose(result.weights, weights, rtol=1e-12)
    eps = torch.finfo(getattr(torch, dtype)).eps
    np.testing.assert_allclose(flat(result.parameters), flat(parameters), rtol=2 * eps, atol=eps)


def test_opposite_updates_weigh_the_same_despite_rounding():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for _ in range(20):
            theta, v = torch.randn(2, 200, generator=generator, dtype=torch.float64).to(dtype)
            clients = [theta + v / 8, theta - v / 8]
            result = aggregate("fedsdg", theta, clients)
            assert result.diagnostics["degenerate"] == 1
            assert result.weights == [0.5, 0.5]
