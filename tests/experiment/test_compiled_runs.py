"""training.kernel: compiled, from the config to what a run learns, beside the same run by torch."""

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
from tests.suited import suited

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
#: Of each way in which clients train and models are made.
METHODS = (
    "fedsdg", "fedavg", "fedprox-inexact", "scaffold", "fedcurv", "ditto", "apfl", "fedrep",
    "fedper", "feddpa", {"type": "feddpa", "mixture": "per-sample"}, "ffa-lora", "rolora",
    "fedsa-lora", "local-only", "fine-tune",
)  # fmt: skip


def config(kernel=None, **training):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 6, "clients_per_round": 4, "rounds": 2, "evaluate_every": 1}
    usual = {"epochs": 1, "optimiser": "sgd", "eta_g": 0.05, "eta_p": 0.05}
    raw["training"] |= usual | training
    if kernel:
        raw["training"]["kernel"] = kernel
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = freeze(build_backbone(architecture), architecture, "small", {})
    return prepare_material("digits", backbone, "cpu")


def trained(material, entry, kernel, **training):
    given = suited(config(kernel, **training), entry if isinstance(entry, str) else entry["type"])
    partition = make_partition("digits", SKEW, 0, given.federation.clients, given.partition)
    run = given.run("digits", SKEW, method_entry(entry), 0)
    federation = build(run, material, partition)
    start = federation.theta.clone(), federation.private.clone()
    federation.run()
    return run, federation, start


@pytest.mark.parametrize("entry", METHODS, ids=str)
def test_what_is_learned_is_what_torch_learns(material, entry):
    one, plain, start = trained(material, entry, None)
    other, fast, _ = trained(material, entry, "compiled")
    assert one.hash != other.hash
    pairs = [(plain.theta, fast.theta, start[0])]
    if plain.private.dim() == 2:
        pairs.append((plain.private, fast.private, start[1]))
    for expected, found, begin in pairs:
        moved = (expected - begin).double().norm()
        assert (found - expected).double().norm() <= 1e-3 * moved
    for ours, theirs in zip(fast.records.rounds, plain.records.rounds, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("train_loss", "val_accuracy", "global_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=2e-3, abs=2e-3)


def test_the_same_config_gives_the_same_bytes(material):
    runs = [trained(material, "fedsdg", "compiled", optimiser="adam")[1] for _ in range(2)]
    assert torch.equal(runs[0].theta, runs[1].theta)
    assert runs[0].records.rounds == runs[1].records.rounds


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"device": "cuda"}, "compiled, which needs training.device: cpu, not cuda"),
        ({"precision": "bfloat16"}, "needs training.precision: float32, not bfloat16"),
    ],
)
def test_what_it_cannot_is_refused_with_the_config(training, sentence):
    with pytest.raises(ValueError, match=sentence):
        config("compiled", **training)


def test_null_is_in_no_address():
    run = config().run("digits", SKEW, method_entry("fedavg"), 0)
    assert "kernel" not in run.to_dict()["training"]
