"""A small real federation for a method: drawn images, a tiny backbone, six clients, four rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import torch
import yaml

from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.data.datasets import ImageData
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.examining.findings import Inapplicable, bytes_of
from fedsdg.experiment.material import Material, make_partition, prepare_material
from fedsdg.experiment.run_config import RunConfig
from fedsdg.federation.asked import probes_of
from fedsdg.federation.rounds import Federation
from fedsdg.files.places import shipped
from fedsdg.methods.declared import Row
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import Plugin, contents, find_method, find_row
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

ROUNDS = 4
SKEW = "dirichlet~1.0"
#: (clients, of them in a round), tried in this order: most rules can work with the first.
SIZES = ((6, 4), (6, 6), (12, 12), (25, 25))
IMAGES, CLASSES, PIXELS = 480, 4, 8


class Heard:
    """A rule as it is, and what it was given in each round."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.rounds: list[tuple[int, Mapping[str, torch.Tensor]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        self.rounds.append((context.round, uploads))
        return self._rule(uploads, context, state)


@dataclass
class Trial:
    """A method in its federation: ``make()`` is it before the first round, as often as asked."""

    make: Callable[[], Federation]
    row: Row | None = None

    @cached_property
    def whole(self) -> tuple[Federation, Heard]:
        """The federation after all its rounds, and what its rule has heard."""
        one = self.make()
        heard = Heard(one.rule)
        one.rule = cast(Rule, heard)
        one.run()
        return one, heard

    @cached_property
    def result(self) -> dict[str, Any]:
        """What the whole run came to."""
        return result_of(self.whole[0])


def result_of(one: Federation) -> dict[str, Any]:
    """All that a federation is between rounds, by what it is called, as bytes and plain rows."""
    private, kept = one.bank.gather(torch.arange(one.num_clients))
    found: dict[str, Any] = {}
    for round_ in range(1, one.rounds_done + 1):
        tables = (one.records.rounds, one.records.clients, one.records.trace)
        rows = [[dict(row) for row in table if row["round"] == round_] for table in tables]
        found[f"record of round {round_}"] = repr(rows)
    found["global model"] = bytes_of(one.theta)
    found |= {f"state {n!r} of the rule": bytes_of(value) for n, value in one.state.items()}
    found["private parameters of the clients"] = bytes_of(private)
    found |= {f"vector {n!r} of the clients": bytes_of(value) for n, value in kept.items()}
    found["list of clients that took part"] = bytes_of(one.bank.trained)
    return found


def trial_of(name: str, plugin: Plugin | None) -> Trial:
    """A method of the package or of a plugin; ``Inapplicable`` where no federation suits it."""
    method = find_method(name, plugin)
    run = _run(name, method, plugin)
    material, data = _material(), _images()
    partition = make_partition(data, SKEW, 0, run.federation.clients, run.partition)

    def make() -> Federation:
        # As another process would: what a class or a module has remembered is gone.
        contents.cache_clear()
        return build(run, material, partition)

    return Trial(make, find_row(name, plugin))


def _run(name: str, method: Method, plugin: Plugin | None) -> RunConfig:
    clients, cohort = size_for(method.rule)
    raw = yaml.safe_load(shipped("config/config.yaml").read_text(encoding="utf-8"))
    raw |= {"methods": [name], "plugins": [plugin.place] if plugin else [], "skews": [SKEW]}
    raw["federation"] |= {"clients": clients, "clients_per_round": cohort, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 2, "trace_every": 4}
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
    if on_server or any(probe.needs_benchmark for probe in probes_of(method.rule)):
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
