"""Views and leaves: one matrix, many names, no copies; and what a round trains."""

from __future__ import annotations

import pytest
import torch

from fedsdg.next_models import (
    AdapterConfig,
    Layout,
    ParameterSpec,
    block_views,
    leaves,
    offsets,
    only_trained,
    views,
)
from fedsdg.next_models.adapters import adapter_layout

SPECS = (
    ParameterSpec("blocks.0.a", (2, 3), "shared"),
    ParameterSpec("blocks.0.b", (), "gate", trainable=False),
    ParameterSpec("blocks.1.a", (2, 3), "shared"),
    ParameterSpec("blocks.1.b", (), "gate", trainable=False),
    ParameterSpec("head.bias", (4,), "private"),
)


def test_views_share_the_matrix():
    assert offsets(SPECS)["blocks.1.b"] == slice(13, 14)
    matrix = torch.arange(36.0).view(2, 18)
    single, stacked = views(matrix, SPECS), block_views(matrix, SPECS)
    assert stacked["blocks.*.a"].shape == (2, 2, 2, 3) and stacked["blocks.*.b"].shape == (2, 2)
    for block in range(2):
        assert torch.equal(stacked["blocks.*.a"][:, block], single[f"blocks.{block}.a"])
        assert torch.equal(stacked["blocks.*.b"][:, block], single[f"blocks.{block}.b"])
    single["head.bias"][1, 3] = -1
    stacked["blocks.*.b"][0, 1] = -2
    assert matrix[1, 17] == -1 and matrix[0, 13] == -2


@pytest.mark.parametrize("named", [views, block_views])
def test_a_matrix_of_another_width_is_refused(named):
    with pytest.raises(ValueError, match=r"\[clients, 18\].*\(3, 17\)"):
        named(torch.zeros(3, 17), SPECS)
    assert named(torch.zeros(3, 0), ()) == {}


@pytest.mark.parametrize(
    "specs",
    [
        (SPECS[0], SPECS[1], SPECS[3], SPECS[2], *(ParameterSpec("blocks.2.a", (2, 3), "shared"),)),
        (SPECS[0], ParameterSpec("blocks.1.a", (3, 2), "shared")),
    ],
    ids=["uneven", "other shape"],
)
def test_blocks_that_differ_are_refused(specs):
    with pytest.raises(ValueError, match=r"blocks\.\*\.a"):
        block_views(torch.zeros(1, sum(spec.size for spec in specs)), specs)


def test_gradients_of_what_is_trained_land_in_the_matrix():
    matrix, slopes = torch.randn(2, 18), torch.zeros(2, 18)
    named = leaves(matrix, slopes, SPECS)
    for _ in range(2):
        loss = named["blocks.*.a"].square().sum() + 3 * named["head.bias"][1].sum()
        (loss + named["blocks.*.b"].sum()).backward()
    expected = torch.zeros(2, 18)
    for columns in (slice(0, 6), slice(7, 13)):
        expected[:, columns] = 4 * matrix[:, columns]
    expected[1, 14:] = 6
    torch.testing.assert_close(slopes, expected)
    matrix.zero_()
    assert not named["blocks.*.a"].any()
    assert not any(leaf.requires_grad for leaf in leaves(matrix, None, SPECS).values())


def test_factors_in_turns_and_what_rests_is_not_sent(tiny):
    layout = adapter_layout(tiny, 5, AdapterConfig(alternate=True))
    ends = {1: (".lora_B", "weight", "bias"), 2: (".lora_A", "weight", "bias")}
    for round_, trained in {**ends, 3: ends[1]}.items():
        own = layout.of_round(round_)
        names = [spec.name for spec in own.communicated if spec.trainable]
        assert names == [s.name for s in layout.communicated if s.name.endswith(trained)]
        sent = only_trained(torch.ones(1, layout.d), own)
        assert int(sent.sum()) == sum(s.size for s in own.communicated if s.trainable)
    assert layout.of_round(1, 2) == Layout(layout.communicated, layout.private)


def test_a_tuned_copy_trains_a_frozen_head(tiny):
    layout = adapter_layout(tiny, 5, AdapterConfig(head="frozen"))
    assert not layout.trains_private and layout.own_parameters == 0 and layout.global_model
    for alone in (False, True):
        copy = layout.of_copy(head_alone=alone)
        assert [s.group for s in copy.private] == ["own", "own"] and copy.trains_private
        assert all(spec.trainable is not alone for spec in copy.communicated)
