"""Ten properties that every method holds, each tried in a small federation.

`fedsdg check my_method.py` tries the methods and parts of a plugin, the tests those of the package.
What a rule and the terms are given is recorded once and given to them again, changed: in another
order, from fewer clients, in float32, out of files.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import itertools
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from torch import Tensor

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.errors import RuleFault
from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context, Rule
from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.experiment.material import load_images
from fedsdg.experiment.partitions import draw
from fedsdg.experiment.runs import task_of
from fedsdg.experiment.small_federation import CLASSES, Federation, arrays
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.conditions.attack import Attackers
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.terms import Term
from fedsdg.federation.training import Rows
from fedsdg.files import PACKAGE

LEARNED = 0.45
"""Accuracy that clients reach with images of four classes, at one of the `RATES`."""
RATES = (0.01, 0.3)
LOSS = 1e-3
"""A gradient of the loss, which stands there before that of a term."""
GRADIENTS = ("theta_grad", "private_grad")
WRITES = {
    **dict.fromkeys(("__call__", "value", "finish", "tamper", "labels", "prepare"), ()),
    "transform_upload": (),
    "add_gradient": GRADIENTS,
    "correct": GRADIENTS,
    "move": ("parameters", "memory"),
}
"""Methods of parts, and which of their arguments they may write to."""
SECTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "method": lambda given: {"methods": [given]},
    "optimiser": lambda given: {"training": {"optimiser": given}},
    "loss": lambda given: {"training": {"loss": given}},
    "attack": lambda given: {"conditions": {"attack": {**given, "share": 0.3}}},
    "condition": lambda given: {"conditions": {"others": [given]}},
}
"""What a config says to use a part, by its kind."""


class Failure(Exception):
    """The case in which a property does not hold."""


class Finding(NamedTuple):
    """The result of one property."""

    part: str
    "such as `method fedprox`"
    property: str
    ok: bool
    sentence: str
    "what was tried, or the case that fails and the remedy"


class Call(NamedTuple):
    """A call of a rule, in float64."""

    rule: Rule
    uploads: dict[str, Tensor]
    context: Context
    state: Mapping[str, Tensor]

    @classmethod
    def recorded(cls, rule: Rule, uploads: Any, context: Context, state: Any) -> Call:
        """Return a copy of a call."""
        uploads = {name: rows.double() for name, rows in uploads.items()}
        context = replace(context, models=context.models.double())
        return cls(rule, uploads, copy.deepcopy(context), copy.deepcopy(state))

    def repeat(self) -> Aggregate:
        """Call the rule again; it remembers nothing of the first time."""
        return copy.deepcopy(self.rule)(self.uploads, self.context, self.state)

    def of(self, order: np.ndarray) -> Call:
        """Return the call with these clients, by position."""
        uploads = {n: x if n == "server" else x[order] for n, x in self.uploads.items()}
        return self._replace(uploads=uploads, context=self.context.subset(order))

    def with_vectors(self, change: Callable[[Tensor], Tensor]) -> Call:
        """Return the call with changed vectors; measured numbers stay as they are."""
        width = self.uploads["update"].shape[1]
        vectors = {n: x for n, x in self.uploads.items() if n == ADAPTERS or x.shape[1] == width}
        return self._replace(uploads=self.uploads | {n: change(x) for n, x in vectors.items()})


class Trial:
    """A part in its federation, and what is seen there.

    Args:
        kind: Its kind, a key of `SECTIONS`.
        name: Its name.
        module: The plugin that defines it, if one does.
    """

    def __init__(self, kind: str, name: str, module: str = "") -> None:
        self.kind = kind
        self.name = name
        self.module = module
        self.calls: list[Call] = []
        self.rows: dict[Term, Rows] = {}
        self.changed: list[str] = []

    def federation(self, *, trace: int = 0, rate: float = 0.01, **values: Any) -> Federation:
        """Return the federation before its first round, with some values of parameters."""
        changed = SECTIONS[self.kind]({"type": self.name, **values})
        training = {"eta_g": rate, "eta_p": rate, **changed.pop("training", {})}
        return Federation.of({**changed, "training": training}, trace)

    def federation_in_another_process(self) -> Federation:
        """Return the federation as if the plugin had just been imported."""
        if self.module:
            module = sys.modules[self.module]
            module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
            plugins.METHODS.update(getattr(module, "METHODS", {}))
        return self.federation()

    @cached_property
    def whole(self) -> Federation:
        """The federation after all rounds; what its parts are given is recorded."""
        setup = self.federation().setup
        parts: list[Any] = [setup.rule, setup.work.loss, setup.work.optimiser, *setup.conditions]
        parts += [part.attack for part in setup.conditions if isinstance(part, Attackers)]
        parts += [*setup.work.terms, *(term for p in setup.phases for term in p.terms or ())]
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            for cls, name in itertools.product({type(part) for part in parts}, WRITES):
                if name in dir(cls):
                    watched = self._watched(getattr(cls, name), WRITES[name])
                    stack.enter_context(mock.patch.object(cls, name, watched))
            return self.federation(trace=1).run()

    def _watched(self, method: Callable[..., Any], writes: tuple[str, ...]) -> Callable[..., Any]:
        """Return a method that records what it is given, and notes what it changes of that."""
        names = list(inspect.signature(method).parameters)[1:]

        def call(part: Any, *values: Any, **more: Any) -> Any:
            given = dict(zip(names, values, strict=False)) | more
            given.pop("setup", None)
            if isinstance(part, Rule):
                self.calls.append(Call.recorded(part, *values))
            if isinstance(part, Term):
                self.rows[part] = copy.deepcopy(given["rows"])
            before = dict(arrays(given))
            result = method(part, *values, **more)
            for name, now in arrays(given):
                if now.tobytes() != before[name].tobytes() and not {*writes} & {*name.split(".")}:
                    place = f"{type(part).__name__}.{method.__name__}"
                    self.changed.append(f"`{place}` changes {name} in place; change a copy")
            return result

        return call


# --- The properties -------------------------------------------------------------------------------


def rounds_end_with_finite_numbers(trial: Trial) -> str:
    """Rounds end with finite numbers of the right shapes, with few and absent clients too."""
    done = len(trial.whole.rounds)
    last = trial.calls[-1]
    cohort = len(last.context.clients)
    cases = {"with updates that are all 0": last.with_vectors(torch.zeros_like)}
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
    return f"{done} rounds of {cohort} clients, and of fewer"


def the_same_seed_gives_the_same_bytes(trial: Trial) -> str:
    """The same seed gives the same bytes."""
    _require_same(trial.whole, trial.federation().run(), "a second run")
    return f"{len(trial.whole.rounds)} rounds, twice"


def a_resumed_run_is_the_whole_run(trial: Trial) -> str:
    """From a checkpoint on the rest is the same, bit for bit."""
    half = len(trial.whole.rounds) // 2
    first = trial.federation_in_another_process().run(half)
    later = trial.federation_in_another_process()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), {})
        records = {"rounds": first.rounds, "clients": first.clients}
        checkpoints.save(half, first.setup, first.server, first.store, records)
        restored = checkpoints.restore(later.setup, later.server, later.store)
    assert restored is not None
    _, later.server, records = restored
    later.rounds = records["rounds"]
    later.clients = records["clients"]
    _require_same(trial.whole, later.run(), f"a run that is resumed after round {half}")
    return f"resumed after round {half}"


def _require_same(expected: Federation, found: Federation, what: str) -> None:
    others = [name for name, value in expected.facts().items() if found.facts()[name] != value]
    if others:
        raise Failure(f"{what} has other {others[0]}; draw by the round, keep all in the state")


def no_client_depends_on_another(trial: Trial) -> str:
    """A client that trains alone ends where it ends beside others."""
    first = trial.federation().run(1)
    setup = first.setup
    _, tasks = rounds.begin(setup, first.server, first.store, 2)
    arguments = (setup.layout.of_round(2), tasks, setup.phases, "round 2")
    together, alone = (MicroBatcher(n).train(setup, *arguments) for n in (len(tasks), 1))
    for (name, value), (_, other) in zip(arrays(together), arrays(alone), strict=True):
        _require_close(other, value, f"when clients train one by one, {name} is another", 1e-4)
    return f"{len(tasks)} clients in round 2"


def any_order_of_clients_is_the_same(trial: Trial) -> str:
    """The order of the clients does not matter to the rule."""
    for call in trial.calls:
        order = np.roll(np.random.default_rng(0).permutation(len(call.context.clients)), 1)
        first, other = call.repeat(), call.of(order).repeat()
        _require_close(other.steps, first.steps, "in another order of clients the step is another")
        for name, value in first.state.items():
            _require_close(other.state[name], value, f"in another order the state {name!r} is")
        if first.weights is not None and other.weights is not None:
            _require_close(other.weights, first.weights[order], "a client has another weight")
    return f"{len(trial.calls)} rounds in another order"


def what_comes_in_stays_as_it_is(trial: Trial) -> str:
    """What a part is given stays as it is, but for what it is to write."""
    done = len(trial.whole.rounds)
    if trial.changed:
        raise Failure(trial.changed[0])
    return f"{done} rounds"


def it_learns(trial: Trial) -> str:
    """Steps go along an update that all clients send, and clients learn their classes."""
    state = trial.calls[0].state
    for call in trial.calls:
        equal = call.with_vectors(lambda sent: sent.mean(0).expand_as(sent).clone())
        context = replace(call.context, models=torch.zeros_like(call.context.models))  # type: ignore[arg-type]
        result = equal._replace(context=context, state=state).repeat()
        state = result.state
        update = equal.uploads["update"][0]
        if len(update) and (result.steps @ update).min() < -1e-9 * update.square().sum():
            raise Failure(
                f"all clients send the same update, and the step of round {call.context.round} "
                "goes against it; look at signs: the server adds the step"
            )
    if trial.kind in ("attack", "condition"):
        return f"{len(trial.calls)} rounds of equal updates"
    runs = [trial.federation(rate=rate).run() for rate in RATES]
    reached = max(run.rounds[-1]["expected_accuracy"] for run in runs)
    if reached < LEARNED:
        raise Failure(
            f"clients are right on {reached:.0%} of images of {CLASSES} classes in the end; look "
            "at signs and factors, and at which model a client uses"
        )
    return f"clients reach {reached:.0%} with {CLASSES} classes"


def the_same_in_float32_and_for_several_tensors(trial: Trial) -> str:
    """A rule depends neither on the type of parameters, nor on how they are cut into tensors."""
    first = trial.calls[0]
    rule, context = first.rule, first.context
    steps = first.repeat().steps
    single = first._replace(uploads={name: x.float() for name, x in first.uploads.items()})
    _require_close(single.repeat().steps, steps, "in float32 the step is another", 1e-3)
    measured = rule.reads != ("update",) or rule.probes or rule.server_prior
    if measured or len(steps) > 1 or not steps.numel():
        return "in float32; only a federation has what the rule reads"
    cut = steps.shape[1] // 3
    ids = context.clients.tolist()
    rows = [{"a": row[:cut], "b": row[cut:]} for row in first.uploads["update"]]
    step = aggregate(
        rule,
        {name: torch.zeros_like(tensor) for name, tensor in rows[0].items()},
        dict(zip(ids, rows, strict=True)),
        num_samples=dict(zip(ids, context.num_samples.tolist(), strict=True)),
        num_batches=dict(zip(ids, context.num_batches.tolist(), strict=True)),
        client_samples=context.client_samples.tolist(),
    ).parameters
    found = torch.cat([step["a"], step["b"]])
    _require_close(found, steps[0], "for parameters of two tensors the step is another")
    return "in float32, and for parameters of two tensors"


def gradients_are_derivatives(trial: Trial) -> str:
    """A term adds the derivative of its value to the gradient."""
    tried = [term for term in trial.rows if type(term).value is not Term.value]
    for term in tried:
        rows = trial.rows[term].without_gradients()
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
    return f"{len(tried)} terms" if tried else "no term states a value"


def parameters_have_an_effect(trial: Trial) -> str:
    """Every parameter takes the values that it declares, and another value gives another run."""
    if trial.kind == "method":
        known = plugins.METHODS[trial.name].parameters
    else:
        kinds = {kind.__name__.lower(): kind for kind in plugins.KINDS}
        known = kinds[trial.kind].registry[trial.name].model_fields
    values = {name: declared_values(info) for name, info in known.items()}
    choices = [((name, value),) for name, others in values.items() for value in others]
    for name, others in values.items():
        # Some act only beside another choice, such as the temperature of a softmax.
        beside = ((), *(choice for choice in choices if choice[0][0] != name))
        runs = (
            {_outcome(trial, (*b, (name, v))) for v in others} - {_outcome(trial, b)}
            for b in beside
        )
        if others and not any(runs):
            raise Failure(f"{name} has no effect; read it, or remove it")
    return f"{len(values)} parameters"


def declared_values(info: FieldInfo) -> list[Any]:
    """Return other values of a parameter than its default: choices, ends, twice the default."""
    schema = TypeAdapter(info.rebuild_annotation()).json_schema()
    values: list[Any] = []
    for case in (schema, *schema.get("anyOf", ())):
        values += [*case.get("enum", ()), case.get("minimum"), case.get("maximum")]
        values += [True, False] if case.get("type") == "boolean" else []
    if "maximum" not in schema and type(info.default) in (int, float):
        values.append(2 * info.default)
    return [value for value in dict.fromkeys(values) if value not in (None, info.default)]


@cache
def _outcome(trial: Trial, values: tuple[tuple[str, Any], ...]) -> Any:
    """Return a hash of all that a run is, or the sentence with which a part refuses the values."""
    try:
        return hash(frozenset(trial.federation(**dict(values)).run().facts().items()))
    except Exception as error:
        if isinstance(error, ValueError | FloatingPointError) and not isinstance(error, RuleFault):
            return str(error)
        raise Failure(f"with {dict(values)} {_raised(error)}") from error


def _require_close(found: Any, expected: Any, what: str, share: float = 1e-7) -> None:
    """Raise Failure unless numbers differ by at most a share of the largest."""
    one, two = (np.nan_to_num(np.asarray(value, dtype=np.float64)) for value in (found, expected))
    gap = np.abs(one - two).max(initial=0)
    if gap > share * np.abs(two).max(initial=1e-6):
        raise Failure(f"{what} (by up to {gap:.3g})")


# --- Methods, plugins and configs -----------------------------------------------------------------

PROPERTIES: tuple[Callable[[Trial], str], ...] = (
    rounds_end_with_finite_numbers,
    the_same_seed_gives_the_same_bytes,
    a_resumed_run_is_the_whole_run,
    no_client_depends_on_another,
    any_order_of_clients_is_the_same,
    what_comes_in_stays_as_it_is,
    it_learns,
    the_same_in_float32_and_for_several_tensors,
    gradients_are_derivatives,
    parameters_have_an_effect,
)


def check_plugin(place: str) -> Iterator[Finding]:
    """Try the properties of all methods and parts of a plugin.

    Args:
        place: A Python file or the name of a module.

    Yields:
        A finding for each property of each part; its images for a data set.

    Raises:
        ConfigError: The plugin cannot be loaded.
    """
    plugin = plugins.load(place)
    for kind, name in sorted(plugin.names):
        if kind in SECTIONS:
            yield from check_part(kind, name, plugin.module)
        else:
            images = plugins.DATASETS[name]()
            counts = np.bincount(images.labels, minlength=images.num_classes)
            sentence = f"{len(images.labels)} images, {counts.min()} to {counts.max()} of each"
            yield Finding(f"data set {name}", "it has images of all classes", all(counts), sentence)


def check_part(kind: str, name: str, module: str = "") -> Iterator[Finding]:
    """Try the properties of a method or a part; the first alone if it does not hold.

    Args:
        kind: A key of `SECTIONS`.
        name: Its name in configs.
        module: The plugin that defines it, if one does.
    """
    trial = Trial(kind, name, module)
    for holds in PROPERTIES:
        ok = False
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                sentence = holds(trial)
            ok = True
        except Failure as failure:
            sentence = str(failure)
        except (Exception, SystemExit) as error:
            sentence = _raised(error)
        yield Finding(f"{kind} {name}", holds.__name__.replace("_", " "), ok, sentence)
        if not ok and holds is rounds_end_with_finite_numbers:
            return


def _raised(error: BaseException) -> str:
    """Say what a plugin raised, and in which of its lines."""
    sentence = f"it raises {type(error).__name__}: {' '.join(str(error).split())}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not file.is_relative_to(PACKAGE) and "site-packages" not in file.parts:
            return f"{sentence} at {file.name}, line {frame.lineno}"
    return sentence


def require_runnable(config: Config) -> None:
    """Draw the partition of every run of a grid, in memory.

    Raises:
        FileNotFoundError: A data set is not there.
        ValueError: No draw gives every client enough samples, or the classes of the data set do not
            suit loss or conditions.
    """
    drawn = set()
    for run in config.runs():
        data = load_images(task_of(config, run).source)
        facts = (run.dataset, run.skew, run.partition_seed)
        if facts not in drawn:
            draw(run, data)
            drawn.add(facts)
        run.training.loss.require_classes(data.num_classes)
        if run.conditions.label_conflict is not None:
            run.conditions.label_conflict.require_classes(data.num_classes, run.dataset)
