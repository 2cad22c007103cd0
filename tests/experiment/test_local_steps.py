"""Local steps of a median client, counted before anything is run."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from fedsdg.data.partition import TRAIN
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition
from fedsdg.experiment.search.local_steps import (
    GATE_STEPS,
    least_gate_rate,
    median_steps,
    training_sizes,
)
from fedsdg.experiment.sections import FederationConfig

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def config(**sections):
    raw = yaml.safe_load(CONFIG.read_text())
    for key, value in sections.items():
        raw[key] = raw[key] | value if isinstance(value, dict) and key in raw else value
    return parse_config(raw)


def test_steps_of_a_median_client_in_a_case_that_is_counted_by_hand():
    """60 rounds, half of the clients each: 30 times 2 epochs of 1, 2 and 3 batches."""
    federation = FederationConfig(clients=3, clients_per_round=3, rounds=60)
    half = replace(federation, clients=4, clients_per_round=2)
    assert median_steps(np.array([16, 17, 48]), federation, 2, 16) == 60 * 2 * 2
    assert median_steps(np.array([16, 17, 32, 48]), half, 2, 16) == 30 * 2 * 2
    assert median_steps(np.array([16, 17, 48]), federation, 2, None) == 60 * 2


def test_of_digits_the_sizes_are_those_of_the_runs(tmp_path, monkeypatch):
    some = config()
    made = make_partition("digits", "dirichlet~0.1", 0, 20, some.partition)
    sizes = training_sizes(some, "digits", "dirichlet~0.1")
    assert sizes.tolist() == made.counts(made.split, 3)[:, TRAIN].tolist()


def test_of_stored_sets_it_is_an_equal_share_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    some = config(datasets=["cifar100"])
    with pytest.raises(FileNotFoundError, match=r"there are no files of 'cifar100' to count"):
        training_sizes(some, "cifar100", "dirichlet~0.1")
    (tmp_path / "cifar100").mkdir()
    for number, rows in enumerate((1500, 500)):
        file = tmp_path / "cifar100" / f"train-{number:05d}-of-00002.parquet"
        images = [{"bytes": b"", "path": None}] * rows
        pq.write_table(pa.table({"img": images, "fine_label": np.arange(rows) % 100}), file)
    shutil.copy(file, file.with_name("test.parquet"))
    assert training_sizes(some, "cifar100", "iid").tolist() == pytest.approx([50.0] * 20)


def test_the_least_rate_of_gates_is_a_pen_and_paper_quotient():
    some = config(skews=["iid"], federation={"rounds": 60, "clients_per_round": 10})
    sizes = training_sizes(some, "digits", "iid")
    steps = 30 * some.training.epochs * np.median(np.ceil(sizes / some.training.batch_size))
    found = least_gate_rate(some, some.method("fedsdg"), "digits", "iid", sizes)
    assert found == pytest.approx(GATE_STEPS / steps)


@pytest.mark.parametrize("at", [(4, 2), (2, 2), (2, 7)], ids=str)
def test_named_rounds_rise_and_do_not_lie_beyond_the_last(at):
    with pytest.raises(ValueError, match="evaluate_at is .* up to rounds = 6, rising"):
        FederationConfig(rounds=6, evaluate_at=at)
