"""What private branches amount to, against the same formulas in numpy."""

import itertools

import numpy as np
import pytest
import torch

from fedsdg.federation.branches import Branches
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import GATE, adapted_layers, gate_name, make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.parameters import offsets, views

SHAPE = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
CASES = [
    {},
    {"gate": "layer"},
    {"gate": "client"},
    {"gate_fixed": 0.25},
    {"composition": "factors"},
    {"private_subspace": "shared-a"},
    {"private_block": "first", "gate": "layer"},
    {"head": "private"},
    {"targets": "qkv-fc1", "gate": "layer", "private_init": "official"},
]


def make(seed=0, **options):
    """(branches, first rows, config, layout); the first values are drawn at random."""
    torch.manual_seed(seed)
    config = AdapterConfig(rank=3, branch="dual", **options)
    layout = make_layout(SHAPE, 10, config)
    model = CohortModel(
        freeze(build(SHAPE), SHAPE, "tiny", {}), layout, config, 10, dtype=torch.float64
    )
    first = torch.randn(layout.d).double(), torch.randn(layout.d_private).double()
    return Branches(model, layout, *first), first, config, layout


def measured(branches, theta, private):
    rows = branches.measure(np.arange(len(theta)), lambda some: theta[some], lambda some: private)
    return [rows[k] for k in range(len(theta))]


def by_hand(config, layout, first, theta, private):
    """The four measures of one client: products written out, one layer after another."""
    named = {**views(theta[None], layout.communicated), **views(private[None], layout.private)}
    value = {name: tensor[0].numpy() for name, tensor in named.items()}
    start = {
        **views(first[0][None], layout.communicated),
        **views(first[1][None], layout.private),
    }
    start = {name: tensor[0].numpy() for name, tensor in start.items()}
    own, common = np.zeros(SHAPE.depth), np.zeros(SHAPE.depth)
    moved_own = moved_common = penalty = 0.0
    for layer, (block, *_) in adapted_layers(SHAPE, config).items():
        if config.private_block == "first" and block > 0:
            a, b = value[f"{layer}.lora_A"], value[f"{layer}.lora_B"]
            common[block] += ((b @ a) ** 2).sum()
            moved_common += ((a - start[f"{layer}.lora_A"]) ** 2).sum() + (b**2).sum()
            continue
        m = config.gate_fixed
        if m is None:
            m = 1 / (1 + np.exp(-value[gate_name(layer, config)]))
        a, b = value[f"{layer}.lora_A"], value[f"{layer}.lora_B"]
        b_p = value[f"{layer}.lora_B_private"]
        a_p = value.get(f"{layer}.lora_A_private", a)
        own[block] += ((m * b_p @ a_p) ** 2).sum()
        common[block] += ((b @ a) ** 2).sum()
        moved_common += ((a - start[f"{layer}.lora_A"]) ** 2).sum() + (b**2).sum()
        moved_own += (b_p**2).sum()
        penalty += (b_p**2).sum()
        if f"{layer}.lora_A_private" in value:
            moved_own += ((a_p - start[f"{layer}.lora_A_private"]) ** 2).sum()
            penalty += (a_p**2).sum()
    gates = [1 / (1 + np.exp(-v)) for name, v in value.items() if name.endswith(GATE)]
    shares = np.sqrt(own) / (np.sqrt(own) + np.sqrt(common))
    return shares, np.sqrt(moved_own / moved_common), penalty, sum(gates) if gates else None


@pytest.mark.parametrize("options", CASES, ids=str)
def test_measures_equal_products_written_out(options):
    branches, first, config, layout = make(**options)
    theta, private = torch.randn(3, layout.d).double(), torch.randn(3, layout.d_private).double()
    rows = measured(branches, theta, private)
    for k in range(3):
        shares, ratio, penalty, gates = by_hand(config, layout, first, theta[k], private[k])
        assert rows[k]["private_shares"] == pytest.approx(shares, rel=1e-12)
        assert len(rows[k]["private_shares"]) == SHAPE.depth
        assert rows[k]["private_ratio"] == pytest.approx(ratio, rel=1e-12)
        assert rows[k]["private_penalty"] == pytest.approx(penalty, rel=1e-12)
        assert rows[k].get("gate_penalty") == (gates and pytest.approx(gates, rel=1e-12))


def with_b(layout, row, specs, value):
    """A row in which every B is ``value``."""
    row = row.clone()
    for name, place in offsets(specs).items():
        if name.endswith(("lora_B", "lora_B_private")):
            row[place] = value
    return row


def test_the_ends_a_closed_gate_is_0_no_shared_branch_1_and_nothing_at_all_0():
    ends: dict[tuple[float, float], list[float]] = {}
    for gate, b in itertools.product((0.0, 1.0), (0.0, 1.0)):
        branches, first, _, layout = make(gate_fixed=gate)
        theta = with_b(layout, first[0], layout.communicated, b)[None]
        ends[gate, b] = measured(branches, theta, first[1][None])[0]["private_shares"]
    assert ends[0.0, 1.0] == ends[0.0, 0.0] == [0.0, 0.0]
    assert ends[1.0, 0.0] == [1.0, 1.0]
    assert all(0 < share < 1 for share in ends[1.0, 1.0])


def test_the_share_follows_the_product_and_not_the_gate():
    """Half the gate with twice the B_p is the same model, and the same share."""
    one, first, _, layout = make(gate_fixed=0.8)
    other, *_ = make(gate_fixed=0.4)
    theta = torch.randn(1, layout.d).double()
    private = first[1][None]
    twice = private.clone()
    for name, place in offsets(layout.private).items():
        if name.endswith("lora_B_private"):
            twice[:, place] *= 2
    here, there = measured(one, theta, private)[0], measured(other, theta, twice)[0]
    assert here["private_shares"] == pytest.approx(there["private_shares"], rel=1e-12)


def test_the_ratio_at_the_start_is_0_and_absent_where_only_the_private_branch_has_moved():
    branches, first, _, layout = make()
    theta, private = (
        with_b(layout, first[0], layout.communicated, 0.0)[None],
        with_b(layout, first[1], layout.private, 0.0)[None],
    )
    assert measured(branches, theta, private)[0]["private_ratio"] == 0.0
    assert "private_ratio" not in measured(branches, theta, private + 1)[0]
    assert measured(branches, theta + 1, private)[0]["private_ratio"] == 0.0


def test_methods_without_a_private_branch_have_no_measures():
    config = AdapterConfig(rank=3, head="private")
    layout = make_layout(SHAPE, 10, config)
    branches = Branches(None, layout, torch.zeros(layout.d), torch.zeros(layout.d_private))
    assert branches.measure(np.arange(3), lambda _: 1 / 0, lambda _: 1 / 0) == {}
