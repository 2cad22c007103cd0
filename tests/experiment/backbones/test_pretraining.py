"""Pretraining: what it learns, what it records, that its bytes repeat, and how it fails."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

from fedsdg.data.datasets import ImageData
from fedsdg.data.partition import PartitionSettings
from fedsdg.data.reading import load
from fedsdg.data.sources import built_in
from fedsdg.experiment.backbones.accuracy import probed
from fedsdg.experiment.backbones.made import is_made, require_made, take_recorded
from fedsdg.experiment.backbones.pretraining import pretrain
from fedsdg.experiment.backbones.recipe import parse_backbone
from fedsdg.experiment.backbones.source_images import source_images
from fedsdg.experiment.material import make_partition
from fedsdg.files import read_json
from fedsdg.files.places import shipped
from fedsdg.models import Architecture, build_backbone, linear_probe, load_backbone, save_backbone

SHAPE = {"image_size": 8, "patch_size": 4, "channels": 1, "dim": 16, "depth": 2, "heads": 2}
QUICK = {**SHAPE, "images": 256, "held_out": 64, "epochs": 2, "batch_size": 32, "threads": 1}


@pytest.fixture
def quick(tmp_path):
    return pretrain({"source": "pretrain", **QUICK}, tmp_path / "quick.safetensors", progress=False)


def test_bytes_repeat_and_threads_are_given_back(quick, tmp_path):
    before = torch.get_num_threads()
    torch.manual_seed(12345)  # the caller's generator must neither matter nor move
    state = torch.get_rng_state()
    pretrain(QUICK, tmp_path / "again" / "quick.safetensors", progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == before
    for name in ("quick.safetensors", "quick.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_records_backbone_is_taken_where_it_is_the_one_that_is_described(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSDG_PRETRAIN", raising=False)
    options = yaml.safe_load(shipped("config/config.yaml").read_text())["backbones"]["letters"]
    output = tmp_path / "letters.safetensors"
    assert not take_recorded("letters", {**options, "seed": 1}, output), "another recipe"
    assert not take_recorded("others", options, output), "another name"
    monkeypatch.setenv("FEDSDG_PRETRAIN", "1")
    assert not take_recorded("letters", options, output), "it is to be made anew"
    assert not output.exists()
    monkeypatch.delenv("FEDSDG_PRETRAIN")
    assert take_recorded("letters", options, output)
    recorded = "results/reference/backbones/letters.safetensors"
    assert output.read_bytes() == shipped(recorded).read_bytes()
    facts = read_json(shipped(recorded).with_suffix(".json"))
    assert read_json(output.with_suffix(".json")) == {**facts, "taken_from": recorded}
    assert load_backbone(output).facts["taken_from"] == recorded
    assert is_made(options, output)


def test_another_seed_gives_other_weights(quick, tmp_path):
    other = pretrain({**QUICK, "seed": 1}, tmp_path / "other.safetensors", progress=False)
    assert other.sha256 != quick.sha256


def test_the_record(quick, tmp_path):
    record = json.loads((tmp_path / "quick.json").read_text())
    assert record["source"] == "pretrain"
    assert record["images"] == 256 and record["held_out_images"] == 64
    assert record["sha256"] == quick.sha256 == load_backbone(tmp_path / "quick.safetensors").sha256
    assert record["recipe"]["learning_rate"] == parse_backbone(QUICK).learning_rate
    assert record["linear_probe"]["data"] == "digits"
    assert 0.0 <= record["held_out_accuracy"] <= record["held_out_accuracy_ignoring_case"] <= 1.0
    assert len(record["architecture"]["mean"]) == 1 and record["architecture"]["std"][0] > 0
    assert not any("second" in key or "time" in key for key in record)


@pytest.mark.slow
def test_it_learns_the_letters_and_helps_on_digits(tmp_path):
    options = {**SHAPE, "dim": 32, "patch_size": 2, "images": 6000, "held_out": 500}
    options |= {"epochs": 6, "warmup_steps": 50}
    trained = pretrain({**options, "threads": 1}, tmp_path / "a.safetensors", progress=False)
    assert trained.facts["held_out_accuracy"] > 6 / 52
    # What a random backbone of this shape is worth to the probe, plus a margin.
    shape = trained.architecture
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random = save_backbone(build_backbone(shape), shape, tmp_path / "r.safetensors", {})
    before = probed(random.model, shape, load(built_in("digits")))["accuracy"]
    assert trained.facts["linear_probe"]["accuracy"] > before + 0.05


def test_a_named_data_set_keeps_its_global_test_set_aside(tmp_path):
    recipe = {**QUICK, "data": "digits", "images": None, "epochs": 1}
    backbone = pretrain(recipe, tmp_path / "d.safetensors")
    data = load(built_in("digits"))
    test = make_partition("digits", "iid", 3, 5, PartitionSettings()).global_test()
    assert backbone.facts["held_out_images"] == len(test)
    assert backbone.facts["images"] == len(data.labels) - len(test)
    made = source_images(parse_backbone(recipe))
    for images, wanted in (
        (made.held_images, data.images[test]),
        (made.images, np.delete(data.images, test, axis=0)),
    ):
        assert sorted(map(bytes, images)) == sorted(map(bytes, wanted))
    assert "held_out_accuracy_ignoring_case" not in backbone.facts


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    pretrain(QUICK, tmp_path / "quick.safetensors")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "pretraining: epoch 1 of 2",
        "pretraining: epoch 2 of 2",
        next(line.split(",")[0] for line in lines if line.startswith("quick: held-out accuracy")),
    ]


def test_a_loss_that_explodes_is_an_error(tmp_path):
    options = {**QUICK, "mean": [0.5], "std": [1e-45]}
    with pytest.raises(FloatingPointError, match="loss is nan at step 1"):
        pretrain(options, tmp_path / "x.safetensors", progress=False)
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**QUICK, "epoch": 3}, "backbone: unknown key 'epoch'; did you mean 'epochs'"),
        ({k: v for k, v in QUICK.items() if k != "dim"}, "backbone lacks the key 'dim'"),
        ({**QUICK, "source": "magic"}, "source is 'magic', but must be one of pretrain, check"),
        ({**QUICK, "epochs": 0}, "backbone.epochs is 0, but must be at least 1"),
        ({**QUICK, "augment": "mixup"}, "augment is 'mixup', but must be one of none, crop"),
        ({**QUICK, "precision": "float8"}, "precision is 'float8'"),
        ({**QUICK, "device": "tpu"}, "device is 'tpu'"),
        ({**QUICK, "ema": 1.0}, "backbone: ema is 1, but must be below 1"),
        ({**QUICK, "probe": "digit"}, "unknown data set 'digit'; did you mean 'digits'"),
        ({**QUICK, "mean": [math.nan]}, r"backbone.mean\[0\] is nan, but must be a finite"),
        ({**QUICK, "images": None}, "images must be a number"),
        ({**QUICK, "patch_size": 3}, "patch_size 3"),
        ({"source": "checkpoint", **SHAPE, "mean": [0.5], "std": [0.5]}, "lacks the key 'file'"),
        (
            {"source": "checkpoint", **SHAPE, "mean": [0], "std": [1], "file": "x", "epochs": 3},
            "unknown key 'epochs'",
        ),
        ({"source": "timm"}, "lacks the key 'timm_name'"),
        ({"source": "timm", "timm_name": "x", "dim": 3}, "unknown key 'dim'"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        pretrain(options, tmp_path / "x.safetensors", progress=False)


def test_a_checkpoint_is_taken_over(tmp_path):
    architecture = Architecture(**SHAPE, mean=(0.3,), std=(0.4,))
    model = build_backbone(architecture, num_classes=7)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "plain.safetensors")
    options = {"source": "checkpoint", **SHAPE, "mean": [0.3], "std": [0.4]}
    backbone = pretrain(
        {**options, "file": str(tmp_path / "plain.safetensors")},
        tmp_path / "taken.safetensors",
        progress=False,
    )
    assert backbone.architecture == architecture
    assert torch.equal(backbone.model.pos_embed, model.pos_embed)
    assert backbone.facts["source"] == "checkpoint"
    assert 0 < backbone.facts["linear_probe"]["accuracy"] <= 1
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pretrain({**options, "file": "nowhere.safetensors"}, tmp_path / "y.safetensors")


def test_what_is_made_already_is_recognised(quick, tmp_path):
    """By the recipe, the probe, or the checkpoint's weights and shape; otherwise it is not."""
    file = tmp_path / "quick.safetensors"
    assert is_made(QUICK, file) and is_made({"source": "pretrain", **QUICK}, file)
    assert is_made({**QUICK, "mlp_ratio": 4}, file), "4 and 4.0 are one number"
    for other in ({"seed": 1}, {"epochs": 3}, {"source": "checkpoint"}, {"foo": 1}):
        assert not is_made({**QUICK, **other}, file)
    assert not is_made(QUICK, tmp_path / "other.safetensors")
    require_made("quick", QUICK, file)
    with pytest.raises(ValueError, match=f"'fedsdg pretrain --backbone quick --output {file}'"):
        require_made("quick", {**QUICK, "seed": 1}, file)
    file.with_suffix(".json").write_text("{")
    assert not is_made(QUICK, file)

    model = build_backbone(Architecture(**SHAPE, mean=(0.3,), std=(0.4,)), num_classes=7)
    weights, taken = tmp_path / "plain.safetensors", tmp_path / "taken.safetensors"
    safetensors.torch.save_file(model.state_dict(), weights)
    options = {"source": "checkpoint", **SHAPE, "mean": [0.3], "std": [0.4], "file": str(weights)}
    pretrain(options, taken, progress=False)
    assert is_made(options, taken)
    assert not is_made({**options, "mean": [0.2]}, taken)
    assert not is_made({**options, "file": "nowhere.safetensors"}, taken)
    weights.rename(tmp_path / "elsewhere")
    assert is_made(options, taken), "of weights that are not there nothing else could be made"
    assert not is_made({**options, "mean": [0.2]}, taken)
    safetensors.torch.save_file({k: v + 1 for k, v in model.state_dict().items()}, weights)
    assert not is_made(options, taken)


def test_the_average_of_the_weights_is_the_backbone(quick, tmp_path):
    """Both accuracies are recorded; the last weights are those that training without it gives."""
    averaged = pretrain({**QUICK, "ema": 0.9}, tmp_path / "a.safetensors", progress=False)
    assert averaged.sha256 != quick.sha256
    assert averaged.facts["held_out_accuracy_without_ema"] == quick.facts["held_out_accuracy"]
    assert "held_out_accuracy_without_ema" not in quick.facts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(tmp_path):
    with pytest.raises(ValueError, match="device is cuda, but torch sees no GPU; set device"):
        pretrain({**QUICK, "device": "cuda"}, tmp_path / "x.safetensors")


def test_images_that_are_missing_are_missed_before_the_training(tmp_path, monkeypatch):
    """Those of the probe too, which is made last."""
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    for option in ("data", "probe"):
        with pytest.raises(FileNotFoundError, match="tiny_imagenet_32.*FEDSDG_DATA") as error:
            pretrain({**QUICK, option: "tiny_imagenet_32"}, tmp_path / "x.safetensors")
        assert "\n" not in str(error.value)


def test_the_probe_leaves_official_test_images_unseen():
    """Their labels are turned round, which would spoil a probe that saw them."""
    data = load(built_in("digits"))
    test = np.arange(len(data.labels)) % 2 == 0
    labels = np.where(test, 9 - data.labels, data.labels)
    split = ImageData("digits", data.images, labels, 10, test)
    shape = Architecture(**SHAPE, mean=(0.3,), std=(0.4,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_backbone(shape)
    rest = ImageData("digits", data.images[~test], data.labels[~test], 10)
    found = probed(model, shape, split)
    assert found == probed(model, shape, rest)


def test_the_probe_sees_a_linear_rule_and_nothing_in_noise():
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=400)
    noise = generator.normal(size=(400, 5))
    order = generator.permutation(400)
    assert linear_probe(noise + 6.0 * labels[:, None], labels, order) > 0.99
    assert linear_probe(noise, labels, order) < 0.65
