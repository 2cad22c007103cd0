"""What a GPU would be asked: no waiting for its answers, few launches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, freeze
from fedsdg.models.cohort import CohortModel, even
from fedsdg.models.mixture import MixedModel
from fedsdg.models.parameters import leaves
from tests.pretended_cuda import pretended_cuda

ADAPTERS = [
    {"alternate": True},
    {"targets": "qkv-fc1", "local": True},
    {"factor_a": "frozen"},
    {"factor_b": "private", "head": "private"},
    {"branch": "dual"},
    {"branch": "dual", "targets": "qkv-fc1", "gate": "layer"},
    {"branch": "dual", "gate": "client", "composition": "factors"},
    {"branch": "dual", "private_subspace": "shared-a"},
    {"branch": "dual", "private_block": "first", "gate": "layer"},
    {"branch": "dual", "composition": "mixture", "gate_fixed": 0.3},
]


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [1, 5, 5, 1], [0, 6, 6, 0]])
def test_fillers_change_no_score_and_no_gradient(make_model, random_rows, images, counts):
    model = make_model(branch="dual")
    rows = random_rows(model, 4)
    labels = torch.arange(12) % 5
    results = []
    for filled in (False, True):
        slopes = [torch.zeros_like(row) for row in rows]
        parameters = leaves(rows[0].clone(), slopes[0], model.layout.communicated)
        parameters |= leaves(rows[1].clone(), slopes[1], model.layout.private)
        if filled:
            padded, sizes, kept = even(images, counts)
            assert kept is not None and len(set(sizes)) == 1
            assert torch.equal(padded[kept], images)
            logits = model.logits(padded, sizes, parameters)[kept]
        else:
            logits = model.logits(images, counts, parameters)
        F.cross_entropy(logits, labels, reduction="sum").backward()
        results.append((logits.detach(), *slopes))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_no_more_fillers_than_images():
    images = torch.zeros(12, 1)
    assert even(images, [10, 2, 0, 0])[2] is None


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("targets", ["outputs", "qkv-fc1"])
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [12, 0, 0, 0]])
def test_a_step_reads_no_value_back(make_model, bfloat16, targets, counts):
    """On torch's device without values, where reading one is an error."""
    like = make_model(branch="dual", targets=targets)
    model = CohortModel(
        like.backbone, like.layout, like.config, 5, device="meta", bfloat16=bfloat16
    )
    parameters = {}
    for specs in (like.layout.communicated, like.layout.private):
        matrix = torch.zeros(4, sum(spec.size for spec in specs), device="meta")
        parameters |= leaves(matrix, torch.zeros_like(matrix), specs)
    logits = model.logits(torch.zeros(12, 1, 8, 8, device="meta"), counts, parameters)
    assert logits.shape == (12, 5) and logits.device.type == "meta"
    labels = torch.zeros(12, dtype=torch.int64, device="meta")
    F.cross_entropy(logits, labels).backward()


def plainly_merged(model, p, layer, k, private):
    """W + s B A + m s B_p A_p of one client and layer, as written in `AdapterConfig`."""
    config, w = model.config, model.model.get_submodule(layer).weight
    a, b = p[f"{layer}.lora_A"][k], p[f"{layer}.lora_B"][k]
    elsewhere = config.private_block == "first" and not layer.startswith("blocks.0.")
    if config.branch == "none" or not private or elsewhere:
        return w + config.scale * b @ a
    gates = {"block": layer.rsplit(".", 2)[0] + ".", "layer": f"{layer}.", "client": ""}
    m = config.gate_fixed
    if m is None:
        m = torch.sigmoid(p[f"{gates[config.gate]}lambda_k_logit"][k])
    own_a = p.get(f"{layer}.lora_A_private", p[f"{layer}.lora_A"])[k]
    own_b = p[f"{layer}.lora_B_private"][k]
    if config.composition == "factors":
        return w + config.scale * (b + m * own_b) @ (a + m * own_a)
    common = (1 - m if config.composition == "mixture" else 1) * b @ a
    return w + config.scale * (common + m * own_b @ own_a)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("options", ADAPTERS)
def test_layers_merged_together_are_those_merged_one_by_one(
    make_model, random_rows, options, private, dtype, bound
):
    """Weights and gradients, against the formula client by client and layer by layer."""
    model = make_model(dtype, **options)
    rows = random_rows(model, 3)
    specs = (model.layout.communicated, model.layout.private)
    slopes = [torch.zeros_like(row) for row in rows]
    plain: dict[str, torch.Tensor] = {}
    for row, slope, own in zip(rows, slopes, specs, strict=True):
        plain |= leaves(row, slope, own)
    layers = list(model._adapted)
    merged = {
        layer: torch.stack([plainly_merged(model, plain, layer, k, private) for k in range(3)])
        for layer in layers
    }
    pulls = {layer: torch.randn_like(weight) for layer, weight in merged.items()}
    sum((merged[layer] * pulls[layer]).sum() for layer in layers).backward()
    with pretended_cuda():
        there = model.to(dtype, "cuda")
        slopes_there = [torch.zeros_like(row).cuda() for row in rows]
        together: dict[str, torch.Tensor] = {}
        for row, slope, own in zip(rows, slopes_there, specs, strict=True):
            together |= leaves(row.cuda(), slope, own)
        found = there.effective_weights(together, private)
        sum((found[layer] * pulls[layer].cuda()).sum() for layer in layers).backward()
        found = {layer: found[layer].detach().cpu() for layer in layers}
        slopes_there = [slope.cpu() for slope in slopes_there]
    for layer in layers:
        torch.testing.assert_close(found[layer], merged[layer].detach(), rtol=bound, atol=bound)
    assert sum(float(slope.abs().max()) for slope in slopes if slope.numel()) > 0
    for mine, other in zip(slopes_there, slopes, strict=True):
        torch.testing.assert_close(mine, other, rtol=bound, atol=10 * bound)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_step_on_a_gpu_is_the_step_on_the_cpu(make_model, random_rows, images, mixed, bfloat16):
    """From the images to the gradients, in bfloat16 (factors, not weights) and of mixed models."""
    like = make_model(branch="none" if mixed else "dual")
    labels = torch.arange(12) % 5
    results = []
    for place in ("cpu", "cuda"):
        with pretended_cuda():
            model = CohortModel(
                like.backbone, like.layout, like.config, 5, device=place, bfloat16=bfloat16
            )
            model = MixedModel(model, 0.3) if mixed else model
            layout, parameters, slopes = model.layout, {}, []
            generator = torch.Generator().manual_seed(0)
            for specs in (layout.communicated, layout.private):
                width = sum(spec.size for spec in specs)
                matrix = 0.3 * torch.randn(4, width, generator=generator)
                slopes.append(torch.zeros(4, width).to(place))
                parameters |= leaves(matrix.to(place), slopes[-1], specs)
            assert ("blocks.*.mlp.fc2.lora_A" in parameters) == (place == "cuda")
            logits = model.logits(images.to(place), [3] * 4, parameters)
            F.cross_entropy(logits, labels.to(place), reduction="sum").backward()
            results.append([x.detach().to("cpu") for x in (logits, *slopes)])
    # Attention goes by other ways; u = 2^-8 for what is rounded to bfloat16 on the way.
    bound = 0.05 if bfloat16 else 1e-4
    for one, other in zip(*results, strict=True):
        assert float((one - other).norm() / one.norm()) < bound


def launches(depth, options, step):
    """How often a device is asked for work: by merging and its backward pass, or by a step."""
    architecture = Architecture(8, 4, 1, 16, depth, 2, (0.5,), (0.5,))
    backbone = freeze(build(architecture), architecture, "tiny", {})
    config = AdapterConfig(rank=2, **options)
    layout = make_layout(architecture, 5, config)
    with pretended_cuda() as machine:
        model = CohortModel(backbone, layout, config, 5, device="cuda")
        parameters: dict[str, torch.Tensor] = {}
        for specs in (layout.communicated, layout.private):
            matrix = torch.ones(3, sum(spec.size for spec in specs)).cuda()
            parameters |= leaves(matrix, torch.zeros_like(matrix), specs)
        labels, counted = torch.zeros(6, dtype=torch.int64).cuda(), []
        for _ in range(2):  # the first time frozen weights are laid together
            before = machine.work.total()
            if step:
                logits = model.logits(torch.zeros(6, 1, 8, 8).cuda(), [2] * 3, parameters)
                F.cross_entropy(logits, labels, reduction="sum").backward()
            else:
                weights = model.effective_weights(parameters)
                adapted = [x for name, x in weights.items() if name.startswith("blocks.")]
                torch.autograd.backward(adapted, [torch.ones_like(x.detach()) for x in adapted])
                before += len(adapted)  # the ones
            counted.append(machine.work.total() - before)
    return counted[1]


@pytest.mark.parametrize("options", ADAPTERS)
def test_merging_asks_for_as_much_of_few_layers_as_of_many(options):
    assert launches(2, options, step=False) == launches(5, options, step=False)


def test_a_block_more_costs_fedsdg_no_more_than_fedavg():
    """And both what its forward and backward pass need with weights that are there already."""
    grown = [
        launches(5, options, step=True) - launches(3, options, step=True)
        for options in ({}, {"branch": "dual"})
    ]
    assert grown[0] == grown[1]
