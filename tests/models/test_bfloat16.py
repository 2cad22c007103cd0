"""Training and evaluation in bfloat16, against float64 within what its 8 bits allow.

u = 2⁻⁸ bounds the relative error of one rounding to bfloat16. Bounds on one product are strict;
those on a whole network take n roundings, of random sign, to add up to √n·u, and allow three times
that.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import merge, side_by_side
from fedsdg.models.attention import attend
from fedsdg.models.cohort import CohortModel
from fedsdg.models.low_rank import Factors, client_low_rank
from fedsdg.models.parameters import leaves, views

U = 2.0**-8
SUMS = 2.0**-16  # sums run in float32: far below, for the few hundred terms here

#: Roundings on the way through a block: two norms, four weights and their four products, queries
#: times scale, scores, probabilities, attention, activation.
ROUNDINGS = 15

VARIANTS = [
    {},
    {"targets": "qkv-fc1"},
    {"branch": "dual"},
    {"branch": "dual", "targets": "qkv-fc1", "gate": "layer"},
    {"branch": "dual", "composition": "factors", "gate": "client"},
    {"branch": "dual", "private_subspace": "shared-a"},
    {"branch": "dual", "private_block": "last"},
    {"branch": "dual", "gate_fixed": 0.3},
    {"local": True},
]


@pytest.fixture
def make_pair(make_model):
    """The same model in float64 and in bfloat16."""

    def make(**options) -> tuple[CohortModel, CohortModel]:
        exact = make_model(**options)
        low = CohortModel(
            exact.backbone, exact.layout, exact.config, exact.num_classes, bfloat16=True
        )
        return exact, low

    return make


def _product(rows, rank=6, inputs=40, outputs=24, size=1.0, seed=0):
    """Inputs that bfloat16 holds exactly, float32 factors it does not."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    x = normal(sum(rows), inputs).bfloat16()
    weight, bias = normal(outputs, inputs).bfloat16(), normal(outputs).bfloat16()
    a = normal(len(rows), rank, inputs, scale=size)
    return x, weight, bias, a, normal(len(rows), outputs, rank)


def _per_client(x, matrices, rows):
    """Each client's rows of `x` times its own matrix, transposed."""
    return torch.cat([part @ m.mT for part, m in zip(x.split(rows), matrices, strict=True)])


@pytest.mark.parametrize("rows", [[7, 7, 7], [5, 0, 9, 9], [0, 4, 1, 0]])
@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_and_its_gradients_are_within_the_roundings_they_make(rows, size, with_bias):
    x, weight, bias, a, b = _product(rows, size=size)
    bias = bias if with_bias else None
    for tensor in (x, a, b):
        tensor.requires_grad_()
    output = client_low_rank(x, weight, bias, Factors(a, b), rows)
    assert output.dtype == torch.float32
    slope = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    slope = slope.bfloat16().float()
    to_x, to_a, to_b = torch.autograd.grad(output, (x, a, b), slope)
    assert to_a.dtype == to_b.dtype == torch.float32

    x, weight, a, b, g = (t.detach().double() for t in (x, weight, a, b, slope))
    zero = torch.zeros(len(weight)).double()
    bias = zero if bias is None else bias.double()
    frozen = x @ weight.T + bias
    branch = _per_client(_per_client(x, a, rows), b, rows)
    size_frozen = x.abs() @ weight.abs().T + bias.abs()
    size_branch = _per_client(_per_client(x.abs(), a.abs(), rows), b.abs(), rows)
    # frozen: rounded once. branch: a, and x·a, are rounded
    allowed = U * frozen.abs() + 2.1 * U * size_branch + SUMS * (size_frozen + size_branch)
    assert ((output.double() - frozen - branch).abs() <= allowed).all()

    middle = _per_client(g, b.mT, rows)
    size_middle = _per_client(g.abs(), b.abs().mT, rows)
    expected = g @ weight + _per_client(middle, a.mT, rows)
    size_g = g.abs() @ weight.abs() + _per_client(size_middle, a.abs().mT, rows)
    # b, g·b, a and twice the result are rounded
    assert ((to_x.double() - expected).abs() <= (5.1 * U + SUMS) * size_g).all()
    for k, (own_x, own_g, own_m, size_m) in enumerate(
        zip(x.split(rows), g.split(rows), middle.split(rows), size_middle.split(rows), strict=True)
    ):
        allowed = (3.1 * U + SUMS) * size_m.T @ own_x.abs()  # b, g·b, the result
        assert ((to_a[k].double() - own_m.T @ own_x).abs() <= allowed).all()
        inner, size_inner = own_x @ a[k].T, own_x.abs() @ a[k].abs().T
        allowed = (3.1 * U + SUMS) * own_g.abs().T @ size_inner  # a, x·a, the result
        assert ((to_b[k].double() - own_g.T @ inner).abs() <= allowed).all()


def test_a_small_branch_is_as_exact_as_a_large_one_and_lost_when_merged():
    rows = [50, 50]
    x, weight, bias, a, b = _product(rows, size=1e-4)
    with_branch = client_low_rank(x, weight, bias, Factors(a, b), rows)
    without = client_low_rank(x, weight, bias, Factors(a, torch.zeros_like(b)), rows)
    expected = _per_client(_per_client(x.double(), a.double(), rows), b.double(), rows)
    error = (with_branch - without).double() - expected
    assert error.norm() <= 2 * U * expected.norm()

    merged = (weight.float() + b @ a).bfloat16()
    shift = torch.cat([p @ m.mT for p, m in zip(x.split(rows), merged, strict=True)])
    lost = shift.double() - (x @ weight.T).double() - expected
    assert lost.norm() > 0.5 * expected.norm()


@pytest.mark.parametrize("options", VARIANTS)
def test_factors_side_by_side_are_the_merged_difference(make_model, named, options):
    model = make_model(**options)
    parameters = named(model, 3)
    for layer in model._adapted:
        frozen = model.model.get_submodule(layer).weight
        for private in (True, False):
            a, b = side_by_side(layer, parameters, model.config, private)
            expected = merge(frozen, layer, parameters, model.config, private) - frozen
            torch.testing.assert_close(b @ a, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("composition", ["residual", "factors"])
@pytest.mark.parametrize("subspace", ["own", "shared-a"])
def test_no_small_factor_is_added_to_a_large_one(make_model, named, composition, subspace):
    config = {"branch": "dual", "composition": composition, "private_subspace": subspace}
    model = make_model(**config, rank=2)
    parameters = named(model, 1)
    parameters = {
        name: tensor * (1e-4 if name.endswith(("A_private", "B_private")) else 1.0)
        for name, tensor in parameters.items()
    }
    layer = next(iter(model._adapted))
    exact = side_by_side(layer, parameters, model.config, True)
    exact_difference = exact[1] @ exact[0]
    shared = side_by_side(layer, parameters, model.config, False)
    rounded = [factor.bfloat16().double() for factor in exact]
    rounded_shared = [factor.bfloat16().double() for factor in shared]
    branch = exact_difference - shared[1] @ shared[0]
    kept = rounded[1] @ rounded[0] - rounded_shared[1] @ rounded_shared[0]
    assert (kept - branch).norm() <= 4 * U * branch.norm()


@pytest.mark.parametrize("own_query", [False, True])
def test_attention(own_query):
    batch, tokens, heads, width = 6, 17, 2, 16
    parts = 2 if own_query else 3
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(batch, tokens, parts * heads * width, generator=generator).bfloat16()
    query = torch.randn(batch, 1, heads * width, generator=generator).bfloat16()
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        inputs = [
            t.to(dtype).requires_grad_() for t in ([packed, query] if own_query else [packed])
        ]
        output = attend(inputs[0], heads, width**-0.5, inputs[1] if own_query else None)
        slope = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(output, inputs, slope.bfloat16().to(dtype))
        assert output.dtype == dtype
        results.append([output, *gradients])
    for exact, low in zip(*results, strict=True):
        # Queries, scores, probabilities, result; and once more as many on the way back.
        assert (low.double() - exact).norm() <= 3 * math.sqrt(8) * U * exact.norm()


def _gradients(model, rows, images, counts, labels):
    rows = [row.to(model.dtype) for row in rows]
    slopes = [torch.zeros_like(row) for row in rows]
    parameters = leaves(rows[0], slopes[0], model.layout.communicated)
    parameters |= leaves(rows[1], slopes[1], model.layout.private)
    logits = model.logits(images, counts, parameters)
    assert logits.dtype == model.dtype
    F.cross_entropy(logits, labels, reduction="sum").backward()
    return logits.detach(), [
        *views(slopes[0], model.layout.communicated).items(),
        *views(slopes[1], model.layout.private).items(),
    ]


@pytest.mark.parametrize("private_size", [1.0, 1e-4])
@pytest.mark.parametrize("options", VARIANTS)
def test_a_cohort_in_bfloat16(make_pair, random_rows, images, options, private_size):
    exact, low = make_pair(**options)
    # Factors small enough for scores of order 1: a rounding of a score of 30 turns a softmax.
    rows = [0.4 * row for row in random_rows(exact, 3)]
    if options.get("branch") == "dual":
        small = [s.group == "private" for s in exact.layout.private for _ in range(s.size)]
        rows[1][:, torch.tensor(small)] *= private_size
    labels = torch.arange(12) % 5
    counts = [5, 4, 3]
    logits, slopes = _gradients(exact, rows, images, counts, labels)
    got, low_slopes = _gradients(low, rows, images, counts, labels)
    depth = exact.backbone.architecture.depth
    allowed = 3 * math.sqrt(ROUNDINGS * depth) * U
    assert (got.double() - logits).norm() <= allowed * logits.norm()
    # Every parameter by itself: the small ones are judged by their own gradient, not by a large
    # one beside it. There and back: twice the roundings.
    for (name, slope), (_, low_slope) in zip(slopes, low_slopes, strict=True):
        error = (low_slope.double() - slope).norm()
        assert error <= math.sqrt(2) * allowed * slope.norm(), name


@pytest.mark.parametrize("options", VARIANTS)
def test_equal_clients_give_equal_rows(make_pair, random_rows, images, options):
    _, low = make_pair(**options)
    rows = [row.repeat(3, 1) for row in random_rows(low, 1)]
    same = images[:4].repeat(3, 1, 1, 1)
    logits, slopes = _gradients(low, rows, same, [4, 4, 4], torch.arange(4).repeat(3) % 5)
    assert torch.equal(logits[:4], logits[4:8]) and torch.equal(logits[:4], logits[8:])
    for name, slope in slopes:
        assert torch.equal(slope[0], slope[1]) and torch.equal(slope[0], slope[2]), name


@pytest.mark.parametrize("options", VARIANTS)
def test_every_parameter_learns(make_pair, random_rows, images, options):
    _, low = make_pair(**options)
    _, slopes = _gradients(low, random_rows(low, 1), images, [12], torch.arange(12) % 5)
    for name, slope in slopes:
        assert slope.dtype == torch.float32 and slope.abs().max() > 1e-8, name


def test_evaluation_takes_the_same_path(make_pair, named, images):
    _, low = make_pair(branch="dual")
    parameters = named(low, 2)
    weights = low.effective_weights(parameters)
    assert torch.equal(low.forward(images, [5, 7], weights), low.logits(images, [5, 7], parameters))
    alone = {name: parameters[name] for name in (s.name for s in low.layout.communicated)}
    assert torch.equal(
        low.logits(images, [5, 7], parameters, private=False),
        low.logits(images, [5, 7], alone, private=False),
    )


def test_what_stays_wide(make_pair):
    exact, low = make_pair(branch="dual")
    model = low.model
    for block in model.blocks:
        layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
        assert all(layer.weight.dtype == torch.bfloat16 for layer in layers)
        assert block.norm1.weight.dtype == block.norm2.weight.dtype == torch.float32
    assert model.patch_embed.proj.weight.dtype == torch.float32
    original = next(iter(exact.backbone.model.blocks[0].attn.parameters()))
    assert original.dtype == torch.float32 and not original.requires_grad


@pytest.mark.parametrize(
    "design",
    [{"init_values": 0.3}, {"qk_norm": True}, {"scale_attn_norm": True}, {"qkv_bias": False}],
)
@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
def test_timms_variations_of_the_design(make_backbone, random_rows, images, design, targets):
    from fedsdg.models.adapters import make_layout

    backbone = make_backbone(**design)
    config = AdapterConfig(rank=2, branch="dual", targets=targets)
    layout = make_layout(backbone.architecture, 5, config)
    exact = CohortModel(backbone, layout, config, 5, dtype=torch.float64)
    low = CohortModel(backbone, layout, config, 5, bfloat16=True)
    rows = random_rows(exact, 1)
    labels = torch.arange(12) % 5
    logits, _ = _gradients(exact, rows, images, [12], labels)
    got, _ = _gradients(low, rows, images, [12], labels)
    assert (got.double() - logits).norm() <= 3 * math.sqrt(ROUNDINGS * 2) * U * logits.norm()
