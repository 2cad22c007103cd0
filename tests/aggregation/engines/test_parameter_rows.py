"""Rows of parameters against the same rows as one matrix in float64."""

import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.memory import formed_rows, parameter_rows
from fedsdg.aggregation.engines.memory.addressed_rows import AddressedRows
from fedsdg.aggregation.engines.memory.blocks import cut
from fedsdg.aggregation.engines.memory.formed_rows import FormedRows
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows, form_matrix
from fedsdg.aggregation.engines.memory.tabled_rows import TabledRows
from fedsdg.aggregation.plans import Combination, Nothing, OrderStatistics, Plan

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(), reason="for triton's interpreter"
)
BACKENDS = ["torch", "numba", pytest.param("triton", marks=needs_triton)]
# The interpreter computes with numpy, which warns of what is infinite or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SHAPES = {"w": (7, 130), "none": (0, 3), "b": (), "deep": (3, 2, 500), "long": (2311,)}
M = 6


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch):
    """Several blocks and tensors by address at a size that is quick to check."""
    monkeypatch.setattr(formed_rows, "BLOCK_NUMBERS", 700)
    monkeypatch.setattr(formed_rows, "WHOLE_NUMBERS", 700)
    monkeypatch.setattr(formed_rows, "LEAST_WIDTH", 64)
    monkeypatch.setattr(parameter_rows, "LARGE_NUMBERS", 2000 * M)


def parameters(seed, dtype=torch.float32, scale=1.0, *, strided=(), mixed=False):
    """Tensors of the shapes; strided: names of those that do not lie side by side in memory."""
    generator = np.random.default_rng(seed)
    params = {}
    for name, shape in SHAPES.items():
        values = torch.tensor(scale * generator.normal(size=shape)).to(dtype)
        if mixed and name in ("b", "deep"):
            values = values.to(torch.bfloat16)
        if name in strided and values.ndim:
            wide = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=values.dtype)
            wide[..., ::2] = values
            values = wide[..., ::2]
        params[name] = values
    return params


def flat(params):
    return np.concatenate([t.double().numpy().ravel() for t in params.values()])


def close(found, expected, rtol):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("strided", [(), ("long", "w"), tuple(SHAPES)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_rows_say_is_as_of_the_matrix(dtype, strided, subtract, name):
    check_all_that_rows_say(dtype, strided, subtract, name)


@pytest.mark.parametrize(
    ("dtype", "strided", "subtract"),
    [
        (torch.float16, (), False),
        (torch.float64, (), True),
        (torch.float32, ("long", "w"), True),
    ],
)
@needs_triton
def test_all_that_tables_say_is_as_of_the_matrix(dtype, strided, subtract):
    check_all_that_rows_say(dtype, strided, subtract, "triton")


def check_all_that_rows_say(dtype, strided, subtract, name):
    origin = parameters(0, dtype, strided=strided)
    clients = [parameters(k, dtype, strided=strided[:k]) for k in range(1, M + 1)]
    matrix = np.array([flat(c) - subtract * flat(origin) for c in clients])
    narrow = 1e-5 if dtype != torch.float64 else 1e-12
    weights = np.linspace(-0.5, 1, M)
    with backend(name):
        rows = ParameterRows(origin, clients, subtract=subtract)
        assert rows.shape == matrix.shape
        by_address = [part for part in rows.parts if isinstance(part, AddressedRows)]
        assert bool(by_address) == (name == "numba" and "deep" not in strided)
        tabled = {n for part in rows.parts if isinstance(part, TabledRows) for n in part.names}
        in_place = {n for n, t in origin.items() if t.numel() and n not in strided}
        assert tabled == (in_place | {"b"} if name == "triton" else set())
        for coefficients in (None, weights):
            s = rows.measure(coefficients)
            z = matrix.mean(0) if coefficients is None else coefficients @ matrix
            close(s.norms * s.unit, np.linalg.norm(matrix, axis=1), narrow)
            close(s.dots * s.unit**2, matrix @ z, narrow * 10)
            close(s.reference_norm * s.unit, np.linalg.norm(z), narrow)
        distances, unit = rows.squared_distances()
        expected = ((matrix[:, None] - matrix[None]) ** 2).sum(-1)
        close(distances * unit**2, expected, narrow)
        close(rows.weighted_sum(weights).numpy(), weights @ matrix, narrow)
        for trim in (0, 1, 2):
            middle = np.sort(matrix, axis=0)[trim : M - trim].mean(0)
            close(rows.trimmed_mean(trim).numpy(), middle, narrow)
        assert not rows.nonfinite_counts().any()
        clients[3]["deep"][1, 1, 7:9] = torch.nan
        clients[3]["long"][-1] = -torch.inf
        assert rows.nonfinite_counts().tolist() == [0, 0, 0, 3, 0, 0]
    close(form_matrix(origin, clients[:3], subtract=subtract).numpy(), matrix[:3], narrow)


@pytest.mark.parametrize("name", BACKENDS)
def test_tensors_of_several_dtypes(name):
    """Everything in the widest, float32 at least; results in the dtype of each tensor."""
    for dtype in (torch.float32, torch.float64):
        origin = parameters(0, dtype, mixed=True)
        clients = [parameters(k, dtype, mixed=True) for k in range(1, M + 1)]
        matrix = np.array([flat(c) - flat(origin) for c in clients])
        with backend(name):
            rows = ParameterRows(origin, clients)
            assert rows.dtype == dtype
            close(rows.measure().norms, np.linalg.norm(matrix, axis=1), 1e-5)
            targets = {name: torch.empty_like(t) for name, t in origin.items()}
            plan = Plan(Combination(np.full(M, 1 / M)), None, {}, checked=True)
            rows.write(plan, targets, fresh=True)
        for key, target in targets.items():
            exact = torch.stack([c[key].double() for c in clients]).mean(0)
            eps = torch.finfo(target.dtype).eps
            torch.testing.assert_close(target.double(), exact, rtol=eps, atol=4 * eps)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scales_beyond_the_squares_of_float64(name, scale):
    """Of the parts some are scaled and some are not."""
    origin = {key: torch.zeros_like(t) for key, t in parameters(0, torch.float64).items()}
    clients = [parameters(k, torch.float64) for k in range(1, M + 1)]
    for client in clients:
        client["long"] *= scale
        client["deep"] *= 0
    matrix = np.array([flat(c) for c in clients]) / max(scale, 1)
    with backend(name):
        rows = ParameterRows(origin, clients)
        s = rows.measure()
        distances, unit = rows.squared_distances()
    unit_of_matrix = 1 / max(scale, 1)
    close(s.norms * (s.unit * unit_of_matrix), np.linalg.norm(matrix, axis=1), 1e-10)
    dots = s.dots * (s.unit * unit_of_matrix) ** 2
    close(dots, matrix @ matrix.mean(0), 1e-10)
    expected = ((matrix[:, None] - matrix[None]) ** 2).sum(-1)
    close(distances * (unit * unit_of_matrix) ** 2, expected, 1e-10)


STEPS = [
    (Combination(np.linspace(0, 1, M) / 3), lambda x: np.linspace(0, 1, M) / 3 @ x),
    (Combination(np.eye(M)[2]), lambda x: x[2]),
    (OrderStatistics((M - 1) // 2), lambda x: np.median(x, axis=0)),
    (OrderStatistics(1), lambda x: np.sort(x, axis=0)[1:-1].mean(0)),
    (Nothing(), lambda x: 0 * x[0]),
]


class Largest:
    """A step of one's own, made of the rows' results."""

    inside = True

    def of(self, rows):
        return -2 * rows.trimmed_mean(0)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize(
    ("step", "formula"),
    [*STEPS, (Largest(), lambda x: -2 * x.mean(0))],
    ids=["combination", "one row", "median", "trimmed", "nothing", "own"],
)
def test_what_is_written_is_origin_plus_step(step, formula, name, checked):
    check_what_is_written(step, formula, name, checked)


@needs_triton
@pytest.mark.parametrize(
    ("step", "formula"),
    [STEPS[0], STEPS[2], (Largest(), lambda x: -2 * x.mean(0))],
    ids=["combination", "median", "own"],
)
def test_what_is_written_through_a_table_is_origin_plus_step(step, formula):
    check_what_is_written(step, formula, "triton", checked=False)


def check_what_is_written(step, formula, name, checked):
    for strided in ((), ("long", "deep")):
        origin, clients = parameters(0), [parameters(k) for k in range(1, M + 1)]
        expected = flat(origin) + formula(np.array([flat(c) - flat(origin) for c in clients]))
        with backend(name):
            rows = ParameterRows(origin, clients)
            plan = Plan(step, None, {}, checked=checked)
            fresh = parameters(9, strided=strided)
            rows.write(plan, fresh, fresh=True)
            used = parameters(8, strided=strided)
            rows.write(plan, used, fresh=False)
            rows.write(plan, origin, fresh=False)
        close(flat(fresh), expected, 1e-6)
        close(flat(origin), expected, 1e-6)
        assert all(torch.equal(used[key], fresh[key]) for key in fresh)


def test_means_of_the_largest_numbers_stay_finite():
    """In float64 their rounding may pass the largest number; they are means all the same."""
    top = torch.finfo(torch.float64).max
    origin = {"w": torch.zeros(3, dtype=torch.float64)}
    clients = [{"w": torch.full((3,), top, dtype=torch.float64)} for _ in range(3)]
    weights = np.array([0.1, 0.7, 0.2]) * (1 + 2**-52)
    assert (weights @ np.full(3, top / 2)) > top / 2
    ParameterRows(origin, clients).write(
        Plan(Combination(weights), None, {}, checked=True), origin, fresh=False
    )
    assert (origin["w"] == top).all()


shapes = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=6).map(
    lambda many: {f"t{k}": shape for k, shape in enumerate(many)}
)


@settings(max_examples=200, deadline=None)
@given(shapes=shapes, width=st.integers(1, 300))
def test_blocks_hold_every_number_once_and_in_order(shapes, width):
    d = sum(math.prod(shape) for shape in shapes.values())
    numbers = torch.arange(d, dtype=torch.float64)
    tensors, start = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        tensors[name] = numbers[start : start + size].view(shape)
        start += size
    seen = [torch.empty(0, dtype=torch.float64)]
    stop = 0
    for block in cut(shapes, width):
        assert block.columns.start == stop
        stop = block.columns.stop
        assert 0 < block.width <= width
        row = torch.empty(block.width, dtype=torch.float64)
        block.gather(tensors, row)
        seen.append(row)
    assert torch.equal(torch.cat(seen), numbers)


def test_small_rows_are_formed_once():
    """In one block, which is kept."""
    rows = FormedRows(parameters(0), [parameters(1)], torch.float32, subtract=True, whole=True)
    (block,) = rows.cut
    first, _ = rows.formed(block)
    first.fill_(5)
    assert (rows.formed(block)[0] == 5).all()
