"""The doors over ranks: the same call on all of them, but that one may be told something else."""

import math

import numpy as np
import torch

from fedsdg.aggregation import aggregate_by_client, aggregate_sharded

from . import arrays
from .outcomes import documented, generator, pick


def outcomes(rank, size, first, count):
    """Of each case what came of it on this rank, and what is wrong with that, if anything."""
    return [outcome(rank, size, generator("ranks", k)) for k in range(first, first + count)]


def bad_option(rng):
    """An argument that no rank may be given."""
    return pick(rng, [
        ("rule", pick(rng, [*arrays.BAD_RULES, 3, None, object(), np.ones((2, 2))])),
        ("on_nonfinite", pick(rng, arrays.JUNK)), ("round", pick(rng, [0, 1.5, None, "1", [1]])),
        ("num_clients", pick(rng, [0, -1, "3", 1.5, math.nan, [1], 10**400])),
        ("client_samples", pick(rng, [3, "abc", [-1], [None], torch.ones(2, device="meta")])),
        ("num_samples", pick(rng, [3, "abc", object(), 1j, [1] * 9])),
        ("uploads", pick(rng, [3, "x", [1], {"update": 3}, {"control": 3}])),
        ("state", pick(rng, [3, "x", [1], {"r": 3}, {"r": torch.eye(2).to_sparse()}])),
        ("out", pick(rng, [3, "x", [], torch.ones(2, device="meta")])),
    ])  # fmt: skip


def outcome(rank, size, rng):
    """(what came of it, what is wrong): the former must be the same on all ranks."""
    call = arrays.drawn_call(rng)
    call.listed, call.ids = False, list(range(len(call.clients)))
    for _ in range(int(rng.integers(3))):
        change = pick(rng, [arrays.odd_client, arrays.odd_origin, arrays.same_twice,
                            arrays.far_away, arrays.broadcast_client])  # fmt: skip
        change(call)
        call.edits.append(change.__name__)
    clients, arguments = arrays.arguments_of(call)
    arguments = arrays.with_clients(call, list(clients), arguments)
    del arguments["client_params"]
    call.before = [arrays.flat(pieces) for pieces in (call.origin, *call.clients)]
    call.given_out = None
    holders = [int(rng.integers(size)) for _ in call.ids]
    sharded = call.kind == "dict" and bool(rng.integers(2))
    victim, how = int(rng.integers(size)), pick(rng, ["right", "option", "client", "client"])
    wrong = False
    if how == "client" and not sharded:
        wrong = pick(rng, arrays.BAD_CLIENTS)(call, clients)
    elif how != "right":
        (name, value), wrong = bad_option(rng), True
        call.edits.append(name)
        if rank == victim:
            arguments[name] = value
    rule, origin = arguments.pop("rule"), arguments.pop("global_params")
    if not sharded and "num_samples" in arguments and not (wrong and rank == victim):
        counts = np.asarray(call.counts).tolist()
        arguments["num_samples"] = {k: counts[k] for k in call.ids if holders[k] == rank}
    given = arrays.leaves([origin, clients, list(arguments.values())])
    before = arrays.marks(given)
    what = f"{call.rule}, {call.kind}, {call.dtypes}, {call.edits}, rank {rank} of {size}"
    try:
        if sharded:
            mine = call.names[rank::size]
            shards = [{name: params[name] for name in mine} for params in (origin, *clients)]
            rows = dict(zip(call.ids, shards[1:], strict=True))
            found = aggregate_sharded(rule, shards[0], rows, **arguments, timeout=60)
        else:
            own = {k: clients[k] for k in call.ids if holders[k] == rank}
            found = aggregate_by_client(rule, origin, own, **arguments, timeout=60)
    except Exception as error:
        fault, short = documented(error), f"{type(error).__name__}: {error}"
        if fault is None and not wrong and arrays.due(call) is None:
            fault = f"refused: {error}"
    else:
        fault, short = "accepted" if wrong else None, repr(found.weights)
        if not wrong and not sharded:
            fault = arrays.check_result(call, found)
    if arrays.marks(given) != before:
        fault = fault or "an input was altered"
    return short, fault and f"{fault} [{what}]"
