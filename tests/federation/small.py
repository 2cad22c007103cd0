"""Small federations: toy models in float64, a tiny vision transformer, and what runs them.

Where data, models or the assembly change their signatures, this file alone follows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.data.datasets import ImageData
from fedsdg.data.images import Pictures
from fedsdg.data.partition import PartitionSettings, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.federation import rounds
from fedsdg.federation.assembly import assemble
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.optimisers import Sgd
from fedsdg.federation.personalisation import Shared
from fedsdg.federation.setup import Schedule, Server, Setup
from fedsdg.federation.store import ClientStore
from fedsdg.federation.tasks import Work
from fedsdg.models import (
    AdapterConfig,
    Architecture,
    ClientModel,
    CohortModel,
    Layout,
    ParameterSpec,
    build_backbone,
    freeze,
)
from fedsdg.rng import stream

CLASSES, SIDE, SAMPLES = 4, 8, 200
NO_CLIPPING = 1e9


# --- Models ---------------------------------------------------------------------------------------


class Linear(ClientModel):
    """Scores W x + b of flat images: softmax regression, every parameter communicated."""

    def __init__(self, width: int = SIDE * SIDE, head: str = "shared") -> None:
        self.layout = Layout(
            (
                ParameterSpec("head.weight", (CLASSES, width), "shared"),
                ParameterSpec("head.bias", (CLASSES,), "shared"),
            ),
            (),
        )

    def effective_weights(self, parameters, private=True):
        return parameters

    def forward(self, images, counts, weights):
        client = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        weight = weights["head.weight"][client]
        scores = torch.einsum("bcp,bp->bc", weight, images.flatten(1).to(weight.dtype))
        return scores + weights["head.bias"][client]


class Points(Linear):
    """Scores w − x: with the loss ½‖w − x‖² a client's optimum is the mean of its samples."""

    def __init__(self, width: int = CLASSES) -> None:
        self.layout = Layout((ParameterSpec("point", (width,), "shared"),), ())

    def forward(self, images, counts, weights):
        client = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return weights["point"][client] - images


def half_square(scores: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
    """½‖scores‖², the loss of ``Points``."""
    losses = 0.5 * scores.square().sum(1)
    return losses if reduction == "none" else losses.mean()


@cache
def backbone():
    architecture = Architecture(SIDE, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return freeze(build_backbone(architecture), architecture, "tiny", {})


def timm_model() -> Any:
    """The transformer without adapters and head, as timm's, in float64."""
    return copy.deepcopy(backbone().model).double()


def vit(
    dtype: torch.dtype = torch.float64, device: str = "cpu", **adapters: Any
) -> tuple[Any, Tensor, Tensor]:
    """A tiny transformer with adapters: the model, and its first communicated and private row."""
    config = AdapterConfig(rank=2, alpha=4.0, **adapters)
    model = CohortModel(backbone(), config, CLASSES, dtype=dtype, device=device)
    theta, private = model.initial_values(stream("init", 0))
    # B = 0 at first would hide half of all gradients.
    noise = torch.Generator().manual_seed(3)
    theta = theta + 0.05 * torch.randn(theta.shape, generator=noise)
    return model, theta.to(dtype), private.to(dtype)


# --- Federations ----------------------------------------------------------------------------------


@cache
def stored() -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, H, W] with a stripe whose place is their class, and labels [n]."""
    draw = np.random.default_rng(0)
    labels = np.arange(SAMPLES) % CLASSES
    images = draw.integers(0, 150, (SAMPLES, SIDE, SIDE)).astype(np.uint8)
    for label in range(CLASSES):
        images[labels == label, 2 * label : 2 * label + 2] += 105
    return images, labels


def federation(
    model: Any = None,
    first: Tensor | None = None,
    private: Tensor | None = None,
    *,
    images: Tensor | None = None,
    clients: int = 6,
    cohort: int | None = None,
    skew: str = "quantity~0.7",
    seed: int = 0,
    rounds: int = 3,
    epochs: int = 2,
    batch_size: int | None = 5,
    device: str = "cpu",
    schedule: dict[str, Any] | None = None,
    rule: Any = None,
    eta: float = 0.1,
    personalisation: Any = None,
    conditions: Any = (),
    observers: Any = (),
    parts: dict[str, Any] | None = None,
    **work: Any,
) -> Setup:
    """A federation of a model (``Linear`` by default, from 0) on the stored images."""
    pixels, labels = stored()
    data = ImageData("stripes", pixels, labels, CLASSES)
    settings = PartitionSettings(min_samples=6, min_test=2)
    partition = partition_clients(data, clients, parse_skew(skew), seed, settings)
    pictures = Pictures(pixels, size=SIDE, channels=1, mean=(0.5,), std=(0.5,))
    model = model or Linear()
    first = torch.zeros(model.layout.d, dtype=torch.float64) if first is None else first
    if images is None:
        images = torch.from_numpy(pictures.prepared(pixels)).to(first.dtype)
    given = {"optimiser": Sgd(), "eta_g": eta, "eta_p": eta, "eta_m": eta, "clip_norm": NO_CLIPPING}
    setup = assemble(
        seed=seed,
        partition=partition,
        pictures=pictures,
        images=images.to(device),
        model=model,
        first=first,
        private=torch.zeros(0, dtype=first.dtype) if private is None else private,
        rule=rule or Mean(),
        work=Work(**{**given, **work}),
        schedule=Schedule(
            **{
                "rounds": rounds,
                "clients_per_round": cohort or clients,
                "epochs": epochs,
                "batch_size": batch_size,
                **(schedule or {}),
            }
        ),
        personalisation=personalisation or Shared(),
        conditions=conditions,
        observers=observers,
        **(parts or {}),
    )
    # How many fit is measured in float32.
    return replace(setup, batcher=MicroBatcher(clients))


@dataclass
class Finished:
    """A federation after its rounds."""

    setup: Setup
    server: Server
    store: ClientStore
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]

    @property
    def theta(self) -> Tensor:
        return self.server.models[0]

    @property
    def private(self) -> Tensor:
        return self.store.read("private", np.arange(self.setup.num_clients))


def run(setup: Setup, most: int | None = None) -> Finished:
    """All rounds of a federation, or the first ones."""
    server, store = setup.initial()
    of_rounds, of_clients = [], []
    for after, record in islice(rounds.run(setup, server, store), most):
        server = after
        of_rounds.append(record.round)
        of_clients += record.clients
    return Finished(setup, server, store, of_rounds, of_clients)


def fingerprint(server: Server, store: ClientStore) -> dict[str, bytes]:
    """Models, state of the rule and what clients keep, as bytes."""
    clients = np.flatnonzero(store.counts.trained)
    kept = {name: store.read(name, clients) for name in store.first}
    tensors = {"models": server.models, **server.state, **kept}
    found = {name: value.numpy().tobytes() for name, value in tensors.items()}
    return {"clients": clients.tobytes(), **found}


def trained(setup: Setup, t: int = 1, server: Server | None = None, store: Any = None):
    """Tasks and results of the clients of a round."""
    before, empty = setup.initial()
    _, tasks = rounds.begin(setup, server or before, store or empty, t)
    layout = setup.layout.of_round(t)
    return tasks, setup.batcher.train(setup, layout, tasks, setup.phases, f"round {t}")


def with_shards(setup: Setup, train: list[np.ndarray]) -> Setup:
    """The same federation, whose clients train on these samples."""
    return replace(setup, data=replace(setup.data, train=train))
