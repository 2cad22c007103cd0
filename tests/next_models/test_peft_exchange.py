"""peft as the oracle: the same outputs and gradients, and checkpoints that travel both ways."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedsdg.next_models import (
    PEFT_CONFIG,
    Portable,
    block_views,
    declare_torchvision_operators,
    load_peft,
    save_peft,
    start_from,
    views,
)
from tests.next_models.conftest import (
    CLASSES,
    VARIANTS,
    gradients,
    named,
    random_images,
    random_rows,
)

declare_torchvision_operators()
peft = pytest.importorskip("peft")
OUTPUTS = r"blocks\.\d+\.(attn\.proj|mlp\.fc2)"


@pytest.fixture
def timm_model(backbone):
    model = copy.deepcopy(backbone.model)
    model.reset_classifier(CLASSES)
    return model.eval()


def started(model, folder):
    """The rows of a run that starts from a checkpoint; both were drawn as 7."""
    rows = torch.full((model.layout.d,), 7.0), torch.full((model.layout.d_private,), 7.0)
    return start_from(load_peft(folder), "here", model.layout, model.config.scale, *rows)


def test_a_checkpoint_of_peft_is_read_and_learns_as_there(make_model, timm_model, tmp_path):
    """With another scale than the run's: 24/3 there, 16/3 here."""
    config = peft.LoraConfig(
        r=3, lora_alpha=24, target_modules=OUTPUTS, modules_to_save=["head"],
        init_lora_weights=False,
    )  # fmt: skip
    oracle = peft.get_peft_model(timm_model, config).eval()
    oracle.save_pretrained(tmp_path)
    model = make_model(dtype=torch.float32)
    rows = [row[None] for row in started(model, tmp_path)]
    images, labels = random_images(12, torch.float32)
    losses, (slopes, _) = gradients(
        model,
        rows,
        lambda p: F.cross_entropy(model.logits(images, [12], p), labels, reduction="none"),
    )
    expected = F.cross_entropy(oracle(images), labels, reduction="none")
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-4, atol=1e-4)
    expected.sum().backward()
    ours = views(slopes, model.layout.communicated)
    for name, parameter in oracle.named_parameters():
        if parameter.requires_grad:
            name = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
            name = name.replace(".default.weight", "")
            factor = 1.5 if name.endswith("lora_B") else 1.0  # B here is 24/16 of B there
            slope = factor * ours.pop(name)[0]
            torch.testing.assert_close(slope, parameter.grad, rtol=1e-4, atol=1e-4)
    assert not ours


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_peft_and_timm_read_what_is_saved(make_model, timm_model, tmp_path, variant, private):
    model = make_model(dtype=torch.float32, **VARIANTS[variant])
    parameters = named(model, random_rows(model, 1, torch.float32))
    images, _ = random_images(6, torch.float32)
    expected = model.logits(images, [6], parameters, private=private)
    exported = model.portable(parameters, private)
    save_peft(exported, tmp_path)
    merged, state = copy.deepcopy(timm_model), model.backbone.model.state_dict()
    merged.load_state_dict(exported.merged(state))
    loaded = peft.PeftModel.from_pretrained(timm_model, tmp_path).eval()
    for network in (loaded, merged):
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)
    branch = variant in ("block gates", "layer gates", "m = 0", "m = 1", "shared A", "first block")
    assert exported.own_rank == (3 if branch and private else 0)
    if exported.own_rank:
        saved, shared = exported.own(), model.portable(parameters, private=False)
        both = shared.merged(saved.merged(state) | {})
        for name, value in exported.merged(state).items():
            torch.testing.assert_close(both[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["shared", "local", "private head", "frozen A"])
def test_a_saved_row_comes_back_wherever_it_lives(make_model, tmp_path, variant):
    model = make_model(dtype=torch.float32, **VARIANTS[variant])
    rows = random_rows(model, 1, torch.float32)
    save_peft(model.portable(named(model, rows)), tmp_path)
    for row, found in zip(rows, started(model, tmp_path), strict=True):
        torch.testing.assert_close(found, row[0])


def test_what_clients_share_may_be_less_than_a_model(make_model, tmp_path):
    for options in ({"local": True}, {"factor_b": "private"}):
        model = make_model(**options)
        shared = block_views(random_rows(model, 1)[0], model.layout.communicated)
        with pytest.raises(ValueError, match="keep a part of every adapter to themselves"):
            model.portable(shared, private=False)
    model = make_model(dtype=torch.float32, head="private")
    body = block_views(random_rows(model, 1, torch.float32)[0], model.layout.communicated)
    save_peft(model.portable(body, private=False), tmp_path)
    assert load_peft(tmp_path).weights == {}
    assert (started(model, tmp_path)[1] == 7).all(), "the head stays as drawn"
    with pytest.raises(ValueError, match="no adapters to save"):
        save_peft(Portable({}, {}), tmp_path)
    with pytest.raises(ValueError, match="not a shared one with an addition"):
        model.portable(body, private=False).own()


#: Options of adapter_config.json and what is said of them; None: they change nothing that is saved.
OPTIONS = [
    ({"use_dora": True}, "use_dora"),
    ({"use_rslora": True}, "use_rslora"),
    ({"rank_pattern": {"blocks.0.attn.proj": 4}}, "rank_pattern"),
    ({"lora_bias": True}, "lora_bias"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"an_option_of_tomorrow": 3}, "an_option_of_tomorrow"),
    ({"bias": "all"}, "bias"),
    ({"peft_type": "IA3"}, "IA3"),
    ({"r": 0}, "no r and lora_alpha"),
    ({"lora_alpha": float("nan")}, "no r and lora_alpha"),
    ({"r": 6}, "says rank 6, but the factors have 3"),
    ([], "is no mapping"),
    ({"lora_dropout": 0.1, "init_lora_weights": "gaussian", "use_dora": False}, None),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS, ids=str)
def test_an_option_that_changes_the_computation_must_be_understood(
    make_model, tmp_path, options, said
):
    model = make_model(dtype=torch.float32)
    save_peft(model.portable(named(model, random_rows(model, 1, torch.float32))), tmp_path)
    defaults = peft.LoraConfig(target_modules=OUTPUTS).to_dict() | {"peft_type": "LORA"}
    written = json.loads((tmp_path / PEFT_CONFIG).read_text())
    record = {**defaults, **written, **options} if isinstance(options, dict) else options
    (tmp_path / PEFT_CONFIG).write_text(json.dumps(record))
    if said is None:
        assert load_peft(tmp_path).rank == 3
    else:
        with pytest.raises(ValueError, match=said):
            load_peft(tmp_path)


def test_damaged_or_foreign_checkpoints_are_refused(make_model, tmp_path):
    model = make_model(dtype=torch.float32)
    with pytest.raises(FileNotFoundError, match=PEFT_CONFIG):
        load_peft(tmp_path)
    save_peft(model.portable(named(model, random_rows(model, 1, torch.float32))), tmp_path)
    for options, said in (
        ({"rank": 2}, r"lora_A.*shape.*adapters.rank to 3"),
        ({"targets": "qkv-fc1"}, r"attn.proj.*nothing.*adapters.targets"),
    ):
        with pytest.raises(ValueError, match=said):
            started(make_model(dtype=torch.float32, **options), tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    whole, name = load_file(weights), "base_model.model.blocks.0.attn.proj.lora_B.weight"
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
            load_peft(tmp_path)
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        load_peft(tmp_path)
    other = {key: value for key, value in whole.items() if "blocks.1" not in key}
    save_file({key: value.contiguous() for key, value in other.items()}, weights)
    with pytest.raises(ValueError, match=r"it has no blocks\.1\.attn\.proj\.lora_A"):
        started(model, tmp_path)
