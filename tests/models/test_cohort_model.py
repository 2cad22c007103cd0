"""The cohort's forward pass against timm's, against one client at a time, and by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedsdg.models.forward as forward
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import initial_values, make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.fast.model import CompiledModel
from fedsdg.models.parameters import leaves, of_every_block, views

VARIANTS = [
    {},
    {"targets": "qkv-fc1"},
    {"branch": "dual"},
    {"branch": "dual", "targets": "qkv-fc1", "gate": "layer"},
    {"branch": "dual", "composition": "factors", "gate": "client"},
    {"branch": "dual", "private_subspace": "shared-a"},
    {"branch": "dual", "gate_fixed": 0.3},
    {"branch": "dual", "private_block": "first"},
    {"branch": "dual", "private_block": "last", "composition": "factors", "gate": "layer"},
    {"local": True},
    {"head": "private"},
]


def with_head(model: CohortModel, parameters, client: int = 0):
    """timm's own model carrying one client's merged weights and head."""
    reference = copy.deepcopy(model.model)
    reference.reset_classifier(model.num_classes)
    reference = reference.to(model.dtype).eval()
    merged = model.effective_weights(parameters)
    for name in model._adapted:
        reference.get_submodule(name).weight.data.copy_(merged[name][client])
    reference.head.weight.data.copy_(parameters["head.weight"][client])
    reference.head.bias.data.copy_(parameters["head.bias"][client])
    return reference


@pytest.fixture(params=["packed", "fused", "explicit"])
def attention(request, monkeypatch):
    """Every way attention is computed; timm's fused attention on and off."""
    if request.param != "packed":
        monkeypatch.setattr(forward, "SHORT", 0)

    def apply(model: CohortModel) -> CohortModel:
        for block in model.model.blocks:
            block.attn.fused_attn = request.param == "fused"
        return model

    return apply


def test_fresh_adapters_leave_timms_own_forward_unchanged(make_model, images, attention):
    model = attention(make_model(branch="dual"))
    generator = np.random.default_rng(0)
    shared, private = (
        row[None].double() for row in initial_values(model.layout, model.config, generator)
    )
    parameters = views(shared, model.layout.communicated) | views(private, model.layout.private)
    reference = copy.deepcopy(model.model)
    reference.reset_classifier(model.num_classes)
    reference = reference.double().eval()
    reference.head.weight.data.copy_(parameters["head.weight"][0])
    reference.head.bias.data.copy_(parameters["head.bias"][0])
    got = model.logits(images, [12], parameters)
    torch.testing.assert_close(got, reference(images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", VARIANTS)
def test_equals_timm_with_merged_weights(make_model, named, images, options, attention):
    model = attention(make_model(**options))
    parameters = named(model, 2)
    got = model.logits(images, [0, 12], parameters)
    expected = with_head(model, parameters, 1)(images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "design",
    [
        {"init_values": 0.3},
        {"qk_norm": True},
        {"reg_tokens": 2},
        {"no_embed_class": True},
        {"pre_norm": True},
        {"qkv_bias": False},
        {"proj_bias": False},
    ],
)
@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
def test_timms_variations_of_the_design(make_backbone, named, images, design, targets):
    backbone = make_backbone(**design)
    config = AdapterConfig(rank=2, branch="dual", targets=targets)
    layout = make_layout(backbone.architecture, 5, config)
    model = CohortModel(backbone, layout, config, 5, dtype=torch.float64)
    parameters = named(model, 1)
    got = model.logits(images, [12], parameters)
    expected = with_head(model, parameters)(images)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def _gradients(model, rows, images, counts, labels, private=True):
    layout = model.layout
    slopes = [torch.zeros_like(row) for row in rows]
    parameters = leaves(rows[0], slopes[0], layout.communicated)
    if private or model.config.local:
        parameters |= leaves(rows[1], slopes[1], layout.private)
    logits = model.logits(images, counts, parameters, private=private)
    if len(logits):
        F.cross_entropy(logits, labels, reduction="sum").backward()
    return logits.detach(), slopes


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [0, 6, 6, 0], [12, 0, 0, 0]])
@pytest.mark.parametrize("options", VARIANTS)
def test_a_cohort_equals_one_client_at_a_time(make_model, random_rows, images, counts, options):
    model = make_model(**options)
    rows = random_rows(model, 4)
    labels = torch.arange(12) % 5
    logits, slopes = _gradients(model, rows, images, counts, labels)
    start = 0
    for k, count in enumerate(counts):
        stop = start + count
        own = [row[k : k + 1].clone() for row in rows]
        alone, gradient = _gradients(model, own, images[start:stop], [count], labels[start:stop])
        torch.testing.assert_close(logits[start:stop], alone, rtol=0, atol=1e-9)
        for both, single in zip(slopes, gradient, strict=True):
            torch.testing.assert_close(both[k : k + 1], single, rtol=0, atol=1e-9)
        start = stop


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("options", VARIANTS)
def test_every_parameter_matters_and_learns(
    make_model, random_rows, images, options, train, attention
):
    model = attention(make_model(**options))
    model.model.train(train)
    layout = model.layout
    rows = random_rows(model, 1)
    _, slopes = _gradients(model, rows, images, [12], torch.arange(12) % 5)
    gradients = views(slopes[0], layout.communicated) | views(slopes[1], layout.private)
    parameters = views(rows[0], layout.communicated) | views(rows[1], layout.private)
    with torch.no_grad():
        before = model.logits(images, [12], parameters)
        for name, tensor in parameters.items():
            assert gradients[name].abs().max() > 1e-8, f"{name} receives no gradient"
            saved = tensor.clone()
            # at random: a layer norm does not see a shift common to all outputs
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
            after = model.logits(images, [12], parameters)
            assert (after - before).abs().max() > 1e-8, f"{name} does not change the output"
            tensor.copy_(saved)


def test_gradients_are_the_derivatives(make_model, random_rows, images):
    model = make_model(branch="dual", rank=1)
    rows = random_rows(model, 2)
    labels = torch.arange(12) % 5
    _, slopes = _gradients(model, rows, images, [7, 5], labels)
    generator = torch.Generator().manual_seed(0)
    for which in (0, 1):
        direction = torch.randn(rows[which].shape, generator=generator, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            moved = [row.clone() for row in rows]
            moved[which] += sign * 1e-6 * direction
            parameters = views(moved[0], model.layout.communicated)
            parameters |= views(moved[1], model.layout.private)
            logits = model.logits(images, [7, 5], parameters)
            losses.append(F.cross_entropy(logits, labels, reduction="sum"))
        slope = float((losses[0] - losses[1]) / 2e-6)
        assert float((slopes[which] * direction).sum()) == pytest.approx(slope, rel=1e-5)


def test_a_closed_gate_is_the_shared_model(make_model, named, images):
    closed = make_model(branch="dual", gate_fixed=0.0)
    parameters = named(closed, 1)
    shared = make_model()
    only = {spec.name: parameters[spec.name] for spec in shared.layout.communicated}
    expected = shared.logits(images, [12], only)
    torch.testing.assert_close(
        closed.logits(images, [12], parameters), expected, rtol=0, atol=1e-12
    )
    # … and so is leaving the private branch out, whatever the gate, with θ_g alone given
    opened = make_model(branch="dual")
    torch.testing.assert_close(
        opened.logits(images, [12], only, private=False), expected, rtol=0, atol=1e-12
    )
    assert (opened.logits(images, [12], named(opened, 1)) - expected).abs().max() > 1e-3


def test_an_open_gate_adds_the_full_residual(make_model, named, images):
    model = make_model(branch="dual", gate_fixed=1.0)
    parameters = named(model, 1)
    reference = with_head(model, parameters)
    scale = model.config.alpha / model.config.rank
    for name in model._adapted:
        p = {
            key: parameters[f"{name}.lora_{key}"][0] for key in ("A", "B", "A_private", "B_private")
        }
        merged = model.model.get_submodule(name).weight
        merged = merged + scale * p["B"] @ p["A"] + scale * p["B_private"] @ p["A_private"]
        reference.get_submodule(name).weight.data.copy_(merged)
    got = model.logits(images, [12], parameters)
    torch.testing.assert_close(got, reference(images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("composition", ["residual", "factors"])
def test_the_gate_is_alive_from_the_second_step(make_model, images, composition):
    model = make_model(branch="dual", composition=composition)
    generator = np.random.default_rng(0)
    rows = [r[None].double() for r in initial_values(model.layout, model.config, generator)]
    labels = torch.arange(12) % 5
    for step in range(2):
        _, slopes = _gradients(model, rows, images, [12], labels)
        logits = views(slopes[1], model.layout.private)
        gate = [logits[s.name] for s in model.layout.private if s.group == "gate"]
        if step == 1:
            assert all(float(slope.abs()) > 0 for slope in gate)
        for row, slope in zip(rows, slopes, strict=True):
            row -= 0.1 * slope


def test_the_backbone_never_learns(make_model, random_rows, images):
    model = make_model(branch="dual")
    before = {k: v.clone() for k, v in model.model.state_dict().items()}
    _gradients(model, random_rows(model, 1), images, [12], torch.arange(12) % 5)
    for name, parameter in model.model.named_parameters():
        assert not parameter.requires_grad and parameter.grad is None
        assert torch.equal(before[name], parameter)


def test_weights_merged_once_serve_many_batches(make_model, named, images):
    model = make_model(branch="dual")
    parameters = named(model, 2)
    weights = model.effective_weights(parameters)
    torch.testing.assert_close(
        model.forward(images, [5, 7], weights), model.logits(images, [5, 7], parameters)
    )


def test_another_type_leaves_the_backbone_alone(make_model, named, images):
    model = make_model(branch="dual")
    assert next(model.backbone.model.parameters()).dtype == torch.float32
    single = model.to(torch.float32)
    assert single.model is model.backbone.model
    parameters = named(model, 1)
    low = {key: value.float() for key, value in parameters.items()}
    torch.testing.assert_close(
        single.logits(images.float(), [12], low).double(),
        model.logits(images, [12], parameters),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("counts", [[6, 5], [12], [13, -1], [4, 4, 4]])
def test_counts_that_do_not_fit_are_refused(make_model, named, images, counts):
    model = make_model()
    with pytest.raises(ValueError, match="counts"):
        model.logits(images, counts, named(model, 2))


def test_a_foreign_layout_is_refused(backbone):
    config = AdapterConfig()
    layout = make_layout(backbone.architecture, 4, config)
    with pytest.raises(ValueError, match="layout"):
        CohortModel(backbone, layout, config, 5)


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_a_private_head_is_used_with_and_without_the_private_branch(
    make_model, named, images, branch
):
    """Where a parameter is kept changes no prediction; `private=False` leaves the branch out."""
    shared = make_model(branch=branch)
    private = make_model(branch=branch, head="private")
    parameters = named(shared, 3)
    kept = {spec.name for spec in private.layout.private}
    assert {"head.weight", "head.bias"} <= kept
    for with_branch in (True, False):
        expected = shared.logits(images, [4, 3, 5], parameters, private=with_branch)
        found = private.logits(images, [4, 3, 5], parameters, private=with_branch)
        assert torch.equal(found, expected)
    swapped = {**parameters, "head.weight": parameters["head.weight"].flip(0)}
    assert not torch.equal(private.logits(images, [4, 3, 5], swapped, private=False), found)


@pytest.mark.parametrize("composition", ["residual", "factors"])
@pytest.mark.parametrize("arranged", [views, lambda *given: of_every_block(*given)[0]])
@pytest.mark.parametrize("kind", [CohortModel, CompiledModel])
def test_other_blocks_than_the_private_one_are_the_shared_model(kind, arranged, composition):
    """Trained for a few steps of Adam with penalties, bit for bit."""
    shape = Architecture(8, 4, 1, 32, 4, 2, (0.5,), (0.5,))
    config = AdapterConfig(
        rank=3, branch="dual", private_block="middle", composition=composition, private_init="lora"
    )
    layout = make_layout(shape, 5, config)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = kind(freeze(build(shape), shape, "four", {}), layout, config, 5)
        images = torch.randn(12, 1, 8, 8)
    rows = [
        row.repeat(2, 1).requires_grad_()
        for row in initial_values(layout, config, np.random.default_rng(0))
    ]
    before, adam = rows[1].detach().clone(), torch.optim.Adam(rows, lr=0.05)

    def parameters():
        return arranged(rows[0], layout.communicated) | arranged(rows[1], layout.private)

    for _ in range(3):
        adam.zero_grad()
        logits = model.logits(images, [5, 7], parameters())
        (F.cross_entropy(logits, torch.arange(12) % 5) + 1e-3 * rows[1].square().sum()).backward()
        adam.step()
    assert (rows[1] != before).all(), "every private entry has moved: there is none of other blocks"
    slow = CohortModel(model.backbone, layout, config, 5)
    with torch.no_grad():
        ours, shared = (slow.effective_weights(parameters(), private) for private in (True, False))
        own, common = (model.logits(images, [5, 7], parameters(), p) for p in (True, False))
    for layer in slow._adapted:
        assert torch.equal(ours[layer], shared[layer]) == (not layer.startswith("blocks.2."))
    assert not torch.equal(own, common)
