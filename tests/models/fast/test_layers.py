"""The compiled products and layers against float64: numpy, scipy and torch's autograd."""

import math

import numpy as np
import pytest
import scipy.special
import torch
from torch.nn import functional

from fedsdg.models.fast import layers, tiles
from fedsdg.models.fast.vectors import STEP, exact, load, store

SIZES = [(1, 1, 16), (5, 64, 64), (7, 3, 48), (83, 64, 192), (80, 256, 64), (16, 80, 272)]


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def at(array):
    return array.ctypes.data


def drawn(generator, *shape):
    return generator.standard_normal(shape).astype(np.float32)


def close(found, expected, terms=1):
    """Within the rounding of a sum of so many terms."""
    bound = 4 * np.finfo(np.float32).eps * math.sqrt(terms) * (np.abs(expected).max() + 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(("rows", "length", "columns"), SIZES)
def test_a_product_starts_from_a_row_or_from_what_is_there(generator, rows, length, columns):
    a, b = drawn(generator, rows, length), drawn(generator, length, columns)
    bias, c = drawn(generator, columns), np.full((rows, columns), np.nan, np.float32)
    expected = a.astype(float) @ b
    tiles.product(at(a), length, 1, at(b), at(c), rows, columns, length, at(bias), 1)
    close(c, expected + bias, length)
    before = c.copy()
    tiles.add_product(at(a), length, 1, at(b), at(c), rows, columns, length)
    close(c, expected + before, length)
    zeros = np.zeros(tiles.WIDEST, np.float32)
    turned = np.ascontiguousarray(a.T)
    tiles.product(at(turned), 1, rows, at(b), at(c), rows, columns, length, at(zeros), 0)
    close(c, expected, length)


def test_rows_are_scaled_by_the_factors_of_their_image(generator):
    x, factors = drawn(generator, 3, 5, 32), drawn(generator, 3, 32)
    expected = x * factors[:, None]
    layers.scale_images(3, 5, 32, at(x), at(factors))
    np.testing.assert_array_equal(x, expected)


def test_every_entry_of_a_product_is_one_sum_in_order(generator):
    """So tiles of any shape give the same bytes."""
    a, b = drawn(generator, 13, 40), drawn(generator, 40, 144)
    whole, alone = (np.zeros((13, 144), np.float32) for _ in range(2))
    zeros = np.zeros(tiles.WIDEST, np.float32)
    tiles.product(at(a), 40, 1, at(b), at(whole), 13, 144, 40, at(zeros), 0)
    for row in range(13):
        for first in range(0, 144, 16):
            part, right = np.zeros(16, np.float32), np.ascontiguousarray(b[:, first : first + 16])
            tiles.product(at(a[row]), 40, 1, at(right), at(part), 1, 16, 40, at(zeros), 0)
            alone[row, first : first + 16] = part
    assert whole.tobytes() == alone.tobytes()


@exact
def exponentials(count, x, y):
    for place in range(0, 4 * count, STEP):
        store(y + place, layers.exponential(load(x + place)))


def test_the_exponential_is_good_to_two_units_in_the_last_place():
    x = np.linspace(-87, 0, 160_000).astype(np.float32)
    y = np.empty_like(x)
    exponentials(len(x), at(x), at(y))
    expected = np.exp(x.astype(float))
    assert (np.abs(y - expected) <= 1.5 * np.spacing(expected.astype(np.float32))).all()
    far = np.full(16, -1e30, np.float32)
    exponentials(16, at(far), at(far))
    assert (far < 1e-37).all()


def test_the_logarithm_is_that_of_the_library():
    for x in [1e-300, 1e-5, 0.5, 0.70710678, 0.9999999, 1.0, 1.0000001, 2.0, 10.0, 3e8]:
        assert layers.logarithm(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


def test_gelu_and_its_slope():
    x = np.linspace(-12, 12, 16_000).astype(np.float32)
    y, slope = np.empty_like(x), np.empty_like(x)
    layers.gelu(1, len(x), at(x), at(y), at(slope), True)
    wide = x.astype(float)
    share = scipy.special.ndtr(wide)
    np.testing.assert_allclose(y, wide * share, rtol=0, atol=5e-7)
    bell = np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(slope, share + wide * bell, rtol=0, atol=4e-7)
    untouched = np.full_like(x, 7)
    layers.gelu(1, len(x), at(x), at(y), at(untouched), False)
    assert (untouched == 7).all()


@pytest.mark.parametrize("width", [16, 64, 192])
def test_a_norm_and_its_gradient(generator, width):
    x, weight, bias = (drawn(generator, *shape) for shape in ((9, width), (width,), (width,)))
    x += 3
    g, dx = drawn(generator, 9, width), drawn(generator, 9, width)
    hat, root, y = np.empty_like(x), np.empty((9, 16), np.float32), np.empty_like(x)
    epsilon = np.float32(1e-6)
    layers.normalise(9, width, at(x), at(weight), at(bias), epsilon, at(hat), at(root), at(y))
    exact_x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    w, b = torch.tensor(weight).double(), torch.tensor(bias).double()
    expected = functional.layer_norm(exact_x, (width,), w, b, 1e-6)
    close(y, expected.detach().numpy(), width)
    expected.backward(torch.tensor(g).double())
    before = dx.copy()
    layers.normalise_back(9, width, at(g), at(hat), at(root), at(weight), at(dx), True)
    close(dx, before + exact_x.grad.numpy(), width)
    layers.normalise_back(9, width, at(g), at(hat), at(root), at(weight), at(dx), False)
    close(dx, exact_x.grad.numpy(), width)


@pytest.mark.parametrize("first_token_alone", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "head"), [(5, 4, 16), (1, 1, 32), (17, 2, 32)])
def test_attention_and_its_gradient(generator, tokens, heads, head, first_token_alone):
    images, dim, asking = 16, heads * head, 1 if first_token_alone else tokens
    qkv, g = drawn(generator, images, tokens, 3 * dim), drawn(generator, images, tokens, dim)
    shares = np.empty((heads, asking, tokens, images), np.float32)
    mixed, dqkv = np.empty_like(g), np.full_like(qkv, np.nan)
    turned = np.full((heads, 3, tokens, head, images), np.nan, np.float32)
    spare = np.full((5, tokens, head, images), np.nan, np.float32)
    scale = np.float32(head**-0.5)
    sizes = (asking, tokens, heads, head, scale)
    layers.attend(*sizes, at(qkv), at(turned), at(shares), at(mixed), at(spare))
    wide = torch.tensor(qkv, dtype=torch.float64, requires_grad=True)
    q, k, v = wide.view(images, tokens, 3, heads, head).permute(2, 0, 3, 1, 4)
    weights = (float(scale) * q @ k.mT).softmax(-1)
    expected = (weights @ v).transpose(1, 2).reshape(images, tokens, dim)
    asked = weights[:, :, :asking].permute(1, 2, 3, 0)
    close(shares, asked.detach().numpy(), head)
    close(mixed[:, :asking], expected[:, :asking].detach().numpy(), head)
    expected[:, :asking].backward(torch.tensor(g[:, :asking]).double())
    layers.attend_back(*sizes, at(turned), at(shares), at(g), at(dqkv), at(spare))
    close(dqkv, wide.grad.numpy(), head)


def test_cross_entropy_and_its_slopes_leave_out_what_fills_a_vector_up(generator):
    scores = np.full((6, 16), -1e30, np.float32)
    scores[:, :10] = 5 * drawn(generator, 6, 10)
    labels = generator.integers(0, 10, 6)
    divisors = np.array([1.0, 2, 3, 4, 5, np.inf])
    losses, slopes = np.empty(6), np.empty_like(scores)
    layers.cross_entropy(6, 16, at(scores), labels, divisors, losses, at(slopes))
    wide = torch.tensor(scores[:, :10], dtype=torch.float64, requires_grad=True)
    each = functional.cross_entropy(wide, torch.tensor(labels), reduction="none")
    expected = each / torch.tensor(divisors)
    np.testing.assert_allclose(losses, expected.detach().numpy(), rtol=1e-6, atol=1e-7)
    expected.sum().backward()
    close(slopes[:, :10], wide.grad.numpy())
    assert (np.abs(slopes[:, 10:]) < 1e-30).all() and losses[5] == 0
