"""Pretraining: the average of the weights, and a state from which it continues."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedsdg.next_models import Training, build_backbone, linear_probe, shift_and_mirror
from fedsdg.next_models.pretraining import schedule

STEPS = 5


@pytest.fixture
def begin(tiny):
    def make(**changes):
        torch.manual_seed(0)
        model = build_backbone(tiny, num_classes=3, drop_path_rate=0.5)
        numbers = {"learning_rate": 0.01, "beta2": 0.98, "weight_decay": 0.05, "warmup_steps": 2}
        numbers |= {"label_smoothing": 0.1, "clip_norm": 1.0, "bfloat16": False}
        return Training(model, STEPS, **{**numbers, **changes})

    return make


def batch(step):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 1, 8, 8, generator=generator)
    return images, torch.randint(3, (8,), generator=generator)


def test_the_schedule():
    rates = [schedule(step, 100, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert max(rates) == pytest.approx(1.0) and rates[55] == pytest.approx(0.5)
    assert rates[-1] < 1e-3 and all(a >= b for a, b in itertools.pairwise(rates[10:]))


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
    assert not training.model.training
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


def test_a_loss_that_is_not_finite_stops(begin):
    images, labels = batch(0)
    with pytest.raises(FloatingPointError, match="step 1 of 5; lower learning_rate"):
        begin().step(images * float("nan"), labels)


def test_shifts_and_mirrors():
    image = torch.arange(256.0).view(1, 1, 16, 16).repeat(3, 1, 1, 1)
    shifts = torch.tensor([[0, 1, 0], [0, -2, 0]])
    moved = shift_and_mirror(image, shifts, torch.tensor([False, False, True]))
    assert torch.equal(moved[0], image[0]) and torch.equal(moved[2], image[2].flip(-1))
    assert torch.equal(moved[1, 0, 1:, :-2], image[1, 0, :-1, 2:])  # down by 1, left by 2
    assert torch.equal(moved[1, 0, 0], moved[1, 0, 2]), "reflected at the border"


def test_the_probe_finds_classes_that_a_line_separates():
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 2
    features = generator.normal(size=(400, 4)) + 5 * labels[:, None]
    assert linear_probe(features, labels, generator.permutation(400)) > 0.99
    shuffled = generator.permutation(labels)
    assert 0.3 < linear_probe(features, shuffled, generator.permutation(400)) < 0.7
