"""What holds for every rule: ``property(rule, case)`` raises ``Failure`` where it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.types import Aggregate, Combination, Rule
from fedsdg.experiment.examining.doors import same_through_every_door
from fedsdg.experiment.examining.findings import (
    RAISED,
    Failure,
    Inapplicable,
    Property,
    bytes_of,
    counted,
    raised,
)
from fedsdg.experiment.examining.rule_rounds import (
    lives_by_its_state,
    loss_falls_as_by_the_mean,
    state_is_used,
    steps_follow_the_updates,
    steps_keep_their_length,
)
from fedsdg.experiment.examining.situations import (
    SERVER,
    Case,
    cases,
    difference,
    everywhere,
    fresh,
    outcome,
    situation,
)

#: Results of float64 that differ by so much, of numbers of order one, differ by rounding.
ROUNDING = 1e-7
#: The largest updates that are tried: their squares are still numbers of float32.
SCALES = (1e6, 1e12, 1e18)


def gives_a_result(rule: Rule, case: Case) -> None:
    """An ``Aggregate`` with a step [d] for each model."""
    outcome(fresh(rule), situation(rule, case))


def order_is_free(rule: Rule, case: Case) -> None:
    """Clients in another order: the same step and state, and what is per client reordered."""
    order = np.random.default_rng(case.seed).permutation(case.size)
    if (order == np.arange(case.size)).all():
        order = np.roll(order, 1)
    one = outcome(fresh(rule), situation(rule, case))
    two = outcome(fresh(rule), situation(rule, case).reordered(order))
    there = f"with the clients in the order {(order + 1).tolist()}"
    _require_close(two.steps, one.steps, f"{there} the step is another")
    if one.weights is not None and two.weights is not None:
        _require_close(two.weights, one.weights[order], f"{there} the weights are not in theirs")
    for name, value in one.state.items():
        _require_close(two.state[name], value, f"{there} the state {name!r} is another")
    for name, told in one.diagnostics.items():
        if isinstance(told, np.ndarray) and told.shape == (case.size,):
            what = f"{there} the diagnostic {name!r} is not in theirs"
            _require_close(two.diagnostics[name], told[order], what)


def inputs_stay(rule: Rule, case: Case) -> None:
    """Uploads, state and context have the same bytes afterwards, and are not kept."""
    given, before = situation(rule, case), situation(rule, case)
    found = outcome(fresh(rule), given)
    for what, now, then in (
        ("upload", given.uploads, before.uploads),
        ("state", given.state, before.state),
        ("context", _values(given.context), _values(before.context)),
    ):
        for name in dict.fromkeys([*then, *now]):
            if name not in now or name not in then or bytes_of(now[name]) != bytes_of(then[name]):
                raise Failure(f"the {what} {name!r} is changed in place")
    uploads = {x.untyped_storage().data_ptr(): name for name, x in given.uploads.items()}
    for name, value in found.state.items():
        if (upload := uploads.get(value.untyped_storage().data_ptr())) is not None:
            raise Failure(f"the state {name!r} is a view of the upload {upload!r}, not a copy")


def _values(context: Any) -> dict[str, Any]:
    """The fields of a context that have bytes."""
    return {name: value for name, value in vars(context).items() if not callable(value)}


def repeats(rule: Rule, case: Case) -> None:
    """The same call twice gives the same bytes."""
    own = fresh(rule)
    one, two = outcome(own, situation(rule, case)), outcome(own, situation(rule, case))
    if name := difference(one, two):
        raise Failure(f"the same call gives another {name} the second time")


def stays_finite(rule: Rule, case: Case, scale: float) -> None:
    """Of finite updates in float32, however large, come finite numbers, or a ``ValueError``."""
    given = situation(rule, case, dtype=torch.float32, scale=scale)
    try:
        found = outcome(fresh(rule), given)
    except (ValueError, FloatingPointError) as error:
        if str(error):
            return
        raise
    _require_finite(found, f"of updates of size {scale:.0e} in float32")


def names_who_is_not_finite(rule: Rule, case: Case, value: float) -> None:
    """A client that sends NaN or infinity is named, or left out with the weight 0."""
    given = situation(rule, case)
    given.uploads["update"][-1, 0] = value
    client = int(given.context.clients[-1])
    try:
        found = outcome(fresh(rule), given)
    except (ValueError, FloatingPointError) as error:
        if not re.search(rf"client {client}\b", str(error)):
            raise Failure(
                f"client {client} sends {value}, and what is said does not name it: {error}"
            ) from error
        return
    _require_finite(found, f"client {client} sends {value}, and the rule goes on:")
    if found.weights is not None and found.weights[-1] != 0:
        raise Failure(
            f"client {client} sends {value}, and the rule goes on and gives it the weight "
            f"{found.weights[-1]:.3g}"
        )


def weights_add_up(rule: Rule, case: Case) -> None:
    """[M] real numbers, none below zero, that sum to 1, or None."""
    weights = outcome(fresh(rule), situation(rule, case)).weights
    if weights is None:
        return
    _require_vector(weights, case, "weights")
    if not np.isfinite(weights).all() or abs(weights.sum() - 1) > 1e-9:
        raise Failure(f"the weights sum to {weights.sum():.12g}")
    if weights.min() < 0:
        raise Failure(f"a weight is {weights.min():.3g}")


def coefficients_are_real(rule: Rule, case: Case) -> None:
    """The coefficients of a ``Combination`` are [M] real numbers."""
    if type(rule).plan is Rule.plan:
        raise Inapplicable("it defines no `plan`")
    given = situation(rule, case)
    rows = {name: MemoryRows.of_matrix(x, name) for name, x in given.uploads.items()}
    step = fresh(rule).checked_plan(rows, given.context, given.state).step
    if isinstance(step, Combination):
        _require_vector(step.coefficients, case, "coefficients")


def _require_vector(values: Any, case: Case, what: str) -> None:
    if not isinstance(values, np.ndarray) or values.shape != (case.size,):
        shape = list(values.shape) if hasattr(values, "shape") else type(values).__name__
        raise Failure(f"the {what} are {shape} for {counted(case.size, 'client')}")
    if values.dtype.kind not in "fiu":
        raise Failure(f"the {what} are {values.dtype}, and no real numbers")


def works_alone(rule: Rule, case: Case) -> None:
    """A single client is a cohort, unless ``require`` refuses it."""
    given = situation(rule, replace(case, size=1))
    try:
        found = outcome(fresh(rule), given)
    except Failure:
        raise
    except RAISED as error:
        raise Failure(f"`require` accepts one client, but then {raised(error)}") from error
    _require_finite(found, "of the update of one client")


def nothing_comes_of_nothing(rule: Rule, case: Case) -> None:
    """Updates of zero: a step of zero."""
    if SERVER in getattr(rule, "reads", ()):
        raise Inapplicable("its step may come from what the server trained itself")
    given = situation(rule, case, scale=0.0)
    if rule.models(given.context.num_clients) > 1:
        raise Inapplicable("it serves several models, which may move towards each other")
    found = outcome(fresh(rule), given)
    _require_finite(found, "of updates that are all zero")
    if found.steps.any():
        zero = situation(rule, case, scale=0.0)
        other = outcome(fresh(rule), zero._replace(context=replace(zero.context, round=2)))
        if not torch.equal(found.steps, other.steps):
            raise Inapplicable("it draws its steps: they differ from round to round")
        raise Failure(f"updates are all zero, and the step is {float(found.steps.abs().max()):.3g}")


def precision_is_enough(rule: Rule, case: Case) -> None:
    """The same numbers as float32 and as float64: the same step, but for rounding."""
    short = situation(rule, case, dtype=torch.float32)
    long = {n: x.double() for n, x in situation(rule, case, dtype=torch.float32).uploads.items()}
    one = outcome(fresh(rule), short)
    two = outcome(fresh(rule), short._replace(uploads=long))
    size = max(1.0, float(two.steps.abs().max()))
    off = float((one.steps.double() - two.steps.double()).abs().max())
    if not off <= 1e-4 * size:
        raise Failure(f"steps in float32 and in float64 differ by {off / size:.1e} of their size")


def _require_finite(found: Aggregate, where: str) -> None:
    numbers: list[tuple[str, Any]] = [("step", found.steps)]
    if found.weights is not None:
        numbers.append(("weights", found.weights))
    numbers += [(f"state {name!r}", value) for name, value in found.state.items()]
    for what, value in numbers:
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise Failure(f"{where} the {what} has numbers that are not finite")


def _require_close(found: Any, expected: Any, what: str) -> None:
    one, two = (torch.as_tensor(x).double() for x in (found, expected))
    if one.shape != two.shape:
        raise Failure(f"{what} ({list(one.shape)} instead of {list(two.shape)})")
    if torch.allclose(one, two, rtol=10 * ROUNDING, atol=ROUNDING, equal_nan=True):
        return
    raise Failure(f"{what} (by up to {float((one - two).abs().max()):.3g})")


def _wide(rule: Rule) -> list[Case]:
    """A case in which even the sum of the squares of 1e18 is no number of float32 any more."""
    return [Case(max(5, next(iter(cases(rule))).size), 1000)]


def _one(rule: Rule) -> list[Case]:
    return [Case(1, 3)]


PURE = "uploads and state stay as they are"
REPEATS = "the same call gives the same result"
STATE = "it goes on from its state alone"
COEFFICIENTS = "coefficients are one real number a client"
WEIGHTS = "weights are one a client, none below zero, and sum to 1"
WORKS = "it works on small rounds"
FOLLOWS = "no step points against the updates"
FALLS = "the loss falls as by the mean"
STATE_IS_USED = "its state changes, and is read"
PACE = "the same updates move the model as far in later rounds"
RULE = (
    Property(
        WORKS,
        everywhere(gives_a_result),
        "a rule must work on rounds as small as this, or refuse them by `require`",
    ),
    Property(
        REPEATS,
        everywhere(repeats),
        "keep nothing in the rule, its class or its module: what it remembers goes in as `state` "
        "and comes out in the result",
    ),
    Property(
        PURE,
        everywhere(inputs_stay),
        'write into copies: `uploads["update"].clone()`',
    ),
    Property(
        COEFFICIENTS,
        everywhere(coefficients_are_real),
        "give `Combination` an array [M] of float64",
    ),
    Property(
        WEIGHTS,
        everywhere(weights_add_up),
        "return weights [M], or None where the rule has none",
    ),
    Property(
        "the order of the clients does not matter",
        everywhere(order_is_free),
        "treat the rows of an upload alike, and know clients by `context.clients`",
        (REPEATS, PURE, COEFFICIENTS, WEIGHTS),
    ),
    Property(
        STATE,
        everywhere(lives_by_its_state),
        "let `init` make all that it remembers, as tensors that keep their shape, and return all "
        "of it as the new state",
        (REPEATS,),
    ),
    Property(
        "large updates stay finite",
        everywhere(stays_finite, *SCALES, within=_wide),
        "compute in float64 (`.double()`), or raise a ValueError that says what is too large",
    ),
    Property(
        "who sends NaN or infinity is named",
        everywhere(names_who_is_not_finite, float("nan"), float("inf")),
        "define `plan`, which sees uploads as `Rows`, and not `__call__`",
    ),
    Property(
        "one client is a cohort",
        everywhere(works_alone, within=_one),
        "handle one client, or let `require` raise a ValueError that says how many are needed",
    ),
    Property(
        "zero updates are a zero step",
        everywhere(nothing_comes_of_nothing),
        "let nothing but updates move the model, and divide by no length that may be 0",
    ),
    Property(
        "float32 is float64 but for rounding",
        everywhere(precision_is_enough),
        "add up in float64 (`.double()`) and return the step in the dtype of the updates",
        (REPEATS, PURE),
    ),
    Property(
        "memory, pieces and files give the same",
        same_through_every_door,
        "ask of rows what `Rows` offers, and nothing that depends on how columns are cut",
        (REPEATS,),
    ),
    Property(
        FOLLOWS,
        steps_follow_the_updates,
        "look at the signs: updates are θ_k − θ, and the server adds the step",
        (REPEATS, STATE),
    ),
    Property(
        PACE,
        steps_keep_their_length,
        "look at the sign of the momentum, and at what the state holds after a round",
        (REPEATS, STATE, FOLLOWS),
    ),
    Property(
        FALLS,
        loss_falls_as_by_the_mean,
        "look for a lost factor, such as a second division by the number of clients, and at the "
        "default of the server's learning rate",
        (REPEATS, STATE, FOLLOWS, PACE),
    ),
    Property(
        STATE_IS_USED,
        state_is_used,
        "return the new values as the state, and read them in the next round",
        (REPEATS, STATE),
    ),
)
