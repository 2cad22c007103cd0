"""Gated LoRA adapters with a client axis: their parameters, first values and low-rank factors.

FedSDG (Eq. 3, 4): the weight of client k in an adapted layer is W + s·B_g A_g + m·s·B_p A_p with
the frozen W, the communicated factors (A_g, B_g), the client's private factors (A_p, B_p), its gate
m = σ(a), and s = α / r. Parameters come under the names of `block_views`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.architecture import Architecture
from fedsdg.models.parameters import EVERY_BLOCK, Layout, ParameterSpec
from fedsdg.models.portable import HEAD
from fedsdg.models.products import Factors
from fedsdg.models.rounding import sigmoid

GATE = "lambda_k_logit"
HEAD_GATE = f"head.{GATE}"
HEAD_STD = 0.02
NEAR_ZERO_STD = 1e-4
OFFICIAL_STD = 0.01
TARGETS = {"outputs": ("attn.proj", "mlp.fc2"), "qkv-fc1": ("attn.qkv", "mlp.fc1")}


def adapted_layers(
    architecture: Architecture, config: AdapterConfig
) -> dict[str, tuple[int, int, int]]:
    """Return the adapted layers in order.

    Args:
        architecture: of the backbone.
        config: of the adapters.

    Returns:
        Name, such as `blocks.0.attn.proj` -> (block, inputs, outputs).
    """
    dim, hidden = architecture.dim, architecture.hidden
    shapes = {
        "attn.qkv": (dim, 3 * dim),
        "attn.proj": (dim, dim),
        "mlp.fc1": (dim, hidden),
        "mlp.fc2": (hidden, dim),
    }
    return {
        f"blocks.{block}.{target}": (block, *shapes[target])
        for block in range(architecture.depth)
        for target in TARGETS[config.targets]
    }


def gate_name(layer: str, config: AdapterConfig) -> str:
    """Return the name of the logit that gates an adapted layer.

    Args:
        layer: such as `blocks.0.attn.proj`, or `blocks.*.attn.proj` for all blocks.
        config: of the adapters.

    Returns:
        The name, such as `blocks.0.lambda_k_logit`.
    """
    if config.gate == "client":
        return GATE
    return f"{layer if config.gate == 'layer' else '.'.join(layer.split('.')[:2])}.{GATE}"


def private_block(depth: int, config: AdapterConfig) -> int | None:
    """Return the number of the only block with a private branch.

    Args:
        depth: number of blocks.
        config: of the adapters.

    Returns:
        The number, from 0 on; None where every block has a branch.
    """
    if config.private_block is None:
        return None
    return {"first": 0, "middle": depth // 2, "last": depth - 1}[config.private_block]


def adapter_layout(architecture: Architecture, num_classes: int, config: AdapterConfig) -> Layout:
    """Return names, shapes and order of the parameters; names are timm's plus a suffix.

    Communicated: `{layer}.lora_A` [r, in] and `{layer}.lora_B` [out, r] of every adapted layer,
    then `head.weight` [classes, dim] and `head.bias` [classes].

    Private, in this order: a client's own B, head and parameters named by `own`; frozen A; a frozen
    head; A and B of the private branch, or weight and bias of a gated or residual private head,
    each under its name with `_private`; the logits of the gates, scalars. A client's own B or head
    keeps the name and the learning rate of the communicated one. With `local` all communicated
    parameters are private. With `private_block` the other blocks have neither a private branch nor
    a logit.

    Args:
        architecture: of the backbone.
        num_classes: outputs of the head.
        config: of the adapters.

    Returns:
        The layout.

    Raises:
        ValueError: there are fewer than two classes.
    """
    if num_classes < 2:
        raise ValueError(f"a task needs at least 2 classes, got {num_classes}")
    rank = config.rank
    shared: list[ParameterSpec] = []
    moved: list[ParameterSpec] = []
    private: list[ParameterSpec] = []
    logits: dict[str, ParameterSpec] = {}
    only = private_block(architecture.depth, config)
    for layer, (block, inputs, outputs) in adapted_layers(architecture, config).items():
        a = ParameterSpec(f"{layer}.lora_A", (rank, inputs), "shared")
        b = ParameterSpec(f"{layer}.lora_B", (outputs, rank), "shared")
        if config.factor_a == "frozen":
            moved.append(a.frozen())
        else:
            shared.append(a)
        shared.append(b)
        if config.branch == "none" or only not in (None, block):
            continue
        if config.private_subspace == "own":
            trainable = config.private_a_trainable
            private.append(ParameterSpec(f"{a.name}_private", a.shape, "private", trainable))
        private.append(ParameterSpec(f"{b.name}_private", b.shape, "private"))
        if config.gate_fixed is None:
            gate = gate_name(layer, config)
            logits[gate] = ParameterSpec(gate, (), "gate")
    head: tuple[ParameterSpec, ...] = (
        ParameterSpec(HEAD[0], (num_classes, architecture.dim), "shared"),
        ParameterSpec(HEAD[1], (num_classes,), "shared"),
    )
    if config.local:
        return Layout((), (*shared, *head))
    if config.head in ("gated", "residual"):
        private += [replace(spec, name=f"{spec.name}_private", group="private") for spec in head]
        if config.head == "gated" and config.gate_fixed is None:
            logits[HEAD_GATE] = ParameterSpec(HEAD_GATE, (), "gate")
    turns = (".lora_B", ".lora_A") if config.alternate else ()
    if config.head == "frozen":
        moved += [spec.frozen() for spec in head]
    else:
        shared += head
    layout = Layout(tuple(shared), (*moved, *private, *logits.values()), turns)
    own = {"*.lora_B": config.factor_b, "head.*": config.head}
    return layout.with_own(*config.own, *(name for name in own if own[name] == "private"))


def adapter_values(
    layout: Layout, config: AdapterConfig, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Draw first values of the communicated row [d] and the private row [d_private], float32.

    A: uniform(±1/√in), the start of peft; every B: 0, so that the adapted model starts as the
    frozen one; head: N(0, 0.02²) weights and zero bias, a gated private head likewise, a residual
    one 0; A_p and B_p: see `AdapterConfig.private_init`; logits: `gate_init`. Frozen factors are
    drawn first, then the communicated row, then a private or frozen head, so that all methods start
    from the same values.

    Args:
        layout: of the adapters.
        config: of the adapters.
        generator: of the draws.

    Returns:
        The two rows.
    """
    frozen = tuple(spec for spec in layout.private if spec.group == "frozen" and not spec.of_head)
    values: dict[str, Tensor] = {}
    for specs in (frozen, layout.communicated, layout.private):
        for spec in specs:
            if spec.name not in values:
                values[spec.name] = _first_value(spec, config, generator)
    rows = [[values[spec.name] for spec in row] for row in (layout.communicated, layout.private)]
    shared, private = (torch.cat(row) if row else torch.zeros(0) for row in rows)
    return shared, private


def _first_value(
    spec: ParameterSpec, config: AdapterConfig, generator: np.random.Generator
) -> Tensor:
    """Draw one parameter, flat."""
    drawn_heads = [HEAD[0]] if config.head != "gated" else [HEAD[0], f"{HEAD[0]}_private"]
    values: np.ndarray | float = 0.0
    if spec.group == "gate":
        values = config.gate_init
    elif spec.name in drawn_heads:
        values = generator.normal(0.0, HEAD_STD, spec.size)
    elif spec.name.endswith("lora_A_private") and config.private_init == "near-zero":
        values = generator.normal(0.0, NEAR_ZERO_STD, spec.size)
    elif spec.name.endswith(("lora_A", "lora_A_private")):
        bound = 1.0 / math.sqrt(spec.shape[1])
        values = generator.uniform(-bound, bound, spec.size)
    elif spec.name.endswith("lora_B_private") and config.private_init == "official":
        values = generator.normal(0.0, OFFICIAL_STD, spec.size)
    return torch.zeros(spec.size) + torch.as_tensor(values, dtype=torch.float32)


def separate_gates(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every client twice: first with its gates fixed, then with what they gate fixed.

    Args:
        parameters: tensors [M, …].

    Returns:
        Tensors [2M, …]. No gradient reaches a gate through the first M rows, nor a private
        parameter that a gate scales through the others.
    """
    doubled = {}
    for name, value in parameters.items():
        first = value.detach() if name.endswith(GATE) else value
        second = value.detach() if name.endswith("_private") else value
        doubled[name] = torch.cat((first, second))
    return doubled


def low_rank_factors(
    target: str, parameters: Mapping[str, Tensor], config: AdapterConfig, private: bool
) -> Factors:
    """Return the factors of ΔW = b a of a target in all blocks, scale and gate in b (Eq. 4).

    Every composition is one product over concatenated ranks. No entry is a sum of a shared and a
    private one, so rounding keeps each branch to its own relative accuracy.

    Args:
        target: an adapted layer of every block, such as `attn.proj`.
        parameters: tensors [M, …].
        config: of the adapters.
        private: False leaves the private branch out.

    Returns:
        a [M, L, R, in] and b [M, L, out, R] with R = r, or 2r with a private branch, or 4r where
        the composition is "factors": (B_g + m B_p)(A_g + m A_p) has four products.
    """
    layer = f"{EVERY_BLOCK}.{target}"
    a = parameters[f"{layer}.lora_A"]
    b = config.scale * parameters[f"{layer}.lora_B"]
    if not private or config.branch == "none":
        return Factors(a, b)
    gate = _gate(layer, parameters, config)
    gated = gate * (config.scale * parameters[f"{layer}.lora_B_private"])
    gated = _in_its_block(gated, a.shape[1], config)
    if config.composition == "mixture":
        b = (1 - gate) * b
    if config.private_subspace == "shared-a":
        return Factors(torch.cat((a, a), dim=-2), torch.cat((b, gated), dim=-1))
    a_private = _in_its_block(parameters[f"{layer}.lora_A_private"], a.shape[1], config)
    if config.composition == "factors":
        ranks = torch.cat((a, a_private, a, a_private), dim=-2)
        return Factors(ranks, torch.cat((b, gate * b, gated, gate * gated), dim=-1))
    return Factors(torch.cat((a, a_private), dim=-2), torch.cat((b, gated), dim=-1))


def client_heads(
    parameters: Mapping[str, Tensor], config: AdapterConfig, private: bool
) -> tuple[Tensor, Tensor]:
    """Return every client's head.

    A gated head is (1 − m) W_g + m W_p, exactly W_g for m = 0 and W_p for m = 1; a residual one is
    W_g + W_p.

    Args:
        parameters: tensors [M, …].
        config: of the adapters.
        private: False leaves W_p out.

    Returns:
        Weight [M, classes, dim] and bias [M, classes].
    """
    weight, bias = (parameters[name] for name in HEAD)
    if not private or config.head not in ("gated", "residual"):
        return weight, bias
    private_weight, private_bias = (parameters[f"{name}_private"] for name in HEAD)
    if config.head == "residual":
        return weight + private_weight, bias + private_bias
    if config.gate_fixed is not None:
        gate = bias.new_full((len(bias), 1), config.gate_fixed)
    else:
        gate = sigmoid(parameters[HEAD_GATE])[:, None]
    mixed = (1 - gate[..., None]) * weight + gate[..., None] * private_weight
    return mixed, (1 - gate) * bias + gate * private_bias


def branch_norms(parameters: Mapping[str, Tensor], config: AdapterConfig) -> tuple[Tensor, Tensor]:
    """Measure the private and the shared branch of every block.

    ‖m B_p A_p‖_F and ‖B_g A_g‖_F over all adapted layers of a block together (the root of the sum
    of squares), in float64 and without the scale s. With "shared-a" A_p is A_g. With "factors" the
    cross terms m (B_g A_p + B_p A_g) belong to neither branch and are left out. With "mixture" the
    shared branch is (1 − m) B_g A_g. A block without a private branch has 0 there.

    Args:
        parameters: tensors [M, …] of adapters with a private branch.
        config: of the adapters.

    Returns:
        (private [M, blocks], shared [M, blocks]).
    """
    private = torch.zeros(())
    shared = torch.zeros(())
    for target in TARGETS[config.targets]:
        layer = f"{EVERY_BLOCK}.{target}"
        a = parameters[f"{layer}.lora_A"].double()
        b = parameters[f"{layer}.lora_B"].double()
        gate = _gate(layer, parameters, config)
        gated = _in_its_block(
            gate * parameters[f"{layer}.lora_B_private"].double(), a.shape[1], config
        )
        if config.composition == "mixture":
            b = (1 - gate) * b
        a_private = a
        if config.private_subspace == "own":
            a_private = parameters[f"{layer}.lora_A_private"].double()
            a_private = _in_its_block(a_private, a.shape[1], config)
        private = private.to(a) + _squared_norms(gated, a_private)
        shared = shared.to(a) + _squared_norms(b, a)
    return private.sqrt(), shared.sqrt()


def _squared_norms(b: Tensor, a: Tensor) -> Tensor:
    """‖B A‖²_F = Σ (Bᵀ B) ∘ (A Aᵀ) of [M, L, out, r] and [M, L, r, in]: r² numbers a layer."""
    return ((b.mT @ b) * (a @ a.mT)).sum((-2, -1)).clamp_(min=0)


def _gate(layer: str, parameters: Mapping[str, Tensor], config: AdapterConfig) -> Tensor | float:
    """Return m of `blocks.*` layers: one number, or [M, L, 1, 1] with L = 1 for a client's gate."""
    if config.gate_fixed is not None:
        return config.gate_fixed
    gate = sigmoid(parameters[gate_name(layer, config)])
    return gate.view(len(gate), -1, 1, 1)


def _in_its_block(value: Tensor, depth: int, config: AdapterConfig) -> Tensor:
    """Return private values [M, 1, …] of one block as [M, L, …], 0 in the other blocks."""
    block = private_block(depth, config)
    if block is None:
        return value
    return pad(value, (0, 0, 0, 0, block, depth - 1 - block))
