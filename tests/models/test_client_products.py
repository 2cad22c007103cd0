"""The per-client product and the packed attention against autograd of plain torch."""

from __future__ import annotations

import pytest
import torch

from fedsdg.models.attention import attend
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


@pytest.mark.parametrize("own_query", [False, True])
def test_packed_attention_equals_torch(own_query):
    batch, tokens, heads, width = 3, 5, 2, 4
    parts = 2 if own_query else 3
    packed = torch.randn(batch, tokens, parts * heads * width, dtype=torch.float64)
    packed.requires_grad_()
    query = torch.randn(batch, 2, heads * width, dtype=torch.float64, requires_grad=True)
    split = packed.view(batch, tokens, parts, heads, width).permute(2, 0, 3, 1, 4)
    q = query.view(batch, 2, heads, width).transpose(1, 2) if own_query else split[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q, split[-2], split[-1])
    expected = expected.transpose(1, 2).flatten(2)
    output = attend(packed, heads, width**-0.5, query if own_query else None)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    slope = torch.randn_like(output)
    inputs = [packed, query] if own_query else [packed]
    got = torch.autograd.grad(output, inputs, slope)
    wanted = torch.autograd.grad(expected, inputs, slope)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
