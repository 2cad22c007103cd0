"""FedCurv's server: the mean update, and what the clients' quadratic penalties sum to."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Plan, PlannedRule
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Ask, Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.aggregation.weights import Weighed
from fedsdg.parts import part

SUMS = ("fisher", "fisher_theta")
"""I_j and I_j theta_j, element by element: of client j, and summed over the cohort."""


@part
class FedCurv(Weighed, PlannedRule):
    """step = sum_k (n_k / sum n) Delta_k; the two sums of the last cohort go to every client.

    Client k trains on F_k(theta) + lambda sum_{j != k} (theta - theta_j)' diag(I_j) (theta -
    theta_j). But for a constant that is theta' diag(S) theta - 2 theta' T with S = sum_{j != k} I_j
    and T = sum_{j != k} I_j theta_j. So the sums over all of the cohort suffice, of which a client
    that was in it takes off its own terms.

    Uploads: update, fisher (I_k, the diagonal of client k's Fisher information at theta_k) and
    fisher_theta (I_k theta_k), each [M, d]. State: fisher [d] and fisher_theta [d], the sums over
    the last cohort, 0 before the first round; both are broadcast, so a model costs three times its
    bytes in either direction. A cohort's sums replace the last one's: curvature at old parameters
    does not pile up. Raises ValueError when the counts n_k sum to zero.
    Source: Shoham et al. 2019, equations 6 and 7.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", *SUMS)
    probes: ClassVar[tuple[Ask, ...]] = (Ask("fisher"),)

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(d) for name in SUMS}

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: state[name] for name in SUMS}

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        shape = rows["update"].shape
        sums = {}
        for name in SUMS:
            if rows[name].shape != shape:
                raise ValueError(
                    f"upload {name!r} has shape {rows[name].shape}, 'update' has {shape}; the "
                    f"Fisher information has one entry per parameter"
                )
            sums[name] = rows[name].weighted_sum(np.ones(shape[0]))
            require_finite(rows[name], sums[name], context, name)
        mean = Mean(self.weights).plan(rows, context, {})
        return Plan(mean.step, mean.weights, sums, checked=mean.checked)
