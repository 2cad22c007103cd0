"""Parameters: names, first values, closed forms of adapters and heads, views of matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsdg import models
from fedsdg.models.adapters import adapter_layout, adapter_values
from tests.models.conftest import VARIANTS, named, random_rows


def layout_of(architecture, **options):
    return adapter_layout(architecture, 5, models.AdapterConfig(**options))


def first_values(architecture, seed=0, classes=5, **options):
    """First values of both rows by name."""
    config = models.AdapterConfig(**options)
    layout = adapter_layout(architecture, classes, config)
    shared, private = adapter_values(layout, config, np.random.default_rng(seed))
    values = models.views(shared[None], layout.communicated)
    return values | models.views(private[None], layout.private)


def test_names_follow_the_specification(tiny):
    layout = layout_of(tiny, branch="dual")
    layers = [f"blocks.{block}.{t}" for block in range(2) for t in ("attn.proj", "mlp.fc2")]
    factors = [f"{layer}.{f}" for layer in layers for f in ("lora_A", "lora_B")]
    gates = ["blocks.0.lambda_k_logit", "blocks.1.lambda_k_logit"]
    assert [s.name for s in layout.communicated] == [*factors, "head.weight", "head.bias"]
    assert [s.name for s in layout.private] == [*(f"{name}_private" for name in factors), *gates]
    # r (in + out) of proj 32 -> 32 and fc2 128 -> 32; head 5 · 32 + 5
    assert layout.d == 2 * 8 * (64 + 160) + 165 and layout.d_private == 2 * 8 * (64 + 160) + 2
    other = {s.name: s.shape for s in layout_of(tiny, targets="qkv-fc1", rank=2).communicated}
    assert other["blocks.1.attn.qkv.lora_B"] == (96, 2)
    assert other["blocks.1.mlp.fc1.lora_A"] == (2, 32) and len(other) == 10


@pytest.mark.parametrize("init", ["near-zero", "lora", "official"])
def test_first_values(tiny, init):
    a, b = {"near-zero": (1e-4, 0), "lora": (None, 0), "official": (None, 0.01)}[init]
    drawn = {"classes": 50, "rank": 64, "gate": "layer", "gate_init": -2.0}
    values = first_values(tiny, branch="dual", private_init=init, **drawn)
    stds = {"lora_A": None, "lora_B": 0, "lora_A_private": a, "lora_B_private": b, "weight": 0.02}
    for name, tensor in values.items():
        expected = stds.get(name.split(".")[-1], 0)
        if expected is None:
            assert tensor.abs().max() <= tensor.shape[-1] ** -0.5
            expected = (3 * tensor.shape[-1]) ** -0.5
        if name.endswith("lambda_k_logit"):
            assert float(tensor) == -2.0
        else:
            assert float(tensor.std()) == pytest.approx(expected, rel=0.1), name


def test_every_method_starts_from_the_same_values(tiny):
    plain = first_values(tiny, seed=3)
    for name in VARIANTS.keys() - {"frozen A"}:  # which is drawn first
        values = first_values(tiny, seed=3, **VARIANTS[name])
        assert all(torch.equal(values[key], value) for key, value in plain.items()), name


def test_where_parameters_live(tiny):
    ordinary, head = layout_of(tiny, branch="dual"), layout_of(tiny, branch="dual", head="private")
    assert head.private == (*ordinary.communicated[-2:], *ordinary.private)
    local, b = layout_of(tiny, local=True), layout_of(tiny, factor_b="private")
    assert local.d == 0 and local.private == ordinary.communicated
    frozen = layout_of(tiny, factor_a="frozen")
    models_of_all = [layout.global_model for layout in (ordinary, frozen, head, local, b)]
    assert models_of_all == [True, True, False, False, False]
    fixed = layout_of(tiny, branch="dual", private_init="lora", private_a_trainable=False)
    resting = [s.name for s in fixed.private if not s.trainable]
    assert len(resting) == 4 and all(name.endswith("lora_A_private") for name in resting)
    with pytest.raises(ValueError, match="at least 2 classes"):
        adapter_layout(tiny, 1, models.AdapterConfig())
    for own in ("blocks.0.*", "blocks.0.attn.proj.lora_A"):
        with pytest.raises(ValueError, match=r"blocks\.\*\.attn\.proj\.lora_A is stacked"):
            adapter_layout(tiny, 5, models.AdapterConfig(own=(own,)))


CLOSED_FORMS = {
    "residual": lambda a, b, ap, bp, m: b @ a + m * (bp @ ap),
    "factors": lambda a, b, ap, bp, m: (b + m * bp) @ (a + m * ap),
    "mixture": lambda a, b, ap, bp, m: (1 - m) * (b @ a) + m * (bp @ ap),
    "shared-a": lambda a, b, ap, bp, m: b @ a + m * (bp @ a),
}


@pytest.mark.parametrize("fixed", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("gate", ["block", "layer", "client"])
@pytest.mark.parametrize("form", CLOSED_FORMS)
def test_adapters_equal_their_closed_form(make_model, form, gate, fixed):
    shared = form == "shared-a"
    options = {"composition": "residual" if shared else form, "gate": gate, "gate_fixed": fixed}
    subspace = "shared-a" if shared else "own"
    model = make_model(alpha=4.0, branch="dual", private_subspace=subspace, **options)
    p, squares = named(model, random_rows(model, 2)), torch.zeros(2, 2, 2).double()
    for target in ("attn.proj", "mlp.fc2"):
        names = ("lora_A", "lora_B", "lora_A_private", "lora_B_private")
        a, b, ap, bp = (p.get(f"blocks.*.{target}.{name}") for name in names)
        prefix = {"block": "blocks.*.", "layer": f"blocks.*.{target}.", "client": ""}[gate]
        m = fixed
        if m is None:
            m = torch.sigmoid(p[f"{prefix}lambda_k_logit"]).view(2, -1, 1, 1)
        expected = 4 / 3 * CLOSED_FORMS[form](a, b, ap, bp, m), 4 / 3 * b @ a
        for private, product in zip((True, False), expected, strict=True):
            factors = models.low_rank_factors(target, p, model.config, private)
            torch.testing.assert_close(factors.b @ factors.a, product, rtol=0, atol=1e-12)
        squares[0] += (m * bp @ (a if ap is None else ap)).square().sum((2, 3))
        squares[1] += ((1 - m) * b @ a if form == "mixture" else b @ a).square().sum((2, 3))
    torch.testing.assert_close(torch.stack(model.branch_norms(p)), squares.sqrt())


@pytest.mark.parametrize("composition", ["residual", "factors"])
def test_other_blocks_than_the_private_one_are_the_shared_model(make_model, composition):
    model = make_model(branch="dual", private_block="last", composition=composition)
    parameters = named(model, random_rows(model, 2))
    given = ("mlp.fc2", parameters, model.config)
    both, alone = (models.low_rank_factors(*given, private) for private in (True, False))
    change = (both.b @ both.a - alone.b @ alone.a).abs().amax((0, 2, 3))
    assert change[0] < 1e-15 and change[1] > 1e-3
    assert (model.branch_norms(parameters)[0] > 0).tolist() == [[False, True]] * 2


@pytest.mark.parametrize("fixed", [None, 0.0, 0.25, 1.0])
def test_gated_and_residual_heads(make_model, fixed):
    model = make_model(head="gated", gate_fixed=fixed)
    p = named(model, random_rows(model, 3))
    m = torch.full((3,), fixed) if fixed is not None else torch.sigmoid(p["head.lambda_k_logit"])
    names, residual = ("head.weight", "head.bias"), models.AdapterConfig(head="residual")
    gated, summed = (models.client_heads(p, c, private=True) for c in (model.config, residual))
    for name, own, both in zip(names, gated, summed, strict=True):
        share = m.view(3, *[1] * (own.dim() - 1))
        expected = (1 - share) * p[name] + share * p[f"{name}_private"]
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-15)
        assert torch.equal(both, p[name] + p[f"{name}_private"])
    assert models.client_heads(p, model.config, private=False) == tuple(p[name] for name in names)


def test_separated_gates_and_what_they_gate_learn_apart():
    names = ("lora_A", "lora_B_private", "lambda_k_logit")
    values = {name: torch.ones(2, 3, requires_grad=True) for name in names}
    weights = torch.tensor([1.0, 1.0, 10.0, 10.0])[:, None]
    sum((value * weights).sum() for value in models.separate_gates(values).values()).backward()
    assert [float(values[name].grad[0, 0]) for name in names] == [11.0, 1.0, 10.0]


def test_contradicting_options_are_refused():
    for options, message in (
        ({"rank": 0}, "rank"),
        ({"local": True, "branch": "dual"}, "local"),
        ({"head": "private", "local": True}, "head must be 'shared'"),
        ({"head": "gated", "branch": "dual"}, "gated head"),
        ({"factor_a": "frozen", "factor_b": "private"}, "no adapter is learned in common"),
        ({"alternate": True, "factor_b": "private"}, "take turns"),
        ({"branch": "dual", "private_a_trainable": False}, "private_init"),
        ({"branch": "dual", "composition": "mixture", "private_block": "last"}, "must be null"),
    ):
        with pytest.raises(ValueError, match=message):
            models.AdapterConfig(**options)


# --- Matrices and their views

A, B = (("a", (2, 3), "shared"), ("b", (), "gate", False))
BLOCKS = [models.ParameterSpec(f"blocks.{n}.{x[0]}", *x[1:]) for n in (0, 1) for x in (A, B)]
SPECS = (*BLOCKS, models.ParameterSpec("head.bias", (4,), "private"))


def test_views_share_the_matrix():
    assert models.offsets(SPECS)["blocks.1.b"] == slice(13, 14)
    matrix = torch.arange(36.0).view(2, 18)
    single, stacked = models.views(matrix, SPECS), models.block_views(matrix, SPECS)
    for block in range(2):
        assert torch.equal(stacked["blocks.*.a"][:, block], single[f"blocks.{block}.a"])
        assert torch.equal(stacked["blocks.*.b"][:, block], single[f"blocks.{block}.b"])
    single["head.bias"][1, 3] = -1
    stacked["blocks.*.b"][0, 1] = -2
    assert matrix[1, 17] == -1 and matrix[0, 13] == -2


@pytest.mark.parametrize("views", [models.views, models.block_views])
def test_matrices_and_blocks_that_do_not_fit_are_refused(views):
    with pytest.raises(ValueError, match=r"\[clients, 18\].*\(3, 17\)"):
        views(torch.zeros(3, 17), SPECS)
    other = models.ParameterSpec("blocks.1.a", (3, 2), "shared")
    with pytest.raises(ValueError, match=r"blocks\.\*\.a"):
        models.block_views(torch.zeros(1, 12), (SPECS[0], other))


def test_gradients_of_what_is_trained_land_in_the_matrix():
    matrix, slopes = torch.randn(2, 18), torch.zeros(2, 18)
    named = models.leaves(matrix, slopes, SPECS)
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
    assert not any(leaf.requires_grad for leaf in models.leaves(matrix, None, SPECS).values())


def test_factors_in_turns_and_what_rests_is_not_sent(tiny):
    layout = layout_of(tiny, alternate=True)
    for round_, factor in ((1, "B"), (2, "A"), (3, "B")):
        own = layout.of_round(round_)
        trained = [s.name for s in own.communicated if s.trainable]
        ends = (f".lora_{factor}", "weight", "bias")
        assert trained == [s.name for s in layout.communicated if s.name.endswith(ends)]
        sent = models.only_trained(torch.ones(1, layout.d), own)
        assert int(sent.sum()) == sum(s.size for s in own.communicated if s.trainable)
    assert layout.of_round(1, 2) == models.Layout(layout.communicated, layout.private)


def test_a_tuned_copy_trains_a_frozen_head(tiny):
    layout = layout_of(tiny, head="frozen")
    assert not layout.trains_private and layout.own_parameters == 0 and layout.global_model
    for alone in (False, True):
        copy = layout.of_copy(head_alone=alone)
        assert [s.group for s in copy.private] == ["own", "own"] and copy.trains_private
        assert all(spec.trainable is not alone for spec in copy.communicated)
