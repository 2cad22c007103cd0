"""A small federation that tries out a method: drawn images, a tiny transformer, six clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.partition import Partition, PartitionSettings, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.federation import rounds
from fedsdg.federation.assembly import assemble
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.losses import CrossEntropy, Loss
from fedsdg.federation.optimisers import Adam, Optimiser
from fedsdg.federation.setup import Schedule, Setup
from fedsdg.federation.tasks import Work
from fedsdg.methods.method import Method
from fedsdg.models import (
    AdapterConfig,
    Architecture,
    Backbone,
    CohortModel,
    build_backbone,
    freeze,
)
from fedsdg.rng import stream

ROUNDS = 4
RATES = (0.01, 0.1)
"""Learning rates: of adaptive optimisers, and of plain gradient descent."""
SIZES = ((6, 4), (6, 6), (12, 12), (25, 25))
"""Clients, and those in a round; the first that a rule accepts are taken."""
IMAGES, CLASSES, PIXELS = 480, 4, 8


@dataclass(frozen=True)
class Candidate:
    """A method with all that it is tried with."""

    method: Method
    optimiser: Optimiser = field(default_factory=Adam)
    loss: Loss = field(default_factory=CrossEntropy)
    conditions: tuple[Condition, ...] = ()
    rate: float = RATES[0]

    def setup(self, *extra: Condition, dtype: torch.dtype = torch.float64, trace: int = 0) -> Setup:
        """Put the federation together.

        Args:
            *extra: Further conditions.
            dtype: Of parameters and images.
            trace: Print the values of terms for each batch whose number it divides; 0: none.

        Raises:
            ValueError: No size of `SIZES` suits the rule, or parts do not fit one another.
        """
        method = self.method
        clients, cohort = size_for(method.rule)
        config = AdapterConfig(rank=2, alpha=4.0, **method.personalisation.adapters)
        model = CohortModel(_backbone(), config, CLASSES, dtype=dtype)
        first, private = model.initial_values(stream("init", 0))
        pictures = Pictures(_data().images, size=PIXELS, channels=1, mean=(0.5,), std=(0.5,))
        optimiser = self.optimiser
        if method.optimiser is not None:
            optimiser = Optimiser.registry[method.optimiser]()
        judges = any(request.kind == "losses" for request in method.rule.probes)
        return assemble(
            seed=0,
            partition=_partition(clients),
            pictures=pictures,
            images=torch.from_numpy(pictures.prepared(_data().images)).to(dtype),
            model=model,
            first=first.to(dtype),
            private=private.to(dtype),
            rule=method.rule,
            work=Work(
                optimiser=optimiser,
                loss=self.loss,
                eta_g=self.rate,
                eta_p=self.rate,
                eta_m=self.rate,
                clip_norm=1.0,
                terms=method.objective,
                trace_every=trace,
            ),
            schedule=Schedule(ROUNDS, cohort, epochs=1, batch_size=16, evaluate_every=2),
            personalisation=method.personalisation,
            stopping=method.stopping,
            sharing=method.sharing,
            conditions=(*self.conditions, *self._clock(), *extra),
            benchmark_images=20 if judges or "server" in method.rule.reads else None,
            heads_apart=method.heads_apart,
        )

    def _clock(self) -> Iterator[Condition]:
        """Yield clients of different speed, if the method cannot do without."""
        if self.method.stopping is not None:
            try:
                self.method.stopping.require(False)
            except ValueError:
                yield Compute(fastest=4)


class Federation:
    """A federation between two rounds, and its records so far."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.server, self.store = setup.initial()
        self.rounds: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []

    def run(self, most: int | None = None) -> Self:
        """Do the rounds that are left, or some of them."""
        left = rounds.run(self.setup, self.server, self.store, len(self.rounds))
        for server, record in islice(left, most):
            self.server = server
            self.rounds.append(record.round)
            self.clients += record.clients
        return self

    @property
    def accuracy(self) -> float:
        """Accuracy of the clients' models after the last round."""
        return float(self.rounds[-1]["expected_accuracy"])

    def facts(self) -> dict[str, Any]:
        """Return all that it is, by name, as bytes and text."""
        found: dict[str, Any] = {"records": json.dumps([self.rounds, self.clients])}
        everyone = np.arange(self.setup.num_clients)
        kept = {name: self.store.read(name, everyone) for name in self.store.first}
        state = {"models": self.server.models, "state": self.server.state, "kept": kept}
        return found | {name: array.tobytes() for name, array in arrays(state)}


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield a copy of each tensor and array within a value, with the names that lead to it."""
    if isinstance(value, Tensor | np.ndarray):
        given = value.detach().numpy() if isinstance(value, Tensor) else value
        yield name, given.copy()
        return
    entries: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        entries = value
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(value))
    elif is_dataclass(value):
        entries = vars(value)
    for key, entry in entries.items():
        yield from arrays(entry, f"{name}.{key}" if name else str(key))


def size_for(rule: Rule) -> tuple[int, int]:
    """Return the clients of a federation, and of a round, that a rule can work with.

    Raises:
        ValueError: It refuses all of `SIZES`.
    """
    refused = ValueError()
    for clients, cohort in SIZES:
        try:
            rule.require(cohort, clients)
        except ValueError as error:
            refused = error
        else:
            return clients, cohort
    raise ValueError(f"`require` refuses every federation that was tried ({refused})")


@cache
def _data() -> ImageData:
    """Return images with stripes whose place is their class, under noise."""
    draw = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    images = draw.integers(0, 120, (IMAGES, PIXELS, PIXELS)).astype(np.uint8)
    for label in range(CLASSES):
        images[labels == label, :, label::CLASSES] += 100
    return ImageData("drawn", images, labels, CLASSES)


@cache
def _partition(clients: int) -> Partition:
    settings = PartitionSettings(min_samples=6, min_test=1)
    return partition_clients(_data(), clients, parse_skew("dirichlet~1.0"), 0, settings)


@cache
def _backbone() -> Backbone:
    architecture = Architecture(PIXELS, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return freeze(build_backbone(architecture), architecture, "tiny", {})
