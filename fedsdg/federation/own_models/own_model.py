"""What a client's own model is: one that it keeps beside the one it trains for the server.

It is a vector [d] that never leaves the client. It begins as the model that the client downloads
when it first takes part; until then the client is judged with what it would download, so nobody
starts from a model that is rounds old. Which clients have one is told by ``has`` [n].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.objectives.term import Term
from fedsdg.parts import part

#: Trains clients as their federation does, but on these terms.
Train = Callable[[Clients, tuple[Term, ...]], LocalResult]
#: Mean loss of a model [n, d] for each client on that client's validation samples: [n] float64.
Score = Callable[[Tensor], Tensor]
#: Under which name clients keep it.
OWN = "own"


@part
class OwnModel:
    """The neutral one: clients keep no model, and use what they download."""

    #: Names of the vectors [d] that every client keeps for it between rounds.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: How many models ``keep`` trains, each for as long as the one for the server.
    trains: ClassVar[int] = 0

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


def own_or_downloaded(downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor) -> Tensor:
    """Every client's own model, or what it downloads where it has none: [n, d]."""
    return torch.where(has.to(downloaded.device)[:, None], kept[OWN], downloaded)
