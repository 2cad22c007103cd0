"""The door to every rule for parameters whose columns are spread over ranks."""

import json
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch

from fedsdg.aggregation.api import Aggregated, reported
from fedsdg.aggregation.arguments import check_on_nonfinite
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.engines.distributed.agreement import check_agreement, content, fingerprint
from fedsdg.aggregation.engines.distributed.application import (
    apply,
    planned_rule,
    sharded_state,
)
from fedsdg.aggregation.engines.distributed.peers import DEFAULT_TIMEOUT, Peers
from fedsdg.aggregation.engines.memory.checks import StateDict
from fedsdg.aggregation.engines.memory.kinds import (
    clients_of,
    global_tensors,
    new_like,
    out_tensors,
    tensors_like,
    views,
)
from fedsdg.aggregation.engines.memory.screening import (
    check_some_left,
    further_uploads,
    nonfinite_by_client,
    who,
)
from fedsdg.aggregation.engines.memory.writing import write_copies
from fedsdg.aggregation.types import Rule


def aggregate_sharded(
    rule: str | Mapping[str, Any] | Rule,
    global_shard: Any,
    client_shards: Any,
    *,
    num_samples: Any = None,
    num_batches: Any = None,
    client_samples: Any = None,
    num_clients: int | None = None,
    uploads: Mapping[str, Any] | None = None,
    round: int = 1,
    state: Mapping[str, torch.Tensor] | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    out: Any = None,
    group: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Aggregated:
    """`aggregate` where each rank holds some of the parameters, of the server and of every client.

    All ranks of the group call it, with the same clients in the same order and the same arguments,
    but for what belongs to the columns: global_shard, the clients' shards and uploads, out, and
    entries of the state that have a number per parameter (SCAFFOLD's control). A shard is any kind
    of parameters that `aggregate` takes, of any size, also empty: {} or an array of size 0. Each
    rank gets its shard of the new parameters, and the same weights, diagnostics, dropped clients
    and state, to the last bit, but for such entries.

    group, timeout: see `Peers`.

    Each rank sends each other one 21 numbers of 8 bytes that go with every call (digests, checks)
    and those of its rule: 2M+5 for "fedsdg", 4M+6 for "cgsv", M(M-1)/2 + 2 for Krum and the
    geometric median (a few times as many where attackers are far away), none for means and
    coordinate-wise rules. When dropping, the names of bad tensors too.

    Raises what `aggregate` raises, on all ranks with the same sentence, which names the rank whose
    shard is at fault; ValueError when ranks disagree about their arguments; DistributedError when
    one of them has died or does not answer. `out` is then unchanged, except after DistributedError.
    """
    peers = Peers(group, timeout)
    found: dict[str, Any] = {}

    def prepare() -> dict[str, Any]:
        call = found["call"] = planned_rule(rule)
        check_on_nonfinite(on_nonfinite)
        origin = found["origin"] = _shard(global_shard)
        found["targets"] = None if out is None else out_tensors(out, global_shard, origin)
        ids, clients, listed = found["clients"] = clients_of(client_shards)
        sent = {"update": clients, **further_uploads(uploads, ids)}
        found["tensors"] = {
            name: [
                tensors_like(who(client, name), params, global_shard, origin)
                for client, params in zip(ids, rows, strict=True)
            ]
            for name, rows in sent.items()
        }
        cohort = Cohort(ids, listed, num_samples, num_batches, client_samples, num_clients, round)
        context = found["context"] = cohort.context()
        cohort.check_counts(call)
        d = sum(tensor.numel() for tensor in origin.values())
        known = found["state"] = cohort.state(call, state, context, d)
        by_column = sharded_state(call, context.client_samples) if known else set()
        found["bad"] = nonfinite_by_client(ids, found["tensors"], on_nonfinite)
        return {
            "the function called": "aggregate_sharded",
            "the rule": content(call),
            "the clients": (listed, [str(client) for client in ids]),
            "num_samples": context.num_samples.tolist(),
            "num_batches": context.num_batches.tolist(),
            "client_samples or num_clients": context.client_samples.tolist(),
            "the names of the uploads": list(sent),
            "the round": context.round,
            "the state": fingerprint({n: known[n] for n in sorted(known) if n not in by_column}),
            "on_nonfinite": on_nonfinite,
        }

    check_agreement(peers, prepare)
    origin, targets, context = found["origin"], found["targets"], found["context"]
    ids, _, listed = found["clients"]
    dropped = found["bad"] if on_nonfinite == "raise" else _merged(peers, ids, found["bad"])
    check_some_left(ids, dropped)
    if not ids:
        result = new_like(global_shard) if out is None else out
        write_copies(views(result) if targets is None else targets, origin)
        return Aggregated(result, [] if listed else {}, {}, found["state"], {})

    kept = [k for k, client in enumerate(ids) if client not in dropped]
    tensors = {name: [rows[k] for k in kept] for name, rows in found["tensors"].items()}
    result = new_like(global_shard)
    plan = apply(
        peers, found["call"], origin, ids, kept, tensors, context, found["state"], views(result)
    )
    # Only now that no rank has anything against it: `out` changes everywhere or nowhere.
    if targets is not None:
        write_copies(targets, views(result))
        result = out
    return reported(result, plan, context, ids, listed, dropped)


def _shard(params: Any) -> StateDict:
    """The tensors of a shard; unlike whole parameters it may hold none."""
    if isinstance(params, Mapping | list | tuple) and not params:
        return {}
    return global_tensors(params)


def _merged(
    peers: Peers, ids: list[Hashable], bad: Mapping[Hashable, Mapping[str, int]]
) -> dict[Hashable, dict[str, int]]:
    """What all ranks found in their shards of the clients, added up."""
    own = [
        [k, {str(name): count for name, count in bad[client].items()}]
        for k, client in enumerate(ids)
        if client in bad
    ]
    total: dict[int, dict[str, int]] = {}
    for text in peers.texts(json.dumps(own)):
        for k, counts in json.loads(text):
            sums = total.setdefault(k, {})
            for name, count in counts.items():
                sums[name] = sums.get(name, 0) + count
    return {ids[k]: total[k] for k in sorted(total)}
