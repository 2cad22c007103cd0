"""The compiled products and layers against float64: numpy, scipy and torch's autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from torch.nn import functional

from fedsdg.next_models.fast import layers, tiles
from fedsdg.next_models.fast.vectors import STEP, exact, load, store


def drawn(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def at(array):
    return array.ctypes.data


def assert_close(found, expected, terms=1):
    """Within the rounding of a sum of so many terms."""
    bound = 4 * np.finfo(np.float32).eps * math.sqrt(terms) * (np.abs(expected).max() + 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("rows", "length", "columns"), [(1, 1, 16), (7, 3, 48), (83, 64, 192), (16, 80, 272)]
)
def test_a_product_starts_from_a_row_or_from_what_is_there(rows, length, columns):
    a, b, bias = drawn(rows, length), drawn(length, columns), drawn(columns)
    c = np.full((rows, columns), np.nan, np.float32)
    expected = a.astype(float) @ b
    tiles.product(at(a), length, 1, at(b), at(c), rows, columns, length, at(bias), 1)
    assert_close(c, expected + bias, length)
    before = c.copy()
    tiles.add_product(at(a), length, 1, at(b), at(c), rows, columns, length)
    assert_close(c, expected + before, length)
    zeros, turned = np.zeros(tiles.WIDEST, np.float32), np.ascontiguousarray(a.T)
    tiles.product(at(turned), 1, rows, at(b), at(c), rows, columns, length, at(zeros), 0)
    assert_close(c, expected, length)


def test_every_entry_of_a_product_is_one_sum_in_order():
    """So tiles of any shape give the same bits."""
    a, b, zeros = drawn(13, 40), drawn(40, 144), np.zeros(tiles.WIDEST, np.float32)
    whole, alone = (np.zeros((13, 144), np.float32) for _ in range(2))
    tiles.product(at(a), 40, 1, at(b), at(whole), 13, 144, 40, at(zeros), 0)
    for row in range(13):
        for first in range(0, 144, 16):
            part, right = np.zeros(16, np.float32), np.ascontiguousarray(b[:, first : first + 16])
            tiles.product(at(a[row]), 40, 1, at(right), at(part), 1, 16, 40, at(zeros), 0)
            alone[row, first : first + 16] = part
    assert whole.tobytes() == alone.tobytes()


@exact
def exponentials(count, x, y):
    for offset in range(0, 4 * count, STEP):
        store(y + offset, layers.exponential(load(x + offset)))


def test_exponential_and_logarithm():
    x = np.linspace(-87, 0, 160_000).astype(np.float32)
    y = np.empty_like(x)
    exponentials(len(x), at(x), at(y))
    expected = np.exp(x.astype(float))
    assert (np.abs(y - expected) <= 1.5 * np.spacing(expected.astype(np.float32))).all()
    far = np.full(16, -1e30, np.float32)
    exponentials(16, at(far), at(far))
    assert (far < 1e-37).all()
    for x in (1e-300, 1e-5, 0.5, 0.70710678, 0.9999999, 1.0, 1.0000001, 2.0, 10.0, 3e8):
        assert layers.logarithm(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


def test_gelu_and_its_slope():
    x = np.linspace(-12, 12, 16_000).astype(np.float32)
    y, slope = np.empty_like(x), np.full_like(x, 7)
    layers.gelu(len(x), at(x), at(y), at(slope), False)
    assert (slope == 7).all()
    layers.gelu(len(x), at(x), at(y), at(slope), True)
    wide = x.astype(float)
    share, bell = scipy.special.ndtr(wide), np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(y, wide * share, rtol=0, atol=5e-7)
    np.testing.assert_allclose(slope, share + wide * bell, rtol=0, atol=4e-7)


@pytest.mark.parametrize("width", [16, 192])
def test_a_norm_and_its_gradient(width):
    x, norm, g, dx = drawn(9, width) + 3, drawn(2, width), drawn(9, width), drawn(9, width)
    hat, root, y = np.empty_like(x), np.empty((9, 16), np.float32), np.empty_like(x)
    layers.normalise(9, at(x), norm, np.float32(1e-6), at(hat), at(root), at(y))
    exact_x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.tensor(norm).double()
    expected = functional.layer_norm(exact_x, (width,), weight, bias, 1e-6)
    assert_close(y, expected.detach().numpy(), width)
    expected.backward(torch.tensor(g).double())
    before = dx.copy()
    layers.normalise_back(9, at(g), at(hat), at(root), norm, at(dx), True)
    assert_close(dx, before + exact_x.grad.numpy(), width)
    layers.normalise_back(9, at(g), at(hat), at(root), norm, at(dx), False)
    assert_close(dx, exact_x.grad.numpy(), width)


@pytest.mark.parametrize("class_token_alone", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "width"), [(5, 4, 16), (1, 1, 32), (17, 2, 32)])
def test_attention_and_its_gradient(tokens, heads, width, class_token_alone):
    images, dim, asking = 16, heads * width, 1 if class_token_alone else tokens
    qkv, g = drawn(images, tokens, 3 * dim), drawn(images, tokens, dim)
    shares = np.empty((heads, asking, tokens, images), np.float32)
    mixed, dqkv = np.empty_like(g), np.full_like(qkv, np.nan)
    lanes = np.full((heads, 3, tokens, width, images), np.nan, np.float32)
    spare = np.full((5, tokens, width, images), np.nan, np.float32)
    sizes = (asking, tokens, heads, width, np.float32(width**-0.5))
    layers.attend(*sizes, at(qkv), at(lanes), at(shares), at(mixed), at(spare))
    wide = torch.tensor(qkv, dtype=torch.float64, requires_grad=True)
    q, k, v = wide.view(images, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
    weights = (width**-0.5 * q @ k.mT).softmax(-1)
    expected = (weights @ v).transpose(1, 2).reshape(images, tokens, dim)
    assert_close(shares, weights[:, :, :asking].permute(1, 2, 3, 0).detach().numpy(), width)
    assert_close(mixed[:, :asking], expected[:, :asking].detach().numpy(), width)
    expected[:, :asking].backward(torch.tensor(g[:, :asking]).double())
    layers.attend_back(*sizes, at(lanes), at(shares), at(g), at(dqkv), at(spare))
    assert_close(dqkv, wide.grad.numpy(), width)


def test_cross_entropy_leaves_out_scores_that_fill_a_vector_up():
    scores = np.full((6, 16), -1e30, np.float32)
    scores[:, :10] = 5 * drawn(6, 10)
    labels, divisors = np.arange(6), np.array([1.0, 2, 3, 4, 5, np.inf])
    losses, slopes = np.empty(6), np.empty_like(scores)
    layers.cross_entropy(6, 16, at(scores), labels, divisors, losses, at(slopes))
    wide = torch.tensor(scores[:, :10], dtype=torch.float64, requires_grad=True)
    each = functional.cross_entropy(wide, torch.tensor(labels), reduction="none")
    expected = each / torch.tensor(divisors)
    np.testing.assert_allclose(losses, expected.detach().numpy(), rtol=1e-6, atol=1e-7)
    expected.sum().backward()
    assert_close(slopes[:, :10], wide.grad.numpy())
    assert (np.abs(slopes[:, 10:]) < 1e-30).all() and losses[5] == 0
