"""A run's answers by image, its personal steps, and how far its gates can have moved."""

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.run_files import Assignment
from fedsdg.experiment.runs import execute, execute_together
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.files.records import CLIENTS_SCHEMA, more, write_parquet
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
CLIENTS, COHORT, ROUNDS, EVALUATIONS = 6, 3, 4, 2
CONFLICT = {"label_conflict": {"share": 0.5, "classes": 4}}


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": COHORT, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": ROUNDS // EVALUATIONS}
    raw["training"] |= {"epochs": 2}
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material("digits", backbone, "cpu")


@pytest.fixture(scope="module")
def run_of(config):
    def run(entry, skew="dirichlet~0.3", conditions=None, seed=0, **federation):
        changed = dataclasses.replace(
            config, federation=dataclasses.replace(config.federation, **federation)
        )
        made = changed.run("digits", skew, method_entry(entry), seed)
        return dataclasses.replace(made, conditions=parse_conditions(conditions or {}))

    return run


@pytest.fixture(scope="module")
def partition_of(config):
    def partition(run):
        return make_partition("digits", run.skew, run.seed, CLIENTS, config.partition)

    return partition


def read(folder):
    clients = pq.read_table(folder / "clients.parquet").to_pylist()
    return json.loads((folder / "result.json").read_text()), clients


def require_answers(folder, seen):
    """The answers stand in the selected round, and give every client's expected accuracy."""
    result, clients = read(folder)
    at = result["selected"]["round"]
    answered = [row for row in clients if row["answers"] is not None]
    assert {row["round"] for row in answered} == {at}
    judged = {
        row["client"] for row in clients if row["round"] == at and row["val_accuracy"] is not None
    }
    assert {row["client"] for row in answered} == judged
    for row in answered:
        weights = seen.weights[row["client"]]
        bits = np.unpackbits(np.frombuffer(row["answers"], dtype=np.uint8))
        right, rest = bits[: len(weights)].astype(bool), bits[len(weights) :]
        assert len(rest) < 8 and not rest.any() and not right[weights == 0].any()
        assert math.fsum(weights[right]) == row["expected_accuracy"]
    mean = np.mean([row["expected_accuracy"] for row in answered if not row.get("held_out")])
    assert mean == pytest.approx(result["selected"]["expected_accuracy"])
    return at


@pytest.mark.parametrize(
    ("entry", "case"),
    [
        ("fedavg", {}),  # one model for all
        ("fedsdg", {}),  # a private part each
        ("fine-tune", {}),  # a model each
        ("fedsdg", {"skew": "iid", "conditions": CONFLICT}),
        ("fedavg", {"conditions": {"feature_shift": {"kind": "invert", "share": 0.5}}}),
        ("fedsdg", {"held_out": 0.3}),
        ("fedavg", {"global_images": 101}),
    ],
)
def test_answers_of_the_selected_round_give_every_expected_accuracy(
    run_of, partition_of, material, tmp_path, entry, case
):
    run = run_of(entry, **case)
    partition = partition_of(run)
    seen = build(run, material, partition).seen
    given = {"store": tmp_path / "store", "identity": {}}
    assert execute(run, material, partition, tmp_path / "run", **given) is None
    require_answers(tmp_path / "run", seen)
    size = case.get("global_images", len(partition.global_test()))
    answers = [row["answers"] for row in read(tmp_path / "run")[1] if row["answers"]]
    assert {len(own) for own in answers} == {-(-size // 8)}


def test_seeds_together_have_their_own_answers(run_of, partition_of, material, tmp_path):
    runs = [run_of("fedsdg", seed=seed) for seed in (0, 1)]
    group = [Assignment(run, partition_of(run), tmp_path / str(run.seed), {}) for run in runs]
    assert execute_together(group, material, store=tmp_path / "store") == [None, None]
    for one in group:
        require_answers(one.folder, build(one.run, material, one.partition).seen)


@pytest.mark.parametrize("eta_g", [0.003, 3.0])
def test_from_every_round_on_the_answers_are_the_same(
    run_of, partition_of, material, tmp_path, eta_g
):
    """Also where an early evaluation is the best, since training goes astray."""
    run = run_of({"type": "fedavg", "eta_g": eta_g}, rounds=6, evaluate_every=1)
    partition = partition_of(run)
    whole, so_far = build(run, material, partition), []
    for round_ in range(1, 7):
        whole.step(round_)
        so_far.append(whole.answers)
        kept = Checkpoints(tmp_path / str(round_), {})
        kept.save(whole, {})
        kept.close()
    best = max(whole.records.rounds, key=lambda row: (row["val_accuracy"], -row["round"]))
    assert whole.answers.round == best["round"]
    assert (best["round"] < 6) or eta_g < 1
    for round_ in range(1, 7):
        other = build(run, material, partition)
        kept = Checkpoints(tmp_path / str(round_), {})
        kept.restore(other)
        kept.close()
        assert other.answers == so_far[round_ - 1]
        other.run()
        assert other.answers == whole.answers


def test_answers_take_little_more_than_their_bits():
    """300 runs of 20 clients with 360 images, evaluated 12 times, in one file as in a summary."""
    draw = np.random.default_rng(0)
    rows = [
        {"round": 10 * round_, "client": client, "expected_accuracy": float(draw.random())}
        for _ in range(300)
        for round_ in range(1, 13)
        for client in range(20)
    ]
    bits = iter(np.packbits(draw.random((6000, 360)) < 0.85, axis=1))
    with_answers = [
        row | ({"answers": next(bits).tobytes()} if row["round"] == 50 else {}) for row in rows
    ]
    sizes = []
    for table in (rows, with_answers):
        file = io.BytesIO()
        schema = pa.unify_schemas([CLIENTS_SCHEMA, pa.schema([more("clients").field("answers")])])
        pq.write_table(pa.Table.from_pylist(table, schema=schema), file, compression="zstd")
        sizes.append(len(file.getvalue()))
    assert sizes[1] - sizes[0] < 1.1 * 300 * 900


def test_a_table_without_answers_has_no_such_column(tmp_path):
    write_parquet(tmp_path / "c.parquet", [{"round": 1}], CLIENTS_SCHEMA, more("clients"))
    assert pq.read_schema(tmp_path / "c.parquet").names == CLIENTS_SCHEMA.names


@pytest.mark.parametrize(
    ("entry", "of_the_common"),
    [
        ("fedavg", 0),
        ("fedsdg", 0),
        ("fedper", 0),
        ("local-only", 0),
        ("ditto", 1),  # as long as the model for the server
        ("apfl", 1),
        ("fed-rod", 1),
        ({"type": "fedrep", "head_epochs": 3}, 3 / 2),  # beside two epochs
        ({"type": "feddpa", "personal_epochs": 1}, 1 / 2),
    ],
)
def test_personal_steps_of_training_in_figures(
    run_of, partition_of, material, entry, of_the_common
):
    run = run_of(entry)
    one = build(run, material, partition_of(run))
    one.run()
    for row in one.records.rounds:
        cohort = one.cohort(row["round"])
        common = 2 * int(one.batches_per_epoch(cohort).sum())
        assert row["personal_steps"] == of_the_common * common
        assert row["local_steps"] == common + row["personal_steps"]
        assert row.get("evaluation_steps", 0) == 0
        assert ("evaluation_steps" in row) == row["evaluated"]


def test_steps_before_an_evaluation_are_personal_and_no_local_steps(
    run_of, partition_of, material, tmp_path
):
    tuned = run_of({"type": "fine-tune", "personal_epochs": 3})
    refreshed = run_of({"type": "fedsdg", "refresh": 2})
    held_out = run_of("ditto", held_out=0.3)
    for run in (tuned, refreshed, held_out):
        partition = partition_of(run)
        one = build(run, material, partition)
        per_epoch = one.batches_per_epoch(np.arange(CLIENTS))
        total = 0
        for round_ in range(1, ROUNDS + 1):
            row = one.step(round_)
            common = 2 * int(per_epoch[one.cohort(round_)].sum())
            expected = 0
            if row["evaluated"] and run is tuned:
                expected = 3 * per_epoch.sum()  # everybody is evaluated
            elif row["evaluated"] and run is refreshed:
                expected = 2 * per_epoch[one.bank.trained.numpy()].sum()
            elif row["evaluated"] and 4 * round_ > 3 * ROUNDS:
                # Two epochs of the model for the server, and of its own.
                expected = 4 * per_epoch[one.circumstances.held_out].sum()
            assert row.get("evaluation_steps", 0) == expected
            beside = common if run is held_out else 0
            assert row["personal_steps"] == expected + beside
            assert row["local_steps"] == common + beside
            total += row["personal_steps"]
        folder = tmp_path / run.method / str(total)
        given = {"store": tmp_path / "store", "identity": {}}
        assert execute(run, material, partition, folder, **given) is None
        assert read(folder)[0]["personal_steps"] == total > 0


@pytest.mark.parametrize(
    ("entry", "learned"),
    [
        ({"type": "fedsdg", "eta_m": 0.03}, True),
        ({"type": "fedsdg", "gate_fixed": 0.5}, False),
        ("fedavg", False),
    ],
)
def test_gates_of_a_run_are_those_of_its_last_evaluation(
    run_of, partition_of, material, tmp_path, entry, learned
):
    run = run_of(entry, conditions=CONFLICT)
    given = {"store": tmp_path / "store", "identity": {}}
    assert execute(run, material, partition_of(run), tmp_path / "run", **given) is None
    result, clients = read(tmp_path / "run")
    last = [row for row in clients if row["round"] == ROUNDS and row["val_accuracy"] is not None]
    assert len(last) == CLIENTS and sum(row["conflicts"] for row in last) == CLIENTS // 2
    assert ("gate_travel" in result) == learned
    if learned:
        travel = 0.03 * np.median([row["steps"] for row in last])
        assert result["gate_travel"] == pytest.approx(travel)
    for name, differs in (("gates_a", False), ("gates_b", True)):
        gates = [row["gates"] for row in last if row["conflicts"] == differs and row["gates"]]
        assert (name in result) == bool(gates)
        if gates:
            assert result[name] == pytest.approx(np.mean(gates))
    assert ("gates_a" in result) == learned


def test_gates_are_recorded_in_evaluated_rounds_alone_where_that_is_asked_for(
    run_of, partition_of, material, tmp_path
):
    """All else stays as it is, and the address of a run that does not ask for it too."""
    found = {}
    for asked in ("every-round", "evaluations"):
        run = run_of("fedsdg", conditions=CONFLICT, record_gates=asked)
        given = {"store": tmp_path / asked / "store", "identity": {}}
        assert execute(run, material, partition_of(run), tmp_path / asked / "run", **given) is None
        found[asked] = run, read(tmp_path / asked / "run")[1]
    usual, rows = found["every-round"]
    run, fewer = found["evaluations"]
    assert "record_gates" not in usual.to_dict()["federation"] and run.hash != usual.hash
    judged = {row["round"] for row in rows if row["val_accuracy"] is not None}
    assert 0 < len(judged) < ROUNDS
    for row, other in zip(rows, fewer, strict=True):
        assert row["gates"] is not None or not row["participated"]
        kept = row["gates"] if row["round"] in judged else None
        assert other == {**row, "gates": kept}
