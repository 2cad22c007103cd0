"""SCAFFOLD's server: the mean update, and the mean of all clients' control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State
from fedsdg.lazy import torch


class Scaffold(Rule):
    """step = server_rate (1/M) sum_k Delta_k, and c <- c + (1/K) sum_k Delta c_k.

    Uploads: update [M, d] and control [M, d], Delta c_k = c_k+ - c_k. Clients that never take part
    do not count among the K.
    State: control c [d], float64 or float32, broadcast to the clients. Uniform weights.
    Source: Karimireddy et al. 2020, Algorithm 1, lines 16 and 17.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", "control")

    server_rate: Annotated[float, Field(ge=1e-06, le=1000000.0)] = 1.0
    "η_g of SCAFFOLD's server, which multiplies the step"

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        return {"control": torch.zeros(d)}

    def broadcast(self, state: State) -> State:
        """Return what is sent to every client beside the model."""
        return {"control": state["control"]}

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        size = rows["update"].size
        able = context.num_clients - context.held_out
        change = rows["control"].vector(Combination(np.full(size, 1.0 / able)))
        control = state["control"].to(change) + change
        uniform = np.full(size, 1.0 / size)
        return Plan(Combination(self.server_rate * uniform), uniform, {"control": control})
