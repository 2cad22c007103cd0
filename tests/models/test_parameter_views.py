"""Views and leaves: one matrix, many names, no copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsdg.models.parameters import (
    Layout,
    ParameterSpec,
    leaves,
    of_every_block,
    offsets,
    views,
)
from tests.pretended_cuda import pretended_cuda

SPECS = (
    ParameterSpec("a", (2, 3), "shared"),
    ParameterSpec("gate", (), "gate"),
    ParameterSpec("b", (4,), "private"),
)


def test_columns_follow_one_another_in_order():
    assert offsets(SPECS) == {"a": slice(0, 6), "gate": slice(6, 7), "b": slice(7, 11)}
    layout = Layout(SPECS[:1], SPECS[1:])
    assert (layout.d, layout.d_private) == (6, 5)
    assert Layout((), ()).d == 0


def test_views_are_the_matrix_itself():
    matrix = torch.arange(33.0).view(3, 11)
    named = views(matrix, SPECS)
    assert named["a"].shape == (3, 2, 3) and named["gate"].shape == (3,)
    assert torch.equal(named["a"][1].flatten(), matrix[1, :6])
    named["b"][2, 3] = -1.0
    named["gate"][0] = -2.0
    assert matrix[2, 10] == -1.0 and matrix[0, 6] == -2.0


def test_a_matrix_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"\[clients, 11\].*\(3, 10\)"):
        views(torch.zeros(3, 10), SPECS)


def test_no_parameters_of_a_matrix_without_columns():
    assert views(torch.zeros(3, 0), ()) == {}


def test_gradients_land_in_the_matrix_and_stay_there():
    matrix = torch.randn(3, 11)
    gradients = torch.zeros(3, 11)
    named = leaves(matrix, gradients, SPECS)
    assert all(tensor.is_leaf and tensor.requires_grad for tensor in named.values())

    def backward():
        loss = (named["a"] ** 2).sum() + 3 * named["gate"].sum() + (named["b"] * 5)[1].sum()
        loss.backward()

    expected = torch.zeros(3, 11)
    expected[:, :6] = 2 * matrix[:, :6]
    expected[:, 6] = 3
    expected[1, 7:] = 5
    backward()
    torch.testing.assert_close(gradients, expected)
    backward()  # accumulates
    torch.testing.assert_close(gradients, 2 * expected)
    gradients.zero_()
    backward()
    torch.testing.assert_close(gradients, expected)
    for tensor in named.values():
        assert tensor.grad.untyped_storage().data_ptr() == gradients.untyped_storage().data_ptr()
        assert tensor.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()


def test_stepping_the_matrix_moves_the_leaves():
    matrix, gradients = torch.ones(2, 11), torch.zeros(2, 11)
    named = leaves(matrix, gradients, SPECS)
    named["a"].sum().backward()
    matrix.sub_(gradients)
    assert torch.equal(named["a"], torch.zeros(2, 2, 3))
    assert torch.equal(named["b"], torch.ones(2, 4))


def test_a_fixed_parameter_gets_no_gradient():
    specs = (
        ParameterSpec("a", (2,), "private", trainable=False),
        ParameterSpec("b", (2,), "private"),
    )
    gradients = torch.zeros(1, 4)
    named = leaves(torch.ones(1, 4), gradients, specs)
    (named["a"] * named["b"]).sum().backward()
    assert named["a"].grad is None
    assert gradients.tolist() == [[0.0, 0.0, 1.0, 1.0]]


def test_gradients_of_another_type_are_refused():
    with pytest.raises(ValueError, match="must agree"):
        leaves(torch.zeros(1, 11), torch.zeros(1, 11, dtype=torch.float64), SPECS)


#: Two blocks of an A, a B and two gates, between other parameters.
BLOCKS = (
    ParameterSpec("first", (2,), "shared"),
    *(
        ParameterSpec(f"blocks.{number}.{name}", shape, group)
        for number in range(3)
        for name, shape, group in (
            ("proj.a", (2, 3), "shared"),
            ("proj.gate", (), "gate"),
            ("fc.gate", (), "gate"),
        )
    ),
    ParameterSpec("head.blocks.0.bias", (4,), "shared"),
)


def test_what_all_blocks_have_is_one_view():
    matrix = torch.arange(3.0 * 30).view(3, 30)
    together, specs = of_every_block(matrix, BLOCKS)
    names = ("first", "blocks.*.proj.a", "blocks.*.proj.gate", "blocks.*.fc.gate")
    assert tuple(together) == (*names, "head.blocks.0.bias")
    assert [(spec.name, spec.shape) for spec in specs][1:3] == [(names[1], (2, 3)), (names[2], ())]
    for name, one in views(matrix, BLOCKS).items():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            assert torch.equal(together[f"blocks.*.{rest}"][:, int(number)], one)
        else:
            assert torch.equal(together[name], one)
    assert {x.untyped_storage().data_ptr() for x in together.values()} == {matrix.data_ptr()}
    alone, _ = of_every_block(matrix[:, :10], BLOCKS[:4])
    assert alone["blocks.*.proj.a"].shape == (3, 1, 2, 3)


@pytest.mark.parametrize(
    "specs",
    [
        (*BLOCKS[:4], ParameterSpec("blocks.1.proj.a", (3, 2), "shared")),
        (*BLOCKS[:4], ParameterSpec("blocks.1.proj.a", (2, 3), "shared", trainable=False)),
        (*BLOCKS[:7], BLOCKS[0], *BLOCKS[7:]),
    ],
)
def test_blocks_that_differ_are_refused(specs):
    """In shape, in whether they train, and in how far they are from each other."""
    width = sum(spec.size for spec in specs)
    with pytest.raises(ValueError, match=r"proj\.a of the blocks differ or are not equally far"):
        of_every_block(torch.zeros(2, width), specs)


def test_on_a_gpu_what_all_blocks_have_is_one_leaf():
    """Gradients land where they do on the CPU, and what is fixed gets none."""
    specs = tuple(replace(spec, trainable=not spec.name.endswith("fc.gate")) for spec in BLOCKS)
    matrix = torch.randn(3, 30)
    slope = torch.randn(3, 30)
    with pretended_cuda():
        there, gradients, slope_there = matrix.cuda(), torch.zeros(3, 30).cuda(), slope.cuda()
        named = leaves(there, gradients, specs)
        weighed, _ = of_every_block(slope_there, specs)
        sum((named[name] * weighed[name]).sum() for name in named).backward()
        assert all(x.is_leaf for x in named.values())
        assert [name for name, x in named.items() if not x.requires_grad] == ["blocks.*.fc.gate"]
        fixed = leaves(there, None, specs)
        assert fixed.keys() == named.keys() and not any(x.requires_grad for x in fixed.values())
        found = gradients.cpu()
    for columns in [offsets(specs)[spec.name] for spec in specs if not spec.trainable]:
        slope[:, columns] = 0
    assert torch.equal(found, slope)
