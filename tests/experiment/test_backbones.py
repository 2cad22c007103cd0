"""Backbones: what they learn, what is recorded, and the same bytes whatever breaks them off."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from fedsdg.config.backbones import Checkpoint, Pretrained, Timm
from fedsdg.config.layers import load
from fedsdg.data.partition import PartitionSettings, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.experiment import backbones
from fedsdg.experiment.interruption import Stopped
from fedsdg.experiment.material import load_images
from fedsdg.experiment.store import store_folder
from fedsdg.files import changed_file, read_json
from fedsdg.files.places import shipped
from fedsdg.models import Architecture, Training, build_backbone, load_backbone, save_backbone

SHAPE = {"image_size": 8, "patch_size": 4, "channels": 1, "dim": 16, "depth": 2, "heads": 2}
QUICK = Pretrained(**SHAPE, images=256, held_out=64, epochs=2, batch_size=32, threads=1)
# Everything that has a state: the average, blocks left out, shifted and mirrored images.
LIVELY = QUICK.replaced(ema=0.99, drop_path=0.2, augment="crop-flip", precision="bfloat16")
FILES = ("tiny.safetensors", "tiny.json")
RECORDED = "results/reference/backbones/letters.safetensors"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(folder, monkeypatch):
    monkeypatch.delenv("FEDSDG_PRETRAIN", raising=False)


def made(recipe, file="out/tiny.safetensors", **options):
    return backbones.backbone("tiny", recipe, Path(file), **options)


def contents(folder):
    return [(Path(folder) / name).read_bytes() for name in FILES]


def test_bytes_repeat_and_nothing_else_changes(monkeypatch):
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    made(QUICK)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    torch.manual_seed(12345)  # the caller's generator does not matter
    monkeypatch.setenv("FEDSDG_STORE", "another")
    made(QUICK, "again/tiny.safetensors")
    assert contents("again") == contents("out")
    assert made(QUICK.replaced(seed=1), "other/tiny.safetensors")
    assert contents("other")[0] != contents("out")[0]


def test_the_facts():
    file = made(LIVELY)
    facts = read_json(file.with_suffix(".json"))
    assert facts["source"] == "pretrain" and facts["images"] == 256
    assert facts["held_out_images"] == 64 and facts["classes"] == 52
    assert Pretrained.read(facts["recipe"]) == LIVELY
    assert backbones.backbone_sha256(file) == load_backbone(file).sha256 == facts["sha256"]
    assert facts["linear_probe"]["data"] == "digits"
    assert 0 <= facts["held_out_accuracy"] <= 1
    assert not any("second" in key or "time" in key for key in facts)


@pytest.mark.slow
def test_it_learns_the_letters_and_helps_on_digits():
    more = {"dim": 32, "patch_size": 2, "images": 6000, "held_out": 500, "epochs": 6}
    trained = load_backbone(made(QUICK.replaced(**more, warmup_steps=50)))
    assert trained.facts["held_out_accuracy"] > 6 / 52
    torch.manual_seed(0)
    shape = trained.architecture
    random = save_backbone(build_backbone(shape), shape, Path("random.safetensors"), {})
    before = backbones.probe_accuracy(random, load_images("digits"))
    assert trained.facts["linear_probe"]["accuracy"] > before + 0.05


def test_a_named_data_set_keeps_its_global_test_set_aside():
    recipe = QUICK.replaced(data="digits", images=None, epochs=1)
    data = load_images("digits")
    settings = PartitionSettings(test="fixed")
    test = partition_clients(data, 5, parse_skew("iid"), 3, settings).global_test()
    images, labels, count = backbones.source_images(recipe)
    assert sorted(map(bytes, images[count:])) == sorted(map(bytes, data.images[test]))
    assert sorted(map(bytes, images)) == sorted(map(bytes, data.images))
    assert np.array_equal(np.bincount(labels), np.bincount(data.labels))
    facts = read_json(made(recipe).with_suffix(".json"))
    assert (facts["images"], facts["held_out_images"]) == (count, len(test))


# --- Where a backbone comes from ------------------------------------------------------------------


def test_the_records_backbone_comes_first(monkeypatch, capsys):
    recipe = load().backbones["letters"]
    monkeypatch.setattr(backbones, "get_or_run", None)  # nothing can be made
    file = backbones.backbone("letters", recipe)
    assert file == Path("results/backbones/letters.safetensors")
    assert file.read_bytes() == shipped(RECORDED).read_bytes()
    facts = read_json(shipped(RECORDED).with_suffix(".json"))
    assert read_json(file.with_suffix(".json")) == {**facts, "taken_from": RECORDED}
    assert f"taken from {RECORDED}" in capsys.readouterr().err
    backbones.backbone("letters", recipe)  # it is there
    assert capsys.readouterr().err == ""
    for name, other, value, recorded in (
        ("letters", recipe.replaced(seed=1), "", True),
        ("others", recipe, "0", True),
        ("letters", recipe, "1", True),
        ("letters", recipe, "", False),
    ):
        monkeypatch.setenv("FEDSDG_PRETRAIN", value)
        with pytest.raises(TypeError):
            backbones.backbone(name, other, Path("other.safetensors"), recorded=recorded)


def test_it_is_made_once(monkeypatch, capsys):
    file = made(QUICK)
    (stored,) = store_folder("runs").iterdir()
    assert changed_file(stored) is None
    before = contents("out")
    file.with_suffix(".json").write_text("{")
    assert made(QUICK) == file and contents("out") == before
    assert capsys.readouterr().err.count("epoch 2 of 2") == 1
    (stored / "tiny.safetensors").write_bytes(b"damaged")
    file.unlink()
    made(QUICK)
    assert contents("out") == before
    assert "tiny.safetensors has changed" in capsys.readouterr().err


def test_a_checkpoint_is_taken_over():
    architecture = Architecture(**SHAPE, mean=(0.3,), std=(0.4,))
    model = build_backbone(architecture, num_classes=7)
    safetensors.torch.save_file(model.state_dict(), "plain.safetensors")
    recipe = Checkpoint(**SHAPE, mean=[0.3], std=[0.4], file="plain.safetensors")
    taken = load_backbone(made(recipe))
    assert taken.architecture == architecture
    assert torch.equal(taken.model.pos_embed, model.pos_embed)
    assert taken.facts["source"] == "checkpoint" and taken.facts["file"] == "plain.safetensors"
    assert 0 < taken.facts["linear_probe"]["accuracy"] <= 1
    torch.manual_seed(1)
    other = build_backbone(architecture, num_classes=7).state_dict()
    safetensors.torch.save_file(other, "plain.safetensors")
    assert load_backbone(made(recipe)).sha256 != taken.sha256, "the file is another one"
    Path("plain.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="plain.safetensors"):
        made(recipe)


def test_a_model_of_timm_is_taken_from_a_file():
    import timm

    torch.manual_seed(0)
    name = "vit_tiny_patch16_224"
    model = timm.create_model(name, num_classes=0, img_size=32, in_chans=3)
    safetensors.torch.save_file(model.state_dict(), "vit.safetensors")
    recipe = Timm(timm_name=name, file="vit.safetensors", image_size=32, threads=1)
    taken = load_backbone(made(recipe))
    assert taken.architecture.timm_name == name and taken.architecture.image_size == 32
    assert torch.equal(taken.model.pos_embed, model.pos_embed)


def test_faults_are_one_sentence(monkeypatch):
    with pytest.raises(FloatingPointError, match="loss is nan at step 1 of 16"):
        made(QUICK.replaced(mean=[0.5], std=[1e-45]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU; set device to cpu"):
        made(QUICK.replaced(device="cuda"))
    assert not Path("out").exists()


# --- Broken off -----------------------------------------------------------------------------------


@pytest.fixture
def undisturbed(monkeypatch):
    """The bytes of a backbone whose pretraining nothing broke off."""
    with monkeypatch.context() as patch:
        patch.setenv("FEDSDG_STORE", "undisturbed")
        made(LIVELY, "undisturbed/tiny.safetensors")
    return contents("undisturbed")


def stop_at(monkeypatch, step, number):
    """Send this process a signal while it is within a step."""
    whole = Training.step

    def stopped(training, *batch):
        if training.done == step - 1:
            signal.raise_signal(number)
        return whole(training, *batch)

    monkeypatch.setattr(Training, "step", stopped)


@pytest.fixture
def stopped(monkeypatch):
    """The checkpoint of a pretraining that was stopped at its fifth step."""
    with monkeypatch.context() as patch:
        stop_at(patch, 5, signal.SIGTERM)
        with pytest.raises(Stopped, match="goes on after step 5 of 16 of the pretraining") as stop:
            made(LIVELY)
    assert stop.value.exit_code == 143 and not Path("out").exists()
    (file,) = store_folder("checkpoints").glob("*/*[!k]")
    return file


def test_it_goes_on_with_the_same_bytes(undisturbed, stopped, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at(patch, 9, signal.SIGINT)
        with pytest.raises(Stopped, match="goes on after step 9 of 16"):
            made(LIVELY)
    made(LIVELY)
    assert "going on after step 9 of 16" in capsys.readouterr().err
    assert contents("out") == undisturbed
    assert not list(store_folder("checkpoints").iterdir())


def test_a_damaged_checkpoint_is_mentioned_and_not_used(undisturbed, stopped, capsys):
    content = bytearray(stopped.read_bytes())
    content[-100] ^= 1
    stopped.write_bytes(content)
    made(LIVELY)
    assert "is damaged; the pretraining starts anew" in capsys.readouterr().err
    assert contents("out") == undisturbed


def test_a_full_disk_is_one_sentence_and_keeps_what_there_is(undisturbed, stopped, monkeypatch):
    before = stopped.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left on device.*; make room"):
            made(LIVELY, checkpoint_seconds=0)
    assert stopped.read_bytes() == before
    made(LIVELY)
    assert contents("out") == undisturbed


@pytest.mark.slow
def test_killed_before_each_renaming_the_bytes_are_the_same(undisturbed):
    """Each process saves after every step, and dies before its n-th file takes its name."""

    def run(deadly):
        replace = os.replace
        left = [deadly]

        def counted(*arguments):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*arguments)

        os.replace = counted
        made(LIVELY, checkpoint_seconds=0)

    codes = []
    for deadly in (1, 2, 7, 7, 2, 1, 3, 4, 1, 2, 3, 100):
        process = multiprocessing.get_context("fork").Process(target=run, args=(deadly,))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
    assert codes.count(-signal.SIGKILL) >= 8 and codes[-1] == 0
    assert contents("out") == undisturbed
