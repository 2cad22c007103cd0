"""Simulated time as one budget: how many local steps a client has in a round, and for what.

The unit is a step of one gradient on one batch; a pass that only measures a gradient counts its
batches. A client's round consists of stages: phases of its training, passes that measure, and the
models that it trains beside the one for the server. Where clients train by the clock, they all draw
from one budget. Forward passes alone, and whatever is done for an evaluation, take no time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.probes import Probe


@dataclass(frozen=True)
class Stage:
    """A part of a client's work in a round.

    ``epochs``: its nominal length, in passes over the client's batches. ``private``: nothing that
    it trains is sent. ``least``: passes after which a stopping rule may end it; None: all.
    """

    epochs: int
    private: bool = False
    least: int | None = None


def training_stages(work: LocalWork, epochs: int) -> tuple[Stage, ...]:
    """The stages in which a client trains one model for ``epochs`` epochs, in their order."""
    if work.stopping is not None:
        # Before each epoch a pass measures the gradient; after the first one it may be the end.
        passes = 2 * work.stopping.most_epochs
        return (Stage(passes, least=min(3, passes)),)
    if work.private_first:
        return (Stage(work.private_first, private=True), Stage(epochs))
    if work.interleaved:
        return (Stage(epochs, private=True), Stage(epochs))
    return (Stage(epochs),)


@dataclass(frozen=True)
class RoundStages:
    """All stages of a client's round in their order, those that only measure between the others.

    First come those of the model for the server, then passes that measure gradients
    (``measuring``), then those of the models that a client trains for itself.
    """

    all: tuple[Stage, ...]
    measuring: slice

    def plan(self, fit: np.ndarray, batches: np.ndarray, most_epochs: int) -> np.ndarray:
        """Return the steps that each client takes in each stage.

        Args:
            fit: Steps for which each client has time, [n].
            batches: Batches of each client in an epoch, [n].
            most_epochs: No client takes more steps than so many epochs have batches.

        Returns:
            int64 [n, stages]; a client with a 0 in its row is out of time and sends nothing.
        """
        steps = np.minimum(fit, most_epochs * batches)
        both = zip(batches.tolist(), steps.tolist(), strict=True)
        rows = [_of_a_client(self.all, per_epoch, n) for per_epoch, n in both]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.all))


def round_stages(
    work: LocalWork, epochs: int, probes: Sequence[Probe], own: OwnModel
) -> RoundStages:
    """The stages of a client's round in which it trains for ``epochs`` epochs."""
    training = training_stages(work, epochs)
    measured = tuple(Stage(one.gradient_epochs) for one in probes if one.gradient_epochs)
    own_models = tuple(replace(stage, private=True) for stage in training) * own.trains
    end = len(training) + len(measured)
    return RoundStages(training + measured + own_models, slice(len(training), end))


@functools.lru_cache(maxsize=4096)
def _of_a_client(stages: tuple[Stage, ...], batches: int, n: int) -> list[int]:
    """The steps of each stage. With fewer steps than stages only private ones get any."""
    nominal = [stage.epochs * batches for stage in stages]
    if n >= len(stages):
        return shares(nominal, n)
    private = [k for k, stage in enumerate(stages) if stage.private][:n]
    given = shares([nominal[k] for k in private], n)
    steps = dict(zip(private, given, strict=True))
    return [steps.get(k, 0) for k in range(len(stages))]


def shares(nominal: Sequence[int], n: int) -> list[int]:
    """Divide n steps in proportion to nominal numbers of steps, with at least one for each.

    s_i = max(1, ⌊m · nominal_i / Σ_j nominal_j⌋), with the greatest m ≤ n for which Σ_i s_i ≤ n.
    No share is above its nominal number, and none falls where n grows; what is left is dropped.

    Args:
        nominal: Steps of each part where time does not limit them, 1 or more.
        n: Steps to divide, at least as many as there are parts.

    Returns:
        The steps of each part.
    """
    total = sum(nominal)
    for m in range(min(n, total), -1, -1):
        divided = [max(1, m * one // total) for one in nominal]
        if sum(divided) <= n:
            return divided
    raise ValueError(f"{n} steps are too few for {len(nominal)} parts; each needs one")
