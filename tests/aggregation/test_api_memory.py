"""The door on parameters of any size: where results go, what is read, and what is found late."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsdg.aggregation import aggregate, fedsdg_server_aggregate
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows
from fedsdg.aggregation.engines.memory.rounding import ParameterNorm, Rounding
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.rules.alignment import Alignment

from .api_cases import EVERY_RULE, draw, flat, form, leaves, needs

each_rule = pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
each_size = pytest.mark.parametrize("d", [9, 220_000])
"""Formed in one block, and read by the kernels where they lie."""


@each_size
@each_rule
def test_out_may_be_or_overlap_a_client(rule, d):
    theta, clients = draw(1, 5, d)
    expected = aggregate(rule, theta, list(clients), **needs(rule, 5, controls=list(clients)))
    for shift in (0, -3, 2):
        room = np.zeros((5, d + 8))
        room[:, 4:-4] = clients
        rows = [row[4:-4] for row in room]
        options = needs(rule, 5, controls=list(clients))
        target = room[1, 4 + shift : 4 + shift + d]
        result = aggregate(rule, theta, rows, **options, out=target)
        assert result.parameters is target
        np.testing.assert_array_equal(target, expected.parameters)
        assert result.weights == expected.weights


@each_size
@each_rule
def test_out_may_be_the_place_of_a_control_variate(rule, d):
    theta, clients = draw(2, 5, d)
    controls = [row.copy() for row in clients]
    expected = aggregate(rule, theta, list(clients), **needs(rule, 5, controls=list(clients)))
    options = needs(rule, 5, controls=controls)
    result = aggregate(rule, theta, list(clients), **options, out=controls[0])
    np.testing.assert_array_equal(result.parameters, expected.parameters)
    for name, value in expected.state.items():
        assert torch.equal(result.state[name], value)


@each_size
@pytest.mark.parametrize("kind", ["array", "dict of tensors"])
@each_rule
def test_what_is_found_late_leaves_everything_as_it_was(rule, kind, d):
    """NaN and infinity in the last column of one client, found when it matters."""
    theta, clients = draw(3, 6, d)
    for value in (np.nan, np.inf, -np.inf):
        bad = clients.copy()
        bad[4, -1] = value
        origin, rows = form(theta, kind), [form(row, kind) for row in bad]
        options = needs(rule, 6, controls=[form(row, kind) for row in clients])
        name = "parameters" if kind == "array" else "head.bias"
        message = f"client 4: tensor '{name}' has 1 non-finite values of"
        for out in (None, form(np.full(d, 5.0), kind), origin):
            before = None if out is None else flat(out)
            with pytest.raises(FloatingPointError, match=message):
                aggregate(rule, origin, rows, **options, out=out)
            if out is not None:
                np.testing.assert_array_equal(flat(out), before)
        out = form(np.full(d, 5.0), kind)
        dropped = aggregate(rule, origin, rows, **options, on_nonfinite="drop", out=out)
        assert dropped.dropped == {4: {name: 1}}
        assert np.isfinite(flat(out)).all()


@each_rule
def test_large_parameters_and_small_ones_follow_the_same_rule(rule):
    """The kernels on tensors where they lie, and the reference: to five digits of the updates."""
    theta, clients = draw(4, 6, 300_000)
    for dtype in ("float32", "float64"):
        origin = form(theta, "dict of tensors", dtype)
        rows = [form(row, "dict of tensors", dtype) for row in clients]
        results = []
        for name in ("torch", "numba"):
            with backend(name):
                results.append(aggregate(rule, origin, rows, **needs(rule, 6, controls=rows)))
        one, two = results
        slack = 1e-5 if dtype == "float32" else 1e-9
        slack += 100 * getattr(make_rule(rule), "tolerance", 0.0)
        np.testing.assert_allclose(flat(two.parameters), flat(one.parameters), atol=slack)
        if one.weights is not None:
            np.testing.assert_allclose(two.weights, one.weights, atol=slack)
        for key, value in one.diagnostics.items():
            if key not in ("residual", "iterations"):
                np.testing.assert_allclose(two.diagnostics[key], value, rtol=slack, atol=slack)


@pytest.mark.parametrize("rule", ["fedsdg", "coordinate-median", "trimmed-mean", "cgsv"])
def test_large_updates_that_overflow_name_client_and_tensor(rule):
    largest = torch.finfo(torch.float32).max
    origin = {"a": torch.zeros(3), "w": torch.zeros(60_000)}
    rows = [{"a": torch.ones(3) * k, "w": torch.zeros(60_000)} for k in range(20)]
    origin["w"][-1] = -largest
    rows[7]["w"][-1] = largest
    options = needs(rule, 20, controls=rows)
    out = {name: torch.full_like(t, 5.0) for name, t in origin.items()}
    message = "client 7: the update of tensor 'w' overflows torch.float32; convert the parameters"
    for place in (None, out):
        with pytest.raises(ValueError, match=message):
            aggregate(rule, origin, rows, **options, out=place)
    assert all((t == 5).all() for t in out.values())
    if rule == "fedsdg":
        with pytest.raises(ValueError, match=message):
            fedsdg_server_aggregate(origin, rows)


@pytest.mark.parametrize("rule", ["fedavg-uniform", "krum", "geometric-median", "scaffold"])
def test_large_updates_that_are_never_formed_cannot_overflow(rule):
    """Sums and distances come from the parameters: what is far from the server's is no error."""
    largest = torch.finfo(torch.float32).max
    origin = {"w": torch.full((60_000,), -largest)}
    rows = [{"w": torch.full((60_000,), largest * (1 - k / 100))} for k in range(20)]
    with backend("numba"):
        result = aggregate(rule, origin, rows, **needs(rule, 20, controls=rows))
    weights = torch.tensor(result.weights, dtype=torch.float64)
    exact = weights @ torch.stack([row["w"].double() for row in rows])
    torch.testing.assert_close(result.parameters["w"].double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_bound_of_the_rounding_is_one(dtype):
    theta, clients = draw(5, 4, 300)
    origin = form(theta, "dict of tensors", dtype)
    rows = [form(row, "dict of tensors", dtype) for row in clients]
    rounding = Rounding(origin, rows)
    eps = torch.finfo(getattr(torch, dtype)).eps
    exact = np.array([0.5 * eps * np.linalg.norm(flat(row)) for row in rows])
    updates = np.array([np.linalg.norm(flat(row) - flat(origin)) for row in rows])
    np.testing.assert_allclose(rounding.norms, exact, rtol=1e-12)
    bound = rounding.at_most(updates)
    assert (bound >= exact).all()
    assert (bound <= 0.5 * eps * (np.linalg.norm(flat(origin)) + updates) * 1.001).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_parameters_are_measured_only_where_the_bound_does_not_decide(dtype, cohort):
    theta, clients = draw(7, 4, 300)
    opposite = np.concatenate([clients[:2], 2 * theta - clients[:2]])
    for rows, decided in ((clients, True), (opposite, False)):
        origin = form(theta, "dict of tensors", dtype)
        rows = [form(row, "dict of tensors", dtype) for row in rows]
        updates = ParameterRows(origin, rows)
        rounding = Rounding(origin, rows)
        norm = ParameterNorm(rounding, updates.dtype)
        lazy = replace(cohort(4), parameter_norm=norm)
        plan = Alignment().plan({"update": updates}, lazy, {})
        assert ("norms" in vars(rounding)) is not decided
        eager = replace(cohort(4), parameter_norm=float(norm))
        same = Alignment().plan({"update": updates}, eager, {})
        assert plan.weights.tolist() == same.weights.tolist()
        assert plan.diagnostics["degenerate"] == same.diagnostics["degenerate"] == (not decided)


def test_the_rounding_of_mixed_tensors_and_clients():
    """Each tensor with the coarser of the two dtypes that its update came from."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, generator=generator)
    origin = {"a": a, "b": b.to(torch.bfloat16)}
    rows = [
        {"a": 2 * a, "b": 3 * b},
        {"a": (2 * a).half(), "b": (3 * b).double()},
    ]
    coarse = {kind: torch.finfo(kind).eps for kind in (torch.bfloat16, torch.half, torch.float32)}
    expected = [
        np.hypot(*(0.5 * coarse[kind] * row[name].double().norm().item() for name, kind in pairs))
        for row, pairs in (
            (rows[0], [("a", torch.float32), ("b", torch.bfloat16)]),
            (rows[1], [("a", torch.half), ("b", torch.bfloat16)]),
        )
    ]
    np.testing.assert_allclose(Rounding(origin, rows).norms, expected, rtol=1e-6)


def test_parameters_that_others_would_read_in_between_are_copied_and_no_others():
    """Tied tensors, in the parameters and in the place for the result."""
    theta, clients = draw(6, 5)
    expected = aggregate("fedsdg", theta, clients).parameters
    origin = {"a": torch.tensor(theta), "b": torch.tensor(theta)}
    tied = torch.tensor(clients[0])
    rows = [
        {"a": tied, "b": tied},
        *[{"a": torch.tensor(r), "b": torch.tensor(r)} for r in clients[1:]],
    ]
    # Two results cannot stand in one place: refused, with nothing written.
    with pytest.raises(ValueError, match="'a' and 'b' share memory"):
        aggregate("fedsdg", origin, rows, out=rows[0])
    assert torch.equal(tied, torch.tensor(clients[0]))
    result = aggregate("fedsdg", origin, rows, out=rows[1])
    assert result.parameters is rows[1]
    for leaf in leaves(rows[1]):
        np.testing.assert_allclose(leaf.numpy(), expected, rtol=1e-7)
    assert all(torch.equal(leaf, torch.tensor(theta)) for leaf in leaves(origin))


class Operations(TorchDispatchMode):
    """How many operations torch is asked for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", ["fedsdg", "fedavg", "krum", "multikrum", "coordinate-median"])
def test_a_small_tensor_of_a_client_costs_two_views(rule):
    """And a client one copy, however many passes the rule takes: small updates are formed once."""
    names = [f"layer{k}" for k in range(40)]

    def cost(size):
        origin, *rows = [{name: torch.randn(6, 5) for name in names} for _ in range(size + 1)]
        with Operations() as counted:
            aggregate(rule, origin, rows, num_samples=[1] * size)
        return counted.count

    assert cost(20) - cost(10) <= 10 * (2 * len(names) + 3)
