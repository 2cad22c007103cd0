"""peft as the oracle: the same outputs and gradients, and checkpoints that travel both ways."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedsdg import models
from tests.models.conftest import (
    CLASSES,
    VARIANTS,
    gradients,
    named,
    random_images,
    random_rows,
)

models.declare_torchvision_operators()
peft = pytest.importorskip("peft")
OUTPUTS = r"blocks\.\d+\.(attn\.proj|mlp\.fc2)"


@pytest.fixture
def make_float32(make_model):
    """A model in float32, one row of random parameters, and its timm model with a head."""

    def make(**options):
        model = make_model(dtype=torch.float32, **options)
        network = copy.deepcopy(model.backbone.model)
        network.reset_classifier(CLASSES)
        return model, random_rows(model, 1, torch.float32), network.eval()

    return make


def started(model, folder):
    """The rows of a run that starts from a checkpoint; both were drawn as 7."""
    rows = torch.full((model.layout.d,), 7.0), torch.full((model.layout.d_private,), 7.0)
    layout, scale = model.layout, model.config.scale
    return models.start_from(models.load_peft(folder), "here", layout, scale, *rows)


def test_a_checkpoint_of_peft_is_read_and_learns_as_there(make_float32, tmp_path):
    """With another scale than the run's: 24/3 there, 16/3 here."""
    model, _, network = make_float32()
    config = {"r": 3, "lora_alpha": 24, "target_modules": OUTPUTS, "modules_to_save": ["head"]}
    oracle = peft.get_peft_model(network, peft.LoraConfig(init_lora_weights=False, **config)).eval()
    oracle.save_pretrained(tmp_path)
    images, labels = random_images(12, torch.float32)
    losses, slopes = gradients(
        model,
        [row[None] for row in started(model, tmp_path)],
        lambda p: F.cross_entropy(model.logits(images, [12], p), labels, reduction="none"),
    )
    expected = F.cross_entropy(oracle(images), labels, reduction="none")
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-4, atol=1e-4)
    expected.sum().backward()
    ours = models.views(slopes[0], model.layout.communicated)
    for name, parameter in oracle.named_parameters():
        if parameter.requires_grad:
            for part in ("base_model.model.", ".modules_to_save.default", ".default.weight"):
                name = name.replace(part, "")
            factor = 1.5 if name.endswith("lora_B") else 1.0  # B here is 24/16 of B there
            slope = factor * ours.pop(name)[0]
            torch.testing.assert_close(slope, parameter.grad, rtol=1e-4, atol=1e-4)
    assert not ours


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_peft_and_timm_read_what_is_saved(make_float32, tmp_path, variant, private):
    model, rows, network = make_float32(**VARIANTS[variant])
    parameters, (images, _) = named(model, rows), random_images(6, torch.float32)
    expected = model.logits(images, [6], parameters, private=private)
    exported, state = model.portable(parameters, private), model.backbone.model.state_dict()
    models.save_peft(exported, tmp_path)
    merged = copy.deepcopy(network)
    merged.load_state_dict(exported.merged(state))
    for found in (peft.PeftModel.from_pretrained(network, tmp_path).eval(), merged):
        torch.testing.assert_close(found(images), expected, rtol=1e-4, atol=1e-4)
    apart = variant in ("block gates", "layer gates", "m = 0", "m = 1", "shared A", "first block")
    assert exported.own_rank == (3 if apart and private else 0)
    if exported.own_rank:
        both = model.portable(parameters, private=False).merged(exported.own().merged(state))
        torch.testing.assert_close(both, exported.merged(state), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["shared", "local", "private head", "frozen A"])
def test_a_saved_row_comes_back_wherever_it_lives(make_float32, tmp_path, variant):
    model, rows, _ = make_float32(**VARIANTS[variant])
    models.save_peft(model.portable(named(model, rows)), tmp_path)
    torch.testing.assert_close(started(model, tmp_path), tuple(row[0] for row in rows))


def test_what_clients_share_may_be_less_than_a_model(make_float32, tmp_path):
    for options in ({"local": True}, {"factor_b": "private"}):
        model, rows, _ = make_float32(**options)
        shared = models.block_views(rows[0], model.layout.communicated)
        with pytest.raises(ValueError, match="keep a part of every adapter to themselves"):
            model.portable(shared, private=False)
    model, rows, _ = make_float32(head="private")
    body = model.portable(models.block_views(rows[0], model.layout.communicated), private=False)
    models.save_peft(body, tmp_path)
    assert models.load_peft(tmp_path).weights == {}
    assert (started(model, tmp_path)[1] == 7).all(), "the head stays as drawn"
    with pytest.raises(ValueError, match="not a shared one with an addition"):
        body.own()


def test_an_option_that_changes_the_computation_must_be_understood(make_float32, tmp_path):
    model, rows, _ = make_float32()
    models.save_peft(model.portable(named(model, rows)), tmp_path)
    file = tmp_path / models.PEFT_CONFIG
    written = json.loads(file.read_text())
    usual = peft.LoraConfig(target_modules=OUTPUTS).to_dict() | written
    for options, said in (
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"blocks.0.attn.proj": 4}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"an_option_of_tomorrow": 3}, "an_option_of_tomorrow"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": 0}, "no r and lora_alpha"),
        ({"r": 6}, "says rank 6, but the factors have 3"),
    ):
        file.write_text(json.dumps({**usual, **options}))
        with pytest.raises(ValueError, match=said):
            models.load_peft(tmp_path)
    file.write_text("[]")
    with pytest.raises(ValueError, match="is no mapping"):
        models.load_peft(tmp_path)
    file.write_text(json.dumps({**usual, "lora_dropout": 0.1, "init_lora_weights": "gaussian"}))
    assert models.load_peft(tmp_path).rank == 3


def test_damaged_or_foreign_checkpoints_are_refused(make_float32, tmp_path):
    model, rows, _ = make_float32()
    with pytest.raises(FileNotFoundError, match=models.PEFT_CONFIG):
        models.load_peft(tmp_path)
    models.save_peft(model.portable(named(model, rows)), tmp_path)
    for options, said in (
        ({"rank": 2}, r"lora_A.*shape.*adapters.rank to 3"),
        ({"targets": "qkv-fc1"}, r"attn.proj.*nothing.*adapters.targets"),
    ):
        with pytest.raises(ValueError, match=said):
            started(make_float32(**options)[0], tmp_path)
    weights, name = tmp_path / "adapter_model.safetensors", "blocks.0.attn.proj.lora_B.weight"
    whole = load_file(weights)
    b, lacking = whole[f"base_model.model.{name}"], object()
    for key, value, said in (
        (name, lacking, "one of its two factors"),
        (name, b[:, :1], "ranks"),
        (name, b * float("inf"), "not finite"),
        (name, b[..., None, None], "are no matrices"),
        ("norm.weight", torch.zeros(16), "neither a LoRA factor"),
        ("head.weight", lacking, "bias of its head"),
        ("lora", lacking, "holds no LoRA factors"),
        ("blocks.1", lacking, r"it has no blocks\.1\.attn\.proj\.lora_A"),
    ):
        state = {k: v for k, v in whole.items() if key not in k}
        if value is not lacking:
            state[f"base_model.model.{key}"] = value.contiguous()
        save_file(state, weights)
        with pytest.raises(ValueError, match=said):
            started(model, tmp_path)
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        models.load_peft(tmp_path)
