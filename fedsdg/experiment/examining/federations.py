"""A small real federation for a method: drawn images, a tiny backbone, six clients, four rounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
import yaml

from fedsdg.aggregation.types import Rule
from fedsdg.data.datasets import ImageData
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.examining.findings import Inapplicable, bytes_of
from fedsdg.experiment.material import Material, make_partition, prepare_material
from fedsdg.experiment.run_config import RunConfig
from fedsdg.federation import rounds
from fedsdg.federation.evaluation import EvaluationModels
from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.federation.setup import Setup
from fedsdg.files.places import shipped
from fedsdg.methods.declared import Row
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import Plugin, contents, find_method, find_row
from fedsdg.models import Architecture, build_backbone, freeze

ROUNDS = 4
SKEW = "dirichlet~1.0"
#: (clients, of them in a round), tried in this order: most rules can work with the first.
SIZES = ((6, 4), (6, 6), (12, 12), (25, 25))
IMAGES, CLASSES, PIXELS = 480, 4, 8


class LastEvaluation(Observer):
    """Keeps the models with which clients are evaluated in the last round."""

    models: EvaluationModels

    def observe(self, view: RoundView) -> None:
        """Keep the models."""
        if view.last and view.evaluation is not None:
            self.models = view.evaluation


class Federation:
    """A federation between two rounds, and its records so far."""

    def __init__(self, setup: Setup) -> None:
        """Begin before the first round."""
        self.evaluation = LastEvaluation()
        self.setup = replace(setup, observers=(*setup.observers, self.evaluation))
        self.server, self.store = self.setup.initial()
        self.rounds: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []

    def run(self, most: int | None = None) -> Federation:
        """Do the rounds that are left, or some of them."""
        left = rounds.run(self.setup, self.server, self.store, len(self.rounds))
        for server, record in islice(left, most):
            self.server = server
            self.rounds.append(record.round)
            self.clients += record.clients
        return self

    @property
    def result(self) -> dict[str, Any]:
        """All that it is, by what it is called, as bytes and text."""
        found: dict[str, Any] = {}
        for row in self.rounds:
            t = row["round"]
            rows = [row, *(client for client in self.clients if client["round"] == t)]
            found[f"record of round {t}"] = json.dumps(rows, sort_keys=True)
        found["global model"] = bytes_of(self.server.models)
        for name, value in self.server.state.items():
            found[f"state {name!r} of the rule"] = bytes_of(value)
        everyone = np.arange(self.setup.num_clients)
        for name in self.store.first:
            found[f"{name!r} of the clients"] = bytes_of(self.store.read(name, everyone))
        found["list of clients that took part"] = bytes_of(self.store.counts.trained)
        return found


@dataclass
class Trial:
    """A method in its federation, which `make()` puts together as often as asked."""

    make: Callable[[], Setup]
    row: Row | None = None

    @cached_property
    def whole(self) -> Federation:
        """The federation after all its rounds."""
        return Federation(self.make()).run()


def trial_of(name: str, plugin: Plugin | None) -> Trial:
    """A method of the package or of a plugin; ``Inapplicable`` where no federation suits it."""
    method = find_method(name, plugin)
    run = _run(name, method, plugin)
    material, data = _material(), _images()
    partition = make_partition(data, SKEW, 0, run.federation.clients, run.partition)

    def make() -> Setup:
        # As another process would: what a class or a module has remembered is gone.
        contents.cache_clear()
        return build(run, material, partition)

    return Trial(make, find_row(name, plugin))


def _run(name: str, method: Method, plugin: Plugin | None) -> RunConfig:
    clients, cohort = size_for(method.rule)
    raw = yaml.safe_load(shipped("config/config.yaml").read_text(encoding="utf-8"))
    raw |= {"methods": [name], "plugins": [plugin.place] if plugin else [], "skews": [SKEW]}
    raw["federation"] |= {"clients": clients, "clients_per_round": cohort, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 2}
    raw["partition"] |= {"min_samples": 6, "min_test": 1}
    # Its backbone is narrower than what the compiled pass takes.
    raw["training"] |= {"epochs": 1, "kernel": "torch"}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    raw["conditions"] = conditions_for(method)
    config = parse_config(raw)
    return config.run(config.datasets[0], SKEW, config.methods[0], 0)


def size_for(rule: Rule) -> tuple[int, int]:
    """(clients, of them in a round) that a rule can work with."""
    for clients, cohort in SIZES:
        try:
            rule.require(cohort, clients)
        except ValueError as error:
            refused = error
        else:
            return clients, cohort
    raise Inapplicable(f"`require` refuses every federation that was tried ({refused})")


def conditions_for(method: Method) -> dict[str, Any]:
    """Conditions without which a method cannot work: samples of the server, unequal speeds."""
    found: dict[str, Any] = {}
    on_server = "server" in getattr(method.rule, "reads", ())
    if on_server or any(request.kind == "losses" for request in method.rule.probes):
        found["benchmark_images"] = 20
    if method.stopping is not None:
        try:
            method.stopping.require(False)
        except ValueError:
            found["compute"] = {"fastest": 4}
    return found


@cache
def _images() -> ImageData:
    """Stripes whose place is their class, under noise."""
    draw = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    images = draw.integers(0, 120, (IMAGES, PIXELS, PIXELS)).astype(np.uint8)
    for label in range(CLASSES):
        images[labels == label, :, label::CLASSES] += 100
    return ImageData("drawn", images, labels, CLASSES)


@cache
def _material() -> Material:
    architecture = Architecture(PIXELS, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material(_images(), backbone, "cpu")
