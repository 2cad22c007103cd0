"""Roots and sigmoids that are the same on every processor, against IEEE's root and float64."""

import math

import numpy as np
import torch

from fedsdg.models.rounding import processor_independent, root, sigmoid


def test_the_root_is_rounded_correctly():
    x = torch.from_numpy(np.random.default_rng(0).uniform(0, 3, 100_000).astype(np.float32))
    with processor_independent():
        found = root(x)
    # A float64 root of a float32 number, rounded once more, is the nearest float32 number.
    assert found.tolist() == [float(np.float32(math.sqrt(value))) for value in x.tolist()]


def test_the_sigmoid_is_that_of_float64_rounded_once():
    x = torch.linspace(-30, 30, 10_001)
    with processor_independent():
        found = sigmoid(x)
    expected = [1 / (1 + math.exp(-value)) for value in x.tolist()]
    assert found.dtype == torch.float32
    assert (found.double() - torch.tensor(expected, dtype=torch.float64)).abs().max() <= 2**-25 * (
        1 + 1e-6
    )


def test_the_sigmoid_has_its_slope():
    x = torch.linspace(-4, 4, 9, requires_grad=True)
    with processor_independent():
        sigmoid(x).sum().backward()
    m = torch.sigmoid(x.detach().double())
    torch.testing.assert_close(x.grad.double(), m * (1 - m), rtol=2e-7, atol=0)


def test_outside_and_unless_wanted_they_are_torchs():
    x = torch.from_numpy(np.random.default_rng(1).uniform(0, 3, 100_000).astype(np.float32))
    with processor_independent(), processor_independent(wanted=False):
        assert torch.equal(root(x), x.sqrt()) and torch.equal(sigmoid(x), x.sigmoid())
    assert torch.equal(root(x), x.sqrt()) and torch.equal(sigmoid(x), x.sigmoid())
