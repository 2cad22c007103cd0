"""peft as the oracle: the same outputs and gradients, and checkpoints that travel both ways."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F

from fedsdg.models.parameters import leaves, views
from fedsdg.models.peft_exchange import load_peft, save_peft
from fedsdg.models.torchvision_schemas import declare_torchvision_operators

declare_torchvision_operators()
peft = pytest.importorskip("peft")


@pytest.fixture
def timm_model(backbone):
    model = copy.deepcopy(backbone.model)
    model.reset_classifier(5)
    return model.eval()


@pytest.mark.parametrize("fused", [True, False])
def test_outputs_and_gradients_equal_pefts_lora(make_model, random_rows, images, timm_model, fused):
    model = make_model(torch.float32, rank=8, alpha=16.0)
    for block in timm_model.blocks:
        block.attn.fused_attn = fused
    rows, _ = random_rows(model, 1)
    gradients = torch.zeros_like(rows)
    parameters = leaves(rows, gradients, model.layout.communicated)
    oracle = peft.get_peft_model(
        timm_model,
        peft.LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=r"blocks\.\d+\.(attn\.proj|mlp\.fc2)",
            modules_to_save=["head"],
        ),
    )
    twins = {}
    for name, parameter in oracle.named_parameters():
        plain = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
        plain = plain.replace(".default.weight", "")
        if plain in parameters and parameter.requires_grad:
            parameter.data.copy_(parameters[plain][0])
            twins[plain] = parameter
    assert twins.keys() == parameters.keys()
    labels = torch.arange(12) % 5
    mine = model.logits(images.float(), [12], parameters)
    theirs = oracle(images.float())
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    F.cross_entropy(mine, labels).backward()
    F.cross_entropy(theirs, labels).backward()
    for name, twin in twins.items():
        torch.testing.assert_close(parameters[name].grad[0], twin.grad, rtol=1e-4, atol=1e-5)
    assert sum(p.requires_grad for p in oracle.parameters()) == len(twins)  # no patch embedding


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": "qkv-fc1"},
        {"branch": "dual"},
        {"branch": "dual", "composition": "factors", "gate": "client"},
        {"branch": "dual", "private_subspace": "shared-a", "gate": "layer"},
        {"head": "private"},
        {"branch": "dual", "gate_fixed": 0.25},
        {"local": True},
    ],
)
@pytest.mark.parametrize("with_private", [False, True])
def test_peft_reads_what_is_saved(
    make_model, random_rows, images, timm_model, tmp_path, options, with_private
):
    model = make_model(torch.float32, **options)
    with_private = with_private or not model.layout.global_model
    shared, private = random_rows(model, 1)
    private_row = private[0] if with_private else None
    save_peft(shared[0], model.layout, model.config, tmp_path, private=private_row)
    assert {p.name for p in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    loaded = peft.PeftModel.from_pretrained(timm_model, tmp_path).eval()
    parameters = views(shared, model.layout.communicated) | views(private, model.layout.private)
    expected = model.logits(images.float(), [12], parameters, private=with_private)
    torch.testing.assert_close(loaded(images.float()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("local", [False, True])
def test_a_saved_row_comes_back(make_model, random_rows, tmp_path, local):
    model = make_model(torch.float32, local=local)
    shared, private = random_rows(model, 1)
    save_peft(shared[0], model.layout, model.config, tmp_path, private=private[0])
    row = load_peft(tmp_path, model.layout, model.config)
    assert torch.equal(row, (private if local else shared)[0])


def test_a_checkpoint_made_by_peft_is_read(make_model, images, timm_model, tmp_path):
    model = make_model(torch.float32)
    oracle = peft.get_peft_model(
        timm_model,
        peft.LoraConfig(
            r=3,
            lora_alpha=24,  # another scale than ours: 24/3 against 16/3
            target_modules=r"blocks\.\d+\.(attn\.proj|mlp\.fc2)",
            modules_to_save=["head"],
            init_lora_weights=False,
        ),
    ).eval()
    oracle.save_pretrained(tmp_path)
    row = load_peft(tmp_path, model.layout, model.config)
    got = model.logits(images.float(), [12], views(row[None], model.layout.communicated))
    torch.testing.assert_close(got, oracle(images.float()), rtol=1e-4, atol=1e-4)


def test_damaged_or_foreign_checkpoints_are_refused(make_model, random_rows, tmp_path):
    model = make_model(torch.float32)
    with pytest.raises(FileNotFoundError, match="adapter_config.json"):
        load_peft(tmp_path, model.layout, model.config)
    shared, _ = random_rows(model, 1)
    save_peft(shared[0], model.layout, model.config, tmp_path)
    other = make_model(torch.float32, rank=2)
    with pytest.raises(ValueError, match="blocks.0.attn.proj.lora_A.*shape"):
        load_peft(tmp_path, other.layout, other.config)
    other = make_model(torch.float32, targets="qkv-fc1")
    with pytest.raises(ValueError, match="attn.qkv.*nothing"):
        load_peft(tmp_path, other.layout, other.config)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(ValueError, match="use_dora"):
        load_peft(tmp_path, model.layout, model.config)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        load_peft(tmp_path, model.layout, model.config)


def test_a_local_layout_cannot_be_saved_without_its_private_row(make_model, tmp_path):
    model = make_model(torch.float32, local=True)
    with pytest.raises(ValueError, match="private"):
        save_peft(torch.zeros(0), model.layout, model.config, tmp_path)


def test_a_private_head_is_saved_with_its_row_alone_and_never_read(
    make_model, random_rows, tmp_path
):
    model = make_model(head="private")
    (shared,), (private,) = random_rows(model, 1)
    place = (model.layout, model.config, tmp_path)
    with pytest.raises(ValueError, match="the head is in the private row"):
        save_peft(shared, *place)
    save_peft(shared, *place, private=private)
    with pytest.raises(ValueError, match="head: shared"):
        load_peft(tmp_path, model.layout, model.config)
