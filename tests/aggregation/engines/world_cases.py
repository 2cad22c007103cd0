"""What the processes of a `World` do, each by itself: the arguments are the same on every rank."""

import os
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from fedsdg.aggregation import aggregate_by_client, aggregate_sharded
from fedsdg.aggregation.engines.distributed import Peers, ShardedRows
from fedsdg.aggregation.engines.distributed import exchange as columns
from fedsdg.aggregation.engines.distributed.sharded_rows import ShardedNorm
from fedsdg.aggregation.engines.memory.rounding import Rounding
from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.types import StatelessRule

from ..api_cases import draw, flat, leaves, needs


def bounds(d, ranks):
    """Uneven cuts of d >= 14 columns; of four ranks, rank 1 has none and rank 2 a single one."""
    return {1: [0, d], 2: [0, 13, d], 3: [0, 13, 13, d], 4: [0, 13, 13, 14, d]}[ranks]


def cut(vector, here, kind, dtype):
    """A range of columns as parameters; no dict entries at all where the range is empty."""
    part = np.asarray(vector)[here].astype(dtype)
    if kind == "array":
        return part
    middle = len(part) // 2
    pieces = {"a": part[:middle].reshape(1, -1), "b": part[middle:]}
    return {name: torch.tensor(piece) for name, piece in pieces.items() if len(part)}


def outcome(result):
    return {
        "parameters": flat(result.parameters) if leaves(result.parameters) else np.zeros(0),
        "weights": result.weights,
        "diagnostics": result.diagnostics,
        "state": {name: value.numpy() for name, value in result.state.items()},
        "dropped": result.dropped,
    }


def by_columns(rank, size, rule, theta, clients, kind, dtype, rounds=1, options=None):
    """Every rank has a range of columns of all clients."""
    edges = bounds(theta.shape[0], size)
    here = slice(edges[rank], edges[rank + 1])
    rows = [cut(row, here, kind, dtype) for row in clients]
    given = {**needs(rule, len(rows), controls=rows), **(options or {})}
    state, shard = None, cut(theta, here, kind, dtype)
    with counted() as bytes_sent:
        for round_ in range(1, rounds + 1):
            result = aggregate_sharded(
                rule, shard, rows, **given, state=state, round=round_, timeout=30
            )
            state, shard = result.state, result.parameters
    return {**outcome(result), "sent": bytes_sent[0]}


def own_clients(rank, size, count):
    """Positions of the clients of a rank: uneven; of four ranks, rank 1 has none."""
    edges = {1: [0, count], 2: [0, 2, count], 4: [0, 2, 2, 3, count]}[size]
    return list(range(edges[rank], edges[rank + 1]))


def by_client(rank, size, rule, theta, clients, kind, dtype, rounds=1, options=None):
    """Every rank has some clients."""
    whole = slice(0, len(theta))
    own = {k: cut(clients[k], whole, kind, dtype) for k in own_clients(rank, size, len(clients))}
    given = {**needs(rule, len(clients), controls=own)}
    for name in ("num_samples", "num_batches"):
        if name in given:
            given[name] = dict(enumerate(given[name]))
    state, params = None, cut(theta, whole, kind, dtype)
    with counted() as bytes_sent:
        for round_ in range(1, rounds + 1):
            result = aggregate_by_client(
                rule, params, own, **given, **(options or {}), state=state, round=round_, timeout=30
            )
            state, params = result.state, result.parameters
    return {**outcome(result), "sent": bytes_sent[0]}


def drawn(rank, size, layout, rule, seed, clients, d):
    """A layout on float32 arrays too large to be sent to the processes."""
    case = {"by_columns": by_columns, "by_client": by_client}[layout]
    return case(rank, size, rule, *draw(seed, clients, d), "array", "float32")


def mixed(vector):
    """A vector [41] as tensors of several dtypes, one of them strided, one empty."""
    return {
        "half": torch.tensor(vector[:5]).half(),
        "brain": torch.tensor(vector[5:12]).bfloat16(),
        "none": torch.zeros(0, 3),
        "strided": torch.tensor(vector[12:30]).float().reshape(3, 6).T,
        "double": torch.tensor(vector[30:]),
    }


def mixed_columns(rank, size, theta, clients, buffer_bytes):
    """`aggregate_by_client` with buffers of another size."""
    kept, columns.BUFFER_BYTES = columns.BUFFER_BYTES, buffer_bytes
    try:
        own = {k: mixed(clients[k]) for k in own_clients(rank, size, len(clients))}
        return outcome(aggregate_by_client("fedsdg", mixed(theta), own, timeout=30))
    finally:
        columns.BUFFER_BYTES = kept


def headed(rank, size, layout, theta, clients):
    """Weights by the adapters alone; by columns, a rank has pieces of both parts, or none."""
    rule = Alignment(scope="adapters", epsilon=1e-30)
    if layout == "by_client":
        own = {k: clients[k] for k in own_clients(rank, size, len(clients))}
        result = aggregate_by_client(rule, theta, own, timeout=30)
        return list(result.weights.values()), result.diagnostics["degenerate"]
    shards = []
    for params in (theta, *clients):
        parts = {name: np.array_split(value, 3) for name, value in params.items()}
        shards.append({name: pieces[rank] for name, pieces in parts.items() if rank < 2})
        if rank == size - 1:
            shards[-1]["head.rest"] = parts["head.w"][2]
            shards[-1]["rest"] = parts["w"][2]
    result = aggregate_sharded(rule, shards[0], shards[1:], timeout=30)
    return result.weights, result.diagnostics["degenerate"]


@contextmanager
def counted():
    """[bytes] that this rank hands to torch.distributed to send; other ways of sending fail."""
    sent, real = [0], dist.batch_isend_irecv

    def counting(operations):
        for operation in operations:
            if operation.op is dist.isend:
                sent[0] += operation.tensor.numel() * operation.tensor.element_size()
        return real(operations)

    def refused(*arguments, **options):
        raise AssertionError("sent by a way that is not counted")

    others = ["all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "scatter"]
    others += ["all_gather_into_tensor", "all_gather_object", "broadcast_object_list", "barrier"]
    kept = {name: getattr(dist, name) for name in others}
    try:
        dist.batch_isend_irecv = counting
        for name in others:
            setattr(dist, name, refused)
        yield sent
    finally:
        dist.batch_isend_irecv = real
        for name, function in kept.items():
            setattr(dist, name, function)


def sharded(rank, size, rule, overrides, theta, clients, out=None):
    """`aggregate_sharded` on columns, with other arguments on some ranks: {rank: {name: value}}."""
    edges = bounds(len(theta), size)
    here = slice(edges[rank], edges[rank + 1])
    given = {
        "rule": rule,
        "global_shard": cut(theta, here, "dict", "float64"),
        "client_shards": [cut(row, here, "dict", "float64") for row in clients],
        "timeout": 30,
        **overrides.get(rank, {}),
    }
    if "change" in given:
        client, name, value = given.pop("change")
        given["client_shards"][client][name] = value
    if out is not None:
        given["out"] = {n: torch.full_like(t, out) for n, t in given["global_shard"].items()}
    if given.pop("instead", None):
        del given["global_shard"], given["client_shards"]
        return aggregate_by_client(global_params=theta, own_params={}, **given)
    try:
        return outcome(aggregate_sharded(**given))
    except ValueError:
        if out is not None:
            assert all((tensor == out).all() for tensor in given["out"].values())
        raise


def clients_here(rank, size, rule, overrides, theta, own):
    """`aggregate_by_client`, own: by rank the clients, with other arguments on some ranks."""
    given = {
        "rule": rule,
        "global_params": {"w": torch.tensor(theta)},
        "own_params": {client: {"w": torch.tensor(row)} for client, row in own[rank].items()},
        "timeout": 30,
        **overrides.get(rank, {}),
    }
    return outcome(aggregate_by_client(**given))


def written_in_place(rank, size, theta, clients):
    """`out` is the global parameters, strided; both doors. Returns what they hold then."""
    edges = bounds(len(theta), size)
    here = slice(edges[rank], edges[rank + 1])
    room = np.repeat(theta[here], 2)[::2].copy()
    spaced = np.zeros((len(room), 2))
    spaced[:, 1] = room
    shards = [row[here] for row in clients]
    result = aggregate_sharded("fedsdg", spaced[:, 1], shards, out=spaced[:, 1], timeout=30)
    assert not spaced[:, 0].any()
    assert np.shares_memory(result.parameters, spaced) or not len(room)
    whole = torch.tensor(np.stack([theta, theta]).T.copy())
    own = {k: torch.tensor(clients[k]) for k in own_clients(rank, size, len(clients))}
    other = aggregate_by_client("fedsdg", whole[:, 1], own, out=whole[:, 1], timeout=30)
    assert torch.equal(whole[:, 0], torch.tensor(theta))
    assert other.parameters.data_ptr() == whole[:, 1].data_ptr()
    return spaced[:, 1].copy(), flat(other.parameters)


def last_rank():
    return dist.get_rank() == dist.get_world_size() - 1


@dataclass(frozen=True)
class Fragile(PlannedRule):
    """Measures, and breaks on the last rank in doing so, or in its step."""

    where: str = "measure"

    def plan(self, rows, context, state):
        updates = rows["update"]
        if self.where == "measure" and last_rank():
            updates.local = None
        updates.measure()
        size = updates.shape[0]
        if self.where == "step" and last_rank():
            size += 1
        return Plan(Combination(np.full(size, 1 / size)), None, {})


def sharded_rows(rank, size, data, dtype):
    """Everything that `ShardedRows` answers, of columns of a matrix."""
    edges = bounds(data.shape[1], size)
    here = slice(edges[rank], edges[rank + 1])
    own = torch.tensor(data[:, here].astype(dtype))
    rows = ShardedRows(TensorRows(own), Peers(timeout=30))
    measured, other = rows.measure(), rows.measure(np.arange(len(data)) - 1.0)
    distances, unit = rows.squared_distances()
    return {
        "shape": rows.shape,
        "norms": measured.norms * measured.unit,
        "mean": measured.reference_norm * measured.unit,
        "dots": (measured.dots, measured.unit),
        "other norm": other.reference_norm * other.unit,
        "other dots": (other.dots, other.unit),
        "distances": (distances, unit),
        "norm": rows.norm(own[0]),
        "counts": rows.nonfinite_counts(),
    }


def part_of_the_world(rank, size, theta, clients):
    """The group of the odd ranks aggregates without the even ones, then the even ones alone."""
    groups = [dist.new_group([r for r in range(size) if r % 2 == half]) for half in (0, 1)]
    group, place, ranks = groups[rank % 2], rank // 2, size // 2
    d = len(theta)
    here = slice(place * d // ranks, (place + 1) * d // ranks)
    shards = [row[here] for row in clients]
    result = aggregate_sharded("fedsdg", theta[here], shards, group=group, timeout=30)
    try:
        Peers(groups[1 - rank % 2])
    except ValueError as error:
        return outcome(result), str(error)


def absent(rank, size, who, timeout):
    """One rank of a group of its own does not come. Returns the error and the seconds it took."""
    group = dist.new_group(list(range(size)))
    if rank == who:
        time.sleep(timeout + 1)
        return "away"
    start = time.monotonic()
    try:
        aggregate_sharded("fedsdg", np.ones(3), np.ones((2, 3)), group=group, timeout=timeout)
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - start


def astray(rank, size, timeout):
    """One rank asks its rows something else than the others do."""
    peers = Peers(dist.new_group(list(range(size))), timeout)
    rows = ShardedRows(TensorRows(torch.ones(7, 3)), peers)
    try:
        if rank == 0:
            rows.measure()
        else:
            rows.squared_distances()
    except RuntimeError as error:
        return type(error).__name__, str(error)


def killed(rank, size, who, timeout, door):
    """One rank is killed in the middle of a call. The error elsewhere, and the seconds it took."""
    generator = np.random.default_rng(0)
    theta, clients = generator.normal(size=9), generator.normal(size=(6, 9))

    def call():
        if door == "columns":
            aggregate_sharded("krum", theta, clients, timeout=timeout)
        else:
            aggregate_by_client(
                "krum", theta, {f"{rank}-{k}": clients[k] for k in range(2)}, timeout=timeout
            )

    call()
    if rank == who:
        real, left = dist.batch_isend_irecv, [2 * (size - 1) * 2 + 1]

        def dying(operations):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(operations)

        dist.batch_isend_irecv = dying
    start = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - start


def mixed_dtypes(rank, size, theta, clients):
    """Rank 0 has float64, the others float32."""
    edges = bounds(len(theta), size)
    here = slice(edges[rank], edges[rank + 1])
    dtype = np.float64 if rank == 0 else np.float32
    rows = [row[here].astype(dtype) for row in clients]
    return outcome(aggregate_sharded("fedsdg", theta[here].astype(dtype), rows, timeout=30))


class Whole(StatelessRule):
    """Not planned."""

    def __call__(self, uploads, context, state):
        raise AssertionError


def unplanned(rank, size):
    aggregate_sharded(Whole(), np.ones(3), np.ones((2, 3)), timeout=30)


def overflow(rank, size, who):
    """On one rank the sum overflows float16; the update itself does not overflow float32."""
    origin = {"w": torch.full((3,), -4e4 if rank == who else 1.0, dtype=torch.float16)}
    clients = [{"w": torch.full((3,), 4e4 if rank == who else 1.0, dtype=torch.float16)}] * 2
    out = {"w": torch.full((3,), 5.0, dtype=torch.float16)}
    rule = Scaffold(server_rate=2.0)
    try:
        for place in (None, out):
            given = {"uploads": {"control": clients}, "num_clients": 2, "timeout": 30}
            aggregate_sharded(rule, origin, clients, out=place, **given)
    except ValueError:
        assert (out["w"] == 5).all()
        raise


def parameter_norm(rank, size, theta, clients, update_norm):
    """The norm of the largest parameters that a rule asks for, and a bound of it."""
    edges = bounds(len(theta), size)
    here = slice(edges[rank], edges[rank + 1])
    origin, *rows = [{"w": torch.tensor(row[here])} for row in (theta, *clients)]
    norm = ShardedNorm(Rounding(origin, rows), torch.float64, Peers(timeout=30))
    return float(norm), norm.at_most(update_norm)


def strided(rank, size, d):
    """Whole clients whose numbers lie apart; rank's own are [rank, rank + 1, …]."""
    theta = torch.zeros(2 * d)[1::2]
    own = {str(rank): (torch.arange(2 * d) / 2 + rank - 0.5)[1::2]}
    result = aggregate_by_client("fedavg-uniform", theta, own, timeout=20)
    return result.parameters.numpy()


def failing(rank, size, where):
    """One rank fails while it packs or unpacks; the seconds until all know of it."""
    from fedsdg.aggregation.engines.distributed import exchange as columns

    real, calls = getattr(columns, where), []

    def fail(*arguments):
        calls.append(1)
        if last_rank():
            raise MemoryError("no room")
        return real(*arguments)

    setattr(columns, where, fail)
    start = time.monotonic()
    try:
        aggregate_by_client("fedavg-uniform", np.zeros(9), {str(rank): np.ones(9)}, timeout=60)
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    finally:
        setattr(columns, where, real)


def bad_inputs(rank, size, first, count):
    """Some of the generated calls."""
    from tests.bad_inputs import ranks

    return ranks.outcomes(rank, size, first, count)
