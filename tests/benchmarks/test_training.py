"""The arithmetic of the benchmarks of training, against closed forms."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import bench_training, rivals, round_aims
from benchmarks.arithmetic import SIDES, operations, product
from benchmarks.bench_bars import TRAINING
from benchmarks.federations import MEASURED, federation
from benchmarks.gate import ATTEMPTS, TrainingBar, Verdict
from fedsdg.analysis.speed import MODELS, ROUND_CODES
from fedsdg.files.declarations import titles

ROOT = Path(__file__).parents[2]


def test_a_product_has_two_operations_for_each_triple():
    work, count = product("float32")
    assert operations(work) == count == 2 * SIDES["cpu"] ** 3


def test_fused_attention_is_counted_as_its_products_forward_and_backward():
    """Forward Q Kᵀ and P V; backward those of V, P, Q and K, and Q Kᵀ once more."""
    heads, tokens, width = 3, 7, 8
    q, k, v = torch.randn(3, 1, heads, tokens, width, requires_grad=True).unbind()
    one = 2 * heads * tokens * tokens * width
    assert operations(lambda: F.scaled_dot_product_attention(q, k, v)) == 2 * one

    def both():
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    assert operations(both) == (2 + 5) * one


def test_a_round_is_drawn_from_the_experiment_and_never_evaluated():
    made = federation("digits", "fedsdg")
    facts = bench_training.facts("digits", "fedsdg", "cpu")
    assert (facts["clients"], facts["batch_size"], facts["epochs"]) == (5, 16, 2)
    record = made.step(1)
    assert not record["evaluated"]
    assert record["bytes_up"] > 0
    assert record["samples_processed"] == facts["samples"]


def row(code, precision, seconds, **more):
    base = {"device": "cpu", "model": "digits", "method": "fedsdg", "refused": None}
    return base | {"code": code, "precision": precision, "seconds": seconds} | more


def test_aims_are_ratios_of_seconds_each_code_in_its_precision(monkeypatch):
    monkeypatch.setattr(round_aims, "amx", lambda: False)
    rounds = [
        row("ours", "float32", 0.1),
        row("plain", "float32", 0.29),
        row("flower", "float32", 1.5, refused="not judged: …"),
        row("ours", "float32", 9.0, model="vit-tiny"),
        row("ours", "bfloat16", 4.0, model="vit-tiny"),
        row("plain", "float32", 12.0, model="vit-tiny"),
        row("plain", "bfloat16", 8.0, model="vit-tiny"),
    ]
    found = {(aim["model"], aim["code"]): aim for aim in round_aims.rounds_reached(rounds)}
    assert {key: aim["met"] for key, aim in found.items()} == {
        ("digits", "plain"): False,
        ("digits", "flower"): None,
        ("vit-tiny", "plain"): True,
    }
    assert found["digits", "plain"]["value"] == pytest.approx(2.9)
    assert found["vit-tiny", "plain"]["value"] == pytest.approx(3.0)
    assert found["vit-tiny", "plain"]["bound"] == 2.5


def test_more_is_asked_of_processors_with_tiles(monkeypatch):
    monkeypatch.setattr(round_aims, "amx", lambda: True)
    assert {aim.bound for aim in round_aims.round_aims() if aim.model == "vit-tiny"} == {3, 20}


def test_names_of_benchmarks_and_table_are_the_same():
    assert set(MODELS) == set(MEASURED)
    assert {aim.code for aim in round_aims.round_aims()} <= set(ROUND_CODES)
    for bar in TRAINING:
        assert bar.method in titles("methods") and bar.model in MEASURED
        assert bar.least > 1
        assert len(bar.reason.split()) > 2


def test_a_missed_bar_of_training_is_told_in_a_sentence():
    bar = TrainingBar("fedsdg", "digits", 2, "one pass for all clients")
    assert Verdict(1.5, False, None).sentence(bar) == (
        f"a round of fedsdg on digits: 1.50 times the plain loop in the best of {ATTEMPTS} "
        "attempts, but 2 is asked: one pass for all clients"
    )


@pytest.mark.slow
@pytest.mark.skipif(not rivals.flower_simulates(), reason="flwr or ray is not installed")
@pytest.mark.parametrize("method", ["fedsdg", "fedavg"])
def test_flowers_simulation_ends_where_the_plain_loop_ends(method):
    """Messages, states of nodes and Flower's own mean lose nothing: float32, three rounds."""
    options = ["digits", method, "--rounds", "3", "--check", "--fresh"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.flower_simulation", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["difference"] < 1e-3
