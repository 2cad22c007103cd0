"""Bad input by the thousand: each fault gives its documented error, and nothing is touched."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation import aggregate
from tests.bad_inputs.outcomes import EVERYTHING

from .api_cases import EVERY_RULE, KINDS, flat, form
from .api_faults import FAULTS, make_case

cases = st.tuples(
    st.integers(0, 10**6), st.sampled_from(EVERY_RULE), st.sampled_from(KINDS), st.booleans()
)


def broken(case, fault):
    """Break the case, call the door, and see that the error is the documented one."""
    before = [flat(params) for params in (case.origin, *case.clients)]
    origin, clients = case.origin, list(case.clients)
    out = form(np.full(9, 5.0), case.kind, dtype_of(case.origin))
    case.options["out"] = out
    pattern = fault(case)
    arguments, options = case.arguments()
    with pytest.raises(ValueError, match=pattern):
        aggregate(*arguments, **options)
    for params, values in zip((origin, *clients), before, strict=True):
        np.testing.assert_array_equal(flat(params), values)
    assert (flat(out) == 5.0).all()


def dtype_of(params):
    leaf = params
    if isinstance(params, dict):
        leaf = next(iter(params.values()))
    elif isinstance(params, list | tuple):
        leaf = params[0]
    return str(leaf.dtype).removeprefix("torch.")


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_every_fault_once(fault):
    """With the first rule, kind and form of clients that it applies to, and that are right."""
    change, applies = FAULTS[fault]
    for seed in range(400):
        rule, kind = EVERY_RULE[seed % len(EVERY_RULE)], KINDS[seed % len(KINDS)]
        case = make_case(seed, rule, kind, listed=bool(seed // 3 % 2))
        if applies(case):
            arguments, options = case.arguments()
            aggregate(*arguments, **copy.copy(options))
            broken(case, change)
            return
    pytest.fail("the fault applies to no case")


@pytest.mark.slow
@settings(max_examples=2000 if EVERYTHING else 200, deadline=None)
@given(case=cases, data=st.data())
def test_any_fault_in_any_case(case, data):
    """Every fault once is above; five thousand other bad arrays are in tests/bad_inputs."""
    seed, rule, kind, listed = case
    made = make_case(seed, rule, kind, listed=listed)
    changes = [change for change, applies in FAULTS if applies(made)]
    broken(made, data.draw(st.sampled_from(changes)))


@settings(max_examples=100, deadline=None)
@given(case=cases)
def test_the_cases_are_right_before_they_are_broken(case):
    seed, rule, kind, listed = case
    arguments, options = make_case(seed, rule, kind, listed=listed).arguments()
    assert np.isfinite(flat(aggregate(*arguments, **options).parameters)).all()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_anything_at_all_in_any_place_is_a_value_error_or_a_result(data):
    """Nothing but ValueError, whatever stands where."""
    theta, clients = np.ones(4), [np.ones(4), np.zeros(4)]
    arguments = {"rule": "fedsdg", "global_params": theta, "client_params": clients}
    options = ["num_samples", "num_batches", "client_samples", "uploads", "state", "on_nonfinite"]
    names = [*arguments, *options, "num_clients", "round", "out"]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        arguments[name] = data.draw(anything)
    try:
        result = aggregate(**arguments)
    except ValueError as error:
        assert len(str(error)) > 10
    else:
        assert torch.isfinite(torch.as_tensor(result.parameters)).all()
