"""The weighted mean of the updates (FedAvg)."""

from __future__ import annotations

from collections.abc import Mapping

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, State
from fedsdg.aggregation.weights import Weighed


class Mean(Weighed):
    """step = sum_k w_k Delta_k with w_k = n_k / sum_j n_j.

    n_k is what client k counts by: its training samples, 1, or its local steps per epoch. A client
    with n_k = 0 has no weight; ValueError if all are 0.
    Source: McMahan et al. 2017, Algorithm 1.

    Example:
        >>> from fedsdg.aggregation import aggregate
        >>> import numpy as np
        >>> clients = [np.array([2.0]), np.array([6.0])]
        >>> aggregate(Mean(), np.zeros(1), clients, num_samples=[3, 1]).parameters
        array([3.])
    """

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        counts = self.counts(context)
        weights = counts / counts.sum()
        return Plan(Combination(weights), weights, state)
