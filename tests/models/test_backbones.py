"""Saving and loading a backbone, and every way in which loading must fail loudly."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import (
    build,
    freeze,
    from_checkpoint,
    from_timm,
    load_backbone,
    save_backbone,
    weights_sha256,
)


@pytest.fixture
def saved(tmp_path: Path, tiny: Architecture) -> Path:
    model = build(tiny, num_classes=7)
    path = tmp_path / "small.safetensors"
    save_backbone(model, tiny, path, {"recipe": "none"})
    return path


def test_round_trip(tmp_path, tiny):
    model = build(tiny, num_classes=7)
    written = save_backbone(model, tiny, tmp_path / "small.safetensors", {"recipe": "none"})
    read = load_backbone(tmp_path / "small.safetensors")
    assert (read.name, read.architecture, read.sha256) == ("small", tiny, written.sha256)
    assert read.facts == {"recipe": "none"}
    image = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(
        read.model.forward_features(image), model.eval().forward_features(image)
    )
    assert not read.model.training
    assert not any(parameter.requires_grad for parameter in read.model.parameters())
    assert not any(name.startswith("head.") for name in read.model.state_dict())
    record = json.loads((tmp_path / "small.json").read_text())
    assert record["sha256"] == read.sha256 == weights_sha256(read.model.state_dict())
    assert record["architecture"]["mean"] == [0.5]


def test_bytes_are_deterministic(saved, tmp_path, tiny):
    again = tmp_path / "again" / "small.safetensors"
    save_backbone(load_backbone(saved).model, tiny, again, {"recipe": "none"})
    for suffix in (".safetensors", ".json"):
        assert saved.with_suffix(suffix).read_bytes() == again.with_suffix(suffix).read_bytes()


def test_nothing_is_left_beside_the_files(saved):
    assert {path.name for path in saved.parent.iterdir()} == {"small.safetensors", "small.json"}


def test_missing_files(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors"):
        load_backbone(tmp_path / "absent.safetensors")
    saved.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"small\.json"):
        load_backbone(saved)


@pytest.mark.parametrize("keep", [0, 4, 100, -16])
def test_truncated_weights(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"small\.safetensors.*not a complete"):
        load_backbone(saved)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"architecture": {"dim": 3}, "sha256": ""}']
)
def test_a_damaged_description(saved, text):
    saved.with_suffix(".json").write_text(text)
    with pytest.raises(ValueError, match=r"small\.json"):
        load_backbone(saved)


@pytest.mark.parametrize("change", [{"dim": 32}, {"depth": 3}, {"depth": 1}, {"patch_size": 2}])
def test_a_description_of_another_architecture(saved, tiny, change):
    record = json.loads(saved.with_suffix(".json").read_text())
    record["architecture"].update(change)
    saved.with_suffix(".json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="do not fit the architecture"):
        load_backbone(saved)
    with pytest.raises(ValueError, match="do not fit the architecture"):
        from_checkpoint(saved, replace(tiny, **change))


def test_weights_of_another_backbone(saved, tmp_path, tiny):
    other = tmp_path / "other.safetensors"
    save_backbone(build(tiny), tiny, other, {})
    shutil.copy(other, saved)
    with pytest.raises(ValueError, match="do not belong together"):
        load_backbone(saved)


def test_a_plain_checkpoint_with_a_head(tmp_path, tiny):
    model = build(tiny, num_classes=9).eval()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "plain.safetensors")
    backbone = from_checkpoint(tmp_path / "plain.safetensors", tiny)
    image = torch.randn(1, 1, 8, 8)
    torch.testing.assert_close(
        backbone.model.forward_features(image), model.forward_features(image)
    )
    with pytest.raises(FileNotFoundError, match="nowhere"):
        from_checkpoint(tmp_path / "nowhere.safetensors", tiny)


def test_weights_that_are_not_finite(tiny):
    model = build(tiny)
    model.blocks[1].mlp.fc1.weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"blocks\.1\.mlp\.fc1\.weight"):
        freeze(model, tiny, "x", {})


def test_unsupported_designs(tiny):
    with pytest.raises(ValueError, match="class token"):
        freeze(build(tiny, global_pool="avg", class_token=False), tiny, "x", {})
    with pytest.raises(ValueError, match="Linear"):
        freeze(torch.nn.Linear(2, 2), tiny, "x", {})


NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def test_timms_weights_from_a_local_file(tmp_path):
    architecture = Architecture(224, 16, 3, 192, 12, 3, (0.5,) * 3, (0.5,) * 3, NAME)
    model = build(architecture, num_classes=1000)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "tiny.safetensors")
    backbone = from_timm(NAME, tmp_path / "tiny.safetensors", image_size=32)
    assert backbone.architecture.image_size == 32
    assert (backbone.architecture.dim, backbone.architecture.depth) == (192, 12)
    assert backbone.architecture.mean == (0.5,) * 3
    assert torch.equal(backbone.model.blocks[3].mlp.fc1.weight, model.blocks[3].mlp.fc1.weight)
    save_backbone(backbone.model, backbone.architecture, tmp_path / "b.safetensors", backbone.facts)
    assert load_backbone(tmp_path / "b.safetensors").sha256 == backbone.sha256


def test_timms_weights_that_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        from_timm(NAME, tmp_path / "nowhere.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ValueError, match="cannot be loaded"):
        from_timm(NAME, tmp_path / "broken.safetensors")
    with pytest.raises(ValueError, match="no_such_model.*cannot be loaded"):
        from_timm("no_such_model")


@pytest.mark.parametrize(
    "change",
    [{"patch_size": 3}, {"heads": 3}, {"depth": 0}, {"mean": (0.5, 0.5)}, {"std": (0.0,)}],
)
def test_contradicting_architectures(tiny, change):
    with pytest.raises(ValueError, match=next(iter(change)) if "depth" not in change else "size"):
        replace(tiny, **change)
