"""Both layouts over two processes: results, faults on all ranks, a rank that is missing."""

import multiprocessing
import re
import subprocess
import sys
import time
import traceback
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fedsdg.aggregation import Ranks, aggregate, aggregate_by_client
from fedsdg.aggregation.errors import NonFiniteError, RankError
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.screened import Screened
from tests.documents.pages import ROOT, blocks

from . import cohorts, oracle

SIZE = 7
COUNTS = {"num_samples": [3, 1, 4, 1, 5, 9, 2], "client_samples": [3, 1, 4, 1, 5, 9, 2]}


def world(rank, size, place, work, queue, timeout):
    """Run work(rank, ranks) in a process of a group and put what it returns, or its error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    try:
        queue.put((rank, work(rank, Ranks.of())))
    except Exception:
        queue.put((rank, traceback.format_exc()))
    if dist.is_initialized() and work is not without_rank_one:
        dist.destroy_process_group()


def run(work, tmp_path, size=2, timeout=60):
    """What work returned on each rank."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    arguments = (size, str(tmp_path / "rendezvous"), work, queue, timeout)
    processes = [context.Process(target=world, args=(rank, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    results = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    for rank in range(size):
        assert not isinstance(results[rank], str), results[rank]
    return [results[rank] for rank in range(size)]


def cut(params, rank, size):
    return {
        n: t.reshape(-1)[t.numel() * rank // size : t.numel() * (rank + 1) // size]
        for n, t in params.items()
    }


def drawn(dtype="float32"):
    theta, clients = cohorts.drawn(seed=11, size=SIZE, dtype=dtype)
    return cohorts.tensors(theta), [cohorts.tensors(client) for client in clients]


def own_clients(rank, size, values):
    """Those of a rank, by id; rank 1 of three has none."""
    places = [k % size if size < 3 or k % size != 1 else 0 for k in range(SIZE)]
    return {k: values[k] for k in range(SIZE) if places[k] == rank}


def every_rule(rank, ranks):
    results = {}
    for dtype in ("float32", "float64"):
        theta, clients = drawn(dtype)
        for rule in [*oracle.RULES, "adapters"]:
            named = Alignment(scope="adapters") if rule == "adapters" else rule
            shards = [cut(client, rank, ranks.size) for client in clients]
            made = aggregate(named, cut(theta, rank, ranks.size), shards, ranks=ranks, **COUNTS)
            mine = own_clients(rank, ranks.size, clients)
            whole = aggregate_by_client(
                named, theta, mine, client_samples=COUNTS["client_samples"], ranks=ranks,
                num_samples={k: COUNTS["num_samples"][k] for k in mine},
            )  # fmt: skip
            results[rule, dtype] = (
                {n: t.numpy() for n, t in made.parameters.items()}, made.weights,
                {n: t.numpy() for n, t in whole.parameters.items()}, whole.weights,
            )  # fmt: skip
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_every_rule_in_both_layouts_is_what_one_process_says(size, tmp_path):
    by_rank = run(every_rule, tmp_path, size)
    for (rule, dtype), (_, weights, whole, of_clients) in by_rank[0].items():
        theta, clients = drawn(dtype)
        named = Alignment(scope="adapters") if rule == "adapters" else rule
        expected = aggregate(named, theta, clients, **COUNTS)
        for name, tensor in expected.parameters.items():
            joined = np.concatenate([made[rule, dtype][0][name] for made in by_rank])
            assert joined == pytest.approx(tensor.numpy().ravel(), abs=1e-6)
            assert whole[name] == pytest.approx(tensor.numpy(), abs=1e-6)
        for made in by_rank[1:]:  # The same to the last bit.
            assert made[rule, dtype][1] == weights and made[rule, dtype][3] == of_clients
            for name in whole:
                assert np.array_equal(made[rule, dtype][2][name], whole[name])
        if expected.weights is not None:
            assert weights == pytest.approx(expected.weights, abs=1e-6)
            by_id = [of_clients[k] for k in range(SIZE)]
            assert by_id == pytest.approx(expected.weights, abs=1e-6)


def states_and_buffers(rank, ranks):
    theta, clients = drawn()
    mine = own_clients(rank, ranks.size, clients)
    scaffold = [
        aggregate("scaffold", cut(theta, rank, 2), [cut(c, rank, 2) for c in clients], ranks=ranks,
                  num_clients=SIZE, uploads={"control": [cut(c, rank, 2) for c in clients]}),
        aggregate_by_client("scaffold", theta, mine, uploads={"control": mine}, num_clients=SIZE),
    ]  # fmt: skip
    again = aggregate_by_client(
        "scaffold", theta, mine, uploads={"control": mine}, num_clients=SIZE,
        state=scaffold[1].state,
    )  # fmt: skip
    counters = {"w": torch.zeros(3), "n": torch.tensor(rank)}
    own = {rank: {"w": torch.ones(3), "n": torch.tensor(5 + rank)}}
    buffers = aggregate_by_client("fedavg-uniform", counters, own)
    shared = torch.ones(4)
    tied = aggregate_by_client(
        "fedsdg", {"a": torch.zeros(4), "b": torch.zeros(4)}, {rank: {"a": shared, "b": shared}}
    )
    zero = torch.zeros(4)
    really = aggregate_by_client(
        "fedsdg", {"a": zero, "b": zero}, {rank: {"a": shared, "b": shared}}
    )
    screened = aggregate_by_client(Screened(inner=Alignment()), theta, mine, num_clients=SIZE)
    alone = aggregate(
        "fedsdg", theta if rank == 0 else {}, clients if rank == 0 else [{}] * SIZE, ranks=ranks
    )
    return {
        "alone": alone.weights,
        "control": [made.state["control"].numpy() for made in (*scaffold, again)],
        "counter": buffers.parameters["n"].item(),
        "remark": buffers.remarks[0],
        "norms": [made.diagnostics["update_norm"].tolist() for made in (tied, really)],
        "outlier": screened.diagnostics["outlier"],
    }


def test_states_buffers_and_ties_over_ranks(tmp_path):
    first, second = run(states_and_buffers, tmp_path)
    theta, clients = drawn()
    given = {"uploads": {"control": clients}, "num_clients": SIZE}
    expected = aggregate("scaffold", theta, clients, **given).state["control"].numpy()
    for layout, times in ((0, 1), (1, 1), (2, 2)):  # Each rank has its columns of each tensor.
        controls = [made["control"][layout] for made in (first, second)]
        assert sum(map(len, controls)) == len(expected)
        assert sum(c.sum() for c in controls) == pytest.approx(times * expected.sum(), rel=1e-5)
    assert first["alone"] == second["alone"] == aggregate("fedsdg", theta, clients).weights
    assert first["counter"] == second["counter"] == 6 and "largest" in first["remark"]
    assert first["norms"] == second["norms"] == [[8**0.5] * 2, [2.0] * 2]
    assert first["outlier"] == pytest.approx(second["outlier"])


def faults(rank, ranks):
    """The errors, each the same on both ranks."""
    theta, clients = drawn()
    mine = own_clients(rank, 2, clients)
    shards = [cut(client, rank, 2) for client in clients]
    base = cut(theta, rank, 2)
    other = {"w": torch.zeros(3 + rank)}
    broken = [dict(shard) for shard in shards]
    if rank == 1:
        broken[2]["a.w"] = broken[2]["a.w"].clone()
        broken[2]["a.w"][3] = torch.nan
    bad_own = dict(mine)
    if rank == 1:
        bad_own[1] = {**clients[1], "a.b": torch.full((5,), torch.nan)}
    calls = {
        "no clients": lambda: aggregate("fedsdg", base, 5 if rank else shards, ranks=ranks),
        "nan": lambda: aggregate("fedsdg", base, broken, ranks=ranks),
        "nan in a mean": lambda: aggregate("fedavg-uniform", base, broken, ranks=ranks),
        "nan in a median": lambda: aggregate("coordinate-median", base, broken, ranks=ranks),
        "nan of a client": lambda: aggregate_by_client("fedsdg", theta, bad_own),
        "shape": lambda: aggregate("fedsdg", {"w": torch.zeros(3)}, [other], ranks=ranks),
        "shape of a client": lambda: aggregate_by_client(
            "fedsdg", {"w": torch.zeros(3)}, {rank: other}
        ),
        "shape of the server": lambda: aggregate_by_client("fedsdg", other, {rank: other}),
        "uploads": lambda: aggregate_by_client(
            "fedsdg", theta, mine, uploads={"control": mine} if rank else None
        ),
        "uploads of others": lambda: aggregate_by_client(
            "fedsdg", theta, mine, uploads={"control": {}}
        ),
        "rule": lambda: aggregate(["krum", "fedsdg"][rank], base, shards, ranks=ranks),
        "unknown rule": lambda: aggregate("krumm", base, shards, ranks=ranks),
        "counts": lambda: aggregate(
            "fedavg", base, shards, ranks=ranks, num_samples=[1 + rank] * 7
        ),
        "twice": lambda: aggregate_by_client("fedsdg", theta, {3: clients[0]}),
        "too few": lambda: aggregate("krum", base, shards[:3], ranks=ranks),
        "refused": lambda: aggregate("fedsdg", {**base, "n": torch.tensor(1)},
                                     [{**s, "n": torch.tensor(1)} for s in shards],
                                     ranks=ranks, buffers="refuse"),
    }  # fmt: skip
    errors = {}
    for name, call in calls.items():
        with pytest.raises(ValueError) as caught:
            call()
        errors[name] = (type(caught.value).__name__, str(caught.value))
    dropped = aggregate("fedsdg", base, broken, ranks=ranks, on_nonfinite="drop")
    by_client = aggregate_by_client("fedsdg", theta, bad_own, on_nonfinite="drop")
    left_out = aggregate_by_client("screened", theta, bad_own, num_clients=9)
    works = aggregate("fedsdg", base, shards, ranks=ranks)
    return errors, dropped.dropped, by_client.dropped, left_out.weights, works.weights


def test_a_fault_on_one_rank_raises_on_all_and_names_the_rank(tmp_path):
    first, second = run(faults, tmp_path)
    assert first == second
    errors, dropped, by_client, left_out, weights = first
    sentences = {
        "no clients": "rank 1: client_params is a int",
        "nan": "client 2: tensor 'a.w (rank 1)' has 1 non-finite",
        "nan in a mean": "client 2: tensor 'a.w (rank 1)'",
        "nan in a median": "client 2: tensor 'a.w (rank 1)'",
        "nan of a client": "client 1: tensor 'a.b (rank 0)' has 2 non-finite",
        "shape": "rank 1: client 0: tensor 'w' is torch.float32 of shape (4,)",
        "shape of a client": "rank 1: client 1: tensor 'w' is torch.float32 of shape (4,)",
        "shape of the server": "the ranks disagree about the tensors and uploads: rank 0 has",
        "uploads": "the ranks disagree about the tensors and uploads: rank 0 has",
        "uploads of others": "rank 0: upload 'control' is of the clients []; give",
        "rule": "the ranks disagree about the arguments: rank 0 has (Krum(f=1)",
        "unknown rule": "the package has no rule 'krumm'",
        "counts": "the ranks disagree about the arguments",
        "twice": "client 3 is on several ranks",
        "too few": "needs at least 2f+3 = 5 clients per round and has 3",
        "refused": "tensor 'n': integers and booleans are not averaged",
    }
    for name, sentence in sentences.items():
        assert sentence in errors[name][1], errors[name]
    assert errors["nan"][0] == "NonFiniteError"
    assert dropped == {2: {"a.w (rank 1)": 1}} and by_client == {1: {"a.b": 5}}
    assert left_out[1] == 0 and sum(left_out.values()) == pytest.approx(1)
    assert sum(weights) == pytest.approx(1)


ABSENCE = {"seconds": 0}
"""How long a rank hangs that then ends without having made the call."""


def without_rank_one(rank, ranks):
    if rank == 1:
        time.sleep(wait := ABSENCE["seconds"])
        return f"gone after {wait}"
    theta, clients = drawn()
    with pytest.raises(RankError) as caught:
        aggregate("fedsdg", cut(theta, rank, 3), [cut(c, rank, 3) for c in clients], ranks=ranks)
    return [str(caught.value)]


@pytest.mark.parametrize("seconds", [0, 6])
def test_a_missing_rank_is_named_within_the_timeout(tmp_path, seconds):
    ABSENCE["seconds"] = seconds
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    arguments = (3, str(tmp_path / "rendezvous"), without_rank_one, queue, 2)
    processes = [context.Process(target=world, args=(rank, *arguments)) for rank in range(3)]
    for process in processes:
        process.start()
    results = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    assert results.pop(1) == f"gone after {seconds}"
    assert time.monotonic() - began < 20
    for (sentence,) in results.values():
        assert sentence.startswith("rank 1 does not answer")


def test_ranks_without_a_group():
    with pytest.raises(ValueError, match="torch.distributed is not initialised"):
        Ranks.of()
    alone = Ranks()
    assert alone.gathered(lambda: 3) == [3] and alone.agreed(lambda: 4) == 4
    with pytest.raises(NonFiniteError):
        alone.gathered(lambda: aggregate("fedsdg", torch.zeros(1), [torch.tensor([torch.nan])]))


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(tmp_path):
    (example,) = (one for one in blocks("docs/aggregate.md") if one.kind == "run by")
    script = tmp_path / "aggregate_over_ranks.py"
    script.write_text(example.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, script], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    # Both write to one pipe, a line not always in one piece.
    printed = dict(re.findall(r"rank (\d): weights ((?:\d\.\d{4}(?:, )?){5})", done.stdout))
    assert sorted(printed) == ["0", "1"] and printed["0"] == printed["1"], done.stdout
