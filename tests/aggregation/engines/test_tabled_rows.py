"""Parameters that the kernels of a GPU read where they lie, through a table (interpreted here)."""

from itertools import accumulate

import numpy as np
import pytest
import torch

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.memory.formed_rows import FormedRows
from fedsdg.aggregation.engines.memory.state_dicts import fedsdg_server_aggregate
from fedsdg.aggregation.engines.memory.tabled_rows import tabled_groups
from fedsdg.aggregation.uploads import NonFiniteError
from tests.pretended_cuda import interpreted_there, pretended_cuda

pytest.importorskip("triton", reason="there is no triton for this system")

from fedsdg.aggregation.engines.kernels.cuda import moments, sums, trimmed_means
from fedsdg.aggregation.engines.kernels.cuda.tables import TabledRows

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="for triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
ONE, ALIGNED = {"a": (1,)}, {"w": (32, 16), "b": (48,)}
ODD = {"w": (7, 13), "s": (), "v": (129,), "e": (0,)}


def draw(shapes, size, dtype=torch.float32, seed=0):
    """(theta_g, [theta_k])."""
    generator = np.random.default_rng(seed)

    def params():
        return {
            name: torch.tensor(0.3 + generator.normal(size=shape)).to(dtype)
            for name, shape in shapes.items()
        }

    return params(), [params() for _ in range(size)]


def flat(params):
    return np.concatenate([tensor.double().numpy().reshape(-1) for tensor in params.values()])


@pytest.mark.parametrize(
    ("shapes", "size", "dtype"),
    [
        (ONE, 1, torch.float32),
        (ONE, 64, torch.bfloat16),
        (ALIGNED, 2, torch.float32),
        (ALIGNED, 33, torch.float16),
        (ODD, 1, torch.float64),
        (ODD, 5, torch.bfloat16),
        (ODD, 31, torch.float64),
        (ODD, 64, torch.float32),
    ],
)
def test_kernels_read_every_number_where_it_lies(shapes, size, dtype):
    origin, clients = draw({n: s for n, s in shapes.items() if s != (0,)}, size, dtype)
    formed = torch.float64 if dtype == torch.float64 else torch.float32
    real, near = (np.float64, 1e-12) if formed == torch.float64 else (np.float32, 1e-5)
    bases = list(origin.values())
    table = TabledRows([list(c.values()) for c in clients], bases, formed)
    assert table.aligned == (shapes == ALIGNED)
    x, theta = np.array([flat(c) for c in clients]), flat(origin)
    y, c = x - theta, np.linspace(-1, 2, size)
    squares, dots = moments.moments(table, c, real)
    lengths, z = np.linalg.norm(y, axis=1), c @ y
    reach = np.abs(c) @ lengths
    np.testing.assert_allclose(squares[:-1], lengths**2, rtol=near)
    assert (np.abs(dots - y @ z) <= near * (lengths + 1) * reach).all()
    assert abs(squares[-1] - z @ z) <= near * (1 + reach**2)
    between = moments.distances(table, real)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(between, expected, rtol=near, atol=near)
    eps = torch.finfo(dtype).eps
    for work, told, step in [
        (sums.write_weighted_sums, c, z),
        (trimmed_means.write_trimmed_means, (size - 1) // 2, np.median(y, axis=0)),
    ]:
        for base in (bases, None):
            outs = [torch.full_like(tensor, 7) for tensor in bases]
            if base is None:
                assert work(table, told, outs, base, rehearse=True) == []
                assert all((out == 7).all() for out in outs)
            assert work(table, told, outs, base) == []
            right = step + (theta if base else 0)
            bound = eps * np.abs(right) + near * (1 + np.abs(c).sum())
            assert (np.abs(flat(dict(enumerate(outs))) - right) <= bound).all()


def test_no_column_is_dropped_or_taken_twice_at_the_border_of_a_tensor():
    """Small whole numbers in tensors of every length around a block's, a guard behind each."""
    lengths = [1, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1]
    generator = np.random.default_rng(0)
    whole = torch.tensor(generator.integers(-4, 5, size=(4, sum(lengths) + len(lengths)))).float()
    starts = list(accumulate(length + 1 for length in lengths[:-1]))
    cuts = list(zip([0, *starts], lengths, strict=True))
    rows = [[row[at : at + length] for at, length in cuts] for row in whole]
    table = TabledRows(rows[1:], rows[0], torch.float32)
    x = np.array([np.concatenate([part.numpy() for part in row]) for row in rows])
    y, c = x[1:] - x[0], np.array([1.0, -2.0, 3.0])
    squares, dots = moments.moments(table, c, np.float32)
    z = c @ y
    np.testing.assert_array_equal(squares, [*(y * y).sum(1), z @ z])
    np.testing.assert_array_equal(dots, y @ z)
    between = moments.distances(table, np.float32)
    np.testing.assert_array_equal(between, ((y[:, None] - y[None]) ** 2).sum(-1))
    for work, expected in [
        (lambda outs: sums.write_weighted_sums(table, c, outs, rows[0]), x[0] + z),
        (
            lambda outs: trimmed_means.write_trimmed_means(table, 1, outs, rows[0]),
            np.median(x[1:], axis=0),
        ),
    ]:
        out = torch.full_like(whole[0], torch.nan)
        assert work([out[at : at + length] for at, length in cuts]) == []
        found = np.concatenate([out[at : at + length].numpy() for at, length in cuts])
        np.testing.assert_array_equal(found, expected)
        assert out.isnan().sum() == len(lengths)


@pytest.mark.parametrize(
    ("rule", "shapes", "size", "dtype"),
    [
        ("fedsdg", ONE, 5, torch.float32),
        ("fedsdg", ALIGNED, 33, torch.bfloat16),
        ("fedsdg", ODD, 9, torch.float32),
        ("fedavg-uniform", ODD, 9, torch.bfloat16),
        ("coordinate-median", ODD, 8, torch.float32),
        ("trimmed-mean", ALIGNED, 9, torch.float16),
        ("geometric-median", ODD, 7, torch.float32),
        ("krum", ODD, 6, torch.float64),
        ("cgsv", ODD, 4, torch.float32),
    ],
)
def test_the_door_forms_no_rows(rule, shapes, size, dtype, monkeypatch):
    """And gives what the reference gives, fresh, in place, and of a list of tensors."""
    options = {"client_samples": [5] * size} if rule == "cgsv" else {}
    with backend("torch"):
        right = aggregate(rule, *draw(shapes, size, dtype, seed=1), **options)

    def formed(self, block):
        raise AssertionError(f"{block} was formed")

    monkeypatch.setattr(FormedRows, "formed", formed)
    origin, clients = draw(shapes, size, dtype, seed=1)
    with backend("triton"):
        found = aggregate(rule, origin, clients, **options)
        listed = [list(c.values()) for c in clients]
        listed = aggregate(rule, list(origin.values()), listed, **options)
        aggregate(rule, origin, clients, out=origin, **options)
    if right.weights is not None:
        np.testing.assert_allclose(found.weights, right.weights, rtol=1e-4, atol=1e-6)
    eps = torch.finfo(dtype).eps
    for position, (name, tensor) in enumerate(right.parameters.items()):
        near = {"rtol": 2 * eps, "atol": 1e-5 + eps * 4}
        torch.testing.assert_close(found.parameters[name], tensor, **near)
        assert torch.equal(listed.parameters[position], found.parameters[name])
        assert torch.equal(origin[name], found.parameters[name])


def test_state_dicts_are_read_where_they_lie():
    origin, clients = draw(ODD, 6)
    with backend("torch"):
        right, weights = fedsdg_server_aggregate(origin, clients, clip_norm=5.0)
    with backend("triton"):
        found, others = fedsdg_server_aggregate(origin, clients, clip_norm=5.0)
    np.testing.assert_allclose(others, weights, rtol=1e-5)
    for name, tensor in right.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "value"),
    [("fedsdg", np.nan), ("coordinate-median", np.inf), ("fedavg-uniform", -np.inf)],
)
def test_what_is_not_finite_is_named_or_dropped_and_writes_nothing(rule, value):
    origin, clients = draw(ODD, 5)
    clients[3]["v"][17] = value
    before = {name: tensor.clone() for name, tensor in origin.items()}
    with backend("triton"):
        with pytest.raises(NonFiniteError, match="client 3: tensor 'v' has 1 non-finite"):
            aggregate(rule, origin, clients, out=origin)
        assert all(torch.equal(origin[name], before[name]) for name in origin)
        found = aggregate(rule, origin, clients, on_nonfinite="drop")
        right = aggregate(rule, origin, [*clients[:3], clients[4]])
    assert found.dropped == {3: {"v": 1}}
    assert all(torch.equal(found.parameters[n], right.parameters[n]) for n in origin)


def test_differences_beyond_float32_are_refused():
    """As the reference does: theta_k - theta_g is a float32 number or none."""
    origin, clients = draw({"w": (40,), "b": (3,)}, 3)
    origin["w"][5], clients[1]["w"][5] = -3e38, 3e38
    for name in ("torch", "triton"):
        for rule in ("fedsdg", "coordinate-median"):
            with backend(name), pytest.raises(ValueError, match=r"client 1: the update.*overflows"):
                aggregate(rule, origin, clients)


def test_results_beyond_float16_are_refused():
    """Of two tensors that which has them is named."""
    small, large = torch.ones(3).half(), torch.full((5,), 6e4).half()
    table = TabledRows([[small, large], [small, large]], None, torch.float32)
    outs = [torch.zeros(3).half(), torch.zeros(5).half()]
    assert sums.write_weighted_sums(table, np.ones(2), outs, None) == [1]
    assert outs[1].isinf().all()
    assert trimmed_means.write_trimmed_means(table, 0, outs, None) == []
    assert torch.equal(outs[1], large)
    assert trimmed_means.write_trimmed_means(table, 0, outs, [small, large]) == [1]


def test_which_tensors_share_a_table():
    shapes = {"a": (16,), "b": (3, 16), "odd": (17,), "half": (16,), "far": (16,), "none": (0,)}
    origin, clients = draw(shapes, 2)
    for params in (origin, *clients):
        params["half"] = params["half"].half()
    clients[1]["far"] = torch.zeros(32)[::2]
    with backend("triton"):
        assert tabled_groups(origin, clients) == [["a", "b"], ["odd"], ["half"]]
        clients[0]["b"] = clients[0]["b"].double()
        assert tabled_groups(origin, clients) == [["a"], ["odd"], ["half"]]
        assert tabled_groups(origin, clients * 600) == []


def test_two_passes_on_a_gpu_and_no_copy():
    """FedSDG's door reads the clients twice, the server's parameters once more for its rounding,
    and moves none of them; nobody waits but for what came of a pass."""
    shapes = {f"t{k}": (4, 16) for k in range(12)}
    theta, sent = draw(shapes, 4)
    with backend("triton"), pretended_cuda() as machine, interpreted_there(machine):
        origin = {name: tensor.cuda() for name, tensor in theta.items()}
        clients = [{name: tensor.cuda() for name, tensor in params.items()} for params in sent]
        machine.waits.clear()
        machine.operations.clear()
        machine.launches.clear()
        result = fedsdg_server_aggregate(origin, clients, return_weights=False)
        checks = 2 * len(shapes)  # Of the server's parameters, least and largest number each.
        waits = dict(machine.waits)
        assert machine.launches == {"_moments": 2, "_weighted_sum": 1}
        assert machine.operations["aten::cat"] == 0
        assert sum(waits.values()) - checks <= 3, waits
        found = {name: tensor.cpu() for name, tensor in result.items()}
    with backend("torch"):
        right = fedsdg_server_aggregate(theta, sent, return_weights=False)
    for name, tensor in right.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
