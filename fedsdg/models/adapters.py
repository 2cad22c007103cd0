"""Dual-path gated LoRA with a client axis: which parameters there are, their start, their merging.

FedSDG (Eq. 3, 4): a client's weight in an adapted layer is W + s·B_g A_g + m·s·B_p A_p with the
frozen W, the communicated factors (A_g, B_g), the client's own factors (A_p, B_p), its gate
m = σ(a), and s = alpha / rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.architecture import Architecture
from fedsdg.models.parameters import Layout, ParameterSpec, offsets
from fedsdg.models.rounding import processor_independent, sigmoid

GATE = "lambda_k_logit"
HEAD_GATE = f"head.{GATE}"
HEAD_STD = 0.02
NEAR_ZERO_STD = 1e-4
OFFICIAL_STD = 0.01
TARGETS = {"outputs": ("attn.proj", "mlp.fc2"), "qkv-fc1": ("attn.qkv", "mlp.fc1")}


def adapted_layers(
    architecture: Architecture, config: AdapterConfig
) -> dict[str, tuple[int, int, int]]:
    """Adapted layers in order: name -> (block, inputs, outputs)."""
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
    """Name of the logit that gates an adapted layer such as `blocks.0.attn.proj`."""
    if config.gate == "client":
        return GATE
    return f"{layer if config.gate == 'layer' else '.'.join(layer.split('.')[:2])}.{GATE}"


def private_block(depth: int, config: AdapterConfig) -> int | None:
    """Number of the only block with a private branch, of ``depth`` blocks; None: every block."""
    if config.private_block is None:
        return None
    return {"first": 0, "middle": depth // 2, "last": depth - 1}[config.private_block]


def make_layout(architecture: Architecture, num_classes: int, config: AdapterConfig) -> Layout:
    """Names, shapes and order of all trained parameters; names are timm's plus a suffix.

    Communicated: `{layer}.lora_A` [r, in] and `{layer}.lora_B` [out, r] of every adapted layer,
    then `head.weight` [classes, dim] and `head.bias` [classes]. Private: `{layer}.lora_A_private`,
    `{layer}.lora_B_private`, or `head.weight_private` and `head.bias_private` of a gated or a
    residual head, and the gates' logits, scalars. A private head stands before them, and `local`
    moves all communicated ones into the private row; both keep their names, their order and the
    learning rate of their group. A private B and a frozen A stand there too, first of all. A frozen
    head stands where a private one would. With `private_block` the other blocks have no private
    branch and no logit.
    """
    if num_classes < 2:
        raise ValueError(f"a task needs at least 2 classes, got {num_classes}")
    rank = config.rank
    shared: list[ParameterSpec] = []
    aside: list[ParameterSpec] = []
    private: list[ParameterSpec] = []
    logits: dict[str, ParameterSpec] = {}
    only = private_block(architecture.depth, config)
    for layer, (block, inputs, outputs) in adapted_layers(architecture, config).items():
        frozen = config.factor_a == "frozen"
        a = ParameterSpec(
            f"{layer}.lora_A", (rank, inputs), "frozen" if frozen else "shared", not frozen
        )
        b = ParameterSpec(f"{layer}.lora_B", (outputs, rank), "shared")
        (aside if frozen else shared).append(a)
        (aside if config.factor_b == "private" else shared).append(b)
        if config.branch == "none" or only not in (None, block):
            continue
        if config.private_subspace == "own":
            name, trainable = f"{layer}.lora_A_private", config.private_a_trainable
            private.append(ParameterSpec(name, (rank, inputs), "private", trainable))
        private.append(ParameterSpec(f"{layer}.lora_B_private", (outputs, rank), "private"))
        if config.gate_fixed is None:
            name = gate_name(layer, config)
            logits[name] = ParameterSpec(name, (), "gate")
    head: tuple[ParameterSpec, ...] = (
        ParameterSpec("head.weight", (num_classes, architecture.dim), "shared"),
        ParameterSpec("head.bias", (num_classes,), "shared"),
    )
    if config.local:
        return Layout((), (*shared, *head))
    if config.head in ("gated", "residual"):
        private += [replace(spec, name=f"{spec.name}_private", group="private") for spec in head]
        if config.head == "gated" and config.gate_fixed is None:
            logits[HEAD_GATE] = ParameterSpec(HEAD_GATE, (), "gate")
    turns = (".lora_B", ".lora_A") if config.alternate else ()
    if config.head == "frozen":
        head = tuple(spec.frozen() for spec in head)
    if config.head in ("private", "frozen"):
        # First in its row: first values are drawn in this order, and so are those of every method.
        return Layout(tuple(shared), (*aside, *head, *private, *logits.values()), turns)
    return Layout((*shared, *head), (*aside, *private, *logits.values()), turns)


def initial_values(
    layout: Layout, config: AdapterConfig, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """First values of the communicated [d] and the private row [d_private], float32.

    A: uniform(±1/√in), which is the Kaiming start with a = √5 that peft uses; every B: 0, so the
    adapted model starts as the frozen one; head: N(0, 0.02²) weights, zero bias, and a gated
    private head likewise, a residual one 0; A_p: N(0, 1e-4²) or as A; B_p: 0 or N(0, 0.01²);
    logits: `gate_init`. Frozen factors are drawn first, then the communicated row, and a private or
    frozen head next, so all methods start from the same values.
    """
    frozen = tuple(spec for spec in layout.private if spec.group == "frozen" and not spec.of_head)
    found: dict[str, Tensor] = {}
    for specs in (frozen, layout.communicated, layout.private):
        left = [spec for spec in specs if spec.name not in found]
        found |= _first_values(left, config, generator)
    rows = [[found[spec.name] for spec in row] for row in (layout.communicated, layout.private)]
    shared, private = (torch.cat(row) if row else torch.zeros(0) for row in rows)
    return shared, private


def _first_values(
    specs: Sequence[ParameterSpec], config: AdapterConfig, generator: np.random.Generator
) -> dict[str, Tensor]:
    """Flat first values of these parameters by name, drawn in their order."""
    found: dict[str, Tensor] = {}
    for spec in specs:
        values: np.ndarray | float
        if spec.group == "gate":
            values = config.gate_init
        elif spec.name == "head.weight" or (
            spec.name == "head.weight_private" and config.head == "gated"
        ):
            values = generator.normal(0.0, HEAD_STD, spec.size)
        elif spec.name.endswith("lora_A_private") and config.private_init == "near-zero":
            values = generator.normal(0.0, NEAR_ZERO_STD, spec.size)
        elif spec.name.endswith(("lora_A", "lora_A_private")):
            bound = 1.0 / math.sqrt(spec.shape[1])
            values = generator.uniform(-bound, bound, spec.size)
        elif spec.name.endswith("lora_B_private") and config.private_init == "official":
            values = generator.normal(0.0, OFFICIAL_STD, spec.size)
        else:
            values = 0.0
        found[spec.name] = torch.zeros(spec.size) + torch.as_tensor(values, dtype=torch.float32)
    return found


def gates(private: Tensor, layout: Layout) -> Tensor:
    """Gate weights m = σ(a) (Eq. 3) of the clients whose private rows are `private` [M, d_private].

    Returns:
        [M, G] in the order of the layout; G = 0 where the method has no learned gate.
    """
    columns = offsets(layout.private)
    logits = [private[:, columns[s.name]] for s in layout.private if s.group == "gate"]
    if not logits:
        return private.new_zeros(private.shape[0], 0)
    return torch.sigmoid(torch.cat(logits, dim=1))


def _gate(layer: str, parameters: Mapping[str, Tensor], config: AdapterConfig) -> Tensor | float:
    """m of an adapted layer, [M, 1, 1] or one number for all; [M, L or 1, 1, 1] of L layers."""
    if config.gate_fixed is not None:
        return config.gate_fixed
    gate = sigmoid(parameters[gate_name(layer, config)])
    return gate.view(*gate.shape, *[1] * (parameters[f"{layer}.lora_B"].dim() - gate.dim()))


def personal_head(
    parameters: Mapping[str, Tensor], config: AdapterConfig, private: bool
) -> tuple[Tensor, Tensor]:
    """Return every client's head: weight [M, classes, dim] and bias [M, classes].

    A gated head is (1 − m) W_g + m W_p, exactly W_g for m = 0 and W_p for m = 1; a residual one is
    W_g + W_p. Without `private` it is W_g.
    """
    shared = parameters["head.weight"], parameters["head.bias"]
    if not private or config.head not in ("gated", "residual"):
        return shared
    own = parameters["head.weight_private"], parameters["head.bias_private"]
    if config.head == "residual":
        return shared[0] + own[0], shared[1] + own[1]
    if config.gate_fixed is not None:
        gate: Tensor = shared[1].new_full((len(shared[1]), 1), config.gate_fixed)
    else:
        with processor_independent():
            gate = sigmoid(parameters[HEAD_GATE])[:, None]
    weight = (1 - gate[..., None]) * shared[0] + gate[..., None] * own[0]
    return weight, (1 - gate) * shared[1] + gate * own[1]


def _has_branch(layer: str, parameters: Mapping[str, Tensor], config: AdapterConfig) -> bool:
    """Whether an adapted layer, or one of `blocks.*` layers, has a private branch."""
    if config.branch == "none":
        return False
    return config.private_block is None or f"{layer}.lora_B_private" in parameters


def _in_its_block(value: Tensor, like: Tensor, config: AdapterConfig) -> Tensor:
    """Private values [M, 1, …] of `blocks.*` layers as [M, L, …], 0 outside of their block.

    `like` [M, L, …] tells the number of blocks. Values that every block has stay as they are.
    """
    if config.private_block is None or value.dim() < 4:
        return value
    depth = like.shape[1]
    before = private_block(depth, config) or 0
    return pad(value, (0, 0, 0, 0, before, depth - 1 - before))


def apart(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every client's parameters twice: gates fixed, then what they gate fixed.

    Args:
        parameters: Tensors [M, …] by the layout's names, or by kind.

    Returns:
        Tensors [2M, …]. No gradient reaches a gate through the first M rows, nor a private part
        that a gate scales through the others.
    """
    found = {}
    for name, value in parameters.items():
        first = value.detach() if name.endswith(GATE) else value
        second = value.detach() if name.endswith("_private") else value
        found[name] = torch.cat((first, second))
    return found


def merge(
    weight: Tensor,
    layer: str,
    parameters: Mapping[str, Tensor],
    config: AdapterConfig,
    private: bool,
) -> Tensor:
    """Weights [M, out, in] of one adapted layer, one matrix per client (Eq. 4).

    `weight` [out, in] is the frozen one. Without `private` the private branch is left out.
    """
    a, b = composed(layer, parameters, config, private)
    return torch.baddbmm(weight.expand(a.shape[0], -1, -1), b, a, alpha=config.scale)


def merge_blocks(
    weights: Tensor,
    layer: str,
    parameters: Mapping[str, Tensor],
    config: AdapterConfig,
    private: bool,
) -> Tensor:
    """As `merge`, of L layers at once in as many operations as of one: [M, L, out, in].

    `weights` [L, out, in] are the frozen ones of `layer`, such as `blocks.*.attn.proj`, whose
    `parameters` are those of `of_every_block`.
    """
    a, b = composed(layer, parameters, config, private)
    # The scale goes into the smallest factor, and the frozen weights need no copy for each client.
    product = torch.bmm((config.scale * b).flatten(0, 1), a.flatten(0, 1))
    return weights + product.view(a.shape[0], *weights.shape)


def composed(
    layer: str, parameters: Mapping[str, Tensor], config: AdapterConfig, private: bool
) -> tuple[Tensor, Tensor]:
    """Factors A [M, R, in] and B [M, out, R] of both branches together: ΔW = s · B A (Eq. 4).

    R is 2r where the private branch has an A of its own, not added to the shared one, else r. Of
    `blocks.*` layers [M, L, …].
    """
    a, b = parameters[f"{layer}.lora_A"], parameters[f"{layer}.lora_B"]
    if private and _has_branch(layer, parameters, config):
        gate = _gate(layer, parameters, config)
        gated = _in_its_block(gate * parameters[f"{layer}.lora_B_private"], b, config)
        if config.composition == "mixture":
            b = (1 - gate) * b
        if config.private_subspace == "shared-a":
            b = b + gated
        elif config.composition == "factors":
            a = a + _in_its_block(gate * parameters[f"{layer}.lora_A_private"], a, config)
            b = b + gated
        else:
            # One product over the concatenated ranks instead of two.
            own_a = _in_its_block(parameters[f"{layer}.lora_A_private"], a, config)
            a = torch.cat((a, own_a), dim=-2)
            b = torch.cat((b, gated), dim=-1)
    return a, b


def branch_norms(
    layers: Mapping[str, tuple[int, int, int]],
    parameters: Mapping[str, Tensor],
    config: AdapterConfig,
) -> tuple[Tensor, Tensor]:
    """How large the private and the shared branch of every block are.

    ‖m B_p A_p‖_F and ‖B_g A_g‖_F over all adapted layers of a block together (the root of the sum
    of squares), in float64 and without the scale s, which both have. `layers` are those of
    `adapted_layers`, `parameters` tensors [M, *shape]. With "shared-a" A_p is A_g. With "factors"
    the cross terms m (B_g A_p + B_p A_g) belong to neither branch and are left out. With "mixture"
    the shared branch is (1 − m) B_g A_g. A block without a private branch has 0 there.

    Returns:
        (private [M, blocks], shared [M, blocks]).
    """
    clients = next(iter(parameters.values())).shape[0]
    blocks = 1 + max(block for block, *_ in layers.values())
    device = next(iter(parameters.values())).device
    private = torch.zeros(clients, blocks, dtype=torch.float64, device=device)
    shared = torch.zeros_like(private)
    for layer, (block, *_) in layers.items():
        a, b = (parameters[f"{layer}.lora_{factor}"].double() for factor in "AB")
        if not _has_branch(layer, parameters, config):
            shared[:, block] += _squared_norm(b, a)
            continue
        gate = _gate(layer, parameters, config)
        own_b = gate * parameters[f"{layer}.lora_B_private"].double()
        if config.composition == "mixture":
            b = (1 - gate) * b
        own = config.private_subspace == "own"
        own_a = parameters[f"{layer}.lora_A_private"].double() if own else a
        private[:, block] += _squared_norm(own_b, own_a)
        shared[:, block] += _squared_norm(b, a)
    return private.sqrt(), shared.sqrt()


def _squared_norm(b: Tensor, a: Tensor) -> Tensor:
    """‖B A‖²_F = Σ (Bᵀ B) ∘ (A Aᵀ) of [M, out, r] and [M, r, in], [M]: r² numbers, not out · in."""
    return ((b.mT @ b) * (a @ a.mT)).sum((1, 2)).clamp_(min=0)


def side_by_side(
    layer: str, parameters: Mapping[str, Tensor], config: AdapterConfig, private: bool
) -> tuple[Tensor, Tensor]:
    """Factors a [M, R, in] and b [M, out, R] with b a = ΔW, scale and gate in b (Eq. 4).

    No entry is a sum of a shared and a private one, so that rounding keeps each to its own
    relative accuracy: R is r, 2r with a private branch, 4r where `composition` is "factors",
    (B_g + m B_p)(A_g + m A_p) = B_g A_g + m B_g A_p + m B_p A_g + m² B_p A_p. Of `blocks.*` layers
    [M, L, …].
    """
    a, b = parameters[f"{layer}.lora_A"], config.scale * parameters[f"{layer}.lora_B"]
    if not private or not _has_branch(layer, parameters, config):
        return a, b
    with processor_independent():
        gate = _gate(layer, parameters, config)
    gated = gate * (config.scale * parameters[f"{layer}.lora_B_private"])
    gated = _in_its_block(gated, b, config)
    if config.composition == "mixture":
        b = (1 - gate) * b
    if config.private_subspace == "shared-a":
        return torch.cat((a, a), dim=-2), torch.cat((b, gated), dim=-1)
    a_private = _in_its_block(parameters[f"{layer}.lora_A_private"], a, config)
    if config.composition == "factors":
        ranks = torch.cat((a, a_private, a, a_private), dim=-2)
        return ranks, torch.cat((b, gate * b, gated, gate * gated), dim=-1)
    return torch.cat((a, a_private), dim=-2), torch.cat((b, gated), dim=-1)
