"""Weak agents send updates of a few bits per number, rounded up or down at random.

Suresh et al. 2017: a number becomes one of the two nearest of 2^b levels, equally far apart between
the least and the greatest number of the update, so that its expectation is the number itself. Sent
are both ends and b bits for each number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from safetensors.numpy import save

from fedsdg.files.columns import Column
from fedsdg.next_federation.client_groups import clients_in
from fedsdg.next_federation.conditions.condition import ClientData, Condition
from fedsdg.parts import Range, part
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.next_federation.model_names import Layout
    from fedsdg.next_federation.setup import Setup, Updates
    from fedsdg.next_federation.tasks import Tasks


@part
class Quantisation(Condition):
    """A share of the clients are weak: of each number of an update they send a few bits."""

    share: Annotated[float, Range(0, 1)] = 0.5
    """share of the clients, rounded to whole clients (halves up); those of a smaller share are
    among those of a larger one, and attackers are never among them"""
    bits: Annotated[int, Range(1, 16)] = 4
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
        weak = np.flatnonzero(setup.facts["weak"][sent.clients])
        if not len(weak) or not sent.update.shape[1]:
            return sent
        columns = np.flatnonzero(trained_columns(setup.layout.of_round(t)))
        update = sent.update.clone()
        for row in weak.tolist():
            generator = stream("quantisation", setup.seed, t, int(sent.clients[row]))
            values = update[row, columns].double().cpu().numpy()
            update[row, columns] = update.new_tensor(self.quantised(values, generator))
        return replace(sent, rows={**sent.rows, "update": update})

    def quantised(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return numbers [n] as they arrive; all are NaN if one is not finite."""
        low = float(values.min())
        high = float(values.max())
        if not np.isfinite(high - low):
            return np.full(len(values), np.nan)
        if low == high:
            return np.full(len(values), low)
        steps = 2**self.bits - 1
        position = (values - low) / (high - low) * steps
        below = np.floor(position)
        share = (below + (generator.random(len(values)) < position - below)) / steps
        arrived: np.ndarray = low * (1 - share) + high * share
        return arrived

    def message_bytes(self, layout: Layout) -> int:
        """Return the bytes of one quantised update."""
        return _message_bytes(int(trained_columns(layout).sum()), self.bits)


@cache
def _message_bytes(count: int, bits: int) -> int:
    levels = np.zeros(-(-count * bits // 8), dtype=np.uint8)
    ends = np.zeros(2)
    return len(save({"levels": levels, "ends": ends})) if count else 0


def trained_columns(layout: Layout) -> np.ndarray:
    """Return which communicated parameters train, bool [d]."""
    trained = [spec.trainable for spec in layout.communicated]
    return np.repeat(trained, [spec.size for spec in layout.communicated])
