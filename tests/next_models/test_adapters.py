"""Names, first values, gates, and the closed forms of adapters and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsdg.next_models import (
    AdapterConfig,
    client_heads,
    low_rank_factors,
    separate_gates,
    views,
)
from fedsdg.next_models.adapters import adapter_layout, adapter_values
from tests.next_models.conftest import VARIANTS, named, random_rows


def drawn(architecture, seed=0, classes=5, **options):
    """Named first values of both rows."""
    config = AdapterConfig(**options)
    layout = adapter_layout(architecture, classes, config)
    rows = adapter_values(layout, config, np.random.default_rng(seed))
    shared, private = (row[None] for row in rows)
    return views(shared, layout.communicated) | views(private, layout.private), layout, rows


def test_names_follow_the_specification(tiny):
    layout = adapter_layout(tiny, 5, AdapterConfig(branch="dual"))
    layers = [f"blocks.{block}.{t}" for block in range(2) for t in ("attn.proj", "mlp.fc2")]
    factors = [f"{layer}.{f}" for layer in layers for f in ("lora_A", "lora_B")]
    gates = ["blocks.0.lambda_k_logit", "blocks.1.lambda_k_logit"]
    assert [s.name for s in layout.communicated] == [*factors, "head.weight", "head.bias"]
    assert [s.name for s in layout.private] == [*(f"{name}_private" for name in factors), *gates]
    # r (in + out) of proj 32 -> 32 and fc2 128 -> 32; head 5 · 32 + 5
    assert layout.d == 2 * 8 * (64 + 160) + 165 and layout.before_head == 2 * 8 * (64 + 160)
    assert layout.d_private == 2 * 8 * (64 + 160) + 2
    shapes = {
        s.name: s.shape
        for s in adapter_layout(tiny, 5, AdapterConfig(targets="qkv-fc1", rank=2)).communicated
    }
    assert shapes["blocks.1.attn.qkv.lora_B"] == (96, 2)
    assert shapes["blocks.1.mlp.fc1.lora_A"] == (2, 32)
    assert not any("proj" in name or "fc2" in name for name in shapes)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gate": "layer"}, [f"blocks.{b}.{t}" for b in (0, 1) for t in ("attn.proj", "mlp.fc2")]),
        ({"gate": "layer", "private_block": "first"}, ["blocks.0.attn.proj", "blocks.0.mlp.fc2"]),
        ({"private_block": "last"}, ["blocks.1"]),
        ({"gate": "client"}, [""]),
        ({"gate_fixed": 0.5}, []),
    ],
)
def test_gates(tiny, options, expected):
    values, layout, _ = drawn(tiny, branch="dual", gate_init=-2.0, **options)
    gates = [spec.name for spec in layout.private if spec.group == "gate"]
    assert gates == [f"{name}.lambda_k_logit".lstrip(".") for name in expected]
    assert all(values[name] == -2.0 for name in gates)


def test_first_values(tiny):
    for init, a_std, b_std in (
        ("near-zero", 1e-4, 0), ("lora", None, 0), ("official", None, 0.01)
    ):  # fmt: skip
        values, _, _ = drawn(tiny, classes=50, rank=64, branch="dual", private_init=init)
        for name, tensor in values.items():
            uniform = tensor.shape[-1] ** -0.5 / 3**0.5
            expected = 0.0
            if name.endswith("lora_A") or (name.endswith("lora_A_private") and a_std is None):
                expected = uniform
                assert tensor.abs().max() <= tensor.shape[-1] ** -0.5
            elif name.endswith("lora_A_private"):
                expected = a_std
            elif name.endswith("lora_B_private"):
                expected = b_std
            elif name == "head.weight":
                expected = 0.02
            elif "logit" in name:
                continue
            assert float(tensor.std()) == pytest.approx(expected, rel=0.1), name


def test_every_method_starts_from_the_same_values(tiny):
    plain, _, _ = drawn(tiny, seed=3)
    for name, options in VARIANTS.items():
        values, _, _ = drawn(tiny, seed=3, **options)
        if name == "frozen A":  # drawn first
            assert not any(values[n].any() for n in values if n.endswith("lora_B"))
            continue
        assert all(torch.equal(values[key], value) for key, value in plain.items()), name


def test_where_parameters_live(tiny):
    ordinary = adapter_layout(tiny, 5, AdapterConfig(branch="dual"))
    head = adapter_layout(tiny, 5, AdapterConfig(branch="dual", head="private"))
    assert head.private == (*ordinary.communicated[-2:], *ordinary.private)
    assert ordinary.global_model and not head.global_model
    local = adapter_layout(tiny, 5, AdapterConfig(local=True))
    assert local.d == 0 and local.private == ordinary.communicated and not local.global_model
    frozen = adapter_layout(tiny, 5, AdapterConfig(factor_a="frozen"))
    assert frozen.global_model and not frozen.trains_private and frozen.own_parameters == 0
    b = adapter_layout(tiny, 5, AdapterConfig(factor_b="private"))
    assert not b.global_model and b.private[0].name.endswith("lora_B")
    fixed = AdapterConfig(branch="dual", private_init="lora", private_a_trainable=False)
    resting = [s.name for s in adapter_layout(tiny, 5, fixed).private if not s.trainable]
    assert resting and all(name.endswith("lora_A_private") for name in resting)
    with pytest.raises(ValueError, match="at least 2 classes"):
        adapter_layout(tiny, 1, AdapterConfig())


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
    subspace, composition = ("own", form) if form != "shared-a" else ("shared-a", "residual")
    options = {"composition": composition, "private_subspace": subspace, "gate": gate}
    model = make_model(alpha=4.0, branch="dual", gate_fixed=fixed, **options)
    rows = random_rows(model, 2)
    single = views(rows[0], model.layout.communicated) | views(rows[1], model.layout.private)
    norms = model.branch_norms(named(model, rows))
    squares = torch.zeros(2, 2, 2, dtype=torch.float64)
    for target in ("attn.proj", "mlp.fc2"):
        factors = low_rank_factors(target, named(model, rows), model.config, private=True)
        alone = low_rank_factors(target, named(model, rows), model.config, private=False)
        for k in range(2):
            for block in range(2):
                layer = f"blocks.{block}.{target}"
                name = {"block": f"blocks.{block}.", "layer": f"{layer}.", "client": ""}[gate]
                m = fixed
                if m is None:
                    m = float(torch.sigmoid(single[f"{name}lambda_k_logit"][k]))
                parts = ("lora_A", "lora_B", "lora_A_private", "lora_B_private")
                a, b, ap, bp = (single.get(f"{layer}.{part}", [None] * 2)[k] for part in parts)
                expected = 4 / 3 * CLOSED_FORMS[form](a, b, ap, bp, m)
                got = factors.b[k, block] @ factors.a[k, block]
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
                got = alone.b[k, block] @ alone.a[k, block]
                torch.testing.assert_close(got, 4 / 3 * b @ a, rtol=0, atol=1e-12)
                squares[0, k, block] += (m * bp @ (a if ap is None else ap)).square().sum()
                shared = (1 - m) * b if form == "mixture" else b
                squares[1, k, block] += (shared @ a).square().sum()
    torch.testing.assert_close(torch.stack(norms), squares.sqrt(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", ["first", "last"])
@pytest.mark.parametrize("composition", ["residual", "factors"])
def test_other_blocks_than_the_private_one_are_the_shared_model(make_model, block, composition):
    model = make_model(branch="dual", private_block=block, composition=composition)
    parameters = named(model, random_rows(model, 2))
    with_branch, alone = (
        low_rank_factors("mlp.fc2", parameters, model.config, private) for private in (True, False)
    )
    products = [factors.b @ factors.a for factors in (with_branch, alone)]
    other = 1 if block == "first" else 0
    torch.testing.assert_close(products[0][:, other], products[1][:, other], rtol=0, atol=1e-15)
    assert (products[0][:, 1 - other] - products[1][:, 1 - other]).abs().max() > 1e-3
    assert (model.branch_norms(parameters)[0] > 0).tolist() == [[other == 1, other == 0]] * 2


@pytest.mark.parametrize("fixed", [None, 0.0, 0.25, 1.0])
def test_gated_and_residual_heads(make_model, fixed):
    model = make_model(head="gated", gate_fixed=fixed)
    p = named(model, random_rows(model, 3))
    m = torch.full((3,), fixed) if fixed is not None else torch.sigmoid(p["head.lambda_k_logit"])
    weight, bias = client_heads(p, model.config, private=True)
    for k in range(3):
        expected = (1 - m[k]) * p["head.weight"][k] + m[k] * p["head.weight_private"][k]
        torch.testing.assert_close(weight[k], expected, rtol=0, atol=1e-15)
        expected = (1 - m[k]) * p["head.bias"][k] + m[k] * p["head.bias_private"][k]
        torch.testing.assert_close(bias[k], expected, rtol=0, atol=1e-15)
    assert client_heads(p, model.config, private=False) == (p["head.weight"], p["head.bias"])
    residual = client_heads(p, AdapterConfig(head="residual"), private=True)
    assert torch.equal(residual[0], p["head.weight"] + p["head.weight_private"])
    assert torch.equal(residual[1], p["head.bias"] + p["head.bias_private"])


def test_separated_gates_and_what_they_gate_learn_apart():
    values = {
        name: torch.ones(2, 3, requires_grad=True)
        for name in ("lora_A", "B_private", "lambda_k_logit")
    }
    doubled = separate_gates(values)
    first = sum((value[:2] * 1.0).sum() for value in doubled.values())
    second = sum((value[2:] * 10.0).sum() for value in doubled.values())
    (first + second).backward()
    slopes = {name: float(value.grad[0, 0]) for name, value in values.items()}
    assert slopes == {"lora_A": 11.0, "B_private": 1.0, "lambda_k_logit": 10.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"targets": "everything"}, "targets.*outputs, qkv-fc1"),
        ({"gate_fixed": 1.5}, "gate_fixed"),
        ({"local": True, "branch": "dual"}, "local"),
        ({"head": "private", "local": True}, "head must be 'shared'"),
        ({"head": "gated", "branch": "dual"}, "gated head"),
        ({"factor_a": "frozen", "factor_b": "private"}, "no adapter is learned in common"),
        ({"alternate": True, "factor_b": "private"}, "take turns"),
        ({"branch": "dual", "private_a_trainable": False}, "private_init"),
        ({"branch": "dual", "composition": "mixture", "private_block": "last"}, "must be null"),
    ],
)  # fmt: skip
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AdapterConfig(**options)
