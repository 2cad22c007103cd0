"""Many clients: what a round and a checkpoint cost is counted, and does not grow with K."""

import dataclasses
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.records import Records
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
ARCHITECTURE = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
FEW, MANY, COHORT = 100, 10_000, 5
#: A rank that makes rows large enough to show where they lie.
LARGE = 32
METHODS = ("fedsdg", "scaffold", "cgsv", "local-only", "fedprox", "geometric-median")


def federations():
    """(method, K) -> a federation of K clients that share the samples of digits, 8 each."""
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 8, "clients_per_round": COHORT, "rounds": 100}
    raw["federation"] |= {"evaluate_every": 100}
    raw["training"] |= {"epochs": 1, "batch_size": 8}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    configs = {2: parse_config(raw)}
    raw["adapters"] |= {"rank": LARGE, "alpha": 4}
    configs[LARGE] = parse_config(raw)
    torch.manual_seed(0)
    backbone = freeze(build_backbone(ARCHITECTURE), ARCHITECTURE, "tiny", {})
    material = prepare_material("digits", backbone, "cpu")
    partition = make_partition("digits", SKEW, 0, 8, configs[2].partition)

    def make(name, clients, rank=2):
        one = build(configs[rank].run("digits", SKEW, method_entry(name), 0), material, partition)
        shards = list(np.random.default_rng(0).integers(0, 1797, (clients, 8)))
        many = Shards(shards, shards, shards, np.arange(8))
        return dataclasses.replace(one, shards=many, records=Records())

    return make


@pytest.fixture(scope="module")
def federation():
    return federations()


class Touched(TorchDispatchMode):
    """Counts the operations on tensors, and the bytes that each reads and writes.

    An index reads the rows it names, whatever lies between; a view touches nothing.
    """

    def __init__(self):
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if not func.is_view:
            name = func.overloadpacket.__name__
            if name in ("index", "index_select"):
                touched = [result, result]
            elif name in ("index_put_", "index_put", "_index_put_impl_"):
                touched = [args[2], args[2]]
            else:
                touched = tree_leaves((args, kwargs, result))
            self.bytes += sum(t.nbytes for t in touched if isinstance(t, torch.Tensor))
        return result


def cost_of_a_round(one):
    one.step(1)  # what is made once
    with Touched() as touched:
        one.step(2)
    # What else happens to be allocated in a round, such as a cache that grows, is not its cost.
    return touched.calls, touched.bytes, min(peak_of(one, round_) for round_ in (3, 4, 5))


def peak_of(one, round_):
    """Bytes that Python and numpy hold at most during a round, beyond those at its begin."""
    gc.collect()
    tracemalloc.start()
    begin, _ = tracemalloc.get_traced_memory()
    one.step(round_)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - begin


@pytest.mark.parametrize("name", METHODS)
def test_a_round_touches_as_much_with_many_clients_as_with_few(federation, name):
    few, many = (cost_of_a_round(federation(name, clients)) for clients in (FEW, MANY))
    assert few[0] == many[0], "as many operations"
    assert many[1] == few[1], "as many bytes of tensors"
    # CGSV copies its two vectors of K numbers of 8 bytes, since rules never modify their state.
    own = 2 * 8 * (MANY - FEW) if name == "cgsv" else 0
    # One byte for each further client would be 9,900.
    assert many[2] - few[2] < own + 8_000, "bytes of Python and numpy at the peak"


def test_the_counter_sees_an_operation_over_all_clients(federation):
    one = federation("fedsdg", MANY)
    with Touched() as touched:
        one.bank.private(torch.arange(MANY))
    assert touched.bytes > MANY * one.bank.bytes_per_client()
    with Touched() as touched:
        one.bank.trained.sum()
    assert touched.bytes == MANY + 8


def input_and_output():
    """Bytes that this process has read and written by system calls, files and all."""
    lines = Path("/proc/self/io").read_text().splitlines()
    facts = dict(line.split(": ") for line in lines)
    return int(facts["rchar"]), int(facts["wchar"])


@pytest.mark.skipif(not Path("/proc/self/io").is_file(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_writes_as_much_with_many_clients_as_with_few(federation, tmp_path, name):
    costs = []
    for clients in (FEW, MANY):
        folder = tmp_path / str(clients)
        one = federation(name, clients)
        with closing(Checkpoints(folder, {})) as checkpoints:
            for round_ in (1, 2):
                one.step(round_)
                checkpoints.save(one, {})
            one.step(3)
            # The file of the checkpoint that is replaced, that after round 1.
            grown = (folder / "bank~1.frames").stat().st_size
            before = input_and_output()
            with Touched() as touched:
                checkpoints.save(one, {})
            after = input_and_output()
            grown = (folder / "bank~1.frames").stat().st_size - grown
        row = one.bank.bytes_per_client() + 8
        # Rows of two cohorts that share nobody, and their clients' numbers; a frame's length and
        # the header of safetensors.
        assert 0 < grown - 2 * COHORT * row < 400
        costs.append(
            (touched.calls, touched.bytes, *(b - a for a, b in zip(before, after, strict=True)))
        )
    few, many = costs
    own = 2 * 8 * (MANY - FEW) if name == "cgsv" else 0
    assert many[0] == few[0]
    # What is contiguous is written as it is: read once by the save, at most copied before it.
    assert many[1] - few[1] <= 4 * own
    assert abs(many[2] - few[2]) < 2000, "bytes read: the newest manifests"
    # Numbers of clients have more digits in the records.
    assert abs(many[3] - few[3] - own) < 2000, "bytes written"


def test_over_many_rounds_at_most_twice_what_changed_is_written_to_each_file(federation, tmp_path):
    """With few clients, whose rows are replaced again and again: the costliest case."""
    one = federation("scaffold", 8)
    written, sizes = 0, {}
    with closing(Checkpoints(tmp_path, {})) as checkpoints:
        for round_ in range(1, 21):
            one.step(round_)
            checkpoints.save(one, {})
            for file in tmp_path.glob("bank~*"):
                size = file.stat().st_size
                written += size - sizes.get(file.name, 0)
                sizes[file.name] = size
    assert written < 2 * 2 * 20 * COHORT * one.bank.bytes_per_client() * 1.1


# What fills the memory is measured in a process of its own: (method, limit) -> JSON.
MEASURED = """
import json, sys, threading, time
from contextlib import closing
from pathlib import Path
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
from fedsdg.federation import bank
from fedsdg.federation.checkpoints import Checkpoints
from tests.experiment.test_scale import LARGE, MANY, federations

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

make = federations()
name, place, bank.MEMORY_LIMIT = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
small = make(name, 10, LARGE)
for round_ in (1, 2):
    small.step(round_)
base, peak, over = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
big = make(name, MANY, LARGE)
with closing(Checkpoints(place / "checkpoints", {})) as checkpoints:
    for round_ in (1, 2, 3):
        big.step(round_)
        checkpoints.save(big, {})
    # Every row is in use, and all are written: as after thousands of rounds.
    for clients in torch.arange(MANY).split(100):
        private, kept = big.bank.gather(clients)
        big.bank.scatter(clients, private + 1, kept)
    big.step(4)
    checkpoints.save(big, {})
with closing(Checkpoints(place / "checkpoints", {})) as checkpoints:
    again = make(name, MANY, LARGE)
    checkpoints.restore(again)
over.set()
watcher.join()
some = torch.arange(0, MANY, 97)
same = all(torch.equal(a, b) for a, b in [
    (big.bank.private(some), again.bank.private(some)),
    *((big.bank.kept(n, some), again.bank.kept(n, some)) for n in big.bank.gather(some)[1])])
json.dump({"grown": max(peak, anonymous()) - base, "same": same,
           "bank": MANY * big.bank.bytes_per_client()}, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["fedsdg", "scaffold"])
def test_ten_thousand_clients_need_less_memory_than_the_limit(tmp_path, name):
    limit = 64 << 20
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, root, name, str(tmp_path), str(limit)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["same"] and found["bank"] > 3 * limit
    assert found["grown"] < limit, found


def test_shards_of_all_clients_equal_those_asked_one_by_one():
    config = parse_config(yaml.safe_load(CONFIG.read_text()))
    partition = make_partition("digits", "dirichlet~0.1", 0, 20, config.partition)
    for split in range(3):
        together = partition.shards(split)
        assert len(together) == 20
        for client, shard in enumerate(together):
            expected = partition.shards(split)[client]
            assert shard.dtype == expected.dtype and shard.tolist() == expected.tolist()
