"""The generic door: clients by id, dropping, states from call to call, places to write to."""

import dataclasses
import doctest
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import fedsdg.aggregation.api
from fedsdg.aggregation import Aggregated, aggregate
from fedsdg.aggregation.engines.memory.checks import check_storage
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule

from .api_cases import EVERY_RULE, KINDS, call, draw, flat, form, needs

THETA, CLIENTS = draw(0, 6)


def test_docstring_examples():
    result = doctest.testmod(fedsdg.aggregation.api)
    assert result.attempted >= 10
    assert result.failed == 0


def test_the_result_is_frozen():
    result = aggregate("fedavg-uniform", THETA, list(CLIENTS))
    assert isinstance(result, Aggregated)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.weights = []


def test_names_rows_and_objects_are_the_same_rule():
    by_name = aggregate("krum", THETA, list(CLIENTS))
    for rule in (Krum(), {"type": "krum"}, {"type": "krum", "f": 1, "name": "Krum, f = 1"}):
        assert np.array_equal(aggregate(rule, THETA, list(CLIENTS)).parameters, by_name.parameters)
    lax = aggregate({"type": "fedsdg", "smoothing": 1}, THETA, list(CLIENTS))
    np.testing.assert_allclose(lax.weights, np.full(6, 1 / 6))


def test_rows_of_one_array_are_clients():
    one = aggregate("fedsdg", THETA, CLIENTS)
    two = aggregate("fedsdg", THETA, list(CLIENTS))
    assert one.weights == two.weights
    tensors = aggregate("fedsdg", torch.tensor(THETA), torch.tensor(CLIENTS))
    assert tensors.weights == two.weights


def test_clients_by_id():
    ids = ["ada", 7, (1, 2), None, 2.5, "eve"]
    by_id = dict(zip(ids, CLIENTS, strict=True))
    samples = dict(zip(reversed(ids), range(6), strict=True)) | {"absent": 9}
    result = aggregate("fedavg", THETA, by_id, num_samples=samples)
    expected = dict(zip(ids, np.arange(5, -1, -1) / 15, strict=True))
    assert result.weights == pytest.approx(expected)
    winner = aggregate("krum", THETA, by_id).diagnostics["winner"]
    assert winner == ids[int(aggregate("krum", THETA, list(CLIENTS)).diagnostics["winner"])]
    assert aggregate("krum", THETA, by_id).weights[winner] == 1


def test_samples_are_looked_up_among_all_clients():
    by_id = dict(zip([4, 0, 2], CLIENTS[:3], strict=True))
    result = aggregate("fedavg", THETA, by_id, client_samples=[1, 10, 3, 10, 4])
    assert result.weights == {4: 0.5, 0: 0.125, 2: 0.375}


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_cohort_leaves_the_global_parameters(rule, kind):
    theta, options = form(THETA, kind), needs(rule, 3, controls=[])
    options = {name: options[name] for name in options if not name.startswith("num_s")}
    options.pop("num_batches", None)
    for none, weights in (([], []), ({}, {})):
        if "uploads" in options:
            options["uploads"] = dict.fromkeys(options["uploads"], none)
        result = aggregate(rule, theta, none, **options)
        assert result.weights == weights
        assert type(result.weights) is type(weights)
        assert (result.diagnostics, result.dropped) == ({}, {})
        assert np.array_equal(flat(result.parameters), THETA)
        assert result.parameters is not theta
        out = form(np.zeros(9), kind)
        assert aggregate(rule, theta, none, **options, out=out).parameters is out
        assert np.array_equal(flat(out), THETA)
        again = aggregate(rule, theta, none, **{**options, "state": result.state}, out=theta)
        assert again.parameters is theta
        assert all(torch.equal(again.state[name], result.state[name]) for name in result.state)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dropped_clients_are_as_if_they_had_not_been_there(rule, kind):
    """The others' result; weight 0 and NaN in the diagnostics for the dropped."""
    theta, clients = draw(1, 7)
    bad = clients.copy()
    bad[2, -2:] = np.nan, -np.inf
    bad[5, 6] = np.inf
    ids, left = [0, 1, 2, 3, 4, 5, 6], [0, 1, 3, 4, 6]
    origin = form(theta, kind)

    def run(rows, present):
        by_id = {k: form(rows[k], kind) for k in present}
        options = needs(rule, 7, controls={k: form(clients[k], kind) for k in present})
        for name in ("num_samples", "num_batches"):
            if name in options:
                options[name] = [options[name][k] for k in present]
        return aggregate(rule, origin, by_id, **options, on_nonfinite="drop")

    result, expected = run(bad, ids), run(clients, left)
    names = {
        "array": ("parameters", "parameters"),
        "tensor": ("parameters", "parameters"),
        "arrays": ("[3]", "[1]"),
        "tensors": ("[3]", "[1]"),
    }.get(kind, ("head.bias", "scalar"))
    assert result.dropped == {2: {names[0]: 2}, 5: {names[1]: 1}}
    assert np.array_equal(flat(result.parameters), flat(expected.parameters))
    if expected.weights is None:
        assert result.weights is None
    else:
        assert result.weights == {k: expected.weights.get(k, 0.0) for k in ids}
    for name, value in expected.diagnostics.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(result.diagnostics[name][left], value)
            assert np.isnan(result.diagnostics[name][[2, 5]]).all()
        else:
            assert result.diagnostics[name] == value
    assert all(torch.equal(result.state[name], expected.state[name]) for name in expected.state)


def test_a_client_with_a_bad_control_is_dropped():
    controls = CLIENTS.copy()
    controls[3, :2] = np.nan
    uploads = {"control": list(controls)}
    given = {"num_clients": 6, "uploads": uploads}
    result = aggregate("scaffold", THETA, list(CLIENTS), **given, on_nonfinite="drop")
    assert result.dropped == {3: {"control: parameters": 2}}
    assert result.weights == [0.2, 0.2, 0.2, 0.0, 0.2, 0.2]
    expected = np.delete(CLIENTS, 3, axis=0).sum(0) / 6
    np.testing.assert_allclose(result.state["control"], expected)


def test_further_uploads_are_sorted_by_client():
    controls = {k: row.copy() for k, row in reversed(list(enumerate(CLIENTS)))}
    controls[1][0] = np.inf
    given = {"num_clients": 6, "uploads": {"control": controls}, "on_nonfinite": "drop"}
    result = aggregate("scaffold", THETA, dict(enumerate(CLIENTS)), **given)
    assert result.dropped == {1: {"control: parameters": 1}}


def test_tensors_of_another_device_are_refused():
    """The check itself, for there may be one device only."""
    elsewhere, here = torch.zeros(2, device="meta"), torch.zeros(2)
    message = "client 3: tensor 'w' has device meta, expected cpu as in global_params"
    with pytest.raises(ValueError, match=message):
        check_storage("client 3", {"w": elsewhere}, {"w": here})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
def test_parameters_on_a_gpu(rule):
    origin, rows = torch.tensor(THETA).cuda(), [torch.tensor(row).cuda() for row in CLIENTS]
    result = aggregate(rule, origin, rows, **needs(rule, 6, controls=rows))
    expected = call(rule, THETA, CLIENTS, kind="tensor")
    assert result.parameters.device == origin.device
    torch.testing.assert_close(result.parameters.cpu(), expected.parameters)
    with pytest.raises(ValueError, match="client 0: tensor 'parameters' has device cpu, expected"):
        aggregate(rule, origin, torch.tensor(CLIENTS), **needs(rule, 6, controls=rows))
    with pytest.raises(ValueError, match="tensor 'b' is on cpu, tensor 'a' on cuda:0; move them"):
        aggregate(rule, {"a": origin, "b": torch.tensor(THETA)}, [])


def test_too_few_clients_left_for_the_rule_says_so():
    bad = CLIENTS.copy()
    bad[:2] = np.nan
    message = r"at least 2f\+3 = 5 clients .* has 4; .*2 of 6 clients were dropped as non-finite"
    with pytest.raises(ValueError, match=message):
        aggregate("krum", THETA, list(bad), on_nonfinite="drop")


def test_cgsv_over_two_rounds():
    """The state of the first call is what the second starts from, client by client."""
    samples = np.array([5.0, 1, 2, 2, 4, 6, 3, 7])
    first = aggregate("cgsv", THETA, {3: CLIENTS[0], 6: CLIENTS[1]}, client_samples=samples)
    assert first.weights == pytest.approx({3: 0.4, 6: 0.6})
    assert first.state["participations"].tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
    assert first.state["r"].sum().item() == pytest.approx(1)
    again = {6: CLIENTS[2], 0: CLIENTS[3]}
    second = aggregate("cgsv", first.parameters, again, num_clients=8, state=first.state)
    r6, r0 = first.state["r"][6].item(), samples[0] / 30
    assert second.weights == pytest.approx({6: r6 / (r6 + r0), 0: r0 / (r6 + r0)})
    assert second.state["participations"].tolist() == [1, 0, 0, 1, 0, 0, 2, 0]
    gamma = second.diagnostics["gamma"]
    np.testing.assert_allclose(gamma, [0.75, 0.5])
    assert aggregate(Cgsv(), THETA, list(CLIENTS), client_samples=[1] * 6).weights


def test_scaffold_divides_the_controls_by_all_clients():
    by_id = dict(zip([1, 8, 5], CLIENTS[:3], strict=True))
    uploads = {"control": dict(reversed(by_id.items()))}
    first = aggregate("scaffold", THETA, by_id, num_clients=10, uploads=uploads)
    np.testing.assert_allclose(first.state["control"], CLIENTS[:3].sum(0) / 10)
    np.testing.assert_allclose(first.parameters, CLIENTS[:3].mean(0))
    second = aggregate(
        "scaffold", THETA, by_id, num_clients=10, uploads=uploads, state=first.state, round=2
    )
    np.testing.assert_allclose(second.state["control"], 2 * CLIENTS[:3].sum(0) / 10)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (FedCurv(), "weighs clients by samples: give num_samples"),
        (Compensated(Mean("batches")), "weighs clients by batches: give num_batches"),
        (Screened(Mean("samples")), "weighs clients by samples: give num_samples"),
        (Screened(Compensated(Cgsv())), "give client_samples, the counts of all clients"),
    ],
    ids=repr,
)
def test_rules_and_wrappers_ask_for_the_counts_that_they_weigh_by(rule, message):
    uploads = {name: list(CLIENTS) for name in ("fisher", "fisher_theta")}
    with pytest.raises(ValueError, match=message):
        aggregate(rule, THETA, list(CLIENTS), num_clients=6, uploads=uploads)


def test_a_watch_goes_on_from_call_to_call():
    """The last client sends the opposite of the others, and is left out from its second time on."""
    rows, state = THETA + 1 + 0.1 * (CLIENTS - CLIENTS.mean(0)), None
    rows[5] = THETA - 1
    rule = Screened(Mean("uniform"))
    means = [rows.mean(0), rows[:5].mean(0), rows[:5].mean(0)]
    for expected, strikes in zip(means, (1, 2, 2), strict=True):
        result = aggregate(rule, THETA, list(rows), num_clients=6, state=state)
        np.testing.assert_allclose(result.parameters, expected)
        assert result.state["strikes"].tolist() == [0] * 5 + [strikes]
        state = result.state
    assert result.weights == pytest.approx([0.2] * 5 + [0])


class Nosy(StatelessRule):
    """Keeps what it was given."""

    def __call__(self, uploads, context, state):
        self.uploads, self.context = uploads, context
        return Aggregate(uploads["update"][:1], None, {}, {"winner": 1.0, "odd": np.zeros(99)})


def test_a_rule_of_ones_own_gets_the_whole_context():
    rule = Nosy()
    by_id = dict(zip([4, 1, 3], CLIENTS[:3], strict=True))
    samples = [5, 6, 7, 8, 9]
    result = aggregate(rule, THETA, by_id, client_samples=samples, num_batches=[2, 3, 4], round=7)
    context: Context = rule.context
    assert (context.round, context.num_clients, context.total_samples) == (7, 5, 35)
    assert context.clients.tolist() == [4, 1, 3]
    assert context.num_samples.tolist() == [9, 6, 8]
    assert context.num_batches.tolist() == [2, 3, 4]
    assert context.client_samples.tolist() == samples
    norms = np.linalg.norm(CLIENTS[:3], axis=1)
    assert context.parameter_norm == pytest.approx(norms.max())
    assert result.diagnostics["winner"] == 1
    assert result.diagnostics["odd"].shape == (99,)
    np.testing.assert_allclose(result.parameters, CLIENTS[0])


def test_strides_read_only_and_gradients_do_not_matter():
    expected = aggregate("fedsdg", THETA.reshape(3, 3), CLIENTS.reshape(6, 3, 3))
    odd = [row.reshape(3, 3)[::-1, ::-1].copy()[::-1, ::-1] for row in CLIENTS]
    odd[1] = np.asfortranarray(odd[1])
    odd[2] = np.broadcast_to(odd[2], (3, 3))
    for row in odd:
        row.flags.writeable = False
    theta = THETA.reshape(3, 3).copy()
    theta.flags.writeable = False
    result = aggregate("fedsdg", theta, odd)
    assert np.array_equal(result.parameters, expected.parameters)
    parameter = torch.nn.Parameter(torch.tensor(THETA))
    rows = [torch.tensor(row, requires_grad=True) for row in CLIENTS]
    trained = aggregate("fedsdg", parameter, rows, out=parameter)
    assert trained.parameters is parameter
    assert np.array_equal(parameter.detach().numpy(), expected.parameters.ravel())


def test_threads_that_aggregate_leave_the_filters_of_warnings_alone(monkeypatch):
    """Read-only arrays, of which torch warns: with warnings as errors, in several threads."""
    theta = {f"layer{k}": np.full(3, k, dtype=float) for k in range(40)}
    clients = [{name: value + k for name, value in theta.items()} for k in range(1, 5)]
    for params in (theta, *clients):
        for value in params.values():
            value.flags.writeable = False
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    warnings.simplefilter("error")
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(
                pool.map(lambda _: aggregate("fedavg-uniform", theta, clients), range(40))
            )
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == before
    for result in results:
        for name, value in result.parameters.items():
            np.testing.assert_allclose(value, theta[name] + 2.5)


def pieces(vector, names, kind):
    """A vector as a dict of small arrays or tensors, or a list of arrays, in the order of names."""
    parts = [part.reshape(-1, 5).copy() for part in np.split(vector, len(names))]
    if kind == "list":
        return parts
    make = torch.from_numpy if kind == "tensors" else np.asarray
    return {name: make(part) for name, part in zip(names, parts, strict=True)}


@pytest.mark.parametrize("kind", ["arrays", "tensors", "list"])
@pytest.mark.parametrize("d", [600, 120_000])
@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
def test_many_small_tensors_are_aggregated_as_one_vector(rule, d, kind):
    """Bit for bit, also beyond the size from which kernels do the arithmetic."""
    generator = np.random.default_rng(d)
    theta = generator.normal(size=d).astype(np.float32)
    rows = theta + 0.1 * generator.normal(size=(9, d)).astype(np.float32) + np.float32(0.02)
    names = [f"block.{k}" for k in range(60)]
    expected = aggregate(rule, theta, list(rows), **needs(rule, 9, controls=list(rows)))
    clients = [pieces(row, names, kind) for row in rows]
    if kind != "list":
        clients[3] = dict(reversed(clients[3].items()))
    options = needs(rule, 9, controls=clients)
    out = pieces(np.zeros_like(theta), names, kind)
    fresh = aggregate(rule, pieces(theta, names, kind), clients, **options)
    into = aggregate(rule, pieces(theta, names, kind), clients, **options, out=out)
    assert into.parameters is out
    for result in (fresh, into):
        found = result.parameters if kind == "list" else list(result.parameters.values())
        np.testing.assert_array_equal(np.concatenate(found, axis=None), expected.parameters)
        assert result.weights == expected.weights
        for name, value in expected.diagnostics.items():
            np.testing.assert_array_equal(result.diagnostics[name], value)
        for name, value in expected.state.items():
            assert torch.equal(result.state[name], value)
    assert len({id(part) for part in found}) == len(names)


def test_a_bad_number_in_one_of_many_small_tensors_is_named():
    theta = {f"layer{k}": np.zeros(8) for k in range(50)}
    clients = [{name: value + k for name, value in theta.items()} for k in range(1, 5)]
    clients[2]["layer31"][5] = np.inf
    with pytest.raises(FloatingPointError, match="client 2: tensor 'layer31' has 1 non-finite"):
        aggregate("fedsdg", theta, clients)
    result = aggregate("fedavg-uniform", theta, clients, on_nonfinite="drop")
    assert result.dropped == {2: {"layer31": 1}}
    np.testing.assert_allclose(result.parameters["layer7"], 7 / 3)
    clients[2]["layer31"] = np.zeros(9)
    with pytest.raises(ValueError, match=r"client 2: tensor 'layer31' has shape \(9,\)"):
        aggregate("fedsdg", theta, clients)


def test_out_with_strides_and_shared_memory():
    """Views into a larger buffer, overlaps with the global parameters, tied tensors."""
    expected = aggregate("fedsdg", THETA, CLIENTS).parameters
    buffer = np.zeros((9, 4))
    aggregate("fedsdg", THETA, CLIENTS, out=buffer[:, 2])
    assert np.array_equal(buffer[:, 2], expected)
    assert not buffer[:, [0, 1, 3]].any()
    fortran = np.zeros((3, 3), order="F")
    aggregate("fedsdg", THETA.reshape(3, 3), CLIENTS.reshape(6, 3, 3), out=fortran)
    assert np.array_equal(fortran, expected.reshape(3, 3))
    for shift in (-4, -1, 1, 4):
        room = np.zeros(17)
        room[4:13] = THETA
        aggregate("fedsdg", room[4:13], CLIENTS, out=room[4 + shift : 13 + shift])
        assert np.array_equal(room[4 + shift : 13 + shift], expected)
    tied = torch.tensor(THETA)
    rows = [{"a": torch.tensor(row), "b": torch.tensor(row)} for row in CLIENTS]
    origin = {"a": tied, "b": tied}
    for tensor in aggregate("fedsdg", origin, rows).parameters.values():
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-7)
    with pytest.raises(ValueError, match="share memory"):  # There is room for one of two results.
        aggregate("fedsdg", origin, rows, out=origin)


def test_wide_tensors_are_written_block_by_block():
    """Beyond one block, in one and in several dimensions."""
    theta, clients = draw(2, 3, 210_000)
    expected = clients.mean(0)
    for shape in ((210_000,), (3, 70_000), (70_000, 3), (2, 1, 105_000), (1, 210_000)):
        rows = [row.reshape(shape) for row in clients]
        result = aggregate("fedavg-uniform", theta.reshape(shape), rows)
        np.testing.assert_allclose(result.parameters, expected.reshape(shape), rtol=1e-10)


def test_an_overflowing_result_leaves_out_as_it_was():
    theta = {"a": torch.zeros(3), "w": torch.zeros(2)}
    clients = [{"a": torch.ones(3), "w": torch.full((2,), 3e38)}] * 2
    out = {"a": torch.full((3,), 5.0), "w": torch.full((2,), 6.0)}
    rule = fedsdg.aggregation.rules.scaffold.Scaffold(server_rate=2.0)
    options = {"num_clients": 2, "uploads": {"control": clients}}
    for place in (out, None):
        with pytest.raises(ValueError, match="aggregated tensor 'w' overflows torch.float32"):
            aggregate(rule, theta, clients, **options, out=place)
    assert out["a"].tolist() == [5.0] * 3
    assert out["w"].tolist() == [6.0] * 2
    theta["w"] -= 3e38
    with pytest.raises(ValueError, match="client 0: the update of tensor 'w' overflows"):
        aggregate("fedsdg", theta, clients)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
def test_no_parameters_at_all_but_named(rule):
    clients = np.zeros((5, 0))
    assert call(rule, np.zeros(0), clients).parameters.shape == (0,)
