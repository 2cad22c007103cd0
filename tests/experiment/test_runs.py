"""Whole runs on real digits: their records, the store, failures, and runs on a GPU."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.runs import execute
from fedsdg.federation.clients import draw_cohort
from fedsdg.federation.tasks import Samples
from fedsdg.files import changed_file
from fedsdg.methods.families import METHODS
from tests.experiment.small import (
    do,
    material,
    partition_of,
    read,
    same_bytes,
    setup_of,
    small_run,
)
from tests.federation.small import run as run_rounds
from tests.pretended_cuda import DISORDERLY, pretended_cuda


@pytest.mark.parametrize("test", ["fixed", "by-seed"])
def test_few_images_of_a_test_set_are_a_part_of_it_the_same_for_all_methods(test):
    def shards(method="fedavg", seed=0, **federation):
        run = small_run(method, seed=seed, partition={"test": test}, federation=federation)
        return setup_of(run).data

    whole = shards()
    few = shards(global_images=100, own_images=6)
    other = shards("fedsdg", global_images=100, own_images=4)
    elsewhere = shards(seed=1, global_images=100)
    assert len(few.global_test) == 100 and set(few.global_test) < set(whole.global_test)
    assert np.array_equal(few.global_test, other.global_test)
    assert np.array_equal(few.global_test, elsewhere.global_test) == (test == "fixed")
    for split in ("val", "test"):
        lists = [getattr(one, split) for one in (whole, few, other)]
        for own, six, four in zip(*lists, strict=True):
            assert len(six) == min(6, len(own)) and set(four) <= set(six) <= set(own)
    assert all(map(np.array_equal, few.train, whole.train))
    assert np.array_equal(few.test_sizes, list(map(len, whole.test)))


def test_what_is_not_asked_for_is_in_no_hash():
    given = ({}, {"evaluate_at": [1]}, {"own_images": 5})
    runs = [small_run("fedavg", federation=federation) for federation in given]
    assert not {"evaluate_at", "own_images"} & runs[0].to_dict()["federation"].keys()
    assert len({run.hash for run in runs}) == 3
    # As it is read back from a record.
    assert json.loads(json.dumps(runs[1].to_dict())) == runs[1].to_dict()


def test_cohorts_are_equal_for_all_methods_and_every_step_is_counted():
    for name in ("fedavg", "fedsdg", "local-only", "fine-tune"):
        setup = setup_of(small_run(name))
        rows = run_rounds(setup).clients
        for t in (1, 2):
            trained = [row for row in rows if row["round"] == t and row["participated"]]
            assert [row["client"] for row in trained] == draw_cohort(setup, t).tolist()
            for row in trained:
                assert row["local_steps"] == -(-row["n_train"] // 16)


# --- Records and the store ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of FedSDG in a folder, and its store."""
    place = tmp_path_factory.mktemp("run")
    assert do(small_run(), place / "run", place / "store") is None
    return place / "run", place / "store"


def test_two_runs_give_the_same_bytes(finished, tmp_path):
    assert do(small_run(), tmp_path / "run", tmp_path / "store") is None
    assert same_bytes(tmp_path / "run", finished[0])


def test_a_finished_run_is_taken_from_the_store(finished, tmp_path, capsys):
    folder, store = finished
    assert do(small_run(), tmp_path, store, trace=1) is None
    assert read(tmp_path, "provenance") == read(folder, "provenance")
    assert same_bytes(tmp_path, folder)
    assert "is finished, so there is nothing to trace" in capsys.readouterr().err
    assert changed_file(tmp_path) is None


def test_the_result_says_what_the_tables_say(finished):
    folder, _ = finished
    result = read(folder)
    rows = pq.read_table(folder / "rounds.parquet").to_pylist()
    clients = pq.read_table(folder / "clients.parquet").to_pylist()
    assert result["status"] == "ok" and result["experiment"] == "test" and result["rounds"] == 2
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["round"]))
    for name, row in (("last", rows[-1]), ("selected", best), ("quarter", rows[-1])):
        assert result[name].items() - {("evaluations", 1)} <= row.items()
    for name in ("bytes_up", "bytes_down", "personal_steps"):
        assert result[name] == sum(row[name] for row in rows)
    last = [row for row in clients if row["round"] == 2]
    assert result["gate_travel"] == pytest.approx(0.1 * np.median([row["steps"] for row in last]))
    gates = [np.mean(row["gates"]) for row in last if row["gates"]]
    assert result["gates_a"] == pytest.approx(np.mean(gates)) and "gates_b" not in result
    provenance = read(folder, "provenance")
    assert provenance["resumed_after"] == [] and provenance["clients_per_pass"] > 0
    assert provenance["state"].keys() == {"models", "rule", "bank"}


@pytest.mark.parametrize(
    ("entry", "learned"),
    [("fedsdg", True), ({"type": "fedsdg", "gate_fixed": 0.5}, False), ("fedavg", False)],
)
def test_gates_of_clients_that_agree_and_of_those_that_differ(tmp_path, entry, learned):
    conflict = {"label_conflict": {"share": 0.5, "classes": 4}}
    assert do(small_run(entry, conditions=conflict), tmp_path, tmp_path / "store") is None
    result = read(tmp_path)
    clients = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    last = [row for row in clients if row["round"] == 2 and row["gates"]]
    for name, differs in (("gates_a", False), ("gates_b", True)):
        assert (name in result) == ("gate_travel" in result) == learned
        if learned:
            gates = [np.mean(row["gates"]) for row in last if row["conflicts"] == differs]
            assert result[name] == pytest.approx(np.mean(gates))


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["rounds.parquet", "result.json", "SHA256SUMS"])
def test_what_has_changed_in_the_store_is_made_again(tmp_path, capsys, name):
    run = small_run("fedavg")
    store = tmp_path / "store"
    assert do(run, tmp_path / "first", store) is None
    (kept,) = store.iterdir()
    if name == "SHA256SUMS":
        (kept / name).unlink()
    else:
        flipped(kept / name)
    assert do(run, tmp_path / "second", store) is None
    error = capsys.readouterr().err
    assert error.endswith("; the run is made again\n") and name in error
    assert same_bytes(tmp_path / "first", tmp_path / "second")
    flipped(tmp_path / "first" / "clients.parquet")
    assert str(tmp_path / "first" / "clients.parquet") in changed_file(tmp_path / "first")


# --- Failures -------------------------------------------------------------------------------------


def test_nan_in_training_is_a_failed_row_with_what_was_recorded(tmp_path):
    run = small_run()
    first, second = (set(draw_cohort(setup_of(run), t).tolist()) for t in (1, 2))
    victim = min(second - first)
    images = material().samples.images.clone()
    images[partition_of(run).shards(0)[victim]] = float("nan")
    samples = Samples(images, material().samples.labels)
    broken = dataclasses.replace(material(), samples=samples)
    failure = do(run, tmp_path / "run", tmp_path / "store", images=broken)
    assert failure is not None and f"round 2, client {victim}" in failure
    result = read(tmp_path / "run")
    assert result["status"] == "failed" and result["error"] == failure
    assert pq.read_table(tmp_path / "run" / "rounds.parquet").num_rows == 1
    assert not any((tmp_path / "store").iterdir()), "a failed run is not kept"


def test_a_partition_of_something_else_is_a_failed_row(tmp_path):
    run = small_run()
    for other, sentence in (
        ({"dataset": "mnist", "dataset_sha256": "0" * 64}, "made for another data set (mnist)"),
        ({"skew": "iid"}, "made for iid with seed 0 and 8 clients"),
        ({"test": "by-seed"}, "the partition's test set is by-seed, but"),
    ):
        partition = partition_of(run)
        partition = dataclasses.replace(partition, facts={**partition.facts, **other})
        given = {"store": tmp_path / "store", "identity": {}}
        failure = execute(run, material(), partition, tmp_path, **given)
        assert failure is not None and sentence in failure


def test_a_trace_prints_losses_penalties_and_gates_of_every_nth_batch(tmp_path, capsys):
    run = small_run()
    assert do(run, tmp_path, tmp_path / "store", trace=2) is None
    lines = [line for line in capsys.readouterr().err.splitlines() if ", batch " in line]
    steps = [row["local_steps"] for row in pq.read_table(tmp_path / "clients.parquet").to_pylist()]
    assert len(lines) == sum(count // 2 for count in steps if count)
    for word in ("task loss ", "GatePenalty ", "PrivatePenalty ", "sum ", "gates min ", "max "):
        assert all(word in line for line in lines)


# --- GPUs -----------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def difference(one, other):
    """Between two servers, relative to how far the second one has moved."""
    start = other.setup.first.cpu()
    moved = (other.server.models.cpu() - start).norm()
    return float((one.server.models.cpu() - other.server.models.cpu()).norm() / moved)


def compare(gpu, cpu):
    """The two differ in rounding alone."""
    assert gpu.server.models.is_cuda and gpu.private.is_cuda
    for mine, other in zip(gpu.rounds, cpu.rounds, strict=True):
        assert mine.keys() == other.keys()
        for exactly in ("bytes_up", "bytes_down", "local_steps", "samples_processed"):
            assert mine[exactly] == other[exactly]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
    if cpu.setup.layout.d:
        assert difference(gpu, cpu) < 1e-2


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_run_on_the_gpu_is_the_run_on_the_cpu(method):
    run = small_run(method)
    with repeatable("cuda"):
        gpu = run_rounds(setup_of(small_run(method, training={"device": "cuda"})))
    compare(gpu, run_rounds(setup_of(run)))


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "tf32"])
def test_a_run_on_the_gpu_gives_the_same_bytes_twice(tmp_path, precision):
    """With 17 tokens, attention by another way than on the CPU, and convolution of patches."""
    run = small_run(training={"device": "cuda", "precision": precision})
    for place in ("once", "again"):
        there = tmp_path / place
        images = material("cuda", 16, 64)
        assert do(run, there, there / "store", images=images) is None
    assert same_bytes(tmp_path / "once", tmp_path / "again")


@pytest.mark.parametrize(
    "method", ["fedsdg", "scaffold", "feddpa", "apfl", "focus", "cgsv-xu", "fedcurv"]
)
def test_every_tensor_is_where_it_is_worked_with(method, monkeypatch):
    """On a device that is pretended: nothing is mixed, numbers are those of the CPU, and no
    operation is one that torch knows no fixed order for."""
    for module in ("micro_batches", "probes"):
        monkeypatch.setattr(f"fedsdg.federation.{module}.rows_per_pass", lambda *_: 100)
    run = small_run(method, training={"kernel": "torch"})
    with pretended_cuda() as machine:
        here = material().samples
        samples = Samples(here.images.cuda(), here.labels.cuda())
        setup = setup_of(run, images=dataclasses.replace(material(), samples=samples))
        gpu = run_rounds(setup)
        compare(gpu, run_rounds(setup_of(run)))
    assert machine.operations.total() > 1000
    assert not DISORDERLY & set(machine.operations)


@pytest.mark.parametrize("method", ["fedsdg", "scaffold"])
def test_the_host_waits_as_often_for_many_clients_as_for_few(method, monkeypatch):
    """In a round without evaluation, gates and messages included."""
    monkeypatch.setattr("fedsdg.federation.micro_batches.rows_per_pass", lambda *_: 100)
    waits = []
    for clients in (2, 6):
        federation = {"clients_per_round": clients, "evaluate_every": 2}
        run = small_run(method, training={"kernel": "torch"}, federation=federation)
        with pretended_cuda() as machine:
            here = material().samples
            samples = Samples(here.images.cuda(), here.labels.cuda())
            setup = setup_of(run, images=dataclasses.replace(material(), samples=samples))
            before = machine.waits.total()
            run_rounds(setup, 1)
            waits.append(machine.waits.total() - before)
    assert waits[0] == waits[1] > 0
