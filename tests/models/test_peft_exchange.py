"""peft as the oracle: the same outputs and gradients, and checkpoints that travel both ways."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedsdg.models.parameters import leaves, views
from fedsdg.models.peft_exchange import load_peft, save_peft, start_from
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


OPTIONS = [
    {},
    {"targets": "qkv-fc1"},
    {"branch": "dual"},
    {"branch": "dual", "composition": "factors", "gate": "client"},
    {"branch": "dual", "composition": "mixture", "gate_fixed": 0.3},
    {"branch": "dual", "private_subspace": "shared-a", "gate": "layer"},
    {"branch": "dual", "private_block": "last"},
    {"branch": "dual", "private_block": "first", "composition": "factors"},
    {"head": "private"},
    {"factor_b": "private"},
    {"factor_a": "frozen"},
    {"branch": "dual", "gate_fixed": 0.25},
    {"local": True},
]


def named_rows(model, random_rows):
    (shared, private), layout = random_rows(model, 1), model.layout
    return views(shared, layout.communicated) | views(private, layout.private)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("with_private", [False, True])
def test_peft_reads_what_is_saved(
    make_model, random_rows, images, timm_model, tmp_path, options, with_private
):
    model = make_model(torch.float32, **options)
    named = named_rows(model, random_rows)
    save_peft(model.portable(named, with_private), tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    loaded = peft.PeftModel.from_pretrained(timm_model, tmp_path).eval()
    expected = model.logits(images.float(), [12], named, private=with_private)
    torch.testing.assert_close(loaded(images.float()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_merged_weights_are_those_of_a_plain_model(
    make_model, random_rows, images, timm_model, backbone, options
):
    model = make_model(torch.float32, **options)
    named = named_rows(model, random_rows)
    frozen = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    timm_model.load_state_dict(model.portable(named).merged(frozen))
    expected = model.logits(images.float(), [12], named)
    torch.testing.assert_close(timm_model(images.float()), expected, rtol=1e-4, atol=1e-4)
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, frozen[name]), "the backbone stays as it is"


def test_a_branch_is_apart_only_where_it_is_added_to_a_shared_model(make_model, random_rows):
    def own_rank(private=True, **options):
        model = make_model(torch.float32, branch="dual", **options)
        return model.portable(named_rows(model, random_rows), private).own_rank

    assert own_rank() == own_rank(gate_fixed=0.5) == own_rank(private_block="last") == 3
    for options in (
        {"private": False}, {"head": "private"}, {"factor_b": "private"},
        {"composition": "factors"}, {"composition": "mixture"}, {"private_subspace": "shared-a"},
    ):  # fmt: skip
        assert own_rank(**options) == 0
    with pytest.raises(ValueError, match="not a shared one with an addition"):
        model = make_model(torch.float32)
        model.portable(named_rows(model, random_rows)).own()


@pytest.mark.parametrize("local", [False, True])
def test_a_saved_row_comes_back(make_model, random_rows, tmp_path, local):
    model = make_model(torch.float32, local=local)
    rows = random_rows(model, 1)
    save_peft(model.portable(named_rows(model, random_rows)), tmp_path)
    zeros = (torch.zeros_like(rows[0][0]), torch.zeros_like(rows[1][0]))
    found = start_from(load_peft(tmp_path), "here", model.layout, model.config.scale, *zeros)
    assert torch.equal(found[0], rows[0][0]) and torch.equal(found[1], rows[1][0])
    assert not zeros[0].any() and not zeros[1].any()


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
    zeros = (torch.zeros(model.layout.d), torch.zeros(0))
    row, _ = start_from(load_peft(tmp_path), "here", model.layout, model.config.scale, *zeros)
    got = model.logits(images.float(), [12], views(row[None], model.layout.communicated))
    torch.testing.assert_close(got, oracle(images.float()), rtol=1e-4, atol=1e-4)


def test_damaged_or_foreign_checkpoints_are_refused(make_model, random_rows, tmp_path):
    model = make_model(torch.float32)

    def start(other=model):
        zeros = (torch.zeros(other.layout.d), torch.zeros(0))
        start_from(load_peft(tmp_path), "here", other.layout, other.config.scale, *zeros)

    with pytest.raises(FileNotFoundError, match="adapter_config.json"):
        start()
    save_peft(model.portable(named_rows(model, random_rows)), tmp_path)
    start()
    with pytest.raises(ValueError, match=r"blocks.0.attn.proj.lora_A.*shape.*adapters.rank to 3"):
        start(make_model(torch.float32, rank=2))
    with pytest.raises(ValueError, match=r"attn.proj.*nothing.*adapters.targets"):
        start(make_model(torch.float32, targets="qkv-fc1"))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for wrong, said in (
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"bias": "all"}, "not a plain LoRA"),
        ({"r": 0}, "no r and lora_alpha"),
        ({"r": -3}, "no r and lora_alpha"),
        ({"lora_alpha": float("nan")}, "no r and lora_alpha"),
        ({"r": 6}, "says rank 6, but the factors have 3"),
        (None, "is no mapping"),
    ):
        content = [] if wrong is None else config | wrong
        (tmp_path / "adapter_config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=said):
            start()
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    weights = tmp_path / "adapter_model.safetensors"
    whole = load_file(weights)
    name = "base_model.model.blocks.0.attn.proj.lora_B.weight"
    for state, said in (
        ({key: value for key, value in whole.items() if key != name}, "one of its two factors"),
        (whole | {name: whole[name][:, :1]}, "ranks"),
        (whole | {"base_model.model.norm.weight": torch.zeros(16)}, "neither a LoRA factor"),
        ({key: value for key, value in whole.items() if "head" in key}, "holds no LoRA factors"),
        ({key: v for key, v in whole.items() if "head.weight" not in key}, "bias of its head"),
        (whole | {name: whole[name] * float("inf")}, "not finite"),
        (whole | {name: whole[name][..., None, None]}, "are no matrices"),
    ):
        save_file({key: value.contiguous() for key, value in state.items()}, weights)
        with pytest.raises(ValueError, match=said):
            start()
    save_file(whole, weights)
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        start()


def test_what_all_share_is_no_model_where_clients_keep_a_factor(make_model, random_rows):
    for options in ({"local": True}, {"factor_b": "private"}):
        model = make_model(torch.float32, **options)
        shared = views(random_rows(model, 1)[0], model.layout.communicated)
        with pytest.raises(ValueError, match="keep a part of every adapter to themselves"):
            model.portable(shared, private=False)


def test_a_body_without_its_head_is_saved_without_one(make_model, random_rows, tmp_path):
    model = make_model(torch.float32, head="private")
    shared = views(random_rows(model, 1)[0], model.layout.communicated)
    save_peft(model.portable(shared, private=False), tmp_path)
    assert load_peft(tmp_path).weights == {}
    assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] is None
