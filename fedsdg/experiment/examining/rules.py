"""What holds for every rule: ``property(rule, case)`` raises ``Failure`` where it does not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedsdg.aggregation.types import Aggregate, Rule
from fedsdg.experiment.examining.doors import same_through_every_door
from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    bytes_of,
    counted,
    raised,
)
from fedsdg.experiment.examining.situations import (
    SERVER,
    Asked,
    Case,
    cases,
    fresh,
    outcome,
    situation,
)

#: Results of float64 that differ by so much, of numbers of order one, differ by rounding.
ROUNDING = 1e-7
#: The largest updates that are tried: their squares are still numbers of float32.
SCALES = (1e6, 1e12, 1e18)
ROUNDS = 3


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
    """Uploads, state and context have the same bytes afterwards."""
    given, before = situation(rule, case), situation(rule, case)
    outcome(fresh(rule), given)
    for what, now, then in (
        ("upload", given.uploads, before.uploads),
        ("state", given.state, before.state),
        ("context", vars(given.context), vars(before.context)),
    ):
        for name in dict.fromkeys([*then, *now]):
            if name not in now or name not in then or bytes_of(now[name]) != bytes_of(then[name]):
                raise Failure(f"the {what} {name!r} is changed in place")


def repeats(rule: Rule, case: Case) -> None:
    """The same call twice gives the same bytes."""
    own = fresh(rule)
    one, two = outcome(own, situation(rule, case)), outcome(own, situation(rule, case))
    if name := _difference(one, two):
        raise Failure(f"the same call gives another {name} the second time")


def lives_by_its_state(rule: Rule, case: Case) -> None:
    """Rounds in which every rule is a new one, with the state as files hold it, are the same."""
    own = fresh(rule)
    state: Mapping[str, Tensor] | None = None
    stored: Mapping[str, Tensor] | None = None
    kept = situation(rule, case).state
    for round_ in range(1, ROUNDS + 1):
        whole = outcome(own, situation(rule, case, round_=round_, state=state))
        after = outcome(fresh(rule), situation(rule, case, round_=round_, state=stored))
        if name := _difference(whole, after):
            raise Failure(
                f"in round {round_} a rule that was given the stored state of round {round_ - 1} "
                f"gives another {name} than the one that has run since round 1"
            )
        _require_storable(whole.state, kept, round_)
        state = whole.state
        stored = load(save({name: value.contiguous() for name, value in whole.state.items()}))


def _require_storable(state: Mapping[str, Any], first: Mapping[str, Tensor], round_: int) -> None:
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise Failure(f"after round {round_} the state {name!r} is a {type(value).__name__}")
    if set(state) != set(first):
        raise Failure(
            f"after round {round_} the state holds {sorted(state)}, but `init` made {sorted(first)}"
        )
    for name, value in first.items():
        if state[name].shape != value.shape:
            raise Failure(
                f"after round {round_} the state {name!r} has the shape {list(state[name].shape)}, "
                f"but `init` made {list(value.shape)}"
            )


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
    """[M] numbers that sum to 1, or None."""
    weights = outcome(fresh(rule), situation(rule, case)).weights
    if weights is None:
        return
    if not isinstance(weights, np.ndarray) or weights.shape != (case.size,):
        shape = list(weights.shape) if hasattr(weights, "shape") else type(weights).__name__
        raise Failure(f"the weights are {shape} for {counted(case.size, 'client')}")
    if not np.isfinite(weights).all() or abs(weights.sum() - 1) > 1e-9:
        raise Failure(f"the weights sum to {weights.sum():.12g}")


def works_alone(rule: Rule, case: Case) -> None:
    """A single client is a cohort, unless ``require`` refuses it."""
    given = situation(rule, replace(case, size=1))
    try:
        found = outcome(fresh(rule), given)
    except Failure:
        raise
    except Exception as error:
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


def _difference(one: Aggregate, two: Aggregate) -> str:
    """What of two results has other bytes; "" where nothing has."""
    if bytes_of(one.steps) != bytes_of(two.steps):
        return "step"
    if bytes_of(one.weights) != bytes_of(two.weights):
        return "list of weights"
    for name in dict.fromkeys([*one.state, *two.state]):
        if bytes_of(one.state.get(name)) != bytes_of(two.state.get(name)):
            return f"state {name!r}"
    return ""


def _everywhere(
    holds: Callable[..., None], *choices: Any, within: Callable[[Rule], Any] = cases
) -> Callable[[Asked], str]:
    """The property over all cases and ``choices``, which says where it fails first."""

    def over(asked: Asked) -> str:
        rule, further = asked
        seen: list[Case] = []
        for case, *chosen in itertools.product(within(rule), *([choices] if choices else [])):
            case = replace(case, further=further)
            try:
                holds(rule, case, *chosen)
            except Failure as failure:
                raise Failure(f"{failure} ({case})") from failure
            except Inapplicable:
                raise
            except Exception as error:
                raise Failure(f"{raised(error)} ({case})") from error
            seen.append(case)
        sizes, widths = ({getattr(case, name) for case in seen} for name in ("size", "d"))
        return f"{_range(sizes, 'client')} and {_range(widths, 'parameter')}"

    return over


def _range(numbers: set[int], what: str) -> str:
    """ "3 to 9 clients", or "1 client"."""
    if len(numbers) == 1:
        return counted(min(numbers), what)
    return f"{min(numbers)} to {max(numbers)} {what}s"


def _wide(rule: Rule) -> list[Case]:
    """A case in which even the sum of the squares of 1e18 is no number of float32 any more."""
    return [Case(max(5, next(iter(cases(rule))).size), 1000)]


def _one(rule: Rule) -> list[Case]:
    return [Case(1, 3)]


REPEATS = "the same call gives the same result"
STATE = "it goes on from its state alone"
WORKS = "it works on small rounds"
RULE = (
    Property(
        WORKS,
        _everywhere(gives_a_result),
        "a rule must work on rounds as small as this, or refuse them by `require`",
    ),
    Property(
        REPEATS,
        _everywhere(repeats),
        "keep nothing in the rule, its class or its module: what it remembers goes in as `state` "
        "and comes out in the result",
    ),
    Property(
        "the order of the clients does not matter",
        _everywhere(order_is_free),
        "treat the rows of an upload alike, and know clients by `context.clients`",
        (REPEATS,),
    ),
    Property(
        "uploads and state stay as they are",
        _everywhere(inputs_stay),
        'write into copies: `uploads["update"].clone()`',
    ),
    Property(
        STATE,
        _everywhere(lives_by_its_state),
        "let `init` make all that it remembers, as tensors that keep their shape, and return all "
        "of it as the new state",
        (REPEATS,),
    ),
    Property(
        "large updates stay finite",
        _everywhere(stays_finite, *SCALES, within=_wide),
        "compute in float64 (`.double()`), or raise a ValueError that says what is too large",
    ),
    Property(
        "who sends NaN or infinity is named",
        _everywhere(names_who_is_not_finite, float("nan"), float("inf")),
        "read uploads by `checked_upload` of fedsdg.aggregation.uploads, or in a PlannedRule",
    ),
    Property(
        "weights are one a client and sum to 1",
        _everywhere(weights_add_up),
        "return weights [M], or None where the rule has none",
    ),
    Property(
        "one client is a cohort",
        _everywhere(works_alone, within=_one),
        "handle one client, or let `require` raise a ValueError that says how many are needed",
    ),
    Property(
        "zero updates are a zero step",
        _everywhere(nothing_comes_of_nothing),
        "let nothing but updates move the model, and divide by no length that may be 0",
    ),
    Property(
        "float32 is float64 but for rounding",
        _everywhere(precision_is_enough),
        "add up in float64 (`.double()`) and return the step in the dtype of the updates",
        (REPEATS,),
    ),
    Property(
        "memory, pieces and files give the same",
        same_through_every_door,
        "ask of rows what `Rows` offers, and nothing that depends on how columns are cut",
        (REPEATS,),
    ),
)
