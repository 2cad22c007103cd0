"""CUDA kernels against plain formulas in float64: on a GPU if there is one, else interpreted."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.backends import AUTO_NUMBERS, backend, kernels_for
from fedsdg.aggregation.engines.order_statistics import trimmed_mean
from fedsdg.aggregation.engines.statistics import measure, squared_distances, weighted_sum
from fedsdg.aggregation.rules.geometric_median import GeometricMedian

from .large_attackers import attacked, true_residual

pytest.importorskip("triton", reason="there is no triton for this system")

from fedsdg.aggregation.engines.kernels.cuda import launching, moments, sums, trimmed_means
from fedsdg.aggregation.engines.kernels.cuda.tables import Rows

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
EPS = {np.float32: 4e-6, np.float64: 1e-13}
SIZES = [1, 2, 3, 10, 17, 33]
# The interpreter computes with numpy, which warns of what is infinite or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
COMPILER = Path(__file__).with_name("cuda_compiler.py")

dtypes = st.sampled_from(DTYPES)
layouts = st.sampled_from(["plain", "apart", "offset", "every second", "all equal"])


@pytest.fixture(autouse=True)
def _on_triton():
    with backend("triton"):
        yield


def real_of(dtype):
    return np.float64 if dtype == torch.float64 else np.float32


def laid_out(rows, layout):
    """The same numbers with other strides (all equal: every row is the first)."""
    size, d = rows.shape
    if layout == "apart":
        return torch.cat([rows, torch.full_like(rows[:, :3], torch.nan)], 1)[:, :d]
    if layout == "offset":
        return torch.cat([torch.full_like(rows[:, :1], torch.nan), rows], 1)[:, 1:]
    if layout == "every second":
        return rows.repeat_interleave(2, dim=0)[::2]
    if layout == "all equal":
        return rows[:1].expand(size, d)
    return rows


def draw(size, d, dtype=torch.float32, seed=0, unit=1.0, layout="plain"):
    generator = np.random.default_rng(seed)
    rows = torch.tensor((generator.normal(size=(size, d)) + 0.1) * unit).to(dtype)
    return laid_out(rows.to(DEVICE), layout)


def exact(rows):
    return rows.double().cpu().numpy()


def check_moments(rows, c, real, origin=None):
    squares, dots = moments.moments(Rows(rows, origin), c, real)
    x, lost = exact(rows), 0.0
    if origin is not None:
        lost = np.linalg.norm(np.abs(x).max(0) + np.abs(exact(origin)))
        x = x - exact(origin)
    lengths, z = np.linalg.norm(x, axis=1), c @ x
    reach = np.abs(c) @ (lengths + lost)
    rtol = EPS[real]
    assert (np.abs(squares[:-1] - lengths**2) <= rtol * lengths * (lengths + lost)).all()
    assert (np.abs(dots - x @ z) <= rtol * (lengths + lost) * reach).all()
    assert abs(squares[-1] - z @ z) <= 2 * rtol * reach**2


def check_distances(rows, real):
    x = exact(rows)
    between = moments.distances(Rows(rows), real)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(between, expected, rtol=EPS[real])
    np.testing.assert_array_equal(between, between.T)


def check_weighted_sum(rows, w, base=None, origin=None):
    out = torch.empty_like(rows[0])
    assert sums.weighted_sum(Rows(rows, origin), w, out, base)
    terms = exact(rows) - (0 if origin is None else exact(origin))
    start = np.zeros(rows.shape[1]) if base is None else exact(base)
    expected = start + w @ terms
    # One rounding to the dtype of the rows (two, of the 16 bits' by way of float32).
    bound = torch.finfo(rows.dtype).eps * 0.51 * np.abs(expected)
    bound += 4e-15 * (np.abs(start) + np.abs(w) @ np.abs(terms))
    bound += torch.finfo(rows.dtype).smallest_normal * torch.finfo(rows.dtype).eps
    assert (np.abs(exact(out) - expected) <= bound).all()


def check_trimmed_mean(rows, trim, base=None, origin=None):
    out = torch.empty_like(rows[0])
    assert trimmed_means.trimmed_mean(Rows(rows, origin), trim, out, base)
    x = np.sort(exact(rows) - (0 if origin is None else exact(origin)), axis=0)
    expected = x[trim : len(x) - trim].mean(0)
    start = np.zeros_like(expected) if base is None else exact(base)
    bound = torch.finfo(rows.dtype).eps * 0.51 * np.abs(start + expected)
    bound += 4e-15 * (np.abs(start) + np.abs(x).max(0))
    bound += torch.finfo(rows.dtype).smallest_normal * torch.finfo(rows.dtype).eps
    assert (np.abs(exact(out) - (start + expected)) <= bound).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kernel(size, dtype):
    """At a number of columns that fits no block, and at one that fits blocks read by 16 bytes."""
    c = np.random.default_rng(size).normal(size=size)
    for d in (131, 160):
        rows = draw(size, d, dtype)
        origin, base = draw(2, d, dtype, seed=1)
        for real in {real_of(dtype), np.float64}:
            check_moments(rows, c, real)
            check_moments(rows, c, real, origin)
            check_distances(rows, real)
        for start, shift in [(None, None), (base, None), (None, origin), (base, origin)]:
            check_weighted_sum(rows, c, start, shift)
        for trim in {0, (size - 1) // 4, (size - 1) // 2}:
            check_trimmed_mean(rows, trim)
        check_trimmed_mean(rows, (size - 1) // 4, base, origin)


# Of 3 rows blocks have 512, 1024 or 256 columns; of distances 128.
BORDERS = [1, 2, 15, 16, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1040, 2049]


@pytest.mark.parametrize("d", BORDERS)
def test_no_column_is_dropped_or_taken_twice_at_the_border_of_a_block(d):
    """Small whole numbers: every result is exact, so one column more or less shows."""
    x = np.random.default_rng(d).integers(-4, 5, size=(3, d)).astype(np.float32)
    rows, c = torch.tensor(x, device=DEVICE), np.array([1.0, -2.0, 3.0])
    squares, dots = moments.moments(Rows(rows), c, np.float32)
    z = c @ x
    np.testing.assert_array_equal(squares, [*(x * x).sum(1), z @ z])
    np.testing.assert_array_equal(dots, x @ z)
    between = moments.distances(Rows(rows), np.float32)
    np.testing.assert_array_equal(between, ((x[:, None] - x[None]) ** 2).sum(-1))
    out = torch.full((d + 2,), torch.nan, device=DEVICE)
    for work, expected in [
        (lambda part: sums.weighted_sum(Rows(rows), c, part), z),
        (lambda part: trimmed_means.trimmed_mean(Rows(rows), 1, part), np.median(x, axis=0)),
    ]:
        work(out[1:-1])
        np.testing.assert_array_equal(out[1:-1].cpu().numpy(), expected)
        assert out[[0, -1]].isnan().all()


def test_a_program_that_takes_many_blocks_leaves_none_out(monkeypatch):
    """A few programs, so that each goes round its loops several times, the last not in full."""
    monkeypatch.setattr(moments, "PROGRAMS", 2)
    monkeypatch.setattr(moments, "MOST_STEPS", 3)
    monkeypatch.setattr(moments, "PAIRED_STEPS", 2)
    for size, d in [(2, 10_000), (10, 8 * 512 + 16), (10, 7 * 128 + 5), (17, 1999)]:
        x = np.random.default_rng(d).integers(-4, 5, size=(size, d)).astype(np.float32)
        rows, c = torch.tensor(x, device=DEVICE), np.arange(size) - 1.0
        squares, dots = moments.moments(Rows(rows), c, np.float32)
        z = c @ x
        np.testing.assert_array_equal(squares, [*(x * x).sum(1), z @ z])
        np.testing.assert_array_equal(dots, x @ z)
        between = moments.distances(Rows(rows), np.float32)
        np.testing.assert_array_equal(between, ((x[:, None] - x[None]) ** 2).sum(-1))


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 12),
    d=st.integers(1, 300),
    dtype=dtypes,
    exponent=st.integers(-83, 83),
    layout=layouts,
    seed=st.integers(0, 10**6),
)
@example(size=1, d=16, dtype=torch.float16, exponent=-49, layout="plain", seed=2)
@example(size=10, d=200, dtype=torch.float16, exponent=-1, layout="plain", seed=1)
def test_through_the_statistics(size, d, dtype, exponent, layout, seed):
    """At update scales from 1e-25 to 1e25 (float16: 1e-2 to 1e2; float64: 1e-250 to 1e250)."""
    exponent = {torch.float16: exponent // 12, torch.float64: exponent * 10}.get(dtype, exponent)
    unit = 2.0**exponent
    rows = draw(size, d, dtype, seed, unit, layout)
    assert kernels_for(rows) == "triton"
    c = np.random.default_rng(seed).normal(size=size)
    x, rtol = exact(rows) / unit, EPS[real_of(dtype)]
    found = measure(rows, c)
    ratio, lengths, z = found.unit / unit, np.linalg.norm(x, axis=1), c @ x
    reach = np.abs(c) @ lengths
    np.testing.assert_allclose(found.norms * ratio, lengths, rtol=rtol)
    assert (np.abs(found.dots * ratio**2 - x @ z) <= rtol * lengths * reach).all()
    assert abs(found.reference_norm * ratio - np.linalg.norm(z)) <= rtol * reach
    between, of_pairs = squared_distances(rows)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    if size > 1:
        lengths_between = np.sqrt(between) * (of_pairs / unit)
        np.testing.assert_allclose(lengths_between**2, expected, rtol=rtol)
    eps = torch.finfo(dtype).eps
    least = torch.finfo(dtype).tiny * eps / unit  # between neighbours where numbers are subnormal
    total = exact(weighted_sum(rows, c)) / unit
    assert (np.abs(total - z) <= eps * np.abs(z) + 4e-15 * (np.abs(c) @ np.abs(x)) + least).all()
    trim = int(np.random.default_rng(seed).integers((size + 1) // 2))
    middle = np.sort(x, axis=0)[trim : size - trim].mean(0)
    mean = exact(trimmed_mean(rows, trim)) / unit
    near = eps * np.abs(middle) + 4e-15 * np.abs(x).max(0) + least
    assert (np.abs(mean - middle) <= near).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e3, 1e8, 1e37])
def test_a_geometric_median_withstands_large_attackers(dtype, scale, cohort):
    rows = torch.tensor(attacked(9, 4, 40, scale, "apart"), dtype=getattr(torch, dtype))
    found = GeometricMedian()({"update": rows.to(DEVICE)}, cohort(9), {})
    assert true_residual(rows.double().numpy(), found.weights) < 1e-6
    assert found.diagnostics["residual"] < 1e-6


@settings(max_examples=10, deadline=None)
@given(size=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_rows_of_very_different_scales(size, seed):
    """The squares of the small rows vanish in float32 beside those of the large, and overflow."""
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.integers(-25, 26, size=(size, 1))
    rows = torch.tensor(generator.normal(size=(size, 150)) * scales).float().to(DEVICE)
    x = exact(rows)
    np.testing.assert_allclose(measure(rows).norms, np.linalg.norm(x, axis=1), rtol=4e-6)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(rows)[0], expected, rtol=4e-6)


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 20),
    d=st.integers(1, 200),
    dtype=dtypes,
    ties=st.booleans(),
    layout=layouts,
    seed=st.integers(0, 10**6),
)
def test_the_median_is_numpys(size, d, dtype, ties, layout, seed):
    """To the last bit, also of many equal numbers."""
    x = np.random.default_rng(seed).normal(size=(size, d))
    rows = laid_out(torch.tensor(np.round(x) if ties else x).to(dtype).to(DEVICE), layout)
    out = torch.empty_like(rows[0])
    assert trimmed_means.trimmed_mean(Rows(rows), (size - 1) // 2, out)
    expected = torch.tensor(np.median(exact(rows), axis=0)).to(dtype)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("size", range(1, trimmed_means.NETWORK_ROWS + 2))
def test_the_middle_ranks_of_every_number_of_rows(size):
    """Against sorting, with many equal numbers and columns that are not finite; beyond the last
    number of rows that a network takes, too."""
    x = np.round(np.random.default_rng(size).normal(size=(size, 67)) * 3) / 2
    x[:, 5] = 1.5
    x[size // 2, 7], x[0, 11], x[-1, 13] = np.nan, np.inf, -np.inf
    dtype = DTYPES[size % len(DTYPES)]
    for kind in {torch.float32, dtype}:
        rows = torch.tensor(x).to(kind).to(DEVICE)
        ordered = torch.sort(torch.tensor(x), dim=0).values
        for trim in range((size + 1) // 2) if size < 12 else {0, size // 3, (size - 1) // 2}:
            expected = ordered[trim : size - trim].mean(0)
            expected[[7, 11, 13]] = torch.nan
            out = torch.empty_like(rows[0])
            assert not trimmed_means.trimmed_mean(Rows(rows), trim, out)
            near = {"rtol": torch.finfo(kind).eps, "atol": 1e-15, "equal_nan": True}
            torch.testing.assert_close(out.double().cpu(), expected, **near)


@pytest.mark.parametrize("size", [100, 129])
def test_many_clients(size):
    rows, c = draw(size, 70), np.random.default_rng(0).normal(size=size)
    check_moments(rows, c, np.float32)
    check_distances(rows, np.float32)
    check_weighted_sum(rows, c)
    check_trimmed_mean(rows, (size - 1) // 2)
    check_trimmed_mean(rows, size // 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_of_large_and_of_small_numbers_neither_overflow_nor_vanish(dtype):
    facts = torch.finfo(dtype)
    for value in (facts.max, -facts.max, facts.tiny / 8, 0.0):
        for size in (2, 3, 7):
            rows = torch.full((size, 5), value, dtype=dtype, device=DEVICE)
            for trim in {0, (size - 1) // 2}:
                assert torch.equal(trimmed_mean(rows, trim), rows[0])


def test_the_order_of_the_clients_changes_no_bit_of_what_is_of_pairs_or_columns():
    rows, order = draw(11, 700), np.random.default_rng(0).permutation(11)
    mixed = rows[torch.as_tensor(order, device=DEVICE)]
    between = squared_distances(rows)[0]
    np.testing.assert_array_equal(squared_distances(mixed)[0], between[np.ix_(order, order)])
    np.testing.assert_array_equal(measure(mixed).norms, measure(rows).norms[order])
    assert torch.equal(trimmed_mean(mixed, 5), trimmed_mean(rows, 5))
    found, again = measure(mixed), measure(rows)
    np.testing.assert_allclose(found.dots, again.dots[order], rtol=1e-5)
    assert found.reference_norm == pytest.approx(again.reference_norm, rel=1e-5)


@pytest.mark.parametrize("d", [4096, 4099])
def test_from_run_to_run_no_bit_changes(d):
    rows, c = draw(10, d), np.arange(10.0)
    for work in (
        lambda: np.concatenate(moments.moments(Rows(rows), c, np.float32)),
        lambda: moments.distances(Rows(rows[:4]), np.float32),
    ):
        np.testing.assert_array_equal(work(), work())


def test_zero_equal_and_opposite_rows():
    rows = draw(6, 300)
    rows[1], rows[2], rows[5] = 0, -rows[0], rows[3]
    between, _ = squared_distances(rows)
    assert between[3, 5] == 0
    assert (between[~np.eye(6, dtype=bool)] == 0).sum() == 2
    assert measure(rows).norms[1] == 0
    opposite = measure(torch.stack([rows[0], rows[2]]))
    assert opposite.reference_norm == 0
    assert not opposite.dots.any()
    assert not measure(torch.zeros_like(rows)).norms.any()


def test_a_common_direction_does_not_cancel():
    """Spread / common = 1e-4 in float32: distances keep the digits that the numbers have."""
    generator = np.random.default_rng(0)
    spread = 1e-4 * generator.normal(size=(10, 4000))
    rows = torch.tensor(3e-5 * (generator.normal(size=4000) + spread)).float().to(DEVICE)
    x = exact(rows)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(rows)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_not_finite_are_never_silent(value, dtype):
    rows = draw(5, 200, dtype)
    rows[3, 123] = value
    assert not np.isfinite(measure(rows).norms[3])
    assert not np.isfinite(squared_distances(rows)[0][3, :3]).any()
    assert not torch.isfinite(weighted_sum(rows, np.full(5, 0.2))[123])
    assert not sums.weighted_sum(Rows(rows), np.full(5, 0.2), torch.empty_like(rows[0]))
    out = torch.empty_like(rows[0])
    assert not trimmed_means.trimmed_mean(Rows(rows), 2, out)
    assert out.isnan().nonzero().tolist() == [[123]]


def test_the_sum_may_be_written_over_its_base():
    """θ + Σ w_k (θ_k − θ), into θ itself."""
    theta, rows, w = draw(1, 300, seed=1)[0], draw(4, 300), np.array([0.1, 0.2, 0.3, 0.4])
    expected = exact(theta) + w @ (exact(rows) - exact(theta))
    sums.weighted_sum(Rows(rows, theta), w, theta, base=theta)
    np.testing.assert_allclose(exact(theta), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_half_way_between_two_numbers_go_to_the_even_one(dtype):
    """As torch rounds, up to infinity; also from what is half a number below."""
    half = torch.finfo(dtype).eps / 2
    steps = torch.arange(1, 2, 2 * half).to(dtype)
    rows = torch.stack([steps, torch.full_like(steps, half)]).to(DEVICE)
    rows[:, -1] = torch.finfo(dtype).max
    for w in ([1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]):
        expected = torch.tensor(np.array(w) @ exact(rows)).to(dtype)
        assert torch.equal(weighted_sum(rows, np.array(w)).cpu(), expected)


def test_rows_that_the_kernels_do_not_take_go_to_the_reference():
    assert kernels_for(draw(2, 3)) == "triton"
    assert kernels_for(draw(3, 2).T) is None
    assert kernels_for(draw(1100, 1)) is None
    assert kernels_for(draw(2, 3)[:, :0]) is None
    assert kernels_for(draw(2, 3).int()) is None


def test_by_itself_triton_takes_large_rows_on_a_gpu_alone():
    with backend("auto"):
        kernels = kernels_for(torch.empty(10, AUTO_NUMBERS // 10, device=DEVICE))
        assert kernels == ("triton" if HAS_GPU else "numba")
        assert kernels_for(torch.empty(10, AUTO_NUMBERS // 10 - 1, device=DEVICE)) is None


def test_forced_without_a_gpu_and_without_the_interpreter_it_says_so():
    code = """
import numpy as np, torch
from fedsdg.aggregation.engines.statistics import measure
measure(torch.ones(2, 3))
"""
    done = run([sys.executable, "-c", code], FEDSDG_AGGREGATION_BACKEND="triton")
    assert done.returncode == 1
    assert "the updates are on the device cpu, not on a CUDA device" in done.stderr
    assert "TRITON_INTERPRET=1" in done.stderr


def run(command, **variables):
    """In a process where triton compiles."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | variables
    # Where the package is not installed, its folder is all there is.
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [90])
def test_every_kernel_compiles_without_a_gpu(capability, tmp_path):
    """To machine code of an H100: what the interpreter lets pass shows here."""
    command = [sys.executable, COMPILER, str(capability)]
    done = run(command, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    names = {"_moments", "_distances", "_weighted_sum", "_trimmed_mean", "_selected_mean"}
    assert {kernel["kernel"] for kernel in kernels} == names
    for kernel in kernels:
        # Numbers that do not fit the registers go to memory: hardly any.
        assert kernel["STACK"] <= 16, kernel
        assert kernel["LOCAL"] == 0, kernel
        # At least two programs of a processor take turns (it has 2^16 registers).
        most = 1 << 15 if kernel["size"] <= 100 else 1 << 16
        assert kernel["REG"] * kernel["threads"] <= most, kernel
    tabled = [k for k in kernels if k.get("table")]
    assert {k["kernel"] for k in tabled} == names
    for kernel in tabled:
        # Through a table too a thread reads 16 bytes at once.
        if kernel["d"] % 16 == 0 and kernel["kernel"] in (
            "_moments",
            "_distances",
            "_weighted_sum",
        ):
            assert kernel["wide reads"] > 0, kernel
    for path in tmp_path.glob("**/*.ptx"):
        text = path.read_text()
        # Subnormal numbers stay, products are not rounded to 10 bits, the order of sums is fixed.
        assert not re.search(r"\.ftz|tf32|\b(atom|red)\.", text), path.name


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize(("size", "d"), [(10, 10_000_019), (100, 2_000_000), (1000, 100_003)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_rows_on_a_gpu(size, d, dtype):
    rows = torch.randn(size, d, device=DEVICE, dtype=torch.float32).to(dtype)
    with backend("torch"):
        expected = measure(rows), squared_distances(rows)[0], weighted_sum(rows, np.ones(size))
        middle = trimmed_mean(rows, (size - 1) // 2)
    assert kernels_for(rows) == "triton"
    rtol = EPS[real_of(dtype)]
    found = measure(rows)
    np.testing.assert_allclose(found.norms, expected[0].norms, rtol=rtol)
    reach = found.norms * found.norms.mean()
    assert (np.abs(found.dots - expected[0].dots) <= rtol * reach).all()
    np.testing.assert_allclose(squared_distances(rows)[0], expected[1], rtol=10 * rtol)
    eps = torch.finfo(dtype).eps
    total = weighted_sum(rows, np.ones(size))
    torch.testing.assert_close(total, expected[2], rtol=eps, atol=eps * size)
    assert torch.equal(trimmed_mean(rows, (size - 1) // 2), middle)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_positions_beyond_32_bits():
    rows = torch.zeros(3, 1_200_000_000, device=DEVICE, dtype=torch.bfloat16)
    rows[2, -1] = 3
    assert moments.moments(Rows(rows), np.ones(3), np.float32)[0].tolist() == [0, 0, 9, 9]
    assert weighted_sum(rows, np.ones(3))[-1] == 3
    assert trimmed_mean(rows, 1)[-1] == 0
    assert moments.distances(Rows(rows), np.float32)[0].tolist() == [0, 0, 9]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_rows_need_not_be_the_current_one():
    rows = draw(3, 1000).to("cuda:1")
    check_moments(rows, np.ones(3), np.float32)
    check_weighted_sum(rows, np.ones(3))


def test_a_tile_holds_all_rows_and_no_more_threads_than_a_program_may_have():
    for size in (1, 2, 3, 10, 16, 17, 100, 513, 1000, 1024):
        for real in (np.float32, np.float64):
            for numbers, of_thread in ((8192, 64), (4096, 32), (2048, 16)):
                tile = launching.tile(size, numbers, of_thread, real)
                assert tile.rows >= size
                assert 8 <= tile.columns <= 1024
                assert 1 <= tile.warps <= 32
                for power in tile:
                    assert power & (power - 1) == 0
