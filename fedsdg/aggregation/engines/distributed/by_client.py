"""The door to every rule for ranks that each hold the whole parameters of some clients."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, NamedTuple

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
from fedsdg.aggregation.engines.distributed.exchange import Layout, join_columns, shard_by_columns
from fedsdg.aggregation.engines.distributed.peers import DEFAULT_TIMEOUT, Peers
from fedsdg.aggregation.engines.memory.checks import kind
from fedsdg.aggregation.engines.memory.kinds import (
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


def aggregate_by_client(
    rule: str | Mapping[str, Any] | Rule,
    global_params: Any,
    own_params: Mapping[Any, Any],
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
    """`aggregate` where each rank holds clients of its own, one, several or none.

    All ranks of the group call it with the same arguments, but for their own clients: own_params
    by client id (texts or whole numbers, each on one rank only), num_samples, num_batches and
    uploads of these. The cohort is the clients of rank 0 in their order, then those of rank 1, ….
    Every rank gets the same new parameters, weights by client id of the whole cohort, diagnostics,
    dropped clients and state, to the last bit.

    Instead of meeting on one rank, updates are cut into columns, one range per rank: each rank
    receives its columns of all clients, applies the rule to them, and sends its columns of the new
    parameters (and of SCAFFOLD's control) to all. So beside its own clients and the global
    parameters a rank holds O(M d / ranks) numbers, and the buffers of an exchange
    (`columns.BUFFER_BYTES`).

    group, timeout: see `Peers`. Raises what `aggregate_sharded` raises, and ValueError for a client
    that is on two ranks. Errors about a client name the rank that it is on.
    """
    peers = Peers(group, timeout)
    found: dict[str, Any] = {}

    def prepare() -> dict[str, Any]:
        call = found["call"] = planned_rule(rule)
        check_on_nonfinite(on_nonfinite)
        origin = found["origin"] = global_tensors(global_params)
        found["targets"] = None if out is None else out_tensors(out, global_params, origin)
        if not isinstance(own_params, Mapping):
            raise ValueError(f"own_params is {kind(own_params)}; give a mapping by client id")
        ids = [_id(client) for client in own_params]
        sent = {"update": list(own_params.values()), **further_uploads(uploads, ids)}
        found["tensors"] = {
            name: [
                tensors_like(who(client, name), params, global_params, origin)
                for client, params in zip(ids, rows, strict=True)
            ]
            for name, rows in sent.items()
        }
        bad = [
            (client, {str(name): count for name, count in counts.items()})
            for client, counts in nonfinite_by_client(ids, found["tensors"], on_nonfinite).items()
        ]
        found["own"] = _Own(ids, *_counts(ids, num_samples, num_batches), bad)
        everyone = Cohort([], False, None, None, client_samples, num_clients, round).context()
        return {
            "the function called": "aggregate_by_client",
            "the rule": content(call),
            "client_samples or num_clients": everyone.client_samples.tolist(),
            "the names of the uploads": list(sent),
            "the round": everyone.round,
            "the state": _fingerprint(state),
            "on_nonfinite": on_nonfinite,
            "the global parameters": fingerprint(origin),
        }

    check_agreement(peers, prepare)
    call, origin, targets = found["call"], found["origin"], found["targets"]
    everyone = [_Own(*json.loads(text)) for text in peers.texts(json.dumps(found["own"]))]
    ids = _all_ids(everyone)
    cohort = Cohort(
        ids,
        False,
        _joined("num_samples", everyone, [own.samples for own in everyone]),
        _joined("num_batches", everyone, [own.batches for own in everyone]),
        client_samples,
        num_clients,
        round,
    )
    context = cohort.context()
    cohort.check_counts(call)
    d = sum(tensor.numel() for tensor in origin.values())
    known = cohort.state(call, state, context, d)
    dropped: dict[Hashable, dict[str, int]] = {
        client: counts for own in everyone for client, counts in own.bad
    }
    check_some_left(ids, dropped)
    if not ids:
        result = new_like(global_params) if out is None else out
        write_copies(views(result) if targets is None else targets, origin)
        return Aggregated(result, {}, {}, known, {})

    kept = [k for k, client in enumerate(ids) if client not in dropped]
    layout = Layout(origin, peers.size)
    mine = layout.of(peers.rank)
    counts = [sum(client not in dropped for client in own.ids) for own in everyone]
    own_kept = [k for k, client in enumerate(found["own"].ids) if client not in dropped]
    tensors = {
        name: shard_by_columns(peers, layout, counts, [rows[k] for k in own_kept], origin)
        for name, rows in found["tensors"].items()
    }
    shard = {name: origin[name].reshape(-1)[part] for name, part in mine.items()}
    columns = slice(layout.bounds[peers.rank], layout.bounds[peers.rank + 1])
    by_column = sharded_state(call, context.client_samples) if known else set()
    cut = {name: value[columns] if name in by_column else value for name, value in known.items()}
    # With the strides of new tensors, whatever those of the parameters.
    new = peers.agreed(lambda: {name: part.new_empty(part.shape) for name, part in shard.items()})
    plan = apply(peers, call, shard, ids, kept, tensors, context, cut, new)
    result = peers.agreed(lambda: new_like(global_params))
    join_columns(peers, layout, new, views(result))
    after = dict(plan.state)
    for name in by_column:
        full = after[name].new_empty(d)
        join_columns(peers, Layout({name: full}, peers.size), {name: after[name]}, {name: full})
        after[name] = full
    if targets is not None:
        write_copies(targets, views(result))
        result = out
    return reported(result, replace(plan, state=after), context, ids, False, dropped)


class _Own(NamedTuple):
    """What a rank tells the others of its clients."""

    ids: list[Any]
    samples: list[float] | None
    batches: list[float] | None
    bad: Sequence[tuple[Hashable, dict[str, int]]]
    """The clients to drop, with their non-finite values by tensor."""


def _id(client: Any) -> Any:
    if isinstance(client, Integral) and not isinstance(client, bool):
        return int(client)
    if not isinstance(client, str):
        raise ValueError(
            f"client {client}: the id is {kind(client)}; only texts and whole numbers are the same "
            f"on every rank"
        )
    return client


def _counts(
    ids: list[Any], samples: Any, batches: Any
) -> tuple[list[float] | None, list[float] | None]:
    """num_samples and num_batches, checked, of the clients of this rank."""
    context = Cohort(ids, False, samples, batches).context()
    return (
        None if samples is None else context.num_samples.tolist(),
        None if batches is None else context.num_batches.tolist(),
    )


def _all_ids(everyone: Sequence[_Own]) -> list[Any]:
    places: dict[Any, int] = {}
    for rank, own in enumerate(everyone):
        for client in own.ids:
            if client in places:
                raise ValueError(
                    f"client {client} is on rank {places[client]} and on rank {rank}; give every "
                    f"client to one rank"
                )
            places[client] = rank
    return list(places)


def _joined(
    name: str, everyone: Sequence[_Own], counts: Sequence[list[float] | None]
) -> list[float] | None:
    """The counts of all clients; None if no rank with clients gave any."""
    with_clients = [rank for rank, own in enumerate(everyone) if own.ids]
    missing = [rank for rank in with_clients if counts[rank] is None]
    if missing and len(missing) < len(with_clients):
        raise ValueError(f"rank {missing[0]} gave no {name}, as others did; give them on all ranks")
    if missing or not with_clients:
        return None
    return [count for rank in with_clients for count in counts[rank] or []]


def _fingerprint(state: Any) -> Any:
    """Of a state that is well-formed; any other is refused later, on every rank."""
    tensors = isinstance(state, Mapping) and all(
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type != "meta"
        for value in state.values()
    )
    return fingerprint(state) if tensors else type(state).__name__
