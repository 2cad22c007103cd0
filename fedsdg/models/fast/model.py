"""The adapted backbone by the compiled pass: computes what ``CohortModel`` computes by torch.

The pass takes the factors of every client's adapters and its head, and knows no method: gates,
scales, branches and mixtures are in the factors, which torch makes of the parameters and through
which it carries the gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import TARGETS, client_heads, low_rank_factors
from fedsdg.models.backbones import Backbone
from fedsdg.models.client_model import require_counts
from fedsdg.models.cohort import CohortModel
from fedsdg.models.fast import transformer
from fedsdg.models.fast.vectors import LANES, filled

#: Ranks of the factors over those of one branch, at most; see ``low_rank_factors``.
MOST_BRANCHES = 4


class CompiledModel(CohortModel):
    """``CohortModel`` by the compiled pass; see there.

    Args:
        backbone: plain blocks with biases, and widths that are multiples of 16.
        config: adapters at the outputs.
        num_classes: outputs of the head.
        **options: those of ``CohortModel``; the pass computes in float32 on a CPU.

    Raises:
        ValueError: the pass does not support the model; the sentence says why.
    """

    def __init__(
        self, backbone: Backbone, config: AdapterConfig, num_classes: int, **options: Any
    ) -> None:
        super().__init__(backbone, config, num_classes, **options)
        if reason := unsupported(self):
            raise ValueError(f"the compiled pass does not support this model: {reason}")
        self._frozen = _frozen(self.model)
        self._work = transformer.activations(self._frozen, filled(MOST_BRANCHES * config.rank))
        self.bytes_of_a_prefix = 2 * self._frozen.tokens.nbytes

    def prefixes(self, images: Tensor) -> Tensor:
        """Return the frozen part of a pass over images [n, C, S, S]: [n, 2, T, D]."""
        size = self.model.patch_embed.patch_size[0]
        numbers, tokens = len(self._frozen.patches), len(self._frozen.tokens)
        cut = images.to(self.dtype).unfold(2, size, size).unfold(3, size, size)
        patches = cut.permute(0, 2, 3, 1, 4, 5).reshape(len(images), tokens - 1, numbers)
        prefixes = torch.empty(len(images), 2, *self._frozen.tokens.shape)
        transformer.embed(self._frozen, self._work, patches.contiguous().numpy(), prefixes.numpy())
        return prefixes

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Any]:
        """Return a and b of both kinds of adapted layers [M, L, …], and the head."""
        factors: list[Tensor] = []
        for target in TARGETS[self.config.targets]:
            factors += low_rank_factors(target, parameters, self.config, private)
        return {"factors": [*factors, *client_heads(parameters, self.config, private)]}

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Return scores [B, classes] of images or prefixes; the backward pass computes them again.

        See ``ClientModel``.
        """
        scores: Tensor = _Scores.apply(self, images, counts, *weights["factors"])
        return scores

    def losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        weights: Mapping[str, Any],
        loss: Callable[..., Tensor] = cross_entropy,
    ) -> Tensor:
        """Return losses over divisors [B]; see ``ClientModel``.

        Plain cross-entropy, which is torch's own or a loss with a true attribute ``plain``, comes
        with its gradient out of one pass. For other losses torch computes the slopes by the scores.
        """
        if loss is not cross_entropy and not getattr(loss, "plain", False):
            return super().losses(images, labels, divisors, counts, weights, loss)
        factors = weights["factors"]
        losses: Tensor = _CrossEntropy.apply(self, images, labels, divisors, counts, *factors)
        return losses

    def _run(
        self,
        mode: int,
        factors: Sequence[Tensor],
        images: Tensor,
        counts: Sequence[int],
        *,
        labels: Tensor | None = None,
        divisors: Tensor | None = None,
        slopes: Tensor | None = None,
        deep: bool = False,
    ) -> tuple[Tensor, np.ndarray, list[Tensor]]:
        """Return scores [B, classes], losses [B] float64, and gradients by the factors.

        The mode says which of them are computed. ``slopes`` [B, classes]: of another loss than
        cross-entropy. ``deep``: gradients by the factors are needed too, not by the heads alone.
        """
        require_counts(counts, images, len(factors[-1]))
        if any(factor.dtype != torch.float32 for factor in factors):
            raise TypeError("the compiled pass takes factors and heads in float32")
        if images.shape[1] != 2:
            images = self.prefixes(images)
        rank, classes = factors[0].shape[2], factors[-1].shape[1]
        given = _filled_up(factors)
        # Each b is transposed in the gradients.
        shapes = [x.mT.shape if number in (1, 3) else x.shape for number, x in enumerate(given)]
        gradients = [torch.zeros(shape) for shape in shapes]
        scores = torch.empty(len(images), filled(classes))
        losses = np.empty(len(images))
        down = torch.zeros_like(scores)
        if slopes is not None:
            down[:, :classes] = slopes
        transformer.run(
            mode,
            deep,
            self._frozen,
            self._work,
            transformer.transposed(self._frozen, filled(rank), filled(classes)),
            transformer.Factors(*(x.numpy() for x in given)),
            transformer.Factors(*(x.numpy() for x in gradients)),
            rank,
            images.contiguous().numpy(),
            np.asarray(counts, dtype=np.int64),
            np.empty(0, np.int64) if labels is None else labels.contiguous().numpy(),
            np.empty(0) if divisors is None else divisors.double().contiguous().numpy(),
            losses,
            down.numpy(),
            scores.numpy(),
        )
        proj_a, proj_b, fc2_a, fc2_b = (x[:, :, :rank] for x in gradients[:4])
        heads = [x[:, :classes] for x in gradients[4:]]
        return scores[:, :classes], losses, [proj_a, proj_b.mT, fc2_a, fc2_b.mT, *heads]


def unsupported(model: CohortModel) -> str | None:
    """Return why the compiled pass cannot compute a model; None where it can."""
    vit: Any = model.model
    block = vit.blocks[0]
    attention, mlp = block.attn, block.mlp
    first = next(iter(vit.parameters()))
    if first.device.type != "cpu":
        return f"it runs on a CPU, and the model is on {first.device.type}"
    if model.dtype != torch.float32 or model.bfloat16:
        return "it computes in float32"
    if model.config.targets != "outputs":
        return f"it has adapters at the outputs alone, not at {model.config.targets}"
    widths = (attention.qkv.in_features, attention.head_dim, mlp.fc1.out_features)
    if any(width % LANES for width in widths):
        return f"widths {list(widths)} of tokens, heads, hidden layer are no multiples of {LANES}"
    inside = (attention.q_norm, attention.k_norm, attention.norm, mlp.norm, block.ls1, block.ls2)
    around = (vit.patch_embed.norm, vit.norm_pre, vit.fc_norm)
    plain = all(isinstance(part, nn.Identity) for part in (*inside, *around))
    exact = isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    layers = (vit.patch_embed.proj, attention.qkv, attention.proj, mlp.fc1, mlp.fc2)
    biased = all(layer.bias is not None for layer in layers)
    if not (plain and exact and biased and attention.attn_dim == attention.qkv.in_features):
        return "it knows plain blocks with biases and the exact GELU alone"
    if vit.pos_embed is None or vit.pos_embed.shape[1] != vit.patch_embed.num_patches + 1:
        return "it knows a class token and patches alone, each with a position"
    return None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        model: CompiledModel,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        *factors: Tensor,
    ) -> Tensor:
        _, losses, ctx.gradients = model._run(
            transformer.CROSS_ENTROPY,
            factors,
            images,
            counts,
            labels=labels,
            divisors=divisors,
            deep=_trains_factors(ctx),
        )
        return torch.from_numpy(losses.astype(np.float32))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        if len(slope) and bool((slope != slope[0]).any()):
            raise ValueError("the gradient of `losses` is that of their sum; take it of `logits`")
        factor = float(slope[0]) if len(slope) else 0.0
        scaled = ctx.gradients if factor == 1 else [factor * x for x in ctx.gradients]
        return (None,) * 5 + tuple(scaled)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, model: CompiledModel, images: Tensor, counts: Sequence[int], *factors: Tensor
    ) -> Tensor:
        scores, *_ = model._run(transformer.SCORES, factors, images, counts)
        ctx.save_for_backward(images, *factors)
        ctx.model = model
        ctx.counts = counts
        return scores

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        images, *factors = ctx.saved_tensors
        deep = _trains_factors(ctx)
        *_, gradients = ctx.model._run(
            transformer.SLOPES, factors, images, ctx.counts, slopes=slopes[0], deep=deep
        )
        return (None,) * 3 + tuple(gradients)


def _trains_factors(ctx: Any) -> bool:
    """Whether a gradient by a factor is needed: the last two inputs are those of the head."""
    return any(ctx.needs_input_grad[:-2])


def _filled_up(factors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies with ranks and classes filled up to whole vectors."""
    rank, classes = factors[0].shape[2], factors[-1].shape[1]
    ranks, more = filled(rank) - rank, filled(classes) - classes
    proj_a, proj_b, fc2_a, fc2_b, weight, bias = (factor.detach() for factor in factors)
    padded = (
        pad(proj_a, (0, 0, 0, ranks)),
        pad(proj_b, (0, ranks)),
        pad(fc2_a, (0, 0, 0, ranks)),
        pad(fc2_b, (0, ranks)),
        pad(weight, (0, 0, 0, more)),
        pad(bias, (0, more), value=transformer.NEVER),
    )
    return [x.contiguous() for x in padded]


def _frozen(vit: Any) -> transformer.Frozen:
    """Return the weights of a plain vision transformer as the pass reads them."""

    def stacked(read: Callable[[Any], Tensor]) -> np.ndarray:
        values: np.ndarray = torch.stack([read(block).detach() for block in vit.blocks]).numpy()
        return values

    def norms(name: str) -> np.ndarray:
        return stacked(lambda block: torch.stack([*block.get_submodule(name).parameters()]))

    def layer(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            stacked(lambda block: block.get_submodule(name).weight.mT),
            stacked(lambda block: block.get_submodule(name).weight),
            stacked(lambda block: block.get_submodule(name).bias),
        )

    convolution = vit.patch_embed.proj
    tokens = vit.pos_embed.detach()[0].clone()
    tokens[0] += vit.cls_token.detach()[0, 0]
    tokens[1:] += convolution.bias.detach()
    return transformer.Frozen(
        norms("norm1"),
        *layer("attn.qkv"),
        *layer("attn.proj"),
        norms("norm2"),
        *layer("mlp.fc1"),
        *layer("mlp.fc2"),
        torch.stack([*vit.norm.parameters()]).detach().numpy(),
        convolution.weight.detach().flatten(1).mT.contiguous().numpy(),
        tokens.numpy(),
        vit.blocks[0].attn.num_heads,
        np.float32(vit.blocks[0].attn.scale),
        np.float32(vit.blocks[0].norm1.eps),
    )
