"""Any rule with weights, with late updates weighing less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, State, Wrapper


class Compensated(Wrapper):
    """Weights w'_k in proportion to w_k / (1 + tau_k), w being the inner rule's, summing to 1.

    tau_k is by how many rounds the update of client k is late (Context.ages). The inner step
    sum_k c_k Delta_k, with c = w for most rules, becomes sum_k (w'_k / w_k) c_k Delta_k.
    ValueError if an update is late and the inner step is no such sum (medians, clusters).
    """

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        plan = self.inner.plan(rows, context, state)
        resting = not np.any(getattr(plan.step, "coefficients", 1))
        if context.ages is None or not context.ages.any() or resting:
            return plan
        if plan.weights is None or not isinstance(plan.step, Combination):
            raise ValueError(
                f"late updates cannot be compensated with {self.inner!r}, whose step is no "
                "weighted sum of updates; use another rule, or discard late updates"
            )
        factors = 1 / (1 + context.ages)
        factors /= plan.weights @ factors
        of_rows = factors if plan.rows is None else factors[plan.rows]
        step = replace(plan.step, coefficients=plan.step.coefficients * of_rows)
        return replace(plan, step=step, weights=plan.weights * factors)
