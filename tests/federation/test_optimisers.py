"""Rows are clients: each has its own Adam, as PyTorch would keep one per client."""

import pytest
import torch

from fedsdg.federation.optimisers import Adam, Sgd


def torch_adam(start, gradients, rate):
    theta = start.clone().requires_grad_()
    adam = torch.optim.Adam([theta], lr=rate)
    for gradient in gradients:
        theta.grad = gradient.clone()
        adam.step()
    return theta.detach()


def test_every_row_counts_its_own_steps():
    """Row 0 takes five steps and row 1 joins for the last two: both equal an Adam of their own."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    gradients = torch.randn(5, 2, 7, generator=generator, dtype=torch.float64)
    matrix, adam = start.clone(), Adam(start, 0.03)
    for step, gradient in enumerate(gradients):
        rows = 1 if step < 3 else 2
        adam.step(matrix[:rows], gradient[:rows])
    for row, own in ((0, gradients[:, 0]), (1, gradients[3:, 1])):
        assert torch.allclose(matrix[row], torch_adam(start[row], own, 0.03), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [Adam, Sgd])
def test_rates_per_column(make):
    """A rate per column moves each column as that rate alone would; rate 0 does not move it."""
    start = torch.ones(3, 2, dtype=torch.float64)
    gradient = torch.full_like(start, 0.5)
    mixed = start.clone()
    make(start, torch.tensor([0.1, 0.0], dtype=torch.float64)).step(mixed, gradient)
    alone = start.clone()
    make(start, 0.1).step(alone, gradient)
    assert torch.allclose(mixed[:, 0], alone[:, 0]) and torch.equal(mixed[:, 1], start[:, 1])
    assert not torch.equal(alone, start)


def test_sgd_is_a_step_down_the_gradient():
    matrix = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    Sgd(matrix, 0.25).step(matrix, torch.tensor([[4.0, -8.0]], dtype=torch.float64))
    assert matrix.tolist() == [[0.0, 4.0]]
