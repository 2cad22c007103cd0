"""training.kernel: compiled, from the config to what a run learns, beside the same run by torch."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.experiment import kernel
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.scenarios import laid_over
from fedsdg.federation import assembly
from fedsdg.models import Architecture, build_backbone, freeze
from fedsdg.models.fast import vectors
from tests.federation.small import run
from tests.suited import suited

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
#: Of each way in which clients train and models are made.
METHODS = (
    "fedsdg", "fedavg", "fedprox-inexact", "scaffold", "fedcurv", "ditto", "apfl", "fedrep",
    "fedper", "feddpa", "ffa-lora", "rolora",
    "fedsa-lora", "local-only", "fine-tune", "fedbabu", "gated-head", "fed-rod",
    "fedsdg-heldout",
)  # fmt: skip


def config(kernel="auto", **training):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 6, "clients_per_round": 4, "rounds": 2, "evaluate_every": 1}
    usual = {"epochs": 1, "optimiser": "sgd", "eta_g": 0.05, "eta_p": 0.05}
    raw["training"] |= usual | training
    raw["training"]["kernel"] = kernel
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    model = build_backbone(architecture)
    # NumPy's draws, for PyTorch's depend on the processor.
    draws = np.random.default_rng(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(torch.from_numpy(draws.normal(mean, 0.1, weight.shape)))
    backbone = freeze(model, architecture, "small", {})
    return prepare_material("digits", backbone, "cpu")


def trained(material, entry, kernel, **training):
    given = suited(config(kernel, **training), entry)
    partition = make_partition("digits", SKEW, 0, given.federation.clients, given.partition)
    one = given.run("digits", SKEW, method_entry(entry), 0)
    return one, run(build(one, material, partition))


@pytest.mark.parametrize("entry", METHODS)
def test_what_is_learned_is_what_torch_learns(material, entry):
    one, plain = trained(material, entry, "torch")
    other, fast = trained(material, entry, "compiled")
    assert one.hash != other.hash
    pairs = [(plain.server.models, fast.server.models, plain.setup.first)]
    pairs.append((plain.private, fast.private, plain.setup.private))
    for expected, found, begin in pairs:
        moved = (expected - begin).double().norm()
        assert (found - expected).double().norm() <= 1e-3 * moved
    for ours, theirs in zip(fast.rounds, plain.rounds, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("train_loss", "val_accuracy", "global_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=2e-3, abs=2e-3)


PROGRAM = """
import hashlib, sys
import torch
sys.path.insert(0, {root!r})
from tests.experiment.test_compiled_runs import METHODS, material, trained
torch.set_num_threads(1)
made = material.__wrapped__()
for entry in METHODS:
    one = trained(made, entry, "compiled", optimiser="adam", eta_g=0.01, eta_p=0.01)[1]
    kept = one.server.models, one.private
    print(entry, *(hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest() for x in kept))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
def test_whole_runs_have_the_same_bytes_whatever_the_instructions():
    """PyTorch around the compiled pass included: instructions of AVX2, and all of this machine."""

    def run(**environment):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(root=str(ROOT))],
            env={**os.environ, "PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    older = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "MKL_CBWR": "AVX2"}
    here, there = run(), run(**older, ATEN_CPU_CAPABILITY="avx2")
    assert len(here) == len(METHODS)
    assert here == there


def test_the_same_config_gives_the_same_bytes(material):
    runs = [trained(material, "fedsdg", "compiled", optimiser="adam")[1] for _ in range(2)]
    assert torch.equal(runs[0].theta, runs[1].theta)
    assert runs[0].rounds == runs[1].rounds


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"training": {"device": "cuda"}}, "needs training.device: cpu, not cuda"),
        ({"training": {"precision": "bfloat16"}}, "needs training.precision: float32, not bf"),
        ({"adapters": {"targets": "qkv-fc1"}}, "needs adapters.targets: outputs, not qkv-fc1"),
        ({"trainable": "full", "methods": ["fedavg"]}, "needs trainable: adapters, not full"),
        ({"backbones": {"letters": {"dim": 24}}}, "multiples of 16 .* have 24, 6 and 96"),
    ],
)
def test_what_cannot_be_compiled_is_torchs_and_refused_by_name(changed, sentence):
    raw = laid_over(yaml.safe_load(CONFIG.read_text()), changed)
    run = parse_config(raw).run("digits", SKEW, method_entry("fedavg"), 0)
    assert run.training.kernel == "torch"
    with pytest.raises(ValueError, match=rf"training.kernel is compiled, but .*{sentence}"):
        parse_config(laid_over(raw, {"training": {"kernel": "compiled"}}))


def test_a_model_of_timms_is_torchs_unless_asked_for_by_name():
    entry = {"source": "timm", "timm_name": "vit_tiny_patch16_224.augreg_in21k"}
    for asked, taken in (("auto", "torch"), ("compiled", "compiled")):
        changed = {
            "backbones": {"other": entry},
            "backbone": "other",
            "training": {"kernel": asked},
        }
        raw = laid_over(yaml.safe_load(CONFIG.read_text()), changed)
        run = parse_config(raw).run("digits", SKEW, method_entry("fedavg"), 0)
        assert run.training.kernel == taken


def test_without_fused_instructions_it_is_torchs(monkeypatch):
    import llvmlite.binding

    def run(kernel):
        return config(kernel).run("digits", SKEW, method_entry("fedavg"), 0)

    assert kernel.LANES == vectors.LANES and run("auto").training.kernel == "compiled"
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: {"sse2": True})
    assert run("auto").training.kernel == "torch"
    with pytest.raises(ValueError, match="needs a processor with fused multiply-add"):
        config("compiled")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert run("auto").training.kernel == "compiled"


def test_the_address_says_which_it_was():
    runs = {
        kernel: config(kernel).run("digits", SKEW, method_entry("fedavg"), 0)
        for kernel in ("auto", "compiled", "torch")
    }
    assert runs["auto"].hash == runs["compiled"].hash != runs["torch"].hash
    assert runs["auto"].to_dict()["training"]["kernel"] == "compiled"
    # Earlier runs were torch's and had no such key.
    assert "kernel" not in runs["torch"].to_dict()["training"]


def test_what_does_not_fit_is_computed_anew_to_the_same_bytes(material, monkeypatch):
    kept = trained(material, "fedsdg", "compiled")[1]
    monkeypatch.setattr(assembly, "MOST_PREFIX_BYTES", 10_000)
    anew = trained(material, "fedsdg", "compiled")[1]
    assert kept.setup.samples.images.shape[1:] != anew.setup.samples.images.shape[1:] == (1, 8, 8)
    assert torch.equal(kept.theta, anew.theta) and torch.equal(kept.private, anew.private)
    assert kept.rounds == anew.rounds
