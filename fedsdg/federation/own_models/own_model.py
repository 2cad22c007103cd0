"""Models that clients keep for themselves beside the one that they train for the server.

A client's own model is a vector [d] that never leaves it. It begins as the model that the client
downloads when it first takes part; until then the client is judged with what it would download,
so nobody starts from a model that is rounds old. Which clients have one is told by ``has`` [n].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedsdg.federation.local_training import Clients, LocalResult
from fedsdg.federation.objectives.term import Proximal, Term

#: Trains clients as their federation does, but on these terms.
Train = Callable[[Clients, tuple[Term, ...]], LocalResult]
#: Mean loss of a model [n, d] for each client on that client's validation samples: [n] float64.
Score = Callable[[Tensor], Tensor]
OWN = "own"
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class OwnModel:
    """The neutral one: clients keep no model, and use what they download."""

    #: Names of the vectors [d] that every client keeps for it between rounds.
    keeps: ClassVar[tuple[str, ...]] = ()

    def begin(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        """Where training for the server begins, [M, d]."""
        return downloaded

    def keep(
        self, train: Train, clients: Clients, has: Tensor, local: LocalResult
    ) -> tuple[Mapping[str, Tensor], LocalResult | None]:
        """After training for the server: (what the clients keep, what more they have trained).

        ``clients`` are those that were trained, ``local`` is what came of it.
        """
        return {}, None

    def models(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        """The models [n, d] that clients use, were they to download ``downloaded`` now."""
        return downloaded


def _own(downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor) -> Tensor:
    """Every client's own model, or what it downloads where it has none."""
    return torch.where(has.to(downloaded.device)[:, None], kept[OWN], downloaded)


@dataclass(frozen=True)
class Ditto(OwnModel):
    """Ditto (Li et al. 2021): v_k minimises F_k(v) + λ/2 ‖v − θ_t‖², beside FedAvg's θ.

    Both take the same batches, v_k from where it was, θ_k from the downloaded θ_t; the optimiser
    of v_k starts afresh as well. Only θ_k is sent, v_k is what the client uses.
    """

    strength: float
    keeps: ClassVar[tuple[str, ...]] = (OWN,)

    def keep(
        self, train: Train, clients: Clients, has: Tensor, local: LocalResult
    ) -> tuple[Mapping[str, Tensor], LocalResult | None]:
        begin = _own(clients.start, clients.state, has)
        result = train(replace(clients, begin=begin), (Proximal(self.strength),))
        return {OWN: result.theta}, result

    def models(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        return _own(downloaded, kept, has)


@dataclass(frozen=True)
class Interpolation(OwnModel):
    """Clients keep their models and mix in the aggregate: v_k ← a v_k + (1 − a) θ_t.

    A round begins at that mix; what training makes of it is the new v_k, which is sent as well, so
    that the aggregate is the mean of the clients' models. A client uses the mix of its model with
    what it would download. a = 0 is FedAvg, a = 1 training alone.

    ``weight``: a, or None to learn it: of 0, ¼, ½, ¾ and 1 the one with which the mix has the least
    loss on the client's validation samples, the smallest of equals, looked for anew with every
    mix (the mixture of Deng et al. 2020, with a search in place of their gradient step).
    """

    weight: float | None = 0.5
    keeps: ClassVar[tuple[str, ...]] = (OWN,)

    def __post_init__(self) -> None:
        if self.weight is not None and not 0 <= self.weight <= 1:
            raise ValueError(f"weight {self.weight} must lie in [0, 1], or be None to be learned")

    def begin(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        return self.models(downloaded, kept, has, score)

    def keep(
        self, train: Train, clients: Clients, has: Tensor, local: LocalResult
    ) -> tuple[Mapping[str, Tensor], LocalResult | None]:
        return {OWN: local.theta}, None

    def models(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        own = _own(downloaded, kept, has)
        if self.weight is not None:
            return _mixed(own, downloaded, downloaded.new_full((len(own),), self.weight))
        losses = torch.stack([score(_mixed(own, downloaded, w)) for w in self._grid(own)])
        # The first of equals, on every device; a loss that is not a number never wins.
        least = losses.nan_to_num(nan=torch.inf).cpu().numpy().argmin(0)
        return _mixed(own, downloaded, own.new_tensor([GRID[k] for k in least]))

    @staticmethod
    def _grid(like: Tensor) -> list[Tensor]:
        return [like.new_full((len(like),), weight) for weight in GRID]


def _mixed(own: Tensor, downloaded: Tensor, weight: Tensor) -> Tensor:
    """a v + (1 − a) θ row by row, exactly v and exactly θ at the ends."""
    return torch.lerp(downloaded, own, weight[:, None])
