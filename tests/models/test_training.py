"""Training from scratch: the average of the weights, and a state from which it goes on."""

from __future__ import annotations

import itertools

import pytest
import torch

from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build
from fedsdg.models.training import Training, schedule, shift_and_mirror

ARCHITECTURE = Architecture(8, 4, 1, 16, 3, 2, (0.5,), (0.5,))
NUMBERS = {
    "learning_rate": 0.01,
    "beta2": 0.98,
    "weight_decay": 0.05,
    "warmup_steps": 2,
    "label_smoothing": 0.1,
    "clip_norm": 1.0,
    "bfloat16": False,
}
STEPS = 5


def begun(**changes):
    torch.manual_seed(0)
    model = build(ARCHITECTURE, num_classes=3, drop_path_rate=0.5)
    return Training(model, STEPS, **{**NUMBERS, **changes})


def batch(step):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 1, 8, 8, generator=generator)
    return images, torch.randint(3, (8,), generator=generator)


def test_the_schedule():
    rates = [schedule(step, 100, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert max(rates) == pytest.approx(1.0) and rates[55] == pytest.approx(0.5)
    assert rates[-1] < 1e-3 and all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_every_parameter_moves():
    training = begun(weight_decay=0.0, warmup_steps=0)
    before = {name: value.clone() for name, value in training.model.named_parameters()}
    for step in range(STEPS):
        training.step(*batch(step))
    training.finish()
    for name, value in training.model.named_parameters():
        assert not torch.equal(value, before[name]), f"{name} did not move"
    assert not training.model.training


@pytest.mark.parametrize("ema", [0.0, 0.3, 0.999])
def test_the_average_is_the_weighted_sum_of_the_weights_on_the_way(ema):
    """a_T = Σ_t (1 − d_t) Π_{s>t} d_s θ_t + Π_s d_s θ_0, written out and summed in float64."""
    training = begun(ema=ema)
    way = []

    def note():
        way.append({n: p.detach().double().clone() for n, p in training.model.named_parameters()})

    note()
    for step in range(STEPS):
        training.step(*batch(step))
        note()
    decays = [min(ema, (1 + t) / (10 + t)) for t in range(1, STEPS + 1)]
    shares = [1.0, *(1.0 - d for d in decays)]
    for t in range(STEPS + 1):
        for decay in decays[t:]:
            shares[t] *= decay
    assert sum(shares) == pytest.approx(1.0)
    if not ema:
        assert shares == [0.0] * STEPS + [1.0]
    training.finish()
    for name, value in training.model.named_parameters():
        expected = sum(share * weights[name] for share, weights in zip(shares, way, strict=True))
        torch.testing.assert_close(value.detach().double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_from_every_step_on_the_rest_is_the_same_bit_for_bit(bfloat16):
    changes = {"ema": 0.9, "bfloat16": bfloat16}
    whole, states = begun(**changes), []
    for step in range(STEPS):
        whole.step(*batch(step))
        states.append({name: value.detach().clone() for name, value in whole.state().items()})
    for after, state in enumerate(states, start=1):
        resumed = begun(**changes)
        torch.manual_seed(99)  # where the generator stands is part of the state
        resumed.restore(state)
        assert resumed.done == after
        for step in range(after, STEPS):
            resumed.step(*batch(step))
        found = resumed.state()
        assert found.keys() == states[-1].keys()
        for name, value in states[-1].items():
            assert torch.equal(found[name], value), name


def test_the_average_and_the_state_change_no_step():
    """The weights on the way are those without an average."""
    plain, averaged = begun(), begun(ema=0.99)
    torch.manual_seed(1)
    losses = [plain.step(*batch(step)) for step in range(STEPS)]
    torch.manual_seed(1)
    for step in range(STEPS):
        assert averaged.step(*batch(step)) == losses[step]
        averaged.state()


def test_shifts_and_mirrors():
    image = torch.arange(256.0).view(1, 1, 16, 16).repeat(3, 1, 1, 1)
    shifts = torch.tensor([[0, 1, 0], [0, -2, 0]])
    moved = shift_and_mirror(image, shifts, torch.tensor([False, False, True]))
    assert torch.equal(moved[0], image[0])
    assert torch.equal(moved[1, 0, 1:, :-2], image[1, 0, :-1, 2:])  # down by 1, left by 2
    assert torch.equal(moved[2], image[2].flip(-1))


def test_what_comes_in_from_beyond_the_border_is_reflected():
    """A shift of one pixel right brings column 1 to column 0 (the edge itself is not repeated)."""
    image = torch.arange(64.0).view(1, 1, 8, 8)
    moved = shift_and_mirror(image, torch.tensor([[0], [1]]), torch.tensor([False]))
    assert torch.equal(moved[0, 0, :, 1:], image[0, 0, :, :-1])
    assert torch.equal(moved[0, 0, :, 0], image[0, 0, :, 1])
