"""The compiled kernels against the reference: shapes, dtypes, threads, faults."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate, statistics
from fedsdg.aggregation.errors import NonFiniteError
from fedsdg.aggregation.kernels.networks import selection_network, sorting_network
from fedsdg.aggregation.rows import Block, MemoryRows

from .cohorts import backend

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = (1, 2, 3, 5, 9, 17, 33)


def block(size, dtype, lengths=(1, 63, 64, 300, 1000), seed=0, origin=True):
    """A block of tensors of several lengths."""
    g = torch.Generator().manual_seed(seed)
    tensors = []
    for length in lengths:
        rows = torch.randn(size + 1, length, generator=g, dtype=torch.float64).to(dtype)
        tensors.append([rows[0].clone() if origin else None, *(row.clone() for row in rows[1:])])
    return Block(list(range(len(lengths))), tensors, [0] * len(lengths))


def on(name, function, *arguments):
    with backend(name):
        return function(*arguments)


@pytest.mark.parametrize("origin", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_sums_equal_the_reference(size, dtype, origin):
    given = block(size, dtype, origin=origin)
    c = np.random.default_rng(0).normal(size=size)
    for function, arguments in ((statistics.norms_and_dots, (c,)), (statistics.distances, ())):
        expected = on("torch", function, given, *arguments)
        found = on("numba", function, given, *arguments)
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
        assert found[1:, -1] == pytest.approx(expected[1:, -1], rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_steps_equal_the_reference(size, dtype):
    given = block(size, dtype)
    weights = np.random.default_rng(1).normal(size=size + 1)
    weights[1:3] = 0.0
    outs = {name: given.empty() for name in ("torch", "numba")}
    for name in outs:
        assert on(name, statistics.weighted_sum, given, weights, outs[name])
    exact = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-13
    for a, b in zip(outs["torch"], outs["numba"], strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=exact, atol=exact)
    for trim in {0, (size - 1) // 2}:
        for name in outs:
            assert on(name, statistics.trimmed_mean, given, trim, outs[name])
        for a, b in zip(outs["torch"], outs["numba"], strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=2 * exact, atol=2 * exact)


@pytest.mark.parametrize("size, lengths", [(6, (700_000, 5, 900_001)), (31, (70_000, 5, 190_001))])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_same_bits_for_any_number_of_threads(dtype, size, lengths):
    given = block(size, dtype, lengths=lengths)
    weights = np.random.default_rng(2).normal(size=size + 1)
    results = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            outs = given.empty()
            more = given.empty()
            sums = on("numba", statistics.norms_and_dots, given, weights[1:])
            squares = on("numba", statistics.distances, given)
            on("numba", statistics.weighted_sum, given, weights, outs)
            on("numba", statistics.trimmed_mean, given, 2, more)
            results.append((sums, squares, torch.cat(outs), torch.cat(more)))
    finally:
        torch.set_num_threads(1)
    for sums, squares, step, median in results[1:]:
        assert np.array_equal(sums, results[0][0]) and np.array_equal(squares, results[0][1])
        assert torch.equal(step, results[0][2]) and torch.equal(median, results[0][3])


def test_small_problems_have_the_same_bits_for_any_number_of_threads():
    g = torch.Generator().manual_seed(3)
    clients = list(torch.randn(9, 100_000, generator=g))
    results = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for rule in ("fedsdg", "krum", "geometric-median"):
                results.append(aggregate(rule, torch.zeros(100_000), clients).parameters)
    finally:
        torch.set_num_threads(1)
    for number, result in enumerate(results):
        assert torch.equal(result, results[number % 3])


def test_equal_rows_have_distance_zero_and_the_matrix_is_symmetric():
    given = block(5, torch.float32)
    for row in given.tensors:
        row[3] = row[1].clone()
    squares = on("numba", statistics.distances, given)
    assert squares[0, 2] == 0 and np.array_equal(squares, squares.T)
    assert not squares.diagonal().any()


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_beyond_float32_are_taken_in_float64(scale):
    given = block(4, torch.float32)
    for row in given.tensors:
        row[:] = [tensor * scale for tensor in row]
    for function, arguments in (
        (statistics.norms_and_dots, (np.ones(4),)),
        (statistics.distances, ()),
    ):
        expected = on("torch", function, given, *arguments)
        assert on("numba", function, given, *arguments) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("origin", [True, False])
def test_equal_and_zero_rows_stay_with_the_kernels(origin, monkeypatch):
    given = block(6, torch.float32, origin=origin)
    for row in given.tensors:
        row[2] = row[0].clone() if origin else torch.zeros_like(row[1])
        row[4] = row[3].clone()
        row[5] = row[3].clone()
    norms = on("torch", statistics.norms_and_dots, given, np.ones(6))
    squares = on("torch", statistics.distances, given)
    monkeypatch.setattr(statistics, "chunks", lambda *_, **__: pytest.fail("left the kernels"))
    found = on("numba", statistics.norms_and_dots, given, np.ones(6))
    assert found == pytest.approx(norms, rel=1e-4, abs=1e-4) and found[0, 1] == 0
    assert on("numba", statistics.distances, given) == pytest.approx(squares, rel=1e-5)


@pytest.mark.parametrize("origin", [True, False])
def test_a_row_whose_squares_vanish_in_float32_alone_does_not_count_as_zero(origin):
    given = block(4, torch.float32, origin=origin)
    for row in given.tensors:
        row[0] = torch.zeros_like(row[1]) if origin else None
        row[2] = torch.full_like(row[1], 1e-30)
        row[3] = torch.full_like(row[1], -1e-30)
    d = float(given.ends[-1])
    squares = on("numba", statistics.norms_and_dots, given, np.ones(4))[0]
    assert squares[1] == pytest.approx(1e-60 * d, rel=1e-5, abs=0)
    apart = on("numba", statistics.distances, given)[1, 2]
    assert apart == pytest.approx(4e-60 * d, rel=1e-5, abs=0)


def test_a_combination_whose_square_vanishes_in_float32_alone_has_its_norm():
    given = block(2, torch.float32, origin=False)
    for row in given.tensors:
        row[1] = row[1] * 1e-17
        row[2] = row[1] * -(1 - 1e-6)
    expected = on("torch", statistics.norms_and_dots, given, np.ones(2))[0, 2]
    found = on("numba", statistics.norms_and_dots, given, np.ones(2))[0, 2]
    assert 0 < expected < 1e-38
    assert found == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows(name, dtype, value):
    given = block(5, dtype)
    given.tensors[3][2][7] = value
    outs = given.empty()
    assert not on(name, statistics.weighted_sum, given, np.ones(6), outs)
    assert not on(name, statistics.trimmed_mean, given, 2, outs)
    assert not np.isfinite(on(name, statistics.norms_and_dots, given, np.ones(5))).all()
    assert not np.isfinite(on(name, statistics.distances, given)).all()
    assert statistics.nonfinite(given)[3].tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("name", ["torch", "numba"])
def test_sixteen_bits_overflow_and_round_to_nearest(name):
    given = Block([0], [[None, *torch.full((3, 4), 60000.0, dtype=torch.float16)]], [0])
    outs = given.empty()
    assert not on(name, statistics.weighted_sum, given, np.array([0, 1.0, 1.0, 0]), outs)
    assert on(name, statistics.weighted_sum, given, np.array([0, 0.5, 0.5, 0]), outs)
    assert on(name, statistics.trimmed_mean, given, 0, outs)  # Divided before they are added.
    assert outs[0].tolist() == [60000.0] * 4
    bf = Block([0], [[None, torch.tensor([1.0, 1.0078125]).bfloat16()]], [0])
    ties = bf.empty()
    assert on(name, statistics.weighted_sum, bf, np.array([0, 1 + 2**-9]), ties)
    expected = (torch.tensor([1.0, 1.0078125]).double() * (1 + 2**-9)).bfloat16()
    assert torch.equal(ties[0], expected)


def test_more_rows_than_a_network_is_laid_out_for_take_the_reference(monkeypatch):
    from fedsdg.aggregation.kernels import cpu

    monkeypatch.setattr(cpu, "MOST_SORTED", 4)
    given = block(5, torch.float32)
    outs = given.empty()
    assert on("numba", statistics.trimmed_mean, given, 2, outs)
    assert torch.allclose(outs[4], torch.stack(given.tensors[4][1:]).median(dim=0).values)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 13, 16, 31])
def test_networks_sort_zeros_and_ones(size):
    """By the zero-one principle, a network that sorts these sorts everything."""
    g = np.random.default_rng(size)
    cases = [(np.arange(size) < ones).astype(int) for ones in range(size + 1)]
    cases += [g.integers(0, 2, size) for _ in range(40)] + [g.permutation(case) for case in cases]
    for case in cases:
        numbers = case.copy()
        for i, j in sorting_network(size):
            numbers[[i, j]] = min(numbers[i], numbers[j]), max(numbers[i], numbers[j])
        assert (np.diff(numbers) >= 0).all()
        for trim in range((size + 1) // 2):
            numbers = g.permutation(case)
            for i, j in selection_network(size, trim):
                numbers[[i, j]] = min(numbers[i], numbers[j]), max(numbers[i], numbers[j])
            middle = np.sort(case)[trim : size - trim]
            assert sorted(numbers[trim : size - trim]) == middle.tolist()
    assert len(selection_network(9, 4)) < len(sorting_network(9))


def test_large_blocks_go_to_kernels_by_themselves_and_small_ones_do_not(monkeypatch):
    small = block(5, torch.float32)
    assert statistics.kernels(small) is None
    monkeypatch.setattr(statistics, "KERNEL_NUMBERS", 100)
    assert statistics.kernels(small).__name__.endswith("cpu")
    monkeypatch.setenv("FEDSDG_AGGREGATION_BACKEND", "torch")
    assert statistics.kernels(small) is None
    monkeypatch.setenv("FEDSDG_AGGREGATION_BACKEND", "fortran")
    with pytest.raises(ValueError, match="backend 'fortran': use one of auto, torch, numba, trit"):
        statistics.kernels(small)


def test_a_large_cohort_names_the_client_with_nan():
    clients = [torch.ones(300_000) for _ in range(5)]
    clients[3][123_456] = torch.nan
    for rule in ("fedsdg", "krum", "coordinate-median", "fedavg-uniform"):
        with pytest.raises(NonFiniteError, match="client 3: tensor 'parameters' has 1 non-finite"):
            aggregate(rule, torch.zeros(300_000), clients)


def test_parameters_without_numbers():
    theta = {"w": torch.zeros(3), "empty": torch.zeros(0, 4)}
    clients = [{"w": torch.ones(3) * k, "empty": torch.zeros(0, 4)} for k in range(1, 4)]
    for rule in ("fedsdg", "coordinate-median", "fedavg-uniform"):
        made = aggregate(rule, theta, clients)
        assert made.parameters["empty"].shape == (0, 4) and made.parameters["w"][0] > 0
    nothing = MemoryRows([{"empty": torch.zeros(0)}] * 2)
    assert nothing.measure().norms.tolist() == [0, 0] and not nothing.distances().any()


def rounding_of_the_measured(theta, clients):
    rows = MemoryRows(clients, theta)
    rows.measure()
    return rows.rounding(0.0)


@pytest.mark.parametrize("name", ["torch", "numba"])
def test_rounding_is_half_an_eps_of_the_parameters_each_dtype_with_its_own(name):
    theta = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([5.0, 12.0]).bfloat16()}
    clients = [{key: value + k for key, value in theta.items()} for k in range(1, 4)]
    expected = np.hypot(5 * 2.0**-24, 13 * 2.0**-8)
    with backend(name):
        assert rounding_of_the_measured(theta, clients) == pytest.approx(expected, rel=1e-6)
        alone = MemoryRows(clients, theta)
        assert alone.rounding(8.0) == pytest.approx(expected + 8 * 2.0**-8, rel=1e-6)
        huge = {"a": torch.tensor([3e25, 4e25])}  # Beyond squares in float32.
        beside = [{"a": huge["a"] + k * 1e25} for k in range(1, 4)]
        assert rounding_of_the_measured(huge, beside) == pytest.approx(5e25 * 2.0**-24, rel=1e-6)


GPU = torch.cuda.is_available()
DEVICES = [
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not GPU, reason="no GPU")]),
    pytest.param("cpu", marks=pytest.mark.skipif(GPU, reason="triton interprets without a GPU")),
]
"""Without a GPU, triton's interpreter runs the kernels (see tests/conftest.py)."""
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 9, 20])
@pytest.mark.parametrize("device", DEVICES)
def test_triton_kernels(size, dtype, device):
    g = torch.Generator().manual_seed(size)
    shapes = {"a": (33, 7), "b": (300,), "c": (1,)}
    theta = {n: torch.randn(*s, generator=g).to(device, dtype) for n, s in shapes.items()}
    clients = [
        {n: (v.double() + 0.1 + 0.3 * torch.randn(v.shape, generator=g).to(device)).to(dtype)
         for n, v in theta.items()}
        for _ in range(size)
    ]  # fmt: skip
    rules = ["fedsdg", "coordinate-median", "cgsv"]
    rules += ["krum", "geometric-median"] if size >= 5 else []
    for rule in rules:
        results = [
            on(name, lambda rule: aggregate(rule, theta, clients, client_samples=[1] * size), rule)
            for name in ("torch", "triton")
        ]
        a, b = (torch.cat([t.double().flatten() for t in r.parameters.values()]) for r in results)
        assert (a - b).norm() <= 1e-6 * a.norm()
    noises = [on(name, rounding_of_the_measured, theta, clients) for name in ("torch", "triton")]
    assert noises[1] == pytest.approx(noises[0], rel=1e-6)
    clients[-1]["a"][0, 0] = torch.nan
    if size > 1:
        with backend("triton"):
            made = aggregate("fedsdg", theta, clients, on_nonfinite="drop")
        assert made.dropped == {size - 1: {"a": 1}}


@TRITON
def test_triton_without_a_gpu_is_an_error():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("TRITON_INTERPRET", None)
    script = (
        "import torch; from fedsdg.aggregation import aggregate\n"
        "aggregate('fedsdg', torch.zeros(2), [torch.ones(2)])"
    )
    environment["FEDSDG_AGGREGATION_BACKEND"] = "triton"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "TRITON_INTERPRET=1" in done.stderr
