"""Clients that train, one row each: what they begin with, and what they come back with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _numbered(k: int) -> str:
    return f"row {k}"


@dataclass(frozen=True)
class Clients:
    """M clients to be trained, one row each.

    ``batches[k]`` are client k's sample indices, step by step; ``start`` [M, d] and ``private``
    [M, d_p] its parameters; ``state[name]`` [M, d] what the terms keep for it, and what its
    optimiser goes on from, where that is kept (``LocalWork.moments``); ``received[name]`` [M, d]
    what its server sent beside the model. ``name(k)`` names client k in errors. ``gamma`` [M] is
    every client's γ where ``LocalWork.stopping`` asks for it. Training begins at ``begin`` [M, d],
    or at ``start`` where that is None: ``start`` is what clients have downloaded, and what the
    terms refer to, in either case. ``budget`` [M, stages] are the most steps of each stage of their
    training (see ``federation.budget``); None: all of their batches.
    """

    batches: Sequence[Sequence[np.ndarray]]
    start: Tensor
    private: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    received: Mapping[str, Tensor] = field(default_factory=dict)
    name: Callable[[int], str] = _numbered
    gamma: np.ndarray | None = None
    begin: Tensor | None = None
    budget: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, chosen: np.ndarray) -> Clients:
        """The clients in the rows ``chosen`` (int64), in that order."""
        rows = torch.from_numpy(chosen).to(self.start.device)
        name, numbers = self.name, chosen.tolist()
        return Clients(
            [self.batches[k] for k in numbers],
            self.start[rows],
            self.private[rows],
            {key: value[rows] for key, value in self.state.items()},
            {key: value[rows] for key, value in self.received.items()},
            lambda k: name(numbers[k]),
            None if self.gamma is None else self.gamma[chosen],
            None if self.begin is None else self.begin[rows],
            None if self.budget is None else self.budget[chosen],
        )

    @classmethod
    def joined(cls, groups: Sequence[Clients]) -> Clients:
        """The clients of all groups, one group after another."""
        rows = [(group, k) for group in groups for k in range(len(group))]
        first = groups[0]
        gammas = [group.gamma for group in groups if group.gamma is not None]
        begins = [group.start if group.begin is None else group.begin for group in groups]
        elsewhere = any(group.begin is not None for group in groups)
        budgets = [group.budget for group in groups if group.budget is not None]
        return cls(
            [own for group in groups for own in group.batches],
            torch.cat([group.start for group in groups]),
            torch.cat([group.private for group in groups]),
            {key: torch.cat([group.state[key] for group in groups]) for key in first.state},
            {key: torch.cat([group.received[key] for group in groups]) for key in first.received},
            lambda k: rows[k][0].name(rows[k][1]),
            np.concatenate(gammas) if gammas else None,
            torch.cat(begins) if elsewhere else None,
            np.concatenate(budgets) if budgets else None,
        )

    def within(self, stage: int, batches: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        """Of each client's ``batches`` those for which it has time in a stage of its training."""
        if self.budget is None:
            return [list(own) for own in batches]
        steps = self.budget[:, stage].tolist()
        return [list(own[:n]) for own, n in zip(batches, steps, strict=True)]


@dataclass
class LocalResult:
    """What a cohort comes back with, one row or entry a client, in the order it was given.

    ``theta`` [M, d], ``private`` [M, d_p]; ``uploads`` and ``state`` from the terms ([M, d] each);
    ``loss`` [M] mean task loss over a client's batches, NaN for a client that took no step;
    ``steps``, ``samples`` [M]; ``trace`` records of every ``trace_every``-th batch. ``samples``
    counts every forward and backward pass of a sample, so those of a stopping rule's gradients too;
    ``steps`` counts training alone, ``measured`` [M] the batches whose gradient was only measured.
    ``personal`` [M]: of the steps those of private parameters alone or of a model that stays.
    """

    theta: Tensor
    private: Tensor
    uploads: dict[str, Tensor]
    state: dict[str, Tensor]
    loss: np.ndarray
    steps: np.ndarray
    samples: np.ndarray
    measured: np.ndarray
    personal: np.ndarray
    trace: list[dict[str, Any]] = field(default_factory=list)

    @property
    def gradients(self) -> np.ndarray:
        """[M] gradients of a batch that each client took: what its time went into."""
        return self.steps + self.measured

    def __getitem__(self, chosen: np.ndarray) -> LocalResult:
        """The clients in the rows ``chosen`` (int64), in that order."""
        rows = torch.from_numpy(chosen).to(self.theta.device)
        place = {client: k for k, client in enumerate(chosen.tolist())}
        return LocalResult(
            self.theta[rows],
            self.private[rows],
            {key: value[rows] for key, value in self.uploads.items()},
            {key: value[rows] for key, value in self.state.items()},
            self.loss[chosen],
            self.steps[chosen],
            self.samples[chosen],
            self.measured[chosen],
            self.personal[chosen],
            [
                {**row, "client": place[row["client"]]}
                for row in self.trace
                if row["client"] in place
            ],
        )

    @classmethod
    def nobody(cls, clients: Clients) -> LocalResult:
        """What no client at all comes back with."""
        none = np.empty(0, dtype=np.int64)
        state = dict(clients.state)
        return cls(clients.start, clients.private, {}, state, np.empty(0), none, none, none, none)

    @classmethod
    def joined(cls, results: Sequence[LocalResult]) -> LocalResult:
        """The clients of all results, one after another; the trace goes step by step."""
        starts = np.cumsum([0, *(len(result.steps) for result in results)]).tolist()
        trace = [
            {**row, "client": row["client"] + start}
            for start, result in zip(starts, results, strict=False)
            for row in result.trace
        ]
        first = results[0]
        return cls(
            torch.cat([result.theta for result in results]),
            torch.cat([result.private for result in results]),
            {key: torch.cat([result.uploads[key] for result in results]) for key in first.uploads},
            {key: torch.cat([result.state[key] for result in results]) for key in first.state},
            np.concatenate([result.loss for result in results]),
            np.concatenate([result.steps for result in results]),
            np.concatenate([result.samples for result in results]),
            np.concatenate([result.measured for result in results]),
            np.concatenate([result.personal for result in results]),
            sorted(trace, key=lambda row: row["step"]),
        )
