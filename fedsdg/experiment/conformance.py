"""Ten properties that every method holds, each tried in a small federation.

`fedsdg check my_method.py` tries the methods and parts of a plugin, the tests those of the package.
What a rule and the terms are given is recorded once and given to them again, changed: in another
order, to fewer clients, in other types, out of files.
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
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin
from unittest import mock

import numpy as np
import torch
from pydantic.fields import FieldInfo
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.errors import RuleFault
from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context, Rule
from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.data.datasets import ImageData
from fedsdg.experiment.material import load_images
from fedsdg.experiment.partitions import draw
from fedsdg.experiment.runs import task_of
from fedsdg.experiment.small_federation import CLASSES, RATES, Candidate, Federation, arrays
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.conditions.attack import Attack, Attackers
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.conditions.difference import LabelConflict
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.losses import Loss
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.optimisers import Optimiser
from fedsdg.federation.terms import Term
from fedsdg.federation.training import Rows
from fedsdg.files import PACKAGE
from fedsdg.methods.method import Method
from fedsdg.parts import checked, with_parameters
from fedsdg.parts import parameters as parameters_of

LEARNED = 0.4
"""Accuracy that clients reach with images of four classes."""
STEP = 1e-6
"""Of finite differences."""
SERVER = "server"
"""The upload that the server makes itself; its rows are no clients."""
WRITES: dict[type, dict[str, tuple[str, ...]]] = {
    Rule: {"__call__": ()},
    Term: dict.fromkeys(("value", "finish"), ())
    | dict.fromkeys(("add_gradient", "correct"), ("theta_grad", "private_grad")),
    Optimiser: {"move": ("parameters", "memory")},
    Loss: {"__call__": ()},
    Attack: {"tamper": (), "labels": ()},
    Condition: {"prepare": (), "transform_upload": ()},
}
"""By kind and method of a part, which of its arguments it may write to."""


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
    """A call of a rule."""

    rule: Rule
    uploads: dict[str, Tensor]
    context: Context
    state: Mapping[str, Tensor]

    def repeat(self) -> Aggregate:
        """Call the rule again; it keeps nothing of the call."""
        return copy.deepcopy(self.rule)(self.uploads, self.context, self.state)

    def of(self, order: np.ndarray) -> Call:
        """Return the call with these clients, by position."""
        place = torch.from_numpy(order)
        uploads = {n: x if n == SERVER else x[place] for n, x in self.uploads.items()}
        return self._replace(uploads=uploads, context=self.context.subset(order))

    def with_updates(self, change: Callable[[Tensor], Tensor]) -> Call:
        """Return the call with changed vectors; measured numbers stay as they are."""
        width = self.uploads["update"].shape[1]
        vectors = {n: x for n, x in self.uploads.items() if x.shape[1] == width or n == ADAPTERS}
        return self._replace(uploads=self.uploads | {n: change(x) for n, x in vectors.items()})


class Trial:
    """A candidate with values of its parameters, and what is seen in its federation."""

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Candidate], known: Mapping[str, FieldInfo]
    ) -> None:
        """Make the candidate with its defaults.

        Args:
            make: Returns it with some values, as another process would have it.
            known: Its parameters.
        """
        self.make = make
        self.known = known
        self.candidate = make({})
        self.calls: list[Call] = []
        self.rows: dict[Term, Rows] = {}
        self.changed: list[str] = []

    @cached_property
    def whole(self) -> Federation:
        """The federation after all rounds; what its parts are given is recorded."""
        setup = self.candidate.setup()
        parts: list[Any] = [setup.rule, setup.work.loss, setup.work.optimiser, *setup.conditions]
        parts += [part.attack for part in setup.conditions if isinstance(part, Attackers)]
        parts += [*setup.work.terms, *(term for p in setup.phases for term in p.terms or ())]
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            for cls in {type(part) for part in parts}:
                kind = next((kind for kind in WRITES if issubclass(cls, kind)), cls)
                for name, writes in WRITES.get(kind, {}).items():
                    call = self._watched(getattr(cls, name), writes)
                    stack.enter_context(mock.patch.object(cls, name, call))
            # A trace computes the values of terms, and conditions act when it is put together.
            return Federation(self.candidate.setup(trace=1)).run()

    def facts_with(self, values: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return all that a run with some values is; the error if it refuses or cannot bear them.

        Raises:
            Failure: It fails in another way.
        """
        try:
            return Federation(self.make(values).setup()).run().facts()
        except Exception as error:
            refused = isinstance(error, ValueError | FloatingPointError)
            if refused and not isinstance(error, RuleFault):
                return str(error)
            raise Failure(f"with {dict(values)} {_raised(error)}") from error

    def _watched(self, method: Callable[..., Any], writes: tuple[str, ...]) -> Callable[..., Any]:
        """Return a method that records what it is given, and notes what it changes of that."""
        names = list(inspect.signature(method).parameters)[1:]

        def call(part: Any, *values: Any, **more: Any) -> Any:
            given = dict(zip(names, values, strict=False)) | more
            given.pop("setup", None)
            if isinstance(part, Rule):
                self.calls.append(Call(part, *copy.deepcopy(values)))
            if isinstance(part, Term):
                self.rows[part] = copy.deepcopy(given["rows"])
            before = dict(arrays(given))
            result = method(part, *values, **more)
            for name, now in arrays(given):
                if now.tobytes() != before[name].tobytes() and not set(name.split(".")) & {*writes}:
                    place = f"{type(part).__name__}.{method.__name__}"
                    self.changed.append(f"`{place}` changes {name} in place; change a copy")
            return result

        return call


# --- The properties -------------------------------------------------------------------------------


def works(trial: Trial) -> str:
    """Rounds end with finite numbers of the right shapes, with few and absent clients too."""
    done = len(trial.whole.rounds)
    last = trial.calls[-1]
    cohort = len(last.context.clients)
    refused = 0
    for size in range(1, cohort + 1):
        try:
            last.rule.require(size, last.context.num_clients)
        except ValueError:
            refused += 1
            continue
        _require_sound(last.of(np.arange(size)), f"with {size} of {cohort} clients")
    _require_sound(last.with_updates(torch.zeros_like), "with updates that are all 0")
    if not refused:
        Federation(trial.candidate.setup(Dropout(probability=0.5))).run()
    return f"{done} rounds of {cohort} clients, and of fewer"


def _require_sound(call: Call, where: str) -> None:
    result = call.repeat()
    shape = call.rule.models(call.context.num_clients), call.uploads["update"].shape[1]
    if tuple(result.steps.shape) != shape or not torch.isfinite(result.steps).all():
        raise Failure(f"{where} the steps are not {list(shape)} finite numbers")
    if result.weights is not None and abs(result.weights.sum() - 1) > 1e-9:
        raise Failure(f"{where} the weights sum to {result.weights.sum():.6g}, not to 1")
    made = {name: tuple(value.shape) for name, value in call.state.items()}
    left = {name: tuple(getattr(value, "shape", ())) for name, value in result.state.items()}
    if made != left:
        raise Failure(f"{where} the state is {left}, but `init` made {made}")


def repeats(trial: Trial) -> str:
    """The same seed gives the same bytes."""
    _require_same(trial.whole, Federation(trial.candidate.setup()).run(), "a second run")
    return f"{len(trial.whole.rounds)} rounds, twice"


def resumes(trial: Trial) -> str:
    """From a checkpoint on the rest is the same, bit for bit."""
    for t in range(1, len(trial.whole.rounds)):
        first = Federation(trial.make({}).setup()).run(t)
        later = Federation(trial.make({}).setup())
        with tempfile.TemporaryDirectory() as folder:
            records = {"rounds": first.rounds, "clients": first.clients}
            Checkpoints(Path(folder), {}).save(t, first.setup, first.server, first.store, records)
            restored = Checkpoints(Path(folder), {}).restore(later.setup, later.server, later.store)
        assert restored is not None
        later.server = restored[1]
        later.rounds = restored[2]["rounds"]
        later.clients = restored[2]["clients"]
        _require_same(trial.whole, later.run(), f"a run that is resumed after round {t}")
    return f"resumed after each of {len(trial.whole.rounds) - 1} rounds"


def _require_same(expected: Federation, found: Federation, what: str) -> None:
    pairs = expected.facts().items() ^ found.facts().items()
    if pairs:
        raise Failure(f"{what} has other {min(name for name, _ in pairs)}")


def clients_alone(trial: Trial) -> str:
    """A client that trains alone ends where it ends beside others."""
    one = Federation(trial.candidate.setup()).run(1)
    _, tasks = rounds.begin(one.setup, one.server, one.store, 2)
    layout = one.setup.layout.of_round(2)
    together, alone = (
        MicroBatcher(size).train(one.setup, layout, tasks, one.setup.phases, "round 2")
        for size in (len(tasks), 1)
    )
    for (name, value), (_, other) in zip(arrays(together), arrays(alone), strict=True):
        _require_close(other, value, f"when clients train one by one, {name} is another", 1e-6)
    return f"{len(tasks)} clients in round 2"


def any_order(trial: Trial) -> str:
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


def inputs_stay(trial: Trial) -> str:
    """What a part is given stays as it is, but for what it is to write."""
    done = len(trial.whole.rounds)
    if trial.changed:
        raise Failure(trial.changed[0])
    return f"{done} rounds"


def learns(trial: Trial) -> str:
    """Steps go along an update that all clients send, and clients learn their classes."""
    state = trial.calls[0].state
    for call in trial.calls:
        equal = call.with_updates(lambda sent: sent.mean(0).expand_as(sent).clone())
        models = torch.zeros_like(call.context.models)  # type: ignore[arg-type]
        context = replace(call.context, models=models)
        result = equal._replace(context=context, state=state).repeat()
        state = result.state
        update = equal.uploads["update"][0]
        if len(update) and (result.steps @ update).min() < -1e-9 * update.square().sum():
            raise Failure(
                f"all clients send the same update, and the step of round {call.context.round} "
                "goes against it; look at signs: the server adds the step"
            )
    if any(isinstance(one, Attackers) for one in trial.candidate.conditions):
        return f"{len(trial.calls)} rounds of equal updates"
    reached = [
        Federation(replace(trial.candidate, rate=rate).setup()).run().accuracy for rate in RATES
    ]
    if max(reached) < LEARNED:
        raise Failure(
            f"after {len(trial.calls)} rounds clients are right on {max(reached):.0%} of images of "
            f"{CLASSES} classes; look at signs and factors, and at which model a client uses"
        )
    return f"clients reach {max(reached):.0%} with {CLASSES} classes"


def same_elsewhere(trial: Trial) -> str:
    """A rule gives the same for float32, for several tensors and for files."""
    first = trial.calls[0]
    rule = first.rule
    steps = first.repeat().steps
    single = first._replace(uploads={name: x.float() for name, x in first.uploads.items()})
    _require_close(single.repeat().steps, steps, "in float32 the step is another", 1e-3)
    measured = bool(rule.probes or rule.server_prior or {SERVER, ADAPTERS} & {*rule.reads})
    if measured or len(steps) > 1 or not steps.shape[1]:
        return "in float32; only a federation has what the rule reads"
    ids = first.context.clients.tolist()
    uploads = {n: [_tensors(row) for row in first.uploads[n]] for n in rule.reads}
    counts = {
        "num_samples": first.context.num_samples.tolist(),
        "num_batches": first.context.num_batches.tolist(),
        "client_samples": first.context.client_samples.tolist(),
    }
    origin = _tensors(torch.zeros_like(steps[0]))
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: [Path(folder) / f"{name}-{client}.safetensors" for client in ids]
            for name in uploads
        }
        for name, sent in uploads.items():
            for file, tensors in zip(files[name], sent, strict=True):
                save_file(tensors, file)
        old, new, state = (Path(folder) / name for name in ("old", "new", "state"))
        save_file(origin, old)
        clients = files.pop("update")
        kept = {"state_out": state} if first.state else {}
        aggregate_files(rule, old, clients, new, uploads=files, **kept, **counts)
        from_files = load_file(new)
    by_id = {name: dict(zip(ids, sent, strict=True)) for name, sent in uploads.items()}
    for name in ("num_samples", "num_batches"):
        counts[name] = dict(zip(ids, counts[name], strict=True))
    in_memory = aggregate(rule, origin, by_id.pop("update"), uploads=by_id, **counts).parameters
    for where, found in (("on two tensors", in_memory), ("from files", from_files)):
        step = torch.cat([found[name] for name in origin])
        _require_close(step, steps[0], f"{where} the step is another")
    return "in float32, on two tensors, from files"


def _tensors(row: Tensor) -> dict[str, Tensor]:
    """Return a vector as two tensors."""
    third = len(row) // 3
    return {"a": row[:third].clone(), "b": row[third:].clone()}


def gradients(trial: Trial) -> str:
    """A term adds the derivative of its value to the gradient."""
    tried = [term for term in trial.rows if type(term).value is not Term.value]
    for term, name, seed in itertools.product(tried, ("shared", "private"), range(3)):
        rows = trial.rows[term].without_gradients()
        values, slopes = rows.row(name)
        direction = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
        direction = direction.to(values)
        slopes.copy_(direction)  # The gradient of the loss stands there already.
        term.add_gradient(rows)
        added = [((slopes - direction) * direction).sum(1)]
        term.correct(rows)
        added.append(((slopes - direction) * direction).sum(1))
        ends = []
        for step in (STEP, -STEP):
            moved = copy.deepcopy(trial.rows[term])
            moved.row(name)[0].add_(direction, alpha=step)
            ends.append(term.value(moved))
        rise = (ends[0] - ends[1]) / (2 * STEP)
        # A value may be that of the correction as well.
        if not any(torch.allclose(one, rise, rtol=1e-4, atol=1e-6) for one in added):
            raise Failure(
                f"along a direction of {name} parameters the value of {type(term).__name__} rises "
                f"by {float(rise[0]):.6g}, but what it adds to the gradient says "
                f"{float(added[0][0]):.6g}; look at signs and factors, and add with `add_`"
            )
    return f"{len(tried)} terms" if tried else "no term states a value"


def parameters(trial: Trial) -> str:
    """Every parameter takes the values that it declares, and has an effect."""
    values = {name: declared_values(name, info) for name, info in trial.known.items()}
    choices = [{name: value} for name, others in values.items() for value in others]
    for name, others in values.items():
        # Some act only beside another choice, such as the temperature of a softmax.
        beside = [{}, *(choice for choice in choices if name not in choice)]
        if others and not any(_acts(trial, name, others, choice) for choice in beside):
            raise Failure(f"{name} has no effect; read it, or remove it")
    return f"{len(values)} parameters"


def _acts(trial: Trial, name: str, values: list[Any], beside: Mapping[str, Any]) -> bool:
    """Return whether another value of a parameter, beside a choice, gives another run."""
    usual = trial.facts_with(beside)
    return [trial.facts_with({**beside, name: value}) for value in values] != [usual] * len(values)


def declared_values(name: str, info: FieldInfo) -> list[Any]:
    """Return other values than the default that a parameter allows: its choices, ends, twice it.

    Args:
        name: The parameter.
        info: Its type, limits and default.
    """
    values: list[Any] = []
    kinds = [info.annotation]
    limits = list(info.metadata)
    for kind in kinds:
        kinds += get_args(kind) if get_origin(kind) is not Literal else []
        values += get_args(kind) if get_origin(kind) is Literal else []
        values += [True, False] if kind is bool else []
        limits += getattr(kind, "__metadata__", ())
    values += [getattr(one, end) for one in limits for end in ("ge", "le") if hasattr(one, end)]
    if type(info.default) in (int, float):
        values += [2 * info.default]
    found = []
    for value in values:
        with contextlib.suppress(ValueError):
            found += checked({name: value}, {name: info}).values()
    return [value for value in dict.fromkeys(found) if value != info.default]


def _require_close(found: Any, expected: Any, what: str, share: float = 1e-7) -> None:
    """Raise Failure unless numbers differ by at most a share of the largest."""
    one, two = (np.nan_to_num(np.asarray(value, dtype=np.float64)) for value in (found, expected))
    gap = np.abs(one - two).max(initial=0)
    if gap > share * np.abs(two).max(initial=1):
        raise Failure(f"{what} (by up to {gap:.3g})")


# --- Methods, plugins and configs -----------------------------------------------------------------

PROPERTIES: dict[str, Callable[[Trial], str]] = {
    "rounds end with finite numbers": works,
    "the same seed gives the same bytes": repeats,
    "a resumed run is the whole run": resumes,
    "no client depends on another": clients_alone,
    "the order of clients does not matter": any_order,
    "what comes in stays as it is": inputs_stay,
    "it learns": learns,
    "memory, files and types give the same": same_elsewhere,
    "gradients are derivatives of values": gradients,
    "parameters take their values and have an effect": parameters,
}


def check_method(name: str) -> Iterator[Finding]:
    """Try all properties of a method.

    Args:
        name: Of the package or of a plugin that is loaded.

    Yields:
        A finding for each property; the first alone if it does not hold, for all others need it.
    """
    row = plugins.METHODS[name]
    yield from _check(
        f"method {name}",
        lambda values: Candidate(_as_in_another_process(name, row).with_values(values)),
        row.parameters,
    )


def check_plugin(place: str) -> Iterator[Finding]:
    """Try all properties of all methods and parts of a plugin.

    Args:
        place: A Python file or the name of a module.

    Yields:
        A finding for each property of each part.

    Raises:
        ConfigError: The plugin cannot be loaded.
    """
    for kind, name in sorted(plugins.load(place).names):
        if kind == "method":
            yield from check_method(name)
        elif kind == "dataset":
            yield from _check_images(name)
        else:
            yield from _check_part(kind, name)


def _check_part(kind: str, name: str) -> Iterator[Finding]:
    cls = next(one for one in plugins.KINDS if one.__name__.lower() == kind).registry[name]

    def make(values: Mapping[str, Any]) -> Candidate:
        part = with_parameters(cls(), values)
        given: dict[str, Any] = {kind: part}
        if isinstance(part, Attack):
            given = {"conditions": (Attackers(attack=part, share=0.34),)}
        if isinstance(part, Condition):
            given = {"conditions": (part,)}
        return Candidate(Method("FedAvg"), **given)

    yield from _check(f"{kind} {name}", make, parameters_of(cls()))


def _check_images(name: str) -> Iterator[Finding]:
    images = plugins.DATASETS[name]()
    counts = np.bincount(images.labels, minlength=images.num_classes)
    sentence = f"{len(images.labels)} images, {counts.min()} to {counts.max()} of each class"
    ok = isinstance(images, ImageData) and bool(counts.all())
    yield Finding(f"data set {name}", "it has images of every class", ok, sentence)


def _check(
    part: str,
    make: Callable[[Mapping[str, Any]], Candidate],
    known: Mapping[str, FieldInfo],
) -> Iterator[Finding]:
    trial = Trial(make, known)
    for name, holds in PROPERTIES.items():
        ok = False
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                sentence = holds(trial)
            ok = True
        except Failure as failure:
            sentence = str(failure)
        except (Exception, SystemExit) as error:
            sentence = _raised(error)
        yield Finding(part, name, ok, sentence)
        if not ok and holds is works:
            return


def _raised(error: BaseException) -> str:
    """Say what a plugin raised, and in which of its lines."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if (
            not Path(frame.filename).is_relative_to(PACKAGE)
            and "site-packages" not in frame.filename
        ):
            place = f" at {Path(frame.filename).name}, line {frame.lineno}"
    return f"it raises {type(error).__name__}: {' '.join(str(error).split())}{place}"


def _as_in_another_process(name: str, row: Method) -> Method:
    """Return a plugin's method of a module that has run again, so that it remembers nothing."""
    for part in row.parts:
        module = sys.modules[type(part).__module__]
        if module.__spec__ is not None and not module.__name__.startswith("fedsdg."):
            module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
            row = getattr(module, "METHODS", {}).get(name, row)
    return copy.deepcopy(row)


def require_runnable(config: Config) -> None:
    """Draw the partition of every run of a grid, in memory.

    Raises:
        FileNotFoundError: A data set is not there.
        ValueError: What `fedsdg run` would say: no draw gives every client enough samples, or the
            classes of the data set do not suit the conditions.
    """
    drawn = set()
    for run in config.runs():
        drawn_from = (run.dataset, run.skew, run.partition_seed, run.federation.clients)
        data = load_images(task_of(config, run).source)
        if drawn_from not in drawn:
            draw(run, data)
            drawn.add(drawn_from)
        run.training.loss.require_classes(data.num_classes)
        for difference in run.conditions.differences.values():
            if isinstance(difference, LabelConflict):
                difference.require_classes(data.num_classes, run.dataset)
