"""Runs of the committed record, done again for a few rounds; what keeps runs from being pairs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.replay import (
    SAME_LOSS,
    RecordedRun,
    compared,
    config_differences,
    recorded_runs,
    replay,
)
from fedsdg.models import load_backbone

RECORDS = Path(__file__).parents[2] / "results/reference"
NEEDS = Path(__file__).parents[2] / "config/cross-needs.yaml"


@pytest.fixture(scope="module")
def published():
    """The run of FedSDG with seed 3 in the arena needs, as its record has it."""
    runs = recorded_runs(RECORDS / "cross-needs")
    return next(run for run in runs if run.row["method"] == "fedsdg" and run.row["seed"] == 3)


@pytest.fixture(scope="module")
def wanted(published):
    config = load_config([NEEDS])
    return config.run("digits", published.row["skew"], config.method("fedsdg"), 3)


@pytest.fixture(scope="module")
def material():
    backbone = load_backbone(RECORDS / "backbones/letters.safetensors")
    return prepare_material("digits", backbone, "cpu")


def division(run, seed=3):
    return make_partition(
        load_images("digits"), run.skew, seed, run.federation.clients, run.partition
    )


def test_a_published_run_is_paired_with_its_record(published, wanted, material):
    found = replay(wanted, published, material, division(wanted), most=2)
    assert found.paired is not None, found.sentence
    assert found.largest < SAME_LOSS


def test_the_other_kernel_is_a_pair_and_is_named(published, wanted, material):
    there = json.loads(published.row["config"])["training"].get("kernel", "torch")
    here = {"torch": "compiled", "compiled": "torch"}[there]
    other = replace(wanted, training=replace(wanted.training, kernel=here))
    found = replay(other, published, material, division(other), most=1)
    assert found.paired == "by federation"
    assert found.sentence.endswith(f"; training.kernel is {there} in the record, but {here} here")
    assert replay(wanted, published, material, division(wanted), most=1).kernels is None


def test_another_seed_is_another_federation(published, wanted, material):
    """What would be trained on other samples is named before anything is trained."""
    found = replay(replace(wanted, seed=4), published, material, division(wanted, 4))
    assert found.paired is None and found.largest is None
    assert any("seed is 3 in it, but 4 here" in sentence for sentence in found.differs)
    assert any("clients hold other samples" in sentence for sentence in found.differs)


def test_another_backbone_is_named(published, wanted, material):
    other = replace(material, backbone=replace(material.backbone, sha256="0" * 64))
    found = replay(wanted, published, other, division(wanted))
    assert found.differs and "the backbone here (000000000000)" in found.sentence


def test_a_changed_parameter_is_named_and_a_later_key_stands_for_its_default(published, wanted):
    recorded = json.loads(published.row["config"])
    # As records from before have it, that know no other loss.
    assert recorded["training"].pop("loss") == wanted.training.loss == "cross-entropy"
    assert config_differences(wanted, recorded) == []
    changed = replace(wanted, parameters={**wanted.parameters, "lambda1": 0.5})
    assert config_differences(changed, recorded) == [
        f"the config's parameters.lambda1 is {wanted.parameters['lambda1']} in it, but 0.5 here"
    ]
    squared = replace(wanted, training=replace(wanted.training, loss="other"))
    assert "training.loss is 'cross-entropy' in it" in config_differences(squared, recorded)[0]


def test_a_key_added_since_stands_for_what_earlier_runs_had():
    """The config's file says what they had in effect: one test set for each seed."""
    record = next(run for run in recorded_runs(RECORDS / "stragglers") if run.row["seed"] == 1)
    recorded = json.loads(record.row["config"])
    config = load_config([NEEDS.with_name("extended") / "stragglers.yaml"])
    method = config.method(record.row["method"])
    run = config.run("digits", record.row["skew"], method, record.row["seed"])
    assert run.partition.test == "by-seed" and "test" not in recorded["partition"]
    assert config_differences(run, recorded) == []
    fixed = replace(run, partition=replace(run.partition, test="fixed"))
    assert fixed.hash != run.hash
    assert config_differences(fixed, recorded) == [
        "the config's partition.test is 'by-seed' in it, but 'fixed' here"
    ]
    assert config_differences(run, fixed.to_dict()) == [
        "the config's partition.test is 'fixed' in it, but 'by-seed' here"
    ]


def rows(run: RecordedRun, name: str, rounds: int = 2) -> list[dict]:
    return [row for row in run.table(name).to_pylist() if row["round"] <= rounds]


def test_rows_that_are_the_same_are_paired_exactly(published):
    found = compared(published, rows(published, "rounds"), rows(published, "clients"), 2)
    assert found.paired == "exactly" and found.largest == 0


def test_a_loss_rounded_otherwise_is_paired_by_federation(published):
    clients = rows(published, "clients")
    one = next(row for row in clients if row["participated"] and row["round"] == 1)
    one["train_loss"] = float(np.nextafter(one["train_loss"], 9))
    found = compared(published, rows(published, "rounds"), clients, 2)
    assert found.paired == "by federation" and 0 < found.largest < 1e-12
    one["train_loss"] += 2 * SAME_LOSS
    found = compared(published, rows(published, "rounds"), clients, 2)
    assert found.paired is None and "training losses differ by 2.0e-04" in found.sentence


def test_what_training_amplifies_after_the_first_round_is_said_and_no_obstacle(published):
    clients = rows(published, "clients")
    one = next(row for row in clients if row["participated"] and row["round"] == 2)
    one["train_loss"] += 0.1
    found = compared(published, rows(published, "rounds"), clients, 2)
    assert found.paired == "by federation" and found.largest == 0
    assert found.later == pytest.approx(0.1)


def test_another_cohort_is_named_with_its_client(published):
    clients = rows(published, "clients")
    one = next(row for row in clients if row["participated"])
    one["participated"] = False
    found = compared(published, rows(published, "rounds"), clients, 2)
    assert found.paired is None
    place = f"clients.parquet, round {one['round']}, client {one['client']}: participated is True"
    assert found.differs[0].startswith(place)


def test_a_missing_round_is_named(published):
    found = compared(published, rows(published, "rounds", 1), rows(published, "clients"), 2)
    assert "2 rows in the record, 1 here" in found.sentence
