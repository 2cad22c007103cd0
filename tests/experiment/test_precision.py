"""training.precision from the config to what a run learns."""

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"


def _config(**training):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 8, "clients_per_round": 5, "rounds": 2, "evaluate_every": 1}
    raw["training"] |= {"epochs": 1, **training}
    return parse_config(raw)


def test_float32_is_the_default_and_another_word_is_refused():
    assert _config().training.precision == "float32"
    with pytest.raises(ValueError, match=r"training\.precision.*bfloat16"):
        _config(precision="half")


def test_only_a_gpu_rounds_products_to_tf32():
    with pytest.raises(ValueError, match=r"precision is tf32.*set training\.device to cuda"):
        _config(precision="tf32")
    configs = [_config(precision=name, device="cuda") for name in ("float32", "tf32")]
    runs = [one.run("digits", SKEW, method_entry("fedsdg"), 0) for one in configs]
    assert runs[0].hash != runs[1].hash


def test_a_run_in_bfloat16_learns_what_one_in_float32_learns():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    material = prepare_material("digits", backbone, "cpu")
    config = _config()
    partition = make_partition("digits", SKEW, 0, config.federation.clients, config.partition)
    records, runs, moved = [], [], []
    for precision in ("float32", "bfloat16", "bfloat16"):
        config = _config(precision=precision)
        run = config.run("digits", SKEW, method_entry("fedsdg"), 0)
        federation = build(run, material, partition)
        start = federation.theta.clone()
        federation.run()
        assert federation.theta.dtype == federation.private.dtype == torch.float32
        runs.append(run)
        records.append(federation.records)
        moved.append((federation.theta - start).double().flatten())
    assert runs[0].hash != runs[1].hash == runs[2].hash
    assert dataclasses.replace(runs[1], training=runs[0].training) == runs[0]
    assert records[1].rounds == records[2].rounds and records[1].clients == records[2].clients
    assert torch.equal(moved[1], moved[2])
    # Adam takes the sign of tiny gradients: single entries may differ, the way taken may not.
    assert 0 < (moved[1] - moved[0]).norm() < 0.1 * moved[0].norm()
