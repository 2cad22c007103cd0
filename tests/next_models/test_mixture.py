"""A private copy mixed with the common model: scores, gradients, first values, its ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsdg.next_models import CnnArchitecture, MixedModel, SmallCnn
from tests.next_models.conftest import CLASSES, gradients, named, random_images, random_rows

KINDS = {"adapters": None, "cnn": SmallCnn(CnnArchitecture(8, 1), CLASSES)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_mixture_is_taken_number_by_number(make_model, kind, weight):
    """∇_v f(a v + (1 − a) w) is a times the gradient of f, and ∇_w is 1 − a times it."""
    inner = KINDS[kind] or make_model()
    model = MixedModel(inner, weight)
    rows, counts = random_rows(model, 3), [5, 0, 7]
    images, labels = random_images(12)

    def losses(of):
        def each(parameters, private=True):
            weights = of.effective_weights(parameters, private)
            return of.losses(images, labels, torch.full((12,), 2.0), counts, weights)

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
    model = MixedModel(make_model(), 0.5)
    shared, private = model.layout.communicated, model.layout.private
    assert [s.name for s in private] == [f"{s.name}_own" for s in shared]
    assert {s.group for s in private} == {"own"} and model.layout.global_model
    theta, own = model.initial_values(np.random.default_rng(0))
    assert torch.equal(theta, own) and theta.data_ptr() != own.data_ptr()
    with pytest.raises(ValueError, match="all of whose parameters are communicated"):
        MixedModel(make_model(head="private"), 0.5)
    with pytest.raises(ValueError, match=r"1.5 must lie in \[0, 1\]"):
        MixedModel(make_model(), 1.5)
    rows = [row[:1] for row in random_rows(model, 1)]
    exported = model.portable(named(model, rows)).factors["blocks.1.mlp.fc2"][0]
    expected = torch.lerp(*rows, 0.5)
    inner = model.inner.portable(named(model.inner, (expected, expected[:, :0])))
    assert torch.equal(exported, inner.factors["blocks.1.mlp.fc2"][0])
