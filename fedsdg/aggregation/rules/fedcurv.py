"""FedCurv's server: the mean update, and the sums of the clients' quadratic penalties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Combination, Context, Plan, State, UploadRequest
from fedsdg.lazy import torch

SUMS = ("fisher", "fisher_theta")
"""I_k and I_k theta_k, elementwise: of client k as uploads, summed over the cohort as state."""


class FedCurv(Mean):
    """step = sum_k (n_k / sum_j n_j) Delta_k; the sums of the last cohort go to every client.

    Uploads: update, fisher (I_k, the diagonal of client k's Fisher information at theta_k) and
    fisher_theta (I_k theta_k), each [M, d].
    State: fisher [d] and fisher_theta [d], the sums over the last cohort, 0 before the first round.
    Source: Shoham et al. 2019, equations 6 and 7.
    """

    reads: ClassVar[tuple[str, ...]] = ("update", *SUMS)
    probes: ClassVar[tuple[UploadRequest, ...]] = (UploadRequest("fisher"),)

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        return {name: torch.zeros(d) for name in SUMS}

    def broadcast(self, state: State) -> State:
        """Return what is sent to every client beside the model."""
        return {name: state[name] for name in SUMS}

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        mean = super().plan(rows, context, state)
        ones = Combination(np.ones(rows["update"].size))
        return Plan(mean.step, mean.weights, {name: rows[name].vector(ones) for name in SUMS})
