"""A rule in two halves: what it has to know of the updates, and what is then done to each column.

The first half, `plan`, sees M vectors only through `Rows`: a few numbers per client or pair of
clients. The second, the `step`, treats every column alike and apart from the others. So one rule
runs on updates in memory, in files, or spread over processes, and writes its result wherever it is
wanted. Expected use, of a rule::

    class Nearest(PlannedRule):
        def plan(self, rows, context, state):
            distances, _ = rows["update"].squared_distances()
            require_finite(rows["update"], distances, context)
            weights = ...                                     # [M], from [M, M]
            return Plan(Combination(weights), weights, dict(state), checked=True)

and of a plan: `step_of(plan, rows, context)` is the step [d].
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import torch

from fedsdg.aggregation.engines.ahead import Ahead, go_ahead
from fedsdg.aggregation.engines.rows import Rows, TensorRows
from fedsdg.aggregation.outcome import RuleFault, check_numbers, check_weights
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload, require_finite, required


class Step(Protocol):
    """A function of every column by itself."""

    @property
    def inside(self) -> bool:
        """Whether it lies between the smallest and the largest of 0 and the column's numbers, so
        that of finite parameters come finite ones."""
        ...

    def of(self, rows: Rows) -> torch.Tensor:
        """[d] of the rows; of some of the columns, the same numbers there."""
        ...


@dataclass(frozen=True, eq=False)
class Combination:
    """sum_k c_k x_k."""

    coefficients: np.ndarray
    """[M] float64."""

    @property
    def inside(self) -> bool:
        c = self.coefficients
        return bool((c >= 0).all() and c.sum() <= 1 + 1e-9)

    def of(self, rows: Rows) -> torch.Tensor:
        return rows.weighted_sum(self.coefficients)


@dataclass(frozen=True)
class OrderStatistics:
    """The mean of the numbers of rank trim … M-1-trim of the column."""

    trim: int
    inside = True

    def of(self, rows: Rows) -> torch.Tensor:
        return rows.trimmed_mean(self.trim)


@dataclass(frozen=True)
class Nothing:
    """0 everywhere."""

    inside = True

    def of(self, rows: Rows) -> torch.Tensor:
        return rows.weighted_sum(np.zeros(rows.shape[0])).zero_()


@dataclass(frozen=True, eq=False)
class Plan:
    """The outcome of a rule but for the arithmetic on whole updates."""

    step: Step
    """What the server adds to its model, as a function of the upload `update`."""
    weights: np.ndarray | None
    """[M] float64 weights of the clients, summing to 1; None where a rule has none."""
    state: dict[str, torch.Tensor]
    """Goes back in with the next round."""
    diagnostics: dict[str, np.ndarray | float] = field(default_factory=dict)
    """Numbers to record: arrays [M] per client, or one float for the round."""
    checked: bool = False
    """Whether the plan saw that all numbers of the updates are finite; else the step shows it."""


def planned(
    rule: "PlannedRule",
    rows: Mapping[str, Rows],
    context: Context,
    state: Mapping[str, torch.Tensor],
) -> Plan:
    """Return the plan of a rule, given all that was sent.

    Raises:
        ValueError: An upload that the rule reads was not sent.
        RuleFault, NonFiniteError: see `check_plan` and `blame_uploads`.
    """
    plan = rule.plan(read_by(rule, rows), context, state)
    try:
        check_plan(rule, plan, context)
    except RuleFault:
        blame_uploads(rule, rows, context)
        raise
    return plan


def read_by(rule: "PlannedRule", rows: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the uploads that a rule reads; ``ValueError`` if one was not sent."""
    return {name: required(rows, name) for name in rule.reads}


def check_plan(rule: "PlannedRule", plan: Plan, context: Context) -> None:
    """Raise ``RuleFault`` unless coefficients and weights are one finite real number a client.

    No weight is below 0.
    """
    if isinstance(plan.step, Combination):
        check_numbers(rule, "coefficients", plan.step.coefficients, context.clients)
    check_weights(rule, plan.weights, context.clients)


def blame_uploads(rule: "PlannedRule", rows: Mapping[str, Rows], context: Context) -> None:
    """Raise ``NonFiniteError`` where a faulty plan may come of what a client sent."""
    for name, own in read_by(rule, rows).items():
        require_finite(own, None, context, name)


class PlannedRule(StatelessRule):
    """A rule that says what it will do before it does it; called on tensors, it does it."""

    reads: ClassVar[tuple[str, ...]] = ("update",)
    """The uploads that the plan looks at."""

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        """What to do with the uploads named in `reads`, each M rows.

        Raises NonFiniteError, naming the client, for numbers that are not finite where it sees
        them, ValueError for a cohort that the rule cannot handle.
        """
        raise NotImplementedError

    def ahead(
        self, rows: Mapping[str, Ahead], context: Context, state: Mapping[str, torch.Tensor]
    ) -> None:
        """Ask in tensors, as far as that can be said, what plan and step are going to ask, in the
        same order: a GPU then goes on while the host waits (see `ahead`). Nothing depends on it.
        """

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        rows = {
            name: TensorRows(checked_upload(uploads, context, name, finite=False))
            for name in self.reads
        }
        go_ahead(rows, lambda there: self.ahead(there, context, state))
        plan = planned(self, rows, context, state)
        step = step_of(plan, rows["update"], context)
        return Aggregate(step[None], plan.weights, plan.state, plan.diagnostics)


def step_of(plan: Plan, rows: Rows, context: Context) -> torch.Tensor:
    """The step [d] of a plan. Raises NonFiniteError where it comes to light only now."""
    step = plan.step.of(rows)
    if not plan.checked:
        require_finite(rows, step, context)
    return step
