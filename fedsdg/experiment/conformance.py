"""Ten properties that every method holds, each tried in a small federation.

`fedsdg check my_method.py` tries the methods and parts of a plugin, the tests those of the package.
What a rule and the terms are given is recorded once and given to them again, changed: in another
order, from fewer clients, in float32.
"""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from fedsdg.aggregation.errors import RuleFault
from fedsdg.config import plugins
from fedsdg.experiment.small_federation import CLASSES, SECTIONS, Call, Trial, arrays, contents
from fedsdg.experiment.training import Training
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.terms import Term

LEARNED = 0.45
"""Accuracy that clients reach with images of four classes, at one of the `RATES`."""
RATES = (0.01, 0.3)
LOSS = 1e-3
"""A gradient of the loss, which stands there before that of a term."""


class Failure(Exception):
    """The case in which a property does not hold."""


class Finding(NamedTuple):
    """The result of one property."""

    part: str
    "such as `method fedprox`"
    property: str
    ok: bool
    sentence: str
    "what holds, or the case that fails and the remedy"


# --- The properties -------------------------------------------------------------------------------


def rounds_end_with_finite_numbers(trial: Trial) -> None:
    """Numbers are finite and of the right shapes, for cohorts of one client too."""
    _ = trial.whole
    last = trial.calls[-1]
    cohort = len(last.context.clients)
    zeros = {name: torch.zeros_like(sent) for name, sent in last.uploads.items()}
    cases = {"with updates that are all 0": last._replace(uploads=zeros)}
    for size in range(1, cohort + 1):
        with contextlib.suppress(ValueError):
            last.rule.require(size, last.context.num_clients)
            cases[f"with {size} of {cohort} clients"] = last.of(np.arange(size))
    for where, call in cases.items():
        result = call.repeat()
        if not torch.isfinite(result.steps).all():
            raise Failure(f"{where} the step is not finite; divide by nothing that may be 0")
        if result.weights is not None and abs(result.weights.sum() - 1) > 1e-9:
            raise Failure(f"{where} the weights sum to {result.weights.sum():.6g}, not to 1")
        shapes = [
            {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}
            for state in (call.state, result.state)
        ]
        if shapes[0] != shapes[1]:
            raise Failure(f"{where} the state is {shapes[1]}, but `init` made {shapes[0]}")


def the_same_seed_gives_the_same_bytes(trial: Trial) -> None:
    """The same seed gives the same bytes."""
    _require_same(trial.whole, trial.federation().advance(), "a second run")


def a_resumed_run_is_the_whole_run(trial: Trial) -> None:
    """From a checkpoint on the rest is the same, bit for bit."""
    half = trial.whole.done // 2
    first = trial.federation_in_another_process().advance(half)
    later = trial.federation_in_another_process()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        checkpoints = Checkpoints(Path(folder), {})
        first.save(checkpoints)
        later.restore(checkpoints)
    _require_same(trial.whole, later.advance(), f"a run that is resumed after round {half}")


def _require_same(expected: Training, found: Training, what: str) -> None:
    facts = contents(found)
    others = [name for name, value in contents(expected).items() if facts[name] != value]
    if others:
        raise Failure(
            f"{what} has other {others[0]}; draw from streams of the round, and keep what lasts in "
            "`state` or `keeps`"
        )


def no_client_depends_on_another(trial: Trial) -> None:
    """A client that trains alone ends where it ends beside others."""
    first = trial.federation().advance(1)
    setup = first.setup
    _, tasks = rounds.begin(setup, first.server, first.store, 2)
    arguments = (setup.layout.of_round(2), tasks, setup.phases, "round 2")
    together, alone = (MicroBatcher(n).train(setup, *arguments) for n in (len(tasks), 1))
    for (name, value), (_, other) in zip(arrays(together), arrays(alone), strict=True):
        _require_close(other, value, f"when clients train one by one, {name} is another", 1e-4)


def any_order_of_clients_is_the_same(trial: Trial) -> None:
    """The order of the clients does not matter to the rule."""
    for call in trial.calls:
        order = np.roll(np.random.default_rng(0).permutation(len(call.context.clients)), 1)
        first, other = call.repeat(), call.of(order).repeat()
        _require_close(other.steps, first.steps, "in another order of clients the step is another")
        for name, value in first.state.items():
            _require_close(other.state[name], value, f"in another order the state {name!r} is")
        if first.weights is not None and other.weights is not None:
            _require_close(other.weights, first.weights[order], "a client has another weight")


def what_comes_in_stays_as_it_is(trial: Trial) -> None:
    """What a part is given stays as it is, but for what it is to write."""
    for sentence in trial.changed:
        raise Failure(sentence)


def it_learns(trial: Trial) -> None:
    """Clients learn their classes."""
    if trial.kind in ("attack", "condition"):  # They are not there to help.
        return
    runs = [trial.federation(rate=rate).advance() for rate in RATES]
    reached = max(run.records.rounds[-1]["accuracy"] for run in runs)
    if reached < LEARNED:
        raise Failure(
            f"clients are right on {reached:.0%} of images of {CLASSES} classes in the end; look "
            "at signs and factors (the server adds the step), and at which model a client uses"
        )


def float32_gives_the_same_as_float64(trial: Trial) -> None:
    """The rule does the same with numbers of either type."""
    for call in trial.calls:
        single = call._replace(uploads={name: x.float() for name, x in call.uploads.items()})
        steps = (single.repeat().steps, call.repeat().steps)
        _require_close(*steps, "in float32 the step is another", 1e-3)


def gradients_are_derivatives(trial: Trial) -> None:
    """A term adds the derivative of its value to the gradient."""
    for term, recorded in trial.rows.items():
        if type(term).value is Term.value:  # It states none.
            continue
        rows = recorded.without_gradients()
        leaves = (rows.theta.requires_grad_(), rows.private.requires_grad_())
        value = term.value(rows).sum() + 0 * torch.cat(leaves, 1).sum()
        derivative = torch.cat(torch.autograd.grad(value, leaves), 1)
        rows.theta_grad.fill_(LOSS)
        rows.private_grad.fill_(LOSS)
        added = []
        with torch.no_grad():
            # The value may be that of the correction as well.
            for change in (term.add_gradient, term.correct):
                change(rows)
                added.append(torch.cat([rows.theta_grad, rows.private_grad], 1) - LOSS)
        if not any(torch.allclose(one, derivative, rtol=1e-4, atol=1e-7) for one in added):
            place = (added[0] - derivative).abs().argmax()
            found = [float(one.flatten()[place]) for one in (derivative, added[0])]
            raise Failure(
                f"a derivative of the value of {type(term).__name__} is {found[0]:.6g}, but it "
                f"adds {found[1]:.6g} to the gradient; look at signs and factors, and use `add_`"
            )


def parameters_have_an_effect(trial: Trial) -> None:
    """Every parameter takes the values that it declares, and another value gives another run."""
    part = plugins.TABLES[trial.kind][trial.name]
    known = part.parameters if trial.kind == "method" else part.model_fields
    values = {name: declared_values(info) for name, info in known.items()}
    choices = [((name, value),) for name, others in values.items() for value in others]
    for name, others in values.items():
        # Some act only beside another choice, such as the temperature of a softmax.
        beside = ((), *(choice for choice in choices if choice[0][0] != name))
        runs = (
            {of(trial, (*b, (name, v))) for v in others} - {of(trial, b)}
            for of in (_outcome, _turned)
            for b in beside
        )
        if others and not any(runs):
            raise Failure(f"{name} has no effect in this small federation; read it, or remove it")


def declared_values(info: FieldInfo) -> list[Any]:
    """Return other values of a parameter than its default: choices, ends, its double, its half."""
    adapter = TypeAdapter(info.rebuild_annotation())
    schema = adapter.json_schema()
    values: list[Any] = []
    for case in (schema, *schema.get("anyOf", ())):
        values += [*case.get("enum", ()), case.get("minimum"), case.get("maximum")]
        if case.get("type") == "boolean":
            values += [True, False]
    if type(info.default) in (int, float):
        values += [2 * info.default, info.default / 2]
    allowed = []
    for value in dict.fromkeys(values):
        with contextlib.suppress(ValueError):
            allowed.append(adapter.validate_python(value))
    return [value for value in allowed if value not in (None, info.default)]


@cache
def _outcome(trial: Trial, values: tuple[tuple[str, Any], ...]) -> Any:
    """Return a hash of two rounds, or the sentence with which a part refuses the values."""
    try:
        return hash(frozenset(contents(trial.federation(**dict(values)).advance(2)).items()))
    except Exception as error:
        if isinstance(error, ValueError | FloatingPointError) and not isinstance(error, RuleFault):
            return str(error)
        raise Failure(f"with {dict(values)} it raises {plugins.raised(error)}") from error


@cache
def _turned(trial: Trial, values: tuple[tuple[str, Any], ...]) -> Any:
    """Return a hash of what the rule makes of updates that turn about and grow, as few do here."""
    steps = []
    with contextlib.suppress(Exception):
        rule = trial.federation(**dict(values)).setup.rule
        state = trial.calls[0].state
        for call, factor in zip(trial.calls * 5, (1, 1, -1, -4, 1), strict=False):
            uploads = {name: factor * sent for name, sent in call.uploads.items()}
            result = Call(rule, uploads, call.context, state).repeat()
            steps.append(result.steps.numpy().tobytes())
            state = result.state
    return hash(tuple(steps))


def _require_close(found: Any, expected: Any, what: str, share: float = 1e-7) -> None:
    """Raise Failure unless numbers differ by at most a share of the largest."""
    one, two = (np.nan_to_num(np.asarray(value, dtype=np.float64)) for value in (found, expected))
    gap = np.abs(one - two).max(initial=0)
    if gap > share * np.abs(two).max(initial=1e-6):
        raise Failure(f"{what} (by up to {gap:.3g})")


# --- Methods and plugins --------------------------------------------------------------------------

PROPERTIES: tuple[Callable[[Trial], None], ...] = (
    *(rounds_end_with_finite_numbers, the_same_seed_gives_the_same_bytes),
    *(a_resumed_run_is_the_whole_run, no_client_depends_on_another),
    *(any_order_of_clients_is_the_same, what_comes_in_stays_as_it_is, it_learns),
    *(float32_gives_the_same_as_float64, gradients_are_derivatives, parameters_have_an_effect),
)


def check_plugin(place: str) -> Iterator[Finding]:
    """Try the properties of all methods and parts of a plugin.

    Args:
        place: A Python file or the name of a module.

    Yields:
        A finding for each property of each part.

    Raises:
        ConfigError: The plugin cannot be loaded.
    """
    plugin = plugins.load(place)
    for kind, name in sorted(plugin.names):
        if kind in SECTIONS:  # Data sets are looked at when they are loaded.
            yield from check_part(kind, name, plugin.module)


def check_part(kind: str, name: str, module: str = "") -> Iterator[Finding]:
    """Try the properties of a method or a part; the first alone if it does not hold.

    Args:
        kind: A key of `SECTIONS`.
        name: Its name in configs.
        module: The plugin that defines it, if one does.
    """
    trial = Trial(kind, name, module)
    for holds in PROPERTIES:
        fault = ""
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                holds(trial)
        except Failure as failure:
            fault = str(failure)
        except (Exception, SystemExit) as error:
            fault = f"it raises {plugins.raised(error)}"
        claim = holds.__name__.replace("_", " ")
        yield Finding(f"{kind} {name}", claim, not fault, fault or str(holds.__doc__))
        if fault and holds is rounds_end_with_finite_numbers:
            return
