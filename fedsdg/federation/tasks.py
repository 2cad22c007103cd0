"""What clients train and what they return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.batches import Batches, Epochs, all_batches
from fedsdg.federation.client_axis import ClientAxis
from fedsdg.federation.optimisers import Optimiser
from fedsdg.federation.phases import Phase
from fedsdg.federation.terms import Term
from fedsdg.models import Layout, ParameterSpec


@dataclass(frozen=True)
class Samples:
    """All samples of a federation, as a model takes them."""

    images: Tensor
    "[n, ...]"
    labels: Tensor
    "int64 [n]"
    for_gates: np.ndarray | None = None
    "bool [n], the samples from which gates learn, and nothing else that is private does"
    weights: np.ndarray | None = None
    "float64 [n], how much each sample counts in a mean of losses; None: all are equal"

    def masses(self, index: np.ndarray) -> np.ndarray:
        """Return how much samples [n] count in a mean of losses, float64 [n]."""
        return np.ones(len(index)) if self.weights is None else self.weights[index]


@dataclass(frozen=True)
class Work:
    """How clients train (FedSDG, Eq. 6-8)."""

    optimiser: Optimiser
    eta_g: float
    "learning rate of shared parameters"
    eta_p: float
    "learning rate of private parameters"
    eta_m: float
    "learning rate of gates"
    clip_norm: float
    "largest norm of a client's gradient over all that it trains"
    terms: tuple[Term, ...] = ()
    loss: Callable[..., Tensor] = cross_entropy
    private_optimiser: Optimiser | None = None
    "the optimiser of the private row; None: as the shared one"
    keeps_memory: bool = False
    "whether the memory of the private row's optimiser is kept from round to round"
    trace_every: int = 0
    "print losses, penalties and gates of each such batch; 0: none"

    def optimiser_of(self, row: str) -> Optimiser:
        """Return the optimiser of the `shared` or the `private` row."""
        return (self.private_optimiser if row == "private" else None) or self.optimiser

    def rates(self, specs: Sequence[ParameterSpec], like: Tensor) -> Tensor | float:
        """Return the learning rate of each column of a row, or one number if all are equal."""
        rates = {
            "shared": self.eta_g,
            "own": self.eta_g,
            "private": self.eta_p,
            "gate": self.eta_m,
        }
        if all(spec.group == "shared" and spec.trainable for spec in specs):
            return float(self.eta_g)
        by_tensor = [rates[spec.group] if spec.trainable else 0.0 for spec in specs]
        sizes = torch.tensor([spec.size for spec in specs])
        return torch.tensor(by_tensor, dtype=torch.float64).repeat_interleave(sizes).to(like)

    def kept_memory(self, layout: Layout) -> dict[str, int]:
        """Return how many numbers of its optimiser a client keeps between rounds, by name."""
        memory = self.optimiser_of("private").memory
        if not (self.keeps_memory and layout.trains_private and memory):
            return {}
        widths = {f"private.{name}": layout.d_private for name in memory}
        return {**widths, "private.steps": 1}


@dataclass(frozen=True)
class Tasks(ClientAxis):
    """What M clients train."""

    clients: np.ndarray
    "[M] int64 client numbers"
    start: Tensor
    "[M, d] the downloaded model"
    begin: Tensor
    "[M, d] where training of the shared row begins, usually at `start`"
    private: Tensor
    "[M, d_p] what each keeps to itself"
    kept: dict[str, Tensor]
    "[M, width] what terms and optimiser keep for it, by name"
    received: dict[str, Tensor]
    "[M, width] what the server sent beside the model, by name"
    batches: list[Epochs]
    limits: np.ndarray | None = None
    "[M, stages] steps for which there is time; None: no limit"
    gamma: np.ndarray | None = None
    "[M] how inexactly each may solve"

    def batches_of(self, phase: Phase, stage: int) -> list[Batches]:
        """Return each client's batches of a phase for which a stage of its round has time."""
        end = phase.first + phase.epochs
        chosen = [all_batches(epochs[phase.first : end]) for epochs in self.batches]
        if self.limits is None:
            return chosen
        limits = self.limits[:, stage].tolist()
        return [batches[:most] for batches, most in zip(chosen, limits, strict=True)]


@dataclass(frozen=True)
class Results(ClientAxis):
    """What M clients return."""

    theta: Tensor
    "[M, d]"
    private: Tensor
    "[M, d_p]"
    uploads: dict[str, Tensor]
    "[M, d] what terms send beside the update, by name"
    kept: dict[str, Tensor]
    "[M, width] what terms and optimiser keep, by name"
    loss: np.ndarray
    "[M] mean over a client's steps, NaN without a step"
    counts: dict[str, np.ndarray]
    """int64 [M]: `steps`, gradients by which something moved; `batches`, those for the server's
    model; `personal`, those of what stays with the client; `measured`, gradients that were measured
    alone; `samples`, the samples in all of these gradients"""
