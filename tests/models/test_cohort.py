"""The adapted backbone against timm and autograd, one client at a time; and mixed models."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsdg import models
from fedsdg.models import forward as forward_pass
from fedsdg.models.products import filled_up
from tests.models import conftest as our
from tests.models.conftest import CLASSES, VARIANTS, gradients, named

DESIGNS = [
    {"init_values": 0.3, "qk_norm": True}, {"reg_tokens": 2, "pre_norm": True},
    {"no_embed_class": True}, {"qkv_bias": False}, {"scale_attn_norm": True},
]  # fmt: skip
#: Roundings to bfloat16 on the way through two blocks: norms, weights, their products, attention.
#: Errors of random sign add up to their root; three times that is allowed.
ROUNDED = 3 * math.sqrt(30) * 2**-8


def timm_scores(model, parameters, images, client=0):
    """Scores by timm's own model, its weights merged with one client's adapters in the graph."""
    reference = copy.deepcopy(model.backbone.model)
    reference.reset_classifier(CLASSES)
    reference = reference.double().eval()
    changed = {}
    for name, value in model.effective_weights(parameters).items():
        if name.startswith("head."):
            changed[name] = value[client]
        else:
            frozen = reference.get_parameter(f"{name}.weight")
            changed[f"{name}.weight"] = frozen + value.b[client] @ value.a[client]
    return torch.func.functional_call(reference, changed, images)


@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_gradients_are_timms(make_model, variant, targets):
    model = make_model(targets=targets, **VARIANTS[variant])
    rows, counts, divisors = our.random_rows(model, 4), [5, 0, 6, 1], torch.arange(1.0, 13)
    images, labels = our.random_images(12)

    def ours(parameters):
        weights = model.effective_weights(parameters)
        return model.losses(images, labels, divisors, counts, weights)

    def timms(parameters):
        parts = enumerate(images.split(counts))
        scores = [timm_scores(model, parameters, x, k) for k, x in parts if len(x)]
        return F.cross_entropy(torch.cat(scores), labels, reduction="none") / divisors

    (losses, slopes), (expected, wanted) = (gradients(model, rows, of) for of in (ours, timms))
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(slopes, wanted, rtol=0, atol=1e-9)
    assert not any(slope[1].any() for slope in slopes), "client 1 has no image"
    assert all(p.grad is None and not p.requires_grad for p in model.model.parameters())


@pytest.mark.parametrize("attention", ["packed", "fused", "explicit"])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_timms_variations_of_the_design(monkeypatch, tiny, design, attention):
    backbone = our.random_backbone(tiny, **design)
    config = models.AdapterConfig(rank=2, branch="dual", targets="qkv-fc1")
    model = models.CohortModel(backbone, config, CLASSES, dtype=torch.float64)
    for block in model.model.blocks:
        block.attn.fused_attn = attention == "fused"
    if attention != "packed":
        monkeypatch.setattr(forward_pass, "SHORT", 0)
    parameters, (images, _) = named(model, our.random_rows(model, 1)), our.random_images(6)
    expected = timm_scores(model, parameters, images)
    torch.testing.assert_close(model.logits(images, [6], parameters), expected, rtol=0, atol=1e-10)
    low = models.CohortModel(backbone, config, CLASSES, bfloat16=True)
    parameters = {name: value.float() for name, value in parameters.items()}
    assert (low.logits(images, [6], parameters) - expected).norm() <= ROUNDED * expected.norm()


@pytest.mark.parametrize("private_size", [1.0, 1e-4])
@pytest.mark.parametrize("variant", ["shared", "layer gates", "client gate, factors", "shared A"])
def test_gradients_in_bfloat16_are_within_their_roundings(make_model, variant, private_size):
    """Every parameter by itself: a small one is not judged by a large one beside it."""
    exact, low = (
        make_model(dtype=dtype, bfloat16=dtype == torch.float32, **VARIANTS[variant])
        for dtype in (torch.float64, torch.float32)
    )
    shared, private = (0.5 * row for row in our.random_rows(exact, 3))
    images, labels = our.random_images(12)

    def slopes(model):
        def losses(parameters):
            scores = model.logits(images, [5, 4, 3], parameters)
            return F.cross_entropy(scores, labels, reduction="none")

        rows = [row.to(model.dtype) for row in (shared, private_size * private)]
        return named(model, gradients(model, rows, losses)[1])

    expected, got = slopes(exact), slopes(low)
    for name, slope in expected.items():
        error = (got[name].double() - slope).norm()
        assert error <= math.sqrt(2) * ROUNDED * slope.norm(), name  # there and back


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3]])
def test_a_step_reads_no_value_back(make_model, bfloat16, counts):
    """On torch's device without values, where reading one is an error."""
    model = make_model(dtype=torch.float32, device="meta", bfloat16=bfloat16, branch="dual")
    rows = [row.to("meta", torch.float32) for row in our.random_rows(model, 4)]
    images, labels = (x.to("meta") for x in our.random_images(12))

    def losses(parameters):
        return F.cross_entropy(model.logits(images, counts, parameters), labels, reduction="none")

    assert gradients(model, rows, losses)[0].shape == (12,)


@pytest.mark.parametrize("kind", [models.CohortModel, models.CompiledModel])
def test_counts_that_do_not_fit_are_refused(make_model, kind):
    model = make_model(kind, torch.float32)
    parameters = named(model, our.random_rows(model, 2, torch.float32))
    images, _ = our.random_images(12, torch.float32)
    for counts in ([6, 5], [12], [13, -1], [4, 4, 4]):
        with pytest.raises(ValueError, match=r"counts .* must be 2 non-negative numbers"):
            model.logits(images, counts, parameters)
    assert model.logits(images[:0], [0, 0], parameters).shape == (0, CLASSES)


@pytest.mark.parametrize("counts", [[5, 0, 4, 3], [1, 5, 5, 1], [0, 6, 6, 0]])
def test_fillers_repeat_a_clients_images_and_can_be_taken_out(counts):
    images = torch.arange(12.0)[:, None]
    filled, sizes, real = filled_up(images, counts)
    assert sizes == [max(counts)] * 4 and torch.equal(filled[real], images)
    for count, rows, own in zip(counts, filled.split(sizes), images.split(counts), strict=True):
        assert not count or torch.isin(rows, own).all()
    assert filled_up(images, [10, 2, 0, 0])[2] is None, "more than twice as many do not pay"


@pytest.mark.parametrize("kind", ["adapters", "cnn"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_mixture_is_taken_number_by_number(make_model, kind, weight):
    """∇_v f(a v + (1 − a) w) is a times the gradient of f, and ∇_w is 1 − a times it."""
    cnn = models.SmallCnn(models.CnnArchitecture(8, 1), CLASSES)
    inner = cnn if kind == "cnn" else make_model()
    model = models.MixedModel(inner, weight)
    rows, (images, labels) = our.random_rows(model, 3), our.random_images(12)

    def losses(of):
        def each(parameters, private=True):
            weights = of.effective_weights(parameters, private)
            return of.losses(images, labels, torch.full((12,), 2.0), [5, 0, 7], weights)

        return each

    mixed = torch.lerp(*rows, weight), torch.zeros(3, 0, dtype=torch.float64)
    expected, (slope, _) = gradients(inner, mixed, losses(inner))
    found, (to_w, to_v) = gradients(model, rows, losses(model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(to_v, weight * slope, rtol=0, atol=1e-12)
    torch.testing.assert_close(to_w, (1 - weight) * slope, rtol=0, atol=1e-12)
    alone, (to_w, to_v) = gradients(model, rows, lambda p: losses(model)(p, private=False))
    common = gradients(inner, (rows[0], mixed[1]), losses(inner))
    torch.testing.assert_close((alone, to_w), (common[0], common[1][0]), rtol=0, atol=1e-12)
    assert not to_v.any()


def test_its_layout_first_values_and_faults(make_model):
    model = models.MixedModel(make_model(), 0.5)
    shared, private = model.layout.communicated, model.layout.private
    assert [(s.name, s.group) for s in private] == [(f"{s.name}_own", "own") for s in shared]
    theta, own = model.initial_values(np.random.default_rng(0))
    assert torch.equal(theta, own) and theta.data_ptr() != own.data_ptr()
    with pytest.raises(ValueError, match="all of whose parameters are communicated"):
        models.MixedModel(make_model(head="private"), 0.5)
