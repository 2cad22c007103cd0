"""Names, first values, gates and the closed forms of the merged weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import gates, initial_values, make_layout, merge
from fedsdg.models.parameters import views


def _names(specs):
    return [spec.name for spec in specs]


def test_state_names_follow_the_specification(tiny):
    layout = make_layout(tiny, 5, AdapterConfig(branch="dual"))
    layers = [f"blocks.{block}.{t}" for block in range(2) for t in ("attn.proj", "mlp.fc2")]
    factors = [f"{layer}.{f}" for layer in layers for f in ("lora_A", "lora_B")]
    assert _names(layout.communicated) == [*factors, "head.weight", "head.bias"]
    logits = ["blocks.0.lambda_k_logit", "blocks.1.lambda_k_logit"]
    assert _names(layout.private) == [f"{name}_private" for name in factors] + logits
    # r·(in + out) per layer: attn.proj 16 -> 16, mlp.fc2 64 -> 16; head 5·16 + 5; twice 8 ranks
    assert layout.d == 2 * 8 * (32 + 80) + 85
    assert layout.d_private == 2 * 8 * (32 + 80) + 2
    for spec in layout.private:
        assert spec.group == ("gate" if "lambda_k_logit" in spec.name else "private")
    assert {spec.group for spec in layout.communicated} == {"shared"}


def test_attention_input_targets(tiny):
    layout = make_layout(tiny, 5, AdapterConfig(targets="qkv-fc1", rank=2))
    shapes = {spec.name: spec.shape for spec in layout.communicated}
    assert shapes["blocks.1.attn.qkv.lora_B"] == (48, 2)
    assert shapes["blocks.1.mlp.fc1.lora_A"] == (2, 16)
    assert not any("proj" in name or "fc2" in name for name in shapes)


@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
def test_the_patch_embedding_is_never_adapted(tiny, targets):
    layout = make_layout(tiny, 5, AdapterConfig(targets=targets, branch="dual"))
    assert not any("patch_embed" in s.name for s in (*layout.communicated, *layout.private))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gate": "block"}, ["blocks.0.lambda_k_logit", "blocks.1.lambda_k_logit"]),
        (
            {"gate": "layer"},
            [
                f"blocks.{block}.{layer}.lambda_k_logit"
                for block in range(2)
                for layer in ("attn.proj", "mlp.fc2")
            ],
        ),
        ({"gate": "client"}, ["lambda_k_logit"]),
        ({"gate_fixed": 0.5}, []),
    ],
)
def test_gate_granularity(tiny, options, expected):
    config = AdapterConfig(branch="dual", **options)
    layout = make_layout(tiny, 5, config)
    assert [s.name for s in layout.private if s.group == "gate"] == expected
    _, private = initial_values(layout, config, np.random.default_rng(0))
    weights = gates(private.expand(3, -1), layout)
    assert torch.equal(weights, torch.full((3, len(expected)), 0.5))  # an unbiased start


def test_gates_are_sigmoids_of_their_own_logits(tiny):
    config = AdapterConfig(branch="dual", gate_init=-2.0)
    layout = make_layout(tiny, 5, config)
    _, row = initial_values(layout, config, np.random.default_rng(0))
    rows = row.repeat(2, 1)
    torch.testing.assert_close(
        gates(rows, layout), torch.full((2, 2), 1 / (1 + np.exp(2.0))).float()
    )
    views(rows, layout.private)["blocks.1.lambda_k_logit"][0] = 0.7
    assert gates(rows, layout)[0, 1] == pytest.approx(1 / (1 + np.exp(-0.7)))


def test_first_values(tiny):
    config = AdapterConfig(rank=64, branch="dual")
    layout = make_layout(tiny, 50, config)
    shared, private = initial_values(layout, config, np.random.default_rng(0))
    shared, private = views(shared[None], layout.communicated), views(private[None], layout.private)
    for name, tensor in (shared | private).items():
        if "lora_B" in name or name == "head.bias":
            assert not tensor.any(), name
        elif name.endswith("lora_A"):
            bound = tensor.shape[-1] ** -0.5
            assert tensor.abs().max() <= bound
            assert float(tensor.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        elif name.endswith("lora_A_private"):
            assert float(tensor.std()) == pytest.approx(1e-4, rel=0.1)
        elif name == "head.weight":
            assert float(tensor.std()) == pytest.approx(0.02, rel=0.1)
    # the specification's run-time check: private_penalty ≈ 0 at the start
    assert sum(float((t**2).sum()) for n, t in private.items() if "_private" in n) < 0.01


def test_private_factors_may_start_like_lora(tiny):
    config = AdapterConfig(rank=64, branch="dual", private_init="lora")
    layout = make_layout(tiny, 5, config)
    private = views(
        initial_values(layout, config, np.random.default_rng(0))[1][None], layout.private
    )
    a = private["blocks.0.mlp.fc2.lora_A_private"]
    assert float(a.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.1)
    assert not private["blocks.0.mlp.fc2.lora_B_private"].any()


def test_every_method_starts_from_the_same_shared_values(tiny):
    rows = []
    for options in ({}, {"branch": "dual"}, {"local": True}):
        config = AdapterConfig(**options)
        layout = make_layout(tiny, 5, config)
        shared, private = initial_values(layout, config, np.random.default_rng(3))
        rows.append(private if config.local else shared)
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])


def test_a_local_layout_communicates_nothing(tiny):
    ordinary = make_layout(tiny, 5, AdapterConfig())
    local = make_layout(tiny, 5, AdapterConfig(local=True))
    assert local.d == 0 and local.communicated == ()
    assert local.private == ordinary.communicated


def test_a_private_head_moves_into_the_private_row_and_nothing_else_changes(tiny):
    for branch in ("none", "dual"):
        shared = make_layout(tiny, 5, AdapterConfig(branch=branch))
        private = make_layout(tiny, 5, AdapterConfig(branch=branch, head="private"))
        assert private.communicated == shared.communicated[:-2]
        assert private.private == (*shared.communicated[-2:], *shared.private)
        assert private.d + private.d_private == shared.d + shared.d_private
        # η_g moves it wherever it stands, and λ₂ penalises the factors alone.
        assert [spec.group for spec in private.private[:2]] == ["shared", "shared"]
        assert shared.global_model and not private.global_model
    assert not make_layout(tiny, 5, AdapterConfig(local=True)).global_model


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_a_private_head_starts_from_the_same_values(tiny, branch):
    both = []
    for head in ("shared", "private"):
        config = AdapterConfig(branch=branch, head=head)
        layout = make_layout(tiny, 5, config)
        shared, private = initial_values(layout, config, np.random.default_rng(3))
        both.append(torch.cat([shared, private]))
    assert torch.equal(*both)


def test_the_official_start_of_the_private_branch(tiny):
    config = AdapterConfig(rank=64, branch="dual", private_init="official", gate_init=-2.0)
    layout = make_layout(tiny, 5, config)
    private = views(
        initial_values(layout, config, np.random.default_rng(0))[1][None], layout.private
    )
    for name, tensor in private.items():
        if name.endswith("lora_A_private"):
            bound = tensor.shape[-1] ** -0.5
            assert tensor.abs().max() <= bound
            assert float(tensor.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        elif name.endswith("lora_B_private"):
            assert float(tensor.std()) == pytest.approx(0.01, rel=0.1)
    alike = [
        initial_values(layout, AdapterConfig(rank=64, branch=branch, private_init=init),
                       np.random.default_rng(0))[0]
        for branch, init in (("dual", "official"), ("dual", "lora"))
    ]  # fmt: skip
    assert torch.equal(*alike), "the shared row is drawn first"


def _factors(config: AdapterConfig, clients: int = 2):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(clients, *shape, generator=generator, dtype=torch.float64)

    values = {"l.lora_A": draw(2, 4), "l.lora_B": draw(3, 2), "l.lora_B_private": draw(3, 2)}
    values |= {"l.lora_A_private": draw(2, 4), "l.lambda_k_logit": draw()}
    return torch.randn(3, 4, generator=generator, dtype=torch.float64), values


@pytest.mark.parametrize("fixed", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("options", "closed_form"),
    [
        ({}, lambda a, b, ap, bp, m: b @ a + m * (bp @ ap)),
        ({"composition": "factors"}, lambda a, b, ap, bp, m: (b + m * bp) @ (a + m * ap)),
        ({"private_subspace": "shared-a"}, lambda a, b, ap, bp, m: b @ a + m * (bp @ a)),
    ],
)
def test_merged_weights_equal_their_closed_form(options, closed_form, fixed):
    config = AdapterConfig(
        rank=2, alpha=3.0, branch="dual", gate="layer", gate_fixed=fixed, **options
    )
    weight, p = _factors(config)
    merged = merge(weight, "l", p, config, private=True)
    for k in range(2):
        m = float(torch.sigmoid(p["l.lambda_k_logit"][k])) if fixed is None else fixed
        names = ("lora_A", "lora_B", "lora_A_private", "lora_B_private")
        expected = weight + 1.5 * closed_form(*(p[f"l.{name}"][k] for name in names), m)
        torch.testing.assert_close(merged[k], expected, rtol=0, atol=1e-12)
        alone = merge(weight, "l", p, config, private=False)[k]
        torch.testing.assert_close(
            alone, weight + 1.5 * p["l.lora_B"][k] @ p["l.lora_A"][k], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"targets": "everything"}, "targets.*outputs, qkv-fc1"),
        ({"composition": "sum"}, "composition"),
        ({"gate": "token"}, "gate"),
        ({"gate_fixed": 1.5}, "gate_fixed"),
        ({"local": True, "branch": "dual"}, "local"),
        ({"branch": "dual", "private_a_trainable": False}, "private_init"),
        ({"head": "none"}, "head.*shared, private"),
        ({"head": "private", "local": True}, "head must be 'shared'"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AdapterConfig(**options)


def test_a_fixed_private_a_is_marked(tiny):
    config = AdapterConfig(branch="dual", private_init="lora", private_a_trainable=False)
    layout = make_layout(tiny, 5, config)
    fixed = {spec.name for spec in layout.private if not spec.trainable}
    assert fixed == {s.name for s in layout.private if s.name.endswith("lora_A_private")}


def test_shared_subspace_has_no_private_a(tiny):
    layout = make_layout(tiny, 5, AdapterConfig(branch="dual", private_subspace="shared-a"))
    assert not any(spec.name.endswith("lora_A_private") for spec in layout.private)


@pytest.mark.parametrize(("name", "block"), [("first", 0), ("middle", 2), ("last", 3)])
@pytest.mark.parametrize("gate", ["block", "layer"])
def test_a_private_block_has_what_it_has_among_all(tiny, name, block, gate):
    deep = replace(tiny, depth=4)
    every = AdapterConfig(branch="dual", gate=gate)
    only = replace(every, private_block=name)
    whole, layout = make_layout(deep, 5, every), make_layout(deep, 5, only)
    assert layout.communicated == whole.communicated
    assert layout.private == tuple(
        spec for spec in whole.private if spec.name.startswith(f"blocks.{block}.")
    )
    # What is communicated starts as it does with every other method.
    starts = [
        initial_values(its, config, np.random.default_rng(0))
        for its, config in ((whole, every), (layout, only))
    ]
    assert torch.equal(starts[0][0], starts[1][0])


def test_a_mixture_has_no_private_block():
    with pytest.raises(ValueError, match="private_block must be null"):
        AdapterConfig(branch="dual", composition="mixture", private_block="last")
