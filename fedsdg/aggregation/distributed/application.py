"""A rule applied to columns that are spread over ranks, and what is told of it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.distributed.peers import Peers
from fedsdg.aggregation.distributed.rows import ShardedRows
from fedsdg.aggregation.door import Aggregated
from fedsdg.aggregation.parameter_updates import flatten, form_updates, rounding_norms
from fedsdg.aggregation.plans import Plan, PlannedRule
from fedsdg.aggregation.rows import TensorRows
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.state_dict_checks import StateDict
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import checked_upload


def planned_rule(rule: Any) -> PlannedRule:
    """`make_rule`, for rules that can run on rows which no process holds whole."""
    rule = make_rule(rule)
    if not isinstance(rule, PlannedRule):
        raise ValueError(
            f"rule is a {type(rule).__name__}, which needs whole updates; over ranks only a "
            f"PlannedRule can run (fedsdg.aggregation.plans)"
        )
    return rule


def planned(
    peers: Peers,
    rule: PlannedRule,
    origin: StateDict,
    ids: Sequence[Hashable],
    kept: Sequence[int],
    tensors: Mapping[str, Sequence[StateDict]],
    context: Context,
    state: Mapping[str, torch.Tensor],
) -> tuple[Plan, ShardedRows]:
    """The rule's plan, the same on all ranks, and the updates to take its step of.

    origin: this rank's columns of the global parameters. ids, context: of all clients, of which
    those at the positions `kept` take part. tensors: by upload the columns of those, all finite.
    The updates are formed in float64 if a tensor of any rank is float64.
    """
    present = [ids[k] for k in kept]

    def facts() -> list[float]:
        wide = any(tensor.dtype == torch.float64 for tensor in origin.values())
        return [wide, *rounding_norms(origin, tensors["update"])]

    found = peers.gathered(facts, 1 + len(kept))
    dtype = torch.float64 if found[:, 0].any() else torch.float32
    rounding = float(np.hypot.reduce(found[:, 1:], axis=0).max())
    # In the units in which the rule turns it back into 1/2 eps(dtype of the updates) ||theta||.
    context = replace(
        context,
        clients=context.clients[kept],
        num_samples=context.num_samples[kept],
        num_batches=context.num_batches[kept],
        parameter_norm=rounding / (0.5 * torch.finfo(dtype).eps),
    )
    matrices = peers.agreed(
        lambda: {
            name: _matrix(origin, params, present, dtype, subtract=name == "update")
            for name, params in tensors.items()
        }
    )
    rows = {
        name: ShardedRows(TensorRows(checked_upload(matrices, context, name, finite=False)), peers)
        for name in rule.reads
    }
    try:
        return rule.plan(rows, context, state), rows["update"]
    except ValueError as error:
        if len(kept) == len(ids):
            raise
        left_out = f"{len(ids) - len(kept)} of {len(ids)} clients were dropped as non-finite"
        raise ValueError(f"{error} ({left_out})") from error


def reported(
    parameters: Any,
    plan: Plan,
    state: dict[str, torch.Tensor],
    context: Context,
    ids: Sequence[Hashable],
    kept: Sequence[int],
    listed: bool,
    dropped: dict[Hashable, dict[str, int]],
) -> Aggregated:
    """The outcome in the terms of `aggregate`; ids and context: of all clients."""

    def spread(values: Any, missing: float) -> np.ndarray:
        spread = np.full(len(ids), missing)
        spread[kept] = values
        return spread

    diagnostics: dict[str, Any] = {
        name: spread(value, np.nan) if np.shape(value) == (len(kept),) else value
        for name, value in plan.diagnostics.items()
    }
    if "winner" in diagnostics:
        by_row = dict(zip(context.clients.tolist(), ids, strict=True))
        diagnostics["winner"] = by_row.get(diagnostics["winner"], diagnostics["winner"])
    weights: Any = None if plan.weights is None else spread(plan.weights, 0.0).tolist()
    if weights is not None and not listed:
        weights = dict(zip(ids, weights, strict=True))
    return Aggregated(parameters, weights, diagnostics, state, dropped)


def sharded_state(rule: PlannedRule, client_samples: np.ndarray) -> set[str]:
    """The names in the rule's state that have one number per parameter."""
    none, one = (rule.init(d, np.asarray(client_samples)) for d in (0, 1))
    return {name for name in one if one[name].shape != none[name].shape}


def _matrix(
    origin: StateDict,
    params: Sequence[StateDict],
    ids: Sequence[Hashable],
    dtype: torch.dtype,
    *,
    subtract: bool,
) -> torch.Tensor:
    """[M, columns] in the dtype that all ranks have agreed on."""
    if not origin:
        return torch.empty(len(params), 0, dtype=dtype)
    if dtype == torch.float64:
        origin = {name: tensor.double() for name, tensor in origin.items()}
        params = [{name: t.double() for name, t in client.items()} for client in params]
    return (form_updates if subtract else flatten)(origin, params, ids)
