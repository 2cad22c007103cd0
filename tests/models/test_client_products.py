"""The per-client product and the packed attention against autograd of plain torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedsdg.models.attention import COMPILED, attend
from fedsdg.models.products import client_linear


@pytest.mark.parametrize("rows", [(3, 3, 3), (2, 0, 5, 5), (0, 4, 1, 0), (0, 0)])
@pytest.mark.parametrize("own_bias", [True, False])
def test_equals_one_product_per_client(rows, own_bias):
    clients = len(rows)
    x = torch.randn(sum(rows), 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(clients, 6, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(*((clients, 6) if own_bias else (6,)), dtype=torch.float64)
    bias.requires_grad_(own_bias)
    slope = torch.randn(sum(rows), 6, dtype=torch.float64)
    inputs = [x, weight] + ([bias] if own_bias else [])

    output = client_linear(x, weight, bias, rows)
    parts = [
        part @ weight[k].T + (bias[k] if own_bias else bias)
        for k, part in enumerate(x.split(list(rows)))
    ]
    expected = torch.cat(parts)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    got = torch.autograd.grad(output, inputs, slope)
    wanted = torch.autograd.grad(expected, inputs, slope)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_an_absent_client_gets_gradient_zero_not_rubbish():
    x = torch.randn(4, 3, requires_grad=True)
    weight = torch.randn(3, 2, 3, requires_grad=True)
    bias = torch.randn(3, 2, requires_grad=True)
    client_linear(x, weight, bias, (2, 0, 2)).square().sum().backward()
    assert not weight.grad[1].any() and not bias.grad[1].any()
    assert weight.grad[0].any() and weight.grad[2].any()


def test_the_product_passes_gradcheck():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: client_linear(*a, (2, 1, 2)), (x, weight, bias))


def by_torch(packed, heads, query):
    """The same by torch's own attention, on slices."""
    split = packed.unflatten(2, (2 if query is not None else 3, heads, -1)).permute(2, 0, 3, 1, 4)
    q = split[0] if query is None else query.unflatten(2, (heads, -1)).transpose(1, 2)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, split[-2], split[-1])
    return mixed.transpose(1, 2).flatten(2)


def drawn(batch, tokens, heads, width, own_query, dtype, size=1.0):
    """Packed and queries, or None instead of these, to be differentiated."""
    parts = 2 if own_query else 3
    packed = size * torch.randn(batch, tokens, parts * heads * width, dtype=dtype)
    query = size * torch.randn(batch, 2, heads * width, dtype=dtype) if own_query else None
    return packed.requires_grad_(), None if query is None else query.requires_grad_()


@pytest.mark.parametrize("own_query", [False, True])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width"),
    [(3, 5, 2, 4), (4, 5, 4, 16), (2, 1, 2, 8), (3, 7, 1, 3), (2, 17, 3, 64), (0, 5, 2, 4)],
)
@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
def test_packed_attention_equals_torch(batch, tokens, heads, width, own_query, dtype, atol):
    packed, query = drawn(batch, tokens, heads, width, own_query, dtype)
    inputs = [packed] if query is None else [packed, query]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = by_torch(exact[0], heads, exact[1] if own_query else None)
    output = attend(packed, heads, width**-0.5, query)
    assert output.dtype == dtype
    slope = torch.randn_like(output)
    got = torch.autograd.grad(output, inputs, slope)
    wanted = torch.autograd.grad(expected, exact, slope.double())
    for one, other in zip((output, *got), (expected, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=atol)
    with torch.no_grad():
        assert torch.equal(attend(packed, heads, width**-0.5, query), output)


@pytest.mark.parametrize("tokens", [5, COMPILED, COMPILED + 1])
def test_an_image_attends_alike_in_any_batch_and_memory(tokens):
    packed, _ = drawn(7, tokens, 2, 16, False, torch.float32)
    slope = torch.randn(7, tokens, 32)

    def attended(packed, slope):
        output = attend(packed, 2, 0.25)
        return output, *torch.autograd.grad(output, packed, slope)

    whole = attended(packed, slope)
    parts = [attended(packed[i : i + 1].clone(), slope[i : i + 1]) for i in range(7)]
    if tokens <= COMPILED:
        for one, others in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(one, torch.cat(others))
    apart = packed.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    scattered = slope.transpose(1, 2).contiguous().transpose(1, 2)
    assert not apart.is_contiguous() and not scattered.is_contiguous()
    for one, other in zip(whole, attended(apart, scattered), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scale", [1e4, 1e37])
def test_of_large_scores_the_largest_takes_all(scale):
    """Scores 0, 1, 2, 3 and 4 times `scale`, and the same below zero: nothing overflows."""
    packed = torch.zeros(2, 5, 3, 16)
    packed[0, :, 0, 0], packed[1, :, 0, 0] = 1.0, -1.0
    packed[:, :, 1, 0] = torch.arange(5.0)
    packed[:, :, 2] = torch.randn(2, 5, 16)
    values = packed[:, :, 2].clone()
    packed = packed.flatten(2).requires_grad_()
    output = attend(packed, 1, scale)
    expected = torch.stack([values[0, 4], values[1, 0]])[:, None].expand(2, 5, 16)
    assert torch.equal(output, expected)
    slope = torch.autograd.grad(output, packed, torch.ones_like(output))[0]
    to_values = torch.zeros(2, 5, 16)
    to_values[0, 4] = to_values[1, 0] = 5.0
    assert torch.equal(slope.unflatten(2, (3, 16))[:, :, 2], to_values)
    assert not slope[..., :32].any()


def test_what_is_not_a_number_stays_in_its_image():
    packed, _ = drawn(3, 5, 2, 16, False, torch.float32)
    with torch.no_grad():
        packed[1, 2, 3] = float("nan")  # a query
    output = attend(packed, 2, 0.25)
    assert output[1, 2, :16].isnan().all()
    rest = output.clone()
    rest[1, 2, :16] = 0
    assert rest.isfinite().all()


def test_without_gradients_attention_keeps_nothing():
    packed, _ = drawn(3, 5, 2, 16, False, torch.float32)
    with torch.no_grad():
        assert attend(packed, 2, 0.25).grad_fn is None
    assert attend(packed.detach(), 2, 0.25).grad_fn is None
    assert attend(packed, 2, 0.25).grad_fn is not None


def test_the_exponential_is_right_to_two_units_in_the_last_place():
    x = torch.cat([torch.linspace(-87, 0, 200_001), torch.tensor([-87.5, -1e4, -torch.inf, -0.0])])
    # Of two keys, 0 and x, the share of the second is e^x / (1 + e^x).
    query = torch.ones(len(x), 1, 1)
    packed = torch.zeros(len(x), 2, 2)
    packed[:, 1, 0], packed[:, 1, 1] = x, 1.0
    shares = attend(packed, 1, 1.0, query).flatten().double()
    wanted = torch.sigmoid(x.double())
    assert ((shares - wanted).abs() <= 4 * torch.finfo(torch.float32).eps * wanted + 1e-37).all()


def test_without_a_compiler_torch_attends():
    """In a process that finds no numba, as an image for GPUs may be."""
    script = (
        "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"
        "import torch; from fedsdg.models.attention import attend\n"
        "x = torch.linspace(-1, 1, 2 * 5 * 24).view(2, 5, 24).requires_grad_()\n"
        "y = attend(x, 2, 0.5); y.square().sum().backward()\n"
        "print(*y.flatten().tolist(), *x.grad.flatten().tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    packed = torch.linspace(-1, 1, 2 * 5 * 24).view(2, 5, 24).requires_grad_()
    output = attend(packed, 2, 0.5)
    output.square().sum().backward()
    here = torch.cat([output.flatten(), packed.grad.flatten()])
    there = torch.tensor([float(word) for word in done.stdout.split()])
    torch.testing.assert_close(there, here)
