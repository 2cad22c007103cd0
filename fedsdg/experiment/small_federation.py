"""A small federation that tries out a part: drawn images, a tiny transformer, eight clients."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.scenarios import overlay
from fedsdg.data.datasets import ImageData
from fedsdg.errors import ConfigError
from fedsdg.experiment.building import build
from fedsdg.experiment.material import Material, draw, prepare_material
from fedsdg.experiment.training import Training
from fedsdg.federation.conditions.attack import Attackers
from fedsdg.federation.terms import Term
from fedsdg.federation.training import Rows
from fedsdg.models import Architecture, build_backbone, freeze

CLASSES = 4
CLIENTS = 8
CONFIG = {
    "experiment": "check",
    "datasets": ["digits"],
    "skews": ["dirichlet~1.0"],
    "seeds": [0],
    "backbone": "tiny",
    "backbones": {"tiny": {"source": "timm", "timm_name": "vit_tiny_patch16_224"}},
    "federation": {"clients": CLIENTS, "clients_per_round": 5, "rounds": 4, "evaluate_every": 2},
    "partition": {"min_samples": 8, "min_test": 1},
    "training": {"epochs": 1, "kernel": "torch", "eta_g": 0.01, "eta_p": 0.01, "eta_m": 0.01},
    "adapters": {"rank": 2, "alpha": 4.0},
    "methods": ["fedavg-uniform"],
    "conditions": {"benchmark_images": 20},
}

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


def contents(training: Training) -> dict[str, Any]:
    """Return all that a federation is, by name, as bytes and text."""
    everyone = np.arange(training.setup.num_clients)
    kept = {name: training.store.read(name, everyone) for name in training.store.first}
    state = {"models": training.server.models, "state": training.server.state, "kept": kept}
    found = {name: array.tobytes() for name, array in arrays(state)}
    records = [training.records.rounds, training.records.clients]
    return found | {"records": json.dumps(records)}


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield a copy of each tensor and array within a value, with the names that lead to it.

    Args:
        value: A tensor or an array, or dataclasses, mappings and lists of these.
        name: Stands before the names.
    """
    if isinstance(value, Tensor | np.ndarray):
        yield name, np.array(value.detach() if isinstance(value, Tensor) else value)
        return
    entries: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        entries = value
    elif is_dataclass(value):
        entries = vars(value)
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(value))
    for key, entry in entries.items():
        yield from arrays(entry, f"{name}.{key}".removeprefix("."))


class Call(NamedTuple):
    """A call of a rule, in float64."""

    rule: Rule
    uploads: dict[str, Tensor]
    context: Context
    state: Mapping[str, Tensor]

    @classmethod
    def recorded(cls, rule: Rule, *given: Any) -> Call:
        """Return a copy of a call with uploads, context and state."""
        uploads, context, state = copy.deepcopy(given)
        doubles = {name: rows.double() for name, rows in uploads.items()}
        return cls(rule, doubles, replace(context, models=context.models.double()), state)

    def repeat(self) -> Aggregate:
        """Call the rule again; it remembers nothing of the first time."""
        return copy.deepcopy(self.rule)(self.uploads, self.context, self.state)

    def of(self, order: np.ndarray) -> Call:
        """Return the call with these clients, by position."""
        uploads = {n: x if n == "server" else x[order] for n, x in self.uploads.items()}
        return self._replace(uploads=uploads, context=self.context.subset(order))


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

    def federation(self, *, trace: int = 0, rate: float = 0.01, **values: Any) -> Training:
        """Return the federation before its first round.

        Args:
            trace: Compute the values of terms for each batch whose number it divides; 0: never.
            rate: The learning rate of shared and private parameters.
            **values: Parameters of the part.

        Raises:
            ConfigError: Values do not go together, or do not suit so few clients.
        """
        changed = SECTIONS[self.kind]({"type": self.name, **values})
        training = {"eta_g": rate, "eta_p": rate, **changed.pop("training", {})}
        content = overlay(CONFIG, {**changed, "training": training})
        try:
            config = Config.read(content)
        except ConfigError:  # Some rules need all clients in a round.
            config = Config.read(overlay(content, {"federation": {"clients_per_round": CLIENTS}}))
        run = next(config.runs())
        material = _material()
        return Training(build(run, material, draw(run, material.data), trace=trace))

    def federation_in_another_process(self) -> Training:
        """Return the federation as if the plugin had just been imported."""
        if self.module:
            module = sys.modules[self.module]
            module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
            plugins.METHODS.update(getattr(module, "METHODS", {}))
        return self.federation()

    @cached_property
    def whole(self) -> Training:
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
            return self.federation(trace=1).advance()

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


@cache
def _material() -> Material:
    """Return images with stripes whose place is their class, under noise, and a backbone."""
    random = np.random.default_rng(0)
    labels = np.arange(480) % CLASSES
    images = random.integers(0, 120, (480, 8, 8)).astype(np.uint8)
    for label in range(CLASSES):
        images[labels == label, :, label::CLASSES] += 100
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material(ImageData("drawn", images, labels, CLASSES), backbone, "cpu")
