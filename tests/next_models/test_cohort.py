"""The adapted backbone against timm and autograd, one client at a time and written out by hand."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsdg.next_models import AdapterConfig, CohortModel, CompiledModel, leaves
from fedsdg.next_models import forward as forward_pass
from tests.next_models.conftest import (
    CLASSES,
    COUNTS,
    VARIANTS,
    gradients,
    named,
    random_backbone,
    random_images,
    random_rows,
)

DESIGNS = [
    {"init_values": 0.3},
    {"qk_norm": True},
    {"reg_tokens": 2},
    {"no_embed_class": True},
    {"pre_norm": True},
    {"qkv_bias": False},
    {"scale_attn_norm": True},
]


def timm_scores(model, parameters, images, client=0, private=True):
    """Scores by timm's own model, its weights merged with one client's adapters in the graph."""
    reference = copy.deepcopy(model.backbone.model)
    reference.reset_classifier(CLASSES)
    reference = reference.double().eval()
    weights = model.effective_weights(parameters, private)
    changed = {}
    for name, value in weights.items():
        if name.startswith("head."):
            changed[name] = value[client]
        else:
            frozen = reference.get_parameter(f"{name}.weight")
            changed[f"{name}.weight"] = frozen + value.b[client] @ value.a[client]
    return torch.func.functional_call(reference, changed, images)


@pytest.fixture(params=["packed", "fused", "explicit"])
def attention(request, monkeypatch):
    """Every way in which attention is computed."""
    if request.param != "packed":
        monkeypatch.setattr(forward_pass, "SHORT", 0)

    def apply(model):
        for block in model.model.blocks:
            block.attn.fused_attn = request.param == "fused"
        return model

    return apply


@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_gradients_are_timms(make_model, variant, targets):
    model = make_model(targets=targets, **VARIANTS[variant])
    rows, counts = random_rows(model, 4), COUNTS["ragged"]
    images, labels = random_images(12)
    divisors = torch.arange(1.0, 13)

    def ours(parameters):
        weights = model.effective_weights(parameters)
        return model.losses(images, labels, divisors, counts, weights)

    def timms(parameters):
        parts = zip(images.split(counts), labels.split(counts), strict=True)
        losses = [
            F.cross_entropy(timm_scores(model, parameters, x, k), y, reduction="none")
            for k, (x, y) in enumerate(parts)
            if len(x)
        ]
        return torch.cat(losses) / divisors

    got, expected = gradients(model, rows, ours), gradients(model, rows, timms)
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-10)
    trained = zip((model.layout.communicated, model.layout.private), got[1], strict=True)
    for (specs, slopes), wanted in zip(trained, expected[1], strict=True):
        torch.testing.assert_close(slopes, wanted, rtol=0, atol=1e-9)
        if any(spec.trainable for spec in specs) and variant != "m = 0":
            assert slopes[0].abs().max() > 1e-6 and not slopes[1].any(), "client 1 has no image"
    frozen = model.model.named_parameters()
    assert all(p.grad is None and not p.requires_grad for _, p in frozen)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_timms_variations_of_the_design(tiny, design, attention):
    backbone = random_backbone(tiny, **design)
    config = AdapterConfig(rank=2, branch="dual", targets="qkv-fc1")
    model = attention(CohortModel(backbone, config, CLASSES, dtype=torch.float64))
    parameters = named(model, random_rows(model, 1))
    images, _ = random_images(6)
    expected = timm_scores(model, parameters, images)
    torch.testing.assert_close(model.logits(images, [6], parameters), expected, rtol=0, atol=1e-10)
    low = CohortModel(backbone, config, CLASSES, bfloat16=True)
    parameters = {name: value.float() for name, value in parameters.items()}
    error = (low.logits(images, [6], parameters) - expected).norm()
    # 30 roundings of 2⁻⁸ on the way, of random sign, and three times that.
    assert error <= 3 * math.sqrt(30) * 2**-8 * expected.norm()


@pytest.mark.parametrize("kind", [CohortModel, CompiledModel])
def test_fresh_adapters_are_the_frozen_model(make_model, kind):
    model = make_model(kind, torch.float32, branch="dual")
    rows = [row[None] for row in model.initial_values(np.random.default_rng(0))]
    images, _ = random_images(6, torch.float32)
    reference = copy.deepcopy(model.backbone.model)
    reference.reset_classifier(CLASSES)
    head = named(model, rows)["head.weight"][0]
    expected = F.linear(reference.forward_head(reference.forward_features(images), True), head)
    got = model.logits(images, [6], named(model, rows))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_closed_gate_is_the_shared_model(make_model):
    shared, closed, learned = (
        make_model(**options)
        for options in ({}, {"branch": "dual", "gate_fixed": 0.0}, {"branch": "dual"})
    )
    images, _ = random_images(6)
    rows = random_rows(learned, 2)
    common = named(shared, (rows[0], rows[1][:, :0]))
    expected = shared.logits(images, [2, 4], common)
    parameters = named(closed, (rows[0], rows[1][:, : closed.layout.d_private]))
    for got in (
        closed.logits(images, [2, 4], parameters),
        learned.logits(images, [2, 4], common, private=False),
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    assert (learned.logits(images, [2, 4], named(learned, rows)) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("private_size", [1.0, 1e-4])
@pytest.mark.parametrize("variant", ["shared", "layer gates", "client gate, factors", "shared A"])
def test_gradients_in_bfloat16_are_within_their_roundings(backbone, variant, private_size):
    """Every parameter by itself: a small one is not judged by a large one beside it."""
    config = AdapterConfig(rank=3, **VARIANTS[variant])
    exact = CohortModel(backbone, config, CLASSES, dtype=torch.float64)
    low = CohortModel(backbone, config, CLASSES, bfloat16=True)
    rows = [0.5 * row for row in random_rows(exact, 3)]
    rows[1] = rows[1] * private_size
    images, labels = random_images(12)

    def slopes(model, dtype):
        found = gradients(
            model,
            [row.to(dtype) for row in rows],
            lambda p: F.cross_entropy(model.logits(images, [5, 4, 3], p), labels, reduction="none"),
        )[1]
        return named(model, found)

    expected, got = slopes(exact, torch.float64), slopes(low, torch.float32)
    for name, slope in expected.items():
        error = (got[name].double() - slope).norm()
        assert error <= 3 * math.sqrt(2 * 30) * 2**-8 * slope.norm(), name


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [12, 0, 0, 0]])
def test_a_step_reads_no_value_back(backbone, bfloat16, counts):
    """On torch's device without values, where reading one is an error."""
    config = AdapterConfig(rank=3, branch="dual")
    model = CohortModel(backbone, config, CLASSES, device="meta", bfloat16=bfloat16)
    parameters = {}
    for specs in (model.layout.communicated, model.layout.private):
        matrix = torch.zeros(4, sum(spec.size for spec in specs), device="meta")
        parameters |= leaves(matrix, torch.zeros_like(matrix), specs)
    logits = model.logits(torch.zeros(12, 1, 8, 8, device="meta"), counts, parameters)
    F.cross_entropy(logits, torch.zeros(12, dtype=torch.int64, device="meta")).backward()
    assert logits.shape == (12, CLASSES)


@pytest.mark.parametrize("kind", [CohortModel, CompiledModel])
@pytest.mark.parametrize("counts", [[6, 5], [12], [13, -1], [4, 4, 4]])
def test_counts_that_do_not_fit_are_refused(make_model, kind, counts):
    model = make_model(kind, torch.float32)
    parameters = named(model, random_rows(model, 2, torch.float32))
    images, _ = random_images(12, torch.float32)
    with pytest.raises(ValueError, match=r"counts .* must be 2 non-negative numbers"):
        model.logits(images, counts, parameters)
    assert model.logits(images[:0], [0, 0], parameters).shape == (0, CLASSES)
