"""Passes on a GPU that are queued before the host knows what came of the ones before."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.aggregation.engines.ahead import Ahead
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.uploads import NonFiniteError
from tests.pretended_cuda import interpreted_there, pretended_cuda

pytest.importorskip("triton", reason="there is no triton for this system")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="pretends to be a GPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SIZE = 7
MEASURED, TWICE = {"_moments": 1, "_weighted_sum": 1}, {"_moments": 2, "_weighted_sum": 1}
RULES = {
    "mean": (Mean(), {"_weighted_sum": 1}, 1),
    "fedsdg": (Alignment(), MEASURED, 1),
    "leave one out": (Alignment(reference="leave_one_out"), MEASURED, 1),
    "softmax": (Alignment(transform="softmax", smoothing=0.1), MEASURED, 1),
    "adapters": (Alignment(scope="adapters"), MEASURED, 1),
    "cgsv": (Cgsv(), TWICE, 1),
    "cgsv unit": (Cgsv(step_scale="unit"), TWICE, 1),
    "cgsv-xu": (CgsvXu(), TWICE, 3),
}


def updates(dtype=torch.float32, unit=1.0):
    x = np.random.default_rng(0).normal(size=(SIZE, 300)) + 0.3
    x[2] = -x[2]
    return torch.tensor(x * unit).to(dtype)


def asked(rule, rows, context):
    """(what came of it, the machine) on what pretends to be a GPU."""
    state = rule.init(rows.shape[1], context.client_samples)
    with backend("triton"), pretended_cuda() as machine, interpreted_there(machine):
        there = {"update": rows.cuda(), "adapters": rows[:, 5:90].contiguous().cuda()}
        machine.waits.clear()
        found = rule(there, context, state)
        waits = sum(machine.waits.values())
        assert machine.is_there(found.steps)
        found = found._replace(steps=found.steps.cpu())
    return found, waits, machine


def reference(rule, rows, context):
    state = rule.init(rows.shape[1], context.client_samples)
    with backend("torch"):
        return rule({"update": rows, "adapters": rows[:, 5:90]}, context, state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_the_host_waits_once_and_at_the_end(name, dtype, cohort):
    """But cgsv-xu, which then gives every client as many numbers as it earned."""
    rule, launches, allowed = RULES[name]
    rows, context = updates(dtype), cohort(SIZE, federation=SIZE)
    found, waits, machine = asked(rule, rows, context)
    assert waits == allowed, machine.waits
    assert machine.launches == launches
    expected = reference(rule, rows, context)
    near = 1e-13 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(found.weights, expected.weights, rtol=near, atol=near)
    eps = torch.finfo(dtype).eps
    for one, other in zip(found.steps, expected.steps, strict=True):
        torch.testing.assert_close(one, other, rtol=2 * eps, atol=max(2 * eps, near))
    for key, value in expected.diagnostics.items():
        np.testing.assert_allclose(found.diagnostics[key], value, rtol=10 * near, atol=10 * near)


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_squares_that_leave_float32_are_taken_again(unit, cohort):
    """What was queued with the wrong weights is thrown away."""
    rows, context = updates(unit=unit), cohort(SIZE)
    rule = Alignment(epsilon=1e-300)
    found, _, machine = asked(rule, rows, context)
    assert machine.launches["_moments"] == 3
    expected = reference(rule, rows, context)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-5)
    torch.testing.assert_close(found.steps / unit, expected.steps / unit, rtol=1e-5, atol=1e-5)


class Wrong(Alignment):
    """Foresees something else than it does."""

    def ahead(self, rows, context, state):
        rows["update"].measure()
        weights = np.zeros(SIZE)
        weights[0] = 0.5
        rows["update"].weighted_sum(rows["update"].sent(weights))


def test_what_is_foreseen_wrongly_changes_nothing(cohort):
    rows, context = updates(), cohort(SIZE)
    found, waits, machine = asked(Wrong(), rows, context)
    right = asked(Alignment(), rows, context)[0]
    assert torch.equal(found.steps, right.steps)
    np.testing.assert_array_equal(found.weights, right.weights)
    assert machine.launches["_weighted_sum"] == 2
    assert waits == 2


@pytest.mark.parametrize("rule", [Alignment(max_weight=0.3), Alignment()], ids=["capped", "noise"])
def test_weights_that_nobody_can_foresee_are_the_hosts(rule, cohort):
    """A cap; and a mean that is within the rounding of the parameters."""

    class Norm:
        def __float__(self):
            return 1e12

        def at_most(self, update_norm):
            return 1e12

    rows, context = updates(), replace(cohort(SIZE), parameter_norm=Norm())
    found, expected = asked(rule, rows, context)[0], reference(rule, rows, context)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-5)
    torch.testing.assert_close(found.steps, expected.steps, rtol=1e-5, atol=1e-6)
    assert found.diagnostics["degenerate"] == 1


def test_rounding_noise_of_a_known_norm_is_foreseen(cohort):
    rows, context = updates(), replace(cohort(SIZE), parameter_norm=1e12)
    found, waits, _ = asked(Alignment(), rows, context)
    assert found.weights.tolist() == [1 / SIZE] * SIZE
    assert waits == 1


@pytest.mark.parametrize("rule", [Alignment(), Cgsv()])
def test_no_updates_at_all_and_updates_that_are_not_finite(rule, cohort):
    rows, context = updates(), cohort(SIZE, federation=SIZE)
    found = asked(rule, torch.zeros_like(rows), context)[0]
    assert not found.steps.any()
    rows[3, 17] = np.nan
    with pytest.raises(NonFiniteError, match="client 3"):
        asked(rule, rows, context)


def test_a_cohort_of_one(cohort):
    rows, context = updates()[:1], cohort(1)
    found, waits, _ = asked(Alignment(), rows, context)
    assert torch.equal(found.steps, rows)
    assert waits == 1


def test_rows_on_the_host_wait_for_nobody(cohort):
    """Neither the reference nor numba's kernels are asked in tensors."""

    class Never(Alignment):
        def ahead(self, rows, context, state):
            raise AssertionError("asked")

    for name in ("torch", "numba"):
        with backend(name):
            Never()({"update": updates()}, cohort(SIZE), {})


def test_a_known_answer_is_given_for_its_own_coefficients_alone():
    rows = TensorRows(updates())
    with backend("triton"):
        from fedsdg.aggregation.engines.ahead import go_ahead

        c = np.arange(1.0, SIZE + 1)
        go_ahead({"x": rows}, lambda there: _ask(there["x"], c))
    assert rows.measure() is rows.measured[0].statistics
    assert rows.measure(c) is rows.measured[1].statistics
    assert rows.measure(c * (1 + 1e-9)) is not rows.measured[1].statistics
    assert rows.weighted_sum(c) is rows.summed[0].total
    assert rows.weighted_sum(c + 1e-9) is not rows.summed[0].total
    plain = TensorRows(updates())
    np.testing.assert_allclose(rows.measure(c).dots, plain.measure(c).dots, rtol=1e-5, atol=1e-3)
    assert rows.measure(c).reference_norm == pytest.approx(plain.measure(c).reference_norm)


def _ask(rows: Ahead, c):
    rows.measure()
    rows.measure(rows.sent(c))
    rows.weighted_sum(rows.sent(c))
