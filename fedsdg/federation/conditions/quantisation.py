"""Weak agents send updates of a few bits per number, rounded up or down at random.

Suresh et al. 2017: a number becomes one of the two nearest of 2^b levels, equally far apart between
the least and the greatest number of the update, so that its expectation is the number itself. Sent
are both ends and b bits for each number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsdg import models
from fedsdg.federation.conditions.condition import ClientData, Condition, clients_in
from fedsdg.files.columns import Column
from fedsdg.parts import Share
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup, Updates
    from fedsdg.federation.tasks import Tasks


class Quantisation(Condition):
    """A share of the clients are weak: of each number of an update they send a few bits."""

    share: Share = 0.5
    """share of the clients, rounded to whole clients (halves up); those of a smaller share are
    among those of a larger one, and attackers are never among them"""
    bits: Annotated[int, Field(ge=1, le=16)] = 4
    """bits for each number: 2^bits levels, equally far apart between the least and the greatest
    number of the update"""
    who: Literal["chance", "slowest"] = "chance"
    "drawn by `chance`, or the `slowest` clients (needs `compute`)"

    columns: ClassVar = (Column("clients", "weak", "bool", "whether it sends a few bits"),)

    def prepare(self, data: ClientData) -> ClientData:
        """Choose the weak clients; it follows attackers and speeds."""
        clients = data.num_clients
        order = stream("quantisation", data.seed).permutation(clients)
        if self.who == "slowest":
            order = np.argsort(data.facts["speed"], kind="stable")
        weak = np.zeros(clients, dtype=bool)
        weak[order[: clients_in(self.share, clients)]] = True
        return data.with_facts(weak=weak & ~data.flags("attacker"))

    def transform_upload(self, setup: Setup, t: int, sent: Updates, tasks: Tasks) -> Updates:
        """Round the updates of weak clients."""
        weak = np.flatnonzero(setup.data.facts["weak"][sent.clients])
        if not len(weak) or not sent.update.shape[1]:
            return sent
        columns = np.flatnonzero(trained_columns(setup.layout.of_round(t)))
        update = sent.update.clone()
        for row in weak.tolist():
            generator = stream("quantisation", setup.data.seed, t, int(sent.clients[row]))
            values = update[row, columns].double().cpu().numpy()
            update[row, columns] = update.new_tensor(self.quantised(values, generator))
        return replace(sent, rows={**sent.rows, "update": update})

    def quantised(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return numbers [n] as they arrive; all are NaN if one is not finite."""
        low = float(values.min())
        high = float(values.max())
        if not np.isfinite(high - low):
            return np.full(len(values), np.nan)
        steps = 2**self.bits - 1
        position = (values - low) / ((high - low) or 1.0) * steps
        below = np.floor(position)
        share = (below + (generator.random(len(values)) < position - below)) / steps
        return np.asarray(low * (1 - share) + high * share)

    def message_bytes(self, layout: models.Layout) -> int:
        """Return the bytes of one quantised update."""
        from safetensors.numpy import save

        count = int(trained_columns(layout).sum())
        levels = np.zeros(-(-count * self.bits // 8), dtype=np.uint8)
        return len(save({"levels": levels, "ends": np.zeros(2)})) if count else 0


def trained_columns(layout: models.Layout) -> np.ndarray:
    """Return which communicated parameters train, bool [d]."""
    return np.repeat(
        [spec.trainable for spec in layout.communicated],
        [spec.size for spec in layout.communicated],
    )
