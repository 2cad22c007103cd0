"""Saving and loading a backbone, and every way in which loading must fail loudly."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsdg.next_models import (
    Architecture,
    build_backbone,
    freeze,
    from_checkpoint,
    from_timm,
    load_backbone,
    save_backbone,
    weights_sha256,
)

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def saved(tmp_path, tiny):
    path = tmp_path / "small.safetensors"
    save_backbone(build_backbone(tiny, num_classes=7), tiny, path, {"recipe": "none"})
    return path


def test_round_trip(tmp_path, tiny):
    model, path = build_backbone(tiny, num_classes=7), tmp_path / "small.safetensors"
    written = save_backbone(model, tiny, path, {"recipe": "none"})
    read, images = load_backbone(path), torch.randn(2, 1, 8, 8)
    assert (read.name, read.architecture, read.facts) == ("small", tiny, {"recipe": "none"})
    assert read.sha256 == written.sha256 == weights_sha256(read.model.state_dict())
    expected = model.eval().forward_features(images)
    torch.testing.assert_close(read.model.forward_features(images), expected)
    assert not read.model.training and not any(p.requires_grad for p in read.model.parameters())
    again = tmp_path / "again" / "small.safetensors"
    save_backbone(read.model, tiny, again, {"recipe": "none"})
    for suffix in (".safetensors", ".json"):
        assert path.with_suffix(suffix).read_bytes() == again.with_suffix(suffix).read_bytes()
    assert len(list(again.parent.iterdir())) == 2


def test_missing_truncated_and_foreign_files(saved, tmp_path, tiny):
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors"):
        load_backbone(tmp_path / "absent.safetensors")
    whole, facts = saved.read_bytes(), saved.with_suffix(".json")
    for keep in (0, 4, 100, -16):
        saved.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"small\.safetensors.*not a complete"):
            load_backbone(saved)
    saved.write_bytes(whole)
    text = facts.read_text()
    for damaged in ("", "{", "[]", "{}", '{"architecture": {"dim": 3}, "sha256": ""}'):
        facts.write_text(damaged)
        with pytest.raises(ValueError, match=r"small\.json does not describe"):
            load_backbone(saved)
    facts.unlink()
    with pytest.raises(FileNotFoundError, match=r"small\.json"):
        load_backbone(saved)
    facts.write_text(text)
    save_backbone(build_backbone(tiny), tiny, tmp_path / "other.safetensors", {})
    shutil.copy(tmp_path / "other.safetensors", saved)
    with pytest.raises(ValueError, match="do not belong together"):
        load_backbone(saved)


@pytest.mark.parametrize("change", [{"dim": 64}, {"depth": 3}, {"depth": 1}, {"patch_size": 2}])
def test_a_description_of_another_architecture(saved, tiny, change):
    facts = saved.with_suffix(".json")
    record = json.loads(facts.read_text())
    record["architecture"].update(change)
    facts.write_text(json.dumps(record))
    for load in (load_backbone, lambda file: from_checkpoint(file, replace(tiny, **change))):
        with pytest.raises(ValueError, match="do not fit the architecture given: [0-9]+ of"):
            load(saved)


def test_a_plain_checkpoint_with_a_head(tmp_path, tiny):
    model, images = build_backbone(tiny, num_classes=9).eval(), torch.randn(1, 1, 8, 8)
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    backbone = from_checkpoint(tmp_path / "plain.safetensors", tiny)
    expected = model.forward_features(images)
    torch.testing.assert_close(backbone.model.forward_features(images), expected)


@pytest.fixture(scope="module")
def timm_file(tmp_path_factory):
    """A file of timm's weights with its head, and the model."""
    architecture = Architecture(224, 16, 3, 192, 12, 3, (0.5,) * 3, (0.5,) * 3, NAME)
    model = build_backbone(architecture, num_classes=1000)
    path = tmp_path_factory.mktemp("timm") / "tiny.safetensors"
    save_file(model.state_dict(), path)
    return path


def test_timms_weights_from_a_local_file(timm_file, tmp_path):
    backbone, state = from_timm(NAME, timm_file, image_size=32), load_file(timm_file)
    shape = backbone.architecture
    assert (shape.image_size, shape.dim, shape.depth, shape.mean) == (32, 192, 12, (0.5,) * 3)
    for name, value in backbone.model.state_dict().items():
        assert name == "pos_embed" or torch.equal(value, state[name]), name
    assert backbone.model.pos_embed.shape == (1, 5, 192), "resampled to another side"
    save_backbone(backbone.model, shape, tmp_path / "b.safetensors", backbone.facts)
    assert load_backbone(tmp_path / "b.safetensors").sha256 == backbone.sha256


def renamed(name):
    """Hugging Face's name of a block's parameter."""
    return name.replace("blocks", "vit.encoder.layer").replace("norm1", "layernorm_before")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: {"weight": torch.zeros(3)}, "0 of 150 tensors.*missing: .*unknown: weight"),
        (lambda s: {f"vit.{renamed(n)}": v for n, v in s.items()}, "0 of 150.*missing.*unknown"),
        (
            lambda s: {n: v for n, v in s.items() if not n.startswith(("blocks.1", "blocks.7"))},
            r"102 of 150 tensors.*missing: blocks\.1\.attn\.proj\.bias",
        ),
        (lambda s: {n: v for n, v in s.items() if n != "pos_embed"}, "149 of 150.*: pos_embed;"),
        (lambda s: s | {"norm.weight": torch.zeros(7)}, r"149 of 150.*norm.weight \(7,\) instead"),
        (
            lambda s: s | {"blocks.12.norm1.bias": torch.zeros(192)},
            "150 of 150.*unknown: blocks.12",
        ),
    ],
    ids=["one foreign tensor", "other names", "missing blocks", "no position", "shape", "more"],
)
def test_a_file_of_other_weights_is_an_error_not_random_weights(timm_file, tmp_path, change, said):
    save_file(change(load_file(timm_file)), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=said):
        from_timm(NAME, tmp_path / "other.safetensors", image_size=32)


def test_timms_weights_that_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        from_timm(NAME, tmp_path / "nowhere.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ValueError, match="cannot be loaded"):
        from_timm(NAME, tmp_path / "broken.safetensors")
    with pytest.raises(ValueError, match="no_such_model.*cannot be loaded"):
        from_timm("no_such_model")


def test_designs_and_weights_that_are_refused(tiny):
    model = build_backbone(tiny)
    model.blocks[1].mlp.fc1.weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"blocks\.1\.mlp\.fc1\.weight"):
        freeze(model, tiny, "x", {})
    with pytest.raises(ValueError, match="class token"):
        freeze(build_backbone(tiny, global_pool="avg", class_token=False), tiny, "x", {})
    with pytest.raises(ValueError, match="Linear"):
        freeze(torch.nn.Linear(2, 2), tiny, "x", {})
    for change, said in (
        ({"patch_size": 3}, "patch_size"), ({"heads": 3}, "heads"), ({"depth": 0}, "size"),
        ({"mean": (0.5, 0.5)}, "mean"), ({"std": (0.0,)}, "std"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            replace(tiny, **change)
