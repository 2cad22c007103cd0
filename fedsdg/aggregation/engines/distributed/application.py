"""A rule applied to columns that are spread over ranks."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.distributed.peers import Peers
from fedsdg.aggregation.engines.distributed.sharded_rows import ShardedNorm, ShardedRows
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.parameter_rows import ParameterRows
from fedsdg.aggregation.engines.memory.rounding import Rounding, check_differences
from fedsdg.aggregation.outcome import RuleFault
from fedsdg.aggregation.plans import Plan, PlannedRule, blame_uploads, check_plan, read_by
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import ADAPTERS, NonFiniteError, adapters_of


def planned_rule(rule: Any) -> PlannedRule:
    """`make_rule`, for rules that can run on rows which no process holds whole."""
    rule = make_rule(rule)
    if not isinstance(rule, PlannedRule):
        raise ValueError(
            f"rule is a {type(rule).__name__}, which needs whole updates; over ranks only a "
            f"PlannedRule can run (fedsdg.aggregation.plans)"
        )
    return rule


def apply(
    peers: Peers,
    rule: PlannedRule,
    origin: StateDict,
    ids: Sequence[Hashable],
    kept: Sequence[int],
    tensors: Mapping[str, Sequence[StateDict]],
    context: Context,
    state: Mapping[str, torch.Tensor],
    targets: StateDict,
) -> Plan:
    """Writes this rank's columns of the new parameters; the plan, the same on all ranks.

    origin: this rank's columns of the global parameters; the targets, of the same shapes, hold
    nothing yet. ids, context: of all clients, of which those at the positions `kept` take part.
    tensors: by upload the columns of these, all finite. Updates are formed in float64 if a tensor
    of any rank is float64, else in float32. What fails on one rank fails on all.
    """
    clients = tensors["update"]
    wide = peers.gathered(lambda: [any(t.dtype == torch.float64 for t in origin.values())], 1)
    dtype = torch.float64 if wide.any() else torch.float32
    updates = peers.agreed(lambda: ParameterRows(origin, clients, dtype=dtype))
    rows = {"update": ShardedRows(updates, peers)}
    for name in sorted(set(tensors) - {"update"}):
        sent = ParameterRows(origin, tensors[name], subtract=False, dtype=dtype)
        rows[name] = ShardedRows(sent, peers)
    compared: tuple[StateDict, Sequence[StateDict]] = origin, clients
    if ADAPTERS in rule.reads:
        compared = adapters_of(origin), [adapters_of(params) for params in clients]
        rows[ADAPTERS] = ShardedRows(ParameterRows(*compared, dtype=dtype), peers)
    context = replace(
        context,
        clients=context.clients[kept],
        num_samples=context.num_samples[kept],
        num_batches=context.num_batches[kept],
        parameter_norm=ShardedNorm(Rounding(*compared), dtype, peers),
    )

    def write() -> None:
        # In one exchange: what one rank finds in a plan all hear of before anybody goes on.
        check_plan(rule, plan, context)
        updates.write(plan, targets, fresh=True)

    try:
        plan = rule.plan(read_by(rule, rows), context, state)
        peers.agreed(write)
        return plan
    except RuleFault:
        blame_uploads(rule, rows, context)
        raise
    except NonFiniteError:
        # Of finite parameters: differences overflowed, unless the result did.
        peers.agreed(lambda: check_differences(origin, clients, [ids[k] for k in kept]))
        raise
    except ValueError as error:
        if len(kept) == len(ids):
            raise
        left_out = f"{len(ids) - len(kept)} of {len(ids)} clients were dropped as non-finite"
        raise ValueError(f"{error} ({left_out})") from error


def sharded_state(rule: PlannedRule, client_samples: np.ndarray) -> set[str]:
    """The names in the rule's state that have one number per parameter."""
    none, one = (rule.init(d, np.asarray(client_samples)) for d in (0, 1))
    return {name for name in one if one[name].shape != none[name].shape}
