"""SCAFFOLD's server: the mean update, and the mean of all clients' control variates."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.parts import Range, part


@part
class Scaffold(PlannedRule):
    """x += server_rate (1/M) sum_S Delta_i and c += (1/K) sum_S Delta c_i.

    Karimireddy et al. 2020, Algorithm 1, lines 16-17. Uploads: update [M, d] and control [M, d],
    Delta c_i = c_i+ - c_i. With every c_i starting at 0 like c, the invariant c = (1/K) sum of all
    K c_i holds after every round (K, not M: clients outside the cohort keep their c_i). Clients
    that never take part are none of the K.
    State: control c [d], in the dtype of the uploads; it is broadcast. The weights are uniform.
    Diagnostics: control_norm, ||c|| after the round.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", "control")

    server_rate: Annotated[float, Range(1e-6, 1e6)] = 1.0
    "η_g of SCAFFOLD's server, which multiplies the step"

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        return {"control": torch.zeros(d)}

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"control": state["control"]}

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates, changes = rows["update"], rows["control"]
        if changes.shape != updates.shape:
            raise ValueError(
                f"upload 'control' has shape {changes.shape}, 'update' has {updates.shape}; "
                f"a control variate has one entry per parameter"
            )
        size = updates.shape[0]
        change = changes.weighted_sum(np.full(size, 1.0 / (context.num_clients - context.held_out)))
        require_finite(changes, change, context, "control")
        control = state["control"].to(change) + change
        return Plan(
            Combination(np.full(size, self.server_rate / size)),
            np.full(size, 1.0 / size),
            {"control": control},
            {"control_norm": changes.norm(control)},
        )
