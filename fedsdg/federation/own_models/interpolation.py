"""A running mix of a client's own model and the aggregate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.own_models.own_model import (
    OWN,
    OwnModel,
    Score,
    Train,
    own_or_downloaded,
)
from fedsdg.parts import Range, part

#: The weights among which one is learned.
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)


@part
class Interpolation(OwnModel):
    """Clients keep their models and mix in the aggregate: v_k ← a v_k + (1 − a) θ_t.

    A round begins at that mix; what training makes of it is the new v_k, which is sent as well, so
    that the aggregate is the mean of the clients' models. A client uses the mix of its model with
    what it would download. a = 0 is FedAvg, a = 1 training alone.

    Where a is learned, it is of 0, ¼, ½, ¾ and 1 the one with which the mix has the least loss on
    the client's validation samples, the smallest of equals, looked for anew with every mix (the
    mixture of Deng et al. 2020, with a search in place of their gradient step).
    """

    weight: Annotated[float | None, Range(0, 1)] = 0.5
    "a of v ← a v + (1 − a) θ; null: picked for each client on its validation data"

    keeps: ClassVar[tuple[str, ...]] = (OWN,)

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
        own = own_or_downloaded(downloaded, kept, has)
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
