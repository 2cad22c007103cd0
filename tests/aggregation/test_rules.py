"""Properties that hold for every rule, or for every rule of a class."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.types import Rule
from fedsdg.experiment.examining.findings import FAILED, OK, examine
from fedsdg.experiment.examining.rules import RULE, order_is_free
from fedsdg.experiment.examining.situations import Asked, Case

TRANSLATION = [
    Mean("samples"),
    Mean("uniform"),
    Mean("batches"),
    Krum(),
    MultiKrum(),
    MultiKrum(f=1, m=2),
    CoordinateMedian(),
    GeometricMedian(),
    FedCurv(),
    Focus(),
    Compensated(Mean("samples")),
]
LINEAR_SCALE = [
    *TRANSLATION,
    Alignment(),
    Alignment(reference="leave_one_out"),
    Alignment(transform="softmax"),
    Alignment(max_weight=0.3, smoothing=0.2),
    Cgsv(),
    Scaffold(),
    NoAggregation(),
    Compensated(Cgsv()),
    Screened(Mean("uniform")),
    Screened(Scaffold(), strikes=1, threshold=1e9),
    Screened(Compensated(FedCurv())),
]
RULES = [*LINEAR_SCALE, Cgsv(step_scale="unit", gamma0=0.1)]
CONVEX = [rule for rule in RULES if not isinstance(rule, CoordinateMedian | NoAggregation)]
LOSSES = ("benchmark_loss", "global_loss")


def each(rules):
    return pytest.mark.parametrize("rule", rules, ids=repr)


def innermost(rule):
    while hasattr(rule, "inner"):
        rule = rule.inner
    return rule


def uploads_of(rule, updates, seed=0):
    """What a rule reads: noise beside the updates, or losses."""
    generator = torch.Generator().manual_seed(seed)
    uploads = {"update": updates}
    for name in innermost(rule).reads[1:]:
        shape = (len(updates), 1) if name in LOSSES else updates.shape
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).abs()
        uploads[name] = noise if name in LOSSES else noise.to(updates)
    return uploads


def run(rule, updates, context, state=None):
    state = rule.init(updates.shape[1], context.client_samples) if state is None else state
    return rule(uploads_of(rule, updates), context, state)


def normal(size, d, seed=0, dtype=torch.float64):
    values = np.random.default_rng(seed).normal(size=(size, d)) + 0.5
    return torch.tensor(values, dtype=dtype)


sizes = st.tuples(st.integers(5, 9), st.integers(1, 6), st.integers(0, 10**6))


@each(RULES)
def test_protocol(rule):
    assert isinstance(rule, Rule)
    assert dataclasses.is_dataclass(rule)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.anything = 1


@each(RULES)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes)
def test_permutation_equivariance(rule, sizes):
    """Clients in another order: the same step and state, and everything per client reordered."""
    order_is_free(rule, Case(*sizes))


@each(RULES)
def test_all_that_is_asked_of_other_peoples_rules(rule):
    found = list(examine("rule", Asked(rule), RULE))
    assert not [one for one in found if one.outcome == FAILED]
    assert sum(one.outcome == OK for one in found) >= len(RULE) - 4


@each(CONVEX)
@settings(max_examples=20, deadline=None)
@given(sizes=sizes)
def test_weights_are_convex(rule, cohort, sizes):
    size, d, seed = sizes
    weights = run(rule, normal(size, d, seed), cohort(size)).weights
    assert weights.dtype == np.float64
    assert weights.shape == (size,)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1, abs=1e-12)


@each([rule for rule in CONVEX if not isinstance(innermost(rule), Cgsv)])
def test_step_is_the_weighted_sum_of_the_updates(rule, cohort):
    updates = normal(7, 11)
    aggregate = run(rule, updates, cohort(7))
    assert aggregate.steps.shape == (1, 11)
    expected = aggregate.weights @ updates.numpy()
    np.testing.assert_allclose(aggregate.steps[0].numpy(), expected, rtol=1e-12, atol=1e-13)


@each(TRANSLATION)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes, shift=st.floats(-100, 100))
def test_translation_equivariance(rule, cohort, sizes, shift):
    size, d, seed = sizes
    updates = normal(size, d, seed)
    vector = shift * normal(1, d, seed + 1)
    one, two = run(rule, updates, cohort(size)), run(rule, updates + vector, cohort(size))
    torch.testing.assert_close(two.steps, one.steps + vector, rtol=1e-8, atol=1e-6)


@each(LINEAR_SCALE)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes, exponent=st.integers(20, 60))
def test_scale_equivariance(rule, cohort, sizes, exponent):
    """Times a power of two, which rounds nothing; both so large that epsilon does not count."""
    size, d, seed = sizes
    updates = normal(size, d, seed) * 2.0**20
    one = run(rule, updates, cohort(size))
    two = run(rule, updates * 2.0**exponent, cohort(size))
    torch.testing.assert_close(two.steps, one.steps * 2.0**exponent, rtol=1e-9, atol=0)


@each(LINEAR_SCALE)
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e-25),
        (torch.float32, 1e25),
        (torch.float64, 1e-250),
        (torch.float64, 1e250),
        (torch.float64, 8e306),
    ],
)
def test_extreme_scales_are_neither_lost_nor_overflow(rule, dtype, scale, cohort):
    """In units of the scale the step is that of updates of order one, whatever the scale.

    Alignment's epsilon is absolute, as in Eq. 10: far below it the weights are uniform.
    """
    base = normal(6, 50, dtype=dtype)
    aggregate = run(rule, base * scale, cohort(6))
    if isinstance(rule, Alignment) and rule.transform == "relu" and scale < 1:
        expected = base.mean(0, keepdim=True)
        assert aggregate.diagnostics["degenerate"] == 1
    elif isinstance(rule, Alignment) and scale < 1:
        expected = base.mean(0, keepdim=True)
    else:
        expected = run(rule, base, cohort(6)).steps
    torch.testing.assert_close(aggregate.steps / scale, expected, rtol=1e-4, atol=1e-6)


@each(RULES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_agrees_with_float64_and_is_kept(rule, dtype, cohort):
    updates = normal(6, 3000, dtype=dtype)
    aggregate = run(rule, updates, cohort(6))
    exact = run(rule, updates.double(), cohort(6))
    assert aggregate.steps.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(aggregate.steps.double(), exact.steps, rtol=tolerance, atol=1e-6)
    if exact.weights is not None:
        np.testing.assert_allclose(aggregate.weights, exact.weights, rtol=1e-12)


@each(RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_not_modified(rule, dtype, cohort):
    uploads = uploads_of(rule, normal(6, 40, dtype=dtype).requires_grad_())
    context = cohort(6)
    state = rule.init(40, context.client_samples)
    before = [{k: v.detach().clone() for k, v in box.items()} for box in (uploads, state)]
    aggregate = rule(uploads, context, state)
    aggregate.steps.add_(1.0)
    for value in aggregate.state.values():
        value.add_(1)
    for box, copies in zip((uploads, state), before, strict=True):
        assert all(torch.equal(box[name], copies[name]) for name in copies)
    assert not aggregate.steps.requires_grad


@each(RULES)
def test_many_columns_give_the_same_as_few(rule, cohort):
    """d beyond one column block: zero columns appended change nothing."""
    updates = normal(5, 30)
    wide = torch.zeros(5, 120_000, dtype=torch.float64)
    wide[:, :15], wide[:, -15:] = updates[:, :15], updates[:, 15:]
    uploads = uploads_of(rule, updates)
    uploads_wide = {
        name: rows if name in LOSSES else wide for name, rows in uploads_of(rule, wide).items()
    }
    context = cohort(5)
    one = rule(uploads, context, rule.init(30, context.client_samples))
    two = rule(uploads_wide, context, rule.init(120_000, context.client_samples))
    joined = torch.cat([two.steps[:, :15], two.steps[:, -15:]], dim=1)
    torch.testing.assert_close(joined, one.steps, rtol=1e-9, atol=1e-9)
    assert not two.steps[:, 15:-15].any()


@each([rule for rule in RULES if not isinstance(rule, Screened)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_upload_names_the_client(rule, value, cohort):
    updates = normal(5, 8)
    updates[2, 3] = value
    context = cohort(clients=[4, 9, 17, 2, 11])
    with pytest.raises(ValueError, match=r"client 17: upload 'update' has 1 non-finite"):
        run(rule, updates, context)
    with pytest.raises(FloatingPointError):
        run(rule, updates, context)


@each(RULES)
def test_wrong_shapes_are_refused(rule, cohort):
    with pytest.raises(ValueError, match=r"'update' has shape \(4, 8\); expected \[5, d\]"):
        run(rule, normal(4, 8), cohort(5))
    with pytest.raises(ValueError, match="convert it to a floating dtype"):
        rule({"update": torch.ones(5, 8, dtype=torch.int64)}, cohort(5), {})


@each([rule for rule in RULES if not isinstance(rule, NoAggregation)])
def test_missing_upload_and_empty_cohort_are_refused(rule, cohort):
    with pytest.raises(ValueError, match="upload 'update' is missing"):
        rule({}, cohort(5), {})
    with pytest.raises(ValueError, match="cohort is empty"):
        rule({"update": torch.ones(0, 8)}, cohort(0), {})


@each(CONVEX)
def test_identical_updates_give_that_update(rule, cohort):
    update = normal(1, 20)
    aggregate = run(rule, update.repeat(6, 1), cohort(6))
    direction = aggregate.steps / torch.linalg.vector_norm(aggregate.steps)
    torch.testing.assert_close(direction, update / torch.linalg.vector_norm(update))
    if not (isinstance(rule, Cgsv) and rule.step_scale == "unit"):
        torch.testing.assert_close(aggregate.steps, update)


@each(RULES)
def test_zero_updates_give_a_zero_step(rule, cohort):
    aggregate = run(rule, torch.zeros(6, 9), cohort(6))
    assert torch.equal(aggregate.steps, torch.zeros(1, 9))
    if aggregate.weights is not None:
        assert aggregate.weights.sum() == pytest.approx(1)
    for name, value in aggregate.diagnostics.items():
        assert np.isfinite(value).all(), name
