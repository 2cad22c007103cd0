"""Backbones: pretrained, saved, loaded, and every way in which loading must fail loudly."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsdg import models

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def saved(tmp_path, tiny):
    path = tmp_path / "small.safetensors"
    models.save_backbone(models.build_backbone(tiny, num_classes=7), tiny, path, {"recipe": "none"})
    return path


def test_round_trip(tmp_path, tiny):
    model, path = models.build_backbone(tiny, num_classes=7), tmp_path / "small.safetensors"
    written = models.save_backbone(model, tiny, path, {"recipe": "none"})
    read, images = models.load_backbone(path), torch.randn(2, 1, 8, 8)
    assert (read.name, read.architecture, read.facts) == ("small", tiny, {"recipe": "none"})
    assert read.sha256 == written.sha256 == models.weights_sha256(read.model.state_dict())
    expected = model.eval().forward_features(images)
    torch.testing.assert_close(read.model.forward_features(images), expected)
    assert not read.model.training and not any(p.requires_grad for p in read.model.parameters())
    again = tmp_path / "again" / "small.safetensors"
    models.save_backbone(read.model, tiny, again, {"recipe": "none"})
    for suffix in (".safetensors", ".json"):
        assert path.with_suffix(suffix).read_bytes() == again.with_suffix(suffix).read_bytes()


def test_missing_truncated_and_foreign_files(saved, tmp_path, tiny):
    whole, facts = saved.read_bytes(), saved.with_suffix(".json")
    for keep in (0, 4, 100, -16):
        saved.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"small\.safetensors.*not a complete"):
            models.load_backbone(saved)
    text = facts.read_text()
    for damaged in ("", "{", "[]", "{}", '{"architecture": {"dim": 3}, "sha256": ""}'):
        facts.write_text(damaged)
        with pytest.raises(ValueError, match=r"small\.json does not describe"):
            models.load_backbone(saved)
    facts.write_text(text)
    models.save_backbone(models.build_backbone(tiny), tiny, tmp_path / "other.safetensors", {})
    saved.write_bytes((tmp_path / "other.safetensors").read_bytes())
    with pytest.raises(ValueError, match="do not belong together"):
        models.load_backbone(saved)
    for file in (facts, saved):
        file.unlink()
        with pytest.raises(FileNotFoundError, match=file.name):
            models.load_backbone(saved)


@pytest.mark.parametrize("change", [{"dim": 64}, {"depth": 3}, {"depth": 1}, {"patch_size": 2}])
def test_a_description_of_another_architecture(saved, tiny, change):
    facts, shape = saved.with_suffix(".json"), replace(tiny, **change)
    record = json.loads(facts.read_text())
    record["architecture"].update(change)
    facts.write_text(json.dumps(record))
    for load in (models.load_backbone, lambda file: models.from_checkpoint(file, shape)):
        with pytest.raises(ValueError, match="do not fit the architecture given: [0-9]+ of"):
            load(saved)


@pytest.fixture(scope="module")
def timm_file(tmp_path_factory):
    """A file of timm's weights with its head."""
    shape = models.Architecture(224, 16, 3, 192, 12, 3, (0.5,) * 3, (0.5,) * 3, NAME)
    path = tmp_path_factory.mktemp("timm") / "tiny.safetensors"
    save_file(models.build_backbone(shape, num_classes=1000).state_dict(), path)
    return path


def test_timms_weights_from_a_local_file(timm_file, tmp_path):
    backbone = models.from_timm(NAME, timm_file, image_size=32)
    shape, state = backbone.architecture, load_file(timm_file)
    assert (shape.image_size, shape.dim, shape.depth, shape.mean) == (32, 192, 12, (0.5,) * 3)
    for name, value in backbone.model.state_dict().items():
        assert name == "pos_embed" or torch.equal(value, state[name]), name
    assert backbone.model.pos_embed.shape == (1, 5, 192), "resampled to another side"
    copy = tmp_path / "b.safetensors"
    models.save_backbone(backbone.model, shape, copy, backbone.facts)
    assert models.load_backbone(copy).sha256 == backbone.sha256


def without(*prefixes):
    return lambda state: {n: v for n, v in state.items() if not n.startswith(prefixes)}


OTHER_WEIGHTS = {
    "0 of 150 tensors.*missing: .*unknown: weight": lambda s: {"weight": torch.zeros(3)},
    "0 of 150.*missing.*unknown: vit.enc": lambda s: {f"vit.encoder.{n}": v for n, v in s.items()},
    r"78 of 150 .*missing: blocks\.1": without(*(f"blocks.{n}" for n in (1, 7, 8, 9))),
    "149 of 150 .*missing: pos_embed;": without("pos_embed"),
    r"149 of 150.*norm.weight \(7,\) instead": lambda s: s | {"norm.weight": torch.zeros(7)},
    "150 of 150.*unknown: blocks.12": lambda s: s | {"blocks.12.norm1.bias": torch.zeros(192)},
}


@pytest.mark.parametrize("said", OTHER_WEIGHTS)
def test_a_file_of_other_weights_is_an_error_not_random_weights(timm_file, tmp_path, said):
    save_file(OTHER_WEIGHTS[said](load_file(timm_file)), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=said):
        models.from_timm(NAME, tmp_path / "other.safetensors", image_size=32)


def test_timms_weights_that_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        models.from_timm(NAME, tmp_path / "nowhere.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\0" * 20)
    for given in ((NAME, broken), ("no_such_model",), ("resnet18", broken)):
        with pytest.raises(ValueError, match="cannot be loaded|resnet18 is not supported: it is a"):
            models.from_timm(*given)


def test_designs_and_weights_that_are_refused(tiny):
    model = models.build_backbone(tiny)
    model.blocks[1].mlp.fc1.weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"blocks\.1\.mlp\.fc1\.weight"):
        models.freeze(model, tiny, "x", {})
    averaged = models.build_backbone(tiny, global_pool="avg", class_token=False)
    from timm.layers import PatchEmbed, SwiGLUPacked

    gated = models.build_backbone(tiny, mlp_layer=SwiGLUPacked)
    other = type("Other", (PatchEmbed,), {})
    embedded = models.build_backbone(tiny, embed_layer=other)
    for model, said in (
        (averaged, "class token"),
        (torch.nn.Linear(2, 2), "Linear"),
        (gated, "plain pre-norm blocks"),
        (embedded, "one convolution"),
    ):
        with pytest.raises(ValueError, match=said):
            models.freeze(model, tiny, "x", {})
    for change in ({"patch_size": 3}, {"heads": 3}, {"mean": (0.5, 0.5)}, {"std": (0.0,)}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(tiny, **change)


# --- Pretraining

STEPS = 5


@pytest.fixture
def begin(tiny):
    def make(**changes):
        torch.manual_seed(0)
        model = models.build_backbone(tiny, num_classes=3, drop_path_rate=0.5)
        numbers = {"learning_rate": 0.01, "beta2": 0.98, "weight_decay": 0.05, "warmup_steps": 2}
        numbers |= {"label_smoothing": 0.1, "clip_norm": 1.0, "bfloat16": False}
        return models.Training(model, STEPS, **{**numbers, **changes})

    return make


def batch(step):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 1, 8, 8, generator=generator)
    return images, torch.randint(3, (8,), generator=generator)


@pytest.mark.parametrize("ema", [0.0, 0.3, 0.999])
def test_the_average_is_the_weighted_sum_of_the_weights_on_the_way(begin, ema):
    """a_T = Σ_t (1 − d_t) Π_{s>t} d_s θ_t + Π_s d_s θ_0, written out and summed in float64."""
    training, way = begin(ema=ema), []
    for step in range(STEPS + 1):
        if step:
            training.step(*batch(step))
        way.append({n: p.detach().double() for n, p in training.model.named_parameters()})
    decays = [min(ema, (1 + t) / (10 + t)) for t in range(1, STEPS + 1)]
    shares = np.array([1.0, *(1.0 - d for d in decays)])
    for t in range(STEPS + 1):
        shares[t] *= np.prod(decays[t:])
    training.finish()
    for name, value in training.model.named_parameters():
        expected = sum(share * weights[name] for share, weights in zip(shares, way, strict=True))
        torch.testing.assert_close(value.detach().double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(way[0][name], way[-1][name]), f"{name} did not move"


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_restored_training_continues_bit_for_bit(begin, bfloat16):
    changes = {"ema": 0.9, "bfloat16": bfloat16}
    whole, states = begin(**changes), []
    for step in range(STEPS):
        whole.step(*batch(step))
        states.append({name: value.detach().clone() for name, value in whole.state().items()})
    for after, state in enumerate(states, start=1):
        resumed = begin(**changes)
        torch.manual_seed(99)  # the state of the generator is part of the state
        resumed.restore(state)
        for step in range(after, STEPS):
            resumed.step(*batch(step))
        state = resumed.state()
        assert state.keys() == states[-1].keys()
        assert all(torch.equal(state[name], value) for name, value in states[-1].items())
    with pytest.raises(FloatingPointError, match="step 6 of 5; lower learning_rate"):
        whole.step(batch(0)[0] * float("nan"), batch(0)[1])


def test_shifts_and_mirrors():
    image = torch.arange(256.0).view(1, 1, 16, 16).repeat(3, 1, 1, 1)
    shifts = torch.tensor([[0, 1, 0], [0, -2, 0]])
    moved = models.shift_and_mirror(image, shifts, torch.tensor([False, False, True]))
    assert torch.equal(moved[0], image[0]) and torch.equal(moved[2], image[2].flip(-1))
    assert torch.equal(moved[1, 0, 1:, :-2], image[1, 0, :-1, 2:])  # down by 1, left by 2
