"""Any rule that weighs clients, with late updates weighing less."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows, TensorRows
from fedsdg.aggregation.plans import Combination, Nothing, Plan, PlannedRule
from fedsdg.aggregation.types import Ask, Context
from fedsdg.parts import part


@part
class Compensated(PlannedRule):
    """Weights w'_k in proportion to w_k / (1 + tau_k), summing to 1, w being the inner rule's.

    tau_k is by how many rounds the update of client k is late (Context.ages). The inner rule's step
    is sum_k c_k Delta_k, with c = w for most; it becomes sum_k (w'_k / w_k) c_k Delta_k, so that a
    rule that scales its updates (CGSV to unit length, SCAFFOLD by the server's rate) still does.
    Where nothing is late the outcome is the inner rule's, bit for bit. State and diagnostics are
    the inner rule's, which sees late updates as it sees the others: only their weight is less.

    Raises ValueError where the inner rule has no weights to lessen (medians): at once, if a trial
    with a few equal updates shows it, else in the first round with a late update. A rule that does
    nothing needs none.
    """

    inner: PlannedRule

    def __post_init__(self) -> None:
        if not isinstance(self.inner, PlannedRule):
            raise ValueError(
                f"inner={self.inner!r} is no PlannedRule; give one such as Mean(), and put a watch "
                f"around it: Screened(Compensated(...))"
            )
        try:
            plan = _trial(self.inner)
        except ValueError:  # It may ask for more clients, or for uploads that fit together.
            return
        self._require_weights(plan)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.reads

    @property
    def needs(self) -> str | None:
        needed: str | None = getattr(self.inner, "needs", None)
        return needed

    @property
    def probes(self) -> tuple[Ask, ...]:
        return self.inner.probes

    def require(self, cohort: int, clients: int) -> None:
        self.inner.require(cohort, clients)

    def init(self, d: int, client_samples: np.ndarray) -> dict[str, torch.Tensor]:
        return self.inner.init(d, client_samples)

    def broadcast(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.inner.broadcast(state)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        plan = self.inner.plan(rows, context, state)
        if context.ages is None or not context.ages.any() or isinstance(plan.step, Nothing):
            return plan
        self._require_weights(plan)
        assert isinstance(plan.step, Combination)
        assert plan.weights is not None
        factors = 1 / (1 + context.ages)
        factors /= plan.weights @ factors
        return replace(
            plan,
            step=Combination(plan.step.coefficients * factors),
            weights=plan.weights * factors,
        )

    def _require_weights(self, plan: Plan) -> None:
        weighs = plan.weights is not None and isinstance(plan.step, Combination)
        if not weighs and not isinstance(plan.step, Nothing):
            raise ValueError(
                f"late updates cannot be compensated with {self.inner!r}, which has no weights to "
                f"lessen; use a rule with weights, or discard late updates"
            )


def _trial(rule: PlannedRule) -> Plan:
    """What a rule plans for equal updates of one number each."""
    size = 64
    ones = np.ones(size)
    context = Context(1, np.arange(size), size, ones, size, ones, ones)
    rows = {name: TensorRows(torch.ones(size, 1, dtype=torch.float64)) for name in rule.reads}
    return rule.plan(rows, context, rule.init(1, ones))
