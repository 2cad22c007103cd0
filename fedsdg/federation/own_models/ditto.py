"""Ditto's own model: trained beside the one for the server, and held near to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.own_models.own_model import (
    OWN,
    OwnModel,
    Score,
    Train,
    own_or_downloaded,
)
from fedsdg.parts import Range, part


@part
class Ditto(OwnModel):
    """Ditto (Li et al. 2021): v_k minimises F_k(v) + λ/2 ‖v − θ_t‖², beside FedAvg's θ.

    Both take the same batches, v_k from where it was, θ_k from the downloaded θ_t; the optimiser
    of v_k starts afresh as well, unless ``private_optimiser`` is ``keep``. Only θ_k is sent, v_k is
    what the client uses.
    """

    strength: Annotated[float, Range(0)] = 0.1
    "λ that holds a client's own model to the global one"

    keeps: ClassVar[tuple[str, ...]] = (OWN,)
    trains: ClassVar[int] = 1

    def keep(
        self, train: Train, clients: Clients, has: Tensor, local: LocalResult
    ) -> tuple[Mapping[str, Tensor], LocalResult | None]:
        begin = own_or_downloaded(clients.start, clients.state, has)
        result = train(replace(clients, begin=begin), (Proximal(self.strength),))
        return {OWN: result.theta, **result.state}, result

    def models(
        self, downloaded: Tensor, kept: Mapping[str, Tensor], has: Tensor, score: Score
    ) -> Tensor:
        return own_or_downloaded(downloaded, kept, has)
