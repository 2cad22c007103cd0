"""What goes into an aggregation rule and what comes out of it.

A rule is a pure function of what was uploaded: `(uploads, context, state) -> Aggregate`.
Expected use::

    rule = Alignment()
    state = rule.init(d, client_samples)
    for each round:
        received = rule.broadcast(state)        # what the clients get beside the model
        uploads = {"update": updates}           # [M, d], clients are an axis
        aggregate = rule(uploads, context, state)
        model += aggregate.steps[0]
        state = aggregate.state
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch


@runtime_checkable
class Norm(Protocol):
    """A norm that takes a pass over all parameters, and a bound that takes none."""

    def __float__(self) -> float:
        """The norm, measured now."""
        ...

    def at_most(self, update_norm: float) -> float:
        """An upper bound of it where no update is longer than this."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """What the server knows of a round beside the uploads; row k of an upload is `clients[k]`."""

    round: int
    """1-based."""
    clients: np.ndarray
    """[M] int64 ids of the cohort."""
    num_clients: int
    """K, all clients of the federation."""
    num_samples: np.ndarray
    """[M] training samples of each cohort client."""
    total_samples: int
    """Training samples of all K clients."""
    num_batches: np.ndarray
    """[M] local steps per epoch."""
    client_samples: np.ndarray
    """[K] training samples of every client."""
    parameter_norm: float | Norm | None = None
    """max_k ||theta_k||_2 where updates were formed from parameters (a guard against rounding
    noise), else None. For a rule that reads the upload `adapters` it is that of the adapters'
    columns. As a `Norm` it is measured only by a rule that asks for float(…)."""
    models: torch.Tensor | None = None
    """[C, d] the server's models before the round, for rules that serve several."""
    ages: np.ndarray | None = None
    """[M] int64 rounds by which each upload is late; None where all are of this round."""
    held_out: int = 0
    """How many of the K clients never take part."""


class Aggregate(NamedTuple):
    """The outcome of a rule."""

    steps: torch.Tensor
    """[C, d] in the dtype of the updates; the server adds steps[c] to its model c."""
    weights: np.ndarray | None
    """[M] float64 weights of the clients, summing to 1; None where a rule has none."""
    state: dict[str, torch.Tensor]
    """Goes back in with the next round; never shares storage with the state that came in unless
    it is unchanged."""
    diagnostics: dict[str, np.ndarray | float]
    """Numbers to record: arrays [M] per client, or one float for the round."""


@dataclass(frozen=True)
class Ask:
    """What a rule asks clients to measure, in words: a rule knows no data, the federation does."""

    kind: Literal["scores", "losses", "fisher"]
    """Which uploads come of it. "scores": `scores` [M, C], before training, the loss of each model
    of the server on a client's training samples, NaN where it was not measured. "losses":
    `global_loss` [M, 1], of the downloaded model on a client's training samples, and
    `benchmark_loss` [M, 1], of its trained model on the samples of the server. "fisher": `fisher`
    [M, d], the diagonal I_k of the Fisher information at the trained theta_k, and `fisher_theta`
    [M, d], I_k theta_k."""
    sample: int | None = None
    """Of how many models, other than its own, a client measures scores; None: of all models."""
    rounds: int | None = None
    """In how many rounds, from the first; None: in all."""


Known = Literal["clusters", "labels"]
"""What a rule may be told of all clients before the first round: in which cluster each is, or how
many training samples of every class it holds."""


@runtime_checkable
class Rule(Protocol):
    """A server aggregation rule. Rules never modify uploads or state."""

    @property
    def probes(self) -> tuple[Ask, ...]:
        """What clients are to measure for it; () for most rules."""
        ...

    @property
    def knowledge(self) -> tuple[Known, ...]:
        """What it is to be told before the first round; () for most rules."""
        ...

    def require(self, cohort: int, clients: int) -> None:
        """ValueError where it cannot work with so many of so many clients in a round."""
        ...

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        """State before the first round, for d communicated parameters and client_samples [K]."""
        ...

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        """Aggregate uploads["update"] [M, d] (Delta_k = theta_k - theta_g) and the like."""
        ...

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Named arrays sent to every client beside the model; {} for most rules."""
        ...

    def models(self, num_clients: int) -> int:
        """C, how many models the server holds for K clients; 1 for most rules."""
        ...

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        """[M, C] float64, rows summing to 1: client k downloads row k times the models.

        One-hot rows are clusters, spread rows semi-global models or averages of neighbours. What
        a client is evaluated with is its row as well.
        """
        ...

    def partial(
        self, state: Mapping[str, torch.Tensor], clients: np.ndarray, d: int
    ) -> np.ndarray | None:
        """[M] int64: how many of the d entries of its model each client has yet to download.

        The others are as it has them already. None: all of them, as for most rules.
        """
        ...


class StatelessRule:
    """What a rule has by default: nothing kept between rounds, one model for all, only it sent,
    nothing asked of clients but their updates, and no bound on how many they are."""

    @property
    def probes(self) -> tuple[Ask, ...]:
        return ()

    @property
    def knowledge(self) -> tuple[Known, ...]:
        return ()

    def require(self, cohort: int, clients: int) -> None:
        return None

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        return {}

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    def models(self, num_clients: int) -> int:
        return 1

    def mixing(self, state: Mapping[str, torch.Tensor], clients: np.ndarray) -> np.ndarray:
        return np.ones((len(clients), 1))

    def partial(
        self, state: Mapping[str, torch.Tensor], clients: np.ndarray, d: int
    ) -> np.ndarray | None:
        return None
