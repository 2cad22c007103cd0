"""What clients measure beside training, for a rule that decides by it.

A rule knows no data. A method may therefore name probes: before training, of the models that the
server holds; after training, of what came of it. What they measure is uploaded with the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.clients import LocalResult
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.evaluation import losses
from fedsdg.federation.local_work import Samples
from fedsdg.models.interface import ClientModel
from fedsdg.models.parameters import Layout
from fedsdg.parts import Range, part
from fedsdg.rng import stream


@dataclass(frozen=True)
class Scene:
    """A round as a probe sees it: M clients, each with what it has downloaded.

    ``start`` [M, d]; ``private`` [M, d_p]; ``models`` [C, d] of the server; ``loss``: that of the
    run, by sample. ``in_time[k]``: the training samples for whose gradients the k-th client has
    time; None: all.
    """

    model: ClientModel
    layout: Layout
    samples: Samples
    shards: Shards
    seed: int
    round: int
    clients: np.ndarray
    start: Tensor
    private: Tensor
    models: Tensor
    loss: Callable[..., Tensor]
    in_time: Sequence[np.ndarray] | None = None

    def losses(self, shards: Sequence[np.ndarray], theta: Tensor, private: Tensor) -> Tensor:
        """Return the mean loss [n] of model k, θ [n, d] and private [n, d_p], on ``shards[k]``."""
        return losses(self.model, self.layout, self.samples, shards, theta, private, self.loss)

    def own(self, k: int) -> np.ndarray:
        """The training samples of the k-th client."""
        return self.shards.train[int(self.clients[k])]

    def for_gradients(self, k: int) -> np.ndarray:
        """The training samples on which the k-th client takes gradients."""
        return self.own(k) if self.in_time is None else self.in_time[k]


@dataclass(frozen=True)
class Measured:
    """What a probe found: ``numbers[name]`` [M, width], ``vectors[name]`` [M, d] of the model's
    parameters, and how many models of the server each client has downloaded for it."""

    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    models_down: int = 0


class Probe:
    """The neutral probe: measures nothing, neither before training nor after."""

    #: Whether it cannot do without samples that the server holds.
    needs_benchmark: ClassVar[bool] = False
    #: Passes over a client's training samples in which it takes gradients, after its training.
    gradient_epochs: ClassVar[int] = 0

    def before(self, scene: Scene) -> Measured:
        """Of what the clients have downloaded."""
        return Measured()

    def after(self, scene: Scene, local: LocalResult) -> Measured:
        """Of what training came to."""
        return Measured()


@part
class ModelScores(Probe):
    """Every client's training loss under models of the server: ``scores`` [M, C].

    Which models a client tries, other than its own, is drawn in each round; the others have no
    score (NaN). Rounds in which nothing is tried cost nothing.
    """

    sample: Annotated[int | None, Range(1)] = None
    "l, models that a client tries in a round; null: all"
    rounds: Annotated[int | None, Range(0)] = None
    "rounds in which models are tried, from the first; null: all"

    def before(self, scene: Scene) -> Measured:
        if self.rounds is not None and scene.round > self.rounds:
            return Measured()
        many = len(scene.models)
        scores = scene.start.new_full((len(scene.clients), many), torch.nan, dtype=torch.float64)
        tried = [self._tried(scene, k, many) for k in range(len(scene.clients))]
        for k, chosen in enumerate(tried):
            shards = [scene.own(k)] * len(chosen)
            private = scene.private[k].expand(len(chosen), -1)
            place = torch.from_numpy(chosen).to(scores.device)
            scores[k, place] = scene.losses(shards, scene.models[place], private)
        return Measured({"scores": scores}, models_down=max(map(len, tried), default=0))

    def _tried(self, scene: Scene, k: int, many: int) -> np.ndarray:
        if self.sample is None:
            return np.arange(many)
        client = int(scene.clients[k])
        others = np.delete(np.arange(many), client)
        draw = stream("probe", scene.seed, scene.round, client)
        return np.sort(draw.choice(others, min(self.sample, len(others)), replace=False))


@part
class CrossLosses(Probe):
    """Each side's model on the other side's data (FOCUS, Chen et al. 2020).

    ``global_loss`` [M, 1]: the downloaded model on the client's training samples.
    ``benchmark_loss`` [M, 1]: the client's trained model on the server's benchmark samples.
    """

    needs_benchmark: ClassVar[bool] = True

    def before(self, scene: Scene) -> Measured:
        own = [scene.own(k) for k in range(len(scene.clients))]
        found = scene.losses(own, scene.start, scene.private)
        return Measured({"global_loss": found[:, None]})

    def after(self, scene: Scene, local: LocalResult) -> Measured:
        shared = [scene.shards.benchmark] * len(scene.clients)
        found = scene.losses(shared, local.theta, local.private)
        return Measured({"benchmark_loss": found[:, None]})
