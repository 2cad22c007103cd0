"""A rule applied to what clients sent, the result written where it is wanted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows, form_matrix
from fedsdg.aggregation.engines.memory.rounding import ParameterNorm, Rounding
from fedsdg.aggregation.engines.memory.writing import apart, write_sums
from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.outcome import check_aggregate
from fedsdg.aggregation.plans import Plan, PlannedRule, planned
from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.aggregation.uploads import ADAPTERS, adapters_of, require_finite


@dataclass(frozen=True, eq=False)
class Call:
    """A cohort's parameters and further uploads, and where the new parameters go."""

    rule: Rule
    origin: StateDict
    sent: Mapping[str, Sequence[StateDict]]
    """By upload, a list of the clients'; "update" stands for their parameters."""
    context: Context
    state: Mapping[str, torch.Tensor]
    targets: StateDict
    fresh: bool
    """Whether the targets hold nothing yet; else they change only if all goes well."""

    def keeping(self, kept: Sequence[int]) -> "Call":
        """The same without the other clients."""
        context = replace(
            self.context,
            clients=self.context.clients[kept],
            num_samples=self.context.num_samples[kept],
            num_batches=self.context.num_batches[kept],
        )
        sent = {name: [params[k] for k in kept] for name, params in self.sent.items()}
        return replace(self, context=context, sent=sent)

    def apply(self) -> Plan | Aggregate:
        """Write the new parameters; what came of it beside them.

        Raises NonFiniteError, without saying whose, for numbers that are not finite, what the rule
        raises, ValueError for a rule with more than one model.
        """
        if isinstance(self.rule, PlannedRule):
            return self._planned(self.rule)
        return self._on_matrices()

    def _planned(self, rule: PlannedRule) -> Plan:
        origin, clients = self.origin, self.sent["update"]
        if not self.fresh:
            origin, *clients = apart(self.targets, [origin, *clients])
        updates = ParameterRows(origin, clients)
        further = {
            name: ParameterRows(origin, params, subtract=False, dtype=updates.dtype)
            for name, params in self.sent.items()
            if name != "update"
        }
        compared = _compared(rule, origin, clients)
        if ADAPTERS in rule.reads:
            further[ADAPTERS] = ParameterRows(*compared, dtype=updates.dtype)
        norm = ParameterNorm(Rounding(*compared), updates.dtype)
        context = replace(self.context, parameter_norm=norm)
        plan = planned(rule, {"update": updates, **further}, context, self.state)
        updates.write(plan, self.targets, fresh=self.fresh)
        return plan

    def _on_matrices(self) -> Aggregate:
        clients = self.sent["update"]
        matrices = {
            name: form_matrix(self.origin, params, subtract=name == "update")
            for name, params in self.sent.items()
        }
        for name, rows in matrices.items():
            require_finite(TensorRows(rows), None, self.context, name)
        dtype = matrices["update"].dtype
        compared = _compared(self.rule, self.origin, clients)
        if ADAPTERS in getattr(self.rule, "reads", ()):
            matrices[ADAPTERS] = form_matrix(*compared, dtype=dtype)
        norm = ParameterNorm(Rounding(*compared), dtype)
        context = replace(self.context, parameter_norm=float(norm))
        if (count := self.rule.models(context.num_clients)) != 1:
            raise ValueError(f"the rule serves {count} models; this door is for rules with one")
        found = self.rule(matrices, context, self.state)
        check_aggregate(self.rule, found, 1, matrices["update"], context.clients)
        (origin,) = apart(self.targets, [self.origin])
        write_sums(self.targets, origin, found.steps[0], fresh=self.fresh)
        return found


def _compared(
    rule: Rule, origin: StateDict, clients: Sequence[StateDict]
) -> tuple[StateDict, Sequence[StateDict]]:
    """Return the parameters behind the updates whose directions the rule compares."""
    if ADAPTERS not in getattr(rule, "reads", ()):
        return origin, clients
    return adapters_of(origin), [adapters_of(params) for params in clients]
