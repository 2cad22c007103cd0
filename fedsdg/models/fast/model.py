"""The adapted backbone by the compiled pass: what ``CohortModel`` computes by torch.

It takes per client the factors of its adapters and its head, and knows no method: gates, scales,
branches, mixtures and what rests are in the factors, which torch makes of the parameters and to
which it carries the gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import TARGETS, personal_head, side_by_side
from fedsdg.models.cohort import CohortModel, require_counts
from fedsdg.models.fast import transformer
from fedsdg.models.fast.vectors import LANES
from fedsdg.models.parameters import EVERY


def unsupported(model: CohortModel) -> str | None:
    """Return why the compiled pass cannot compute what a model does; None where it can."""
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
        return (
            f"widths {list(widths)} of tokens, heads and hidden layer are not multiples of {LANES}"
        )
    plain = (attention.q_norm, attention.k_norm, attention.norm, mlp.norm, block.ls1, block.ls2)
    around = (vit.patch_embed.norm, vit.norm_pre, vit.fc_norm)
    usual = all(isinstance(part, nn.Identity) for part in (*plain, *around))
    exact = isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    layers = (vit.patch_embed.proj, attention.qkv, attention.proj, mlp.fc1, mlp.fc2)
    biased = all(part.bias is not None for part in layers)
    patches = vit.patch_embed.num_patches
    placed = vit.pos_embed is not None and vit.pos_embed.shape[1] == patches + 1
    if not (usual and exact and biased and attention.attn_dim == attention.qkv.in_features):
        return "it knows plain blocks with biases and the exact GELU alone"
    if not placed:
        return "it knows a class token and patches alone, each with a position"
    return None


class CompiledModel(CohortModel):
    """``CohortModel`` by the compiled pass; images [B, C, S, S], or what of them is frozen.

    The latter, ``prefixes`` [B, 2, T, D], is worth being kept: what it is made of never changes.

    Raises:
        ValueError: the pass does not support the model, and why.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        if reason := unsupported(self):
            raise ValueError(f"the compiled pass does not support this model: {reason}")
        block = self.model.blocks[0]
        self._frozen_weights = _frozen(self.model)
        self._embedding = _embedding(self.model)
        self._heads = block.attn.num_heads
        self._scale = np.float32(block.attn.scale)
        self._epsilon = np.float32(block.norm1.eps)
        self._work: transformer.Work | None = None
        #: By rank and number of classes.
        self._rooms: dict[tuple[int, int], tuple[transformer.Own, transformer.Gradients]] = {}

    @property
    def bytes_of_a_prefix(self) -> int:
        """How much memory the prefix of an image takes."""
        return 2 * self._embedding.start.nbytes

    def prefixes(self, images: Tensor) -> Tensor:
        """What of images [n, C, S, S] is frozen, [n, 2, T, D]: see ``transformer.embed``."""
        size, n = self.model.patch_embed.patch_size[0], len(images)
        cut = images.to(self.dtype).unfold(2, size, size).unfold(3, size, size)
        patches = cut.permute(0, 2, 3, 1, 4, 5).reshape(n, -1, len(self._embedding.weight))
        found = torch.empty(n, 2, *self._embedding.start.shape)
        transformer.embed(
            self._embedding,
            self._frozen_weights,
            self._room(LANES),
            self._heads,
            self._scale,
            self._epsilon,
            patches.contiguous().numpy(),
            found.numpy(),
        )
        return found

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Any]:
        """Every client's factors and head; see ``CohortModel``."""
        with torch.no_grad():
            factors = self._factors(parameters, private)
        return {"factors": factors, "head.bias": factors[-1]}

    def branches(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``CohortModel``: both side by side in the rank, whose halves the shares scale."""
        beside = replace(self.config, composition="residual", gate_fixed=1.0)
        with torch.no_grad():
            return {"factors": self._factors(parameters, True, beside)}

    def features(
        self, images: Tensor, counts: Sequence[int], branches: Mapping[str, Any]
    ) -> Tensor:
        """See ``CohortModel``: the scores of a head that is the identity."""
        *adapters, head, _ = branches["factors"]
        clients, _, dim = head.shape
        same = torch.eye(dim).expand(clients, dim, dim)
        reading = [*adapters, same, torch.zeros(clients, dim)]
        return self._scores(reading, images, counts, torch.ones(len(images)))

    def blended(
        self, images: Tensor, counts: Sequence[int], branches: Mapping[str, Any], shares: Tensor
    ) -> Tensor:
        """See ``CohortModel``."""
        return self._scores(branches["factors"], images, counts, shares)

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Scores [B, classes] of images or prefixes, from what ``effective_weights`` has made."""
        return self._scores(weights["factors"], images, counts)

    def _scores(
        self,
        factors: Sequence[Tensor],
        images: Tensor,
        counts: Sequence[int],
        shares: Tensor | None = None,
    ) -> Tensor:
        """[B, classes]; ``shares`` [B] are those of the second of two branches."""
        of_ranks = None
        if shares is not None:
            rank = self.config.rank
            halves = torch.stack([1 - shares, shares], dim=1).repeat_interleave(rank, dim=1)
            of_ranks = pad(halves, (0, _filled(2 * rank) - 2 * rank)).numpy()
        return self._run(transformer.SCORES, factors, images, counts, shares=of_ranks)[0]

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """As ``CohortModel.logits``. The backward pass computes them once more."""
        factors = self._factors(parameters, private)
        scores: Tensor = _Scores.apply(self, images, counts, *factors)
        return scores

    def losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        loss: Callable[..., Tensor] = cross_entropy,
        private: bool = True,
    ) -> Tensor:
        """Return ``loss`` of every image over its divisor, [B], for the gradient of their sum.

        Plain cross-entropy and its gradient come out of one pass. Of other losses torch computes
        the slopes by the scores.

        Args:
            images: [B, C, S, S] or prefixes, client by client.
            labels: int64 [B].
            divisors: [B]; infinite where an image does not count.
            counts: images of each client.
            parameters: as in ``logits``.
            loss: of scores, labels and ``reduction="none"``; torch's own cross-entropy, or one that
                says that it is ``plain``, is that.
            private: as in ``logits``.
        """
        if loss is not cross_entropy and not getattr(loss, "plain", False):
            each = loss(self.logits(images, counts, parameters, private), labels, reduction="none")
            return each / divisors.to(each.dtype)
        factors = self._factors(parameters, private)
        shares: Tensor = _CrossEntropy.apply(self, images, labels, divisors, counts, *factors)
        return shares

    def _factors(
        self,
        parameters: Mapping[str, Tensor],
        private: bool,
        config: AdapterConfig | None = None,
    ) -> list[Tensor]:
        """A and b of both kinds of adapted layers [M, L, …], and the head."""
        found: list[Tensor] = []
        for target in TARGETS[self.config.targets]:
            layer = f"{EVERY}.{target}"
            together = parameters
            if f"{layer}.lora_A" not in parameters:
                together = self._together(parameters)
            found += side_by_side(layer, together, config or self.config, private)
        return [*found, *personal_head(parameters, self.config, private)]

    def _together(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What all blocks have, [M, L, …] under one name each."""
        kinds: dict[str, list[Tensor]] = {}
        for name, value in parameters.items():
            words = name.split(".")
            if words[0] == "blocks":
                name = ".".join((EVERY, *words[2:]))
            kinds.setdefault(name, []).append(value)
        return {
            name: torch.stack(own, dim=1) if name.startswith(EVERY) else own[0]
            for name, own in kinds.items()
        }

    def _room(self, rank: int) -> transformer.Work:
        """The room for passes through adapters of this rank, or of less."""
        if self._work is None or self._work.du.shape[1] < rank:
            blocks, dim, hidden = self._frozen_weights.fc1.shape
            tokens = len(self._embedding.start)
            self._work = transformer.room(blocks, tokens, dim, hidden, self._heads, rank)
        return self._work

    def _own_room(self, rank: int, classes: int) -> tuple[transformer.Own, transformer.Gradients]:
        """The rooms for one client's adapters and head and for their gradients."""
        if (rank, classes) not in self._rooms:
            sizes = (*self._frozen_weights.fc1.shape, rank, classes)
            self._rooms[rank, classes] = transformer.own_room(*sizes)
        return self._rooms[rank, classes]

    def _run(
        self,
        asked: int,
        factors: Sequence[Tensor],
        images: Tensor,
        counts: Sequence[int],
        gradients: Sequence[Tensor] = (),
        labels: Tensor | None = None,
        divisors: Tensor | None = None,
        slopes: Tensor | None = None,
        deep: bool = False,
        shares: np.ndarray | None = None,
    ) -> tuple[Tensor, np.ndarray]:
        """One pass; scores [B, classes], and the losses [B] float64 where they are asked for.

        ``gradients``: see ``_room_for_gradients``. ``slopes`` [B, classes] are given where the
        loss is another one. ``deep``: of the factors too gradients are asked for, not of the heads
        alone.
        """
        require_counts(counts, images, len(factors[-1]))
        if images.shape[1] != 2:
            images = self.prefixes(images)
        given = [one.detach() if one.stride(-1) == 1 else one.contiguous() for one in factors]
        rank, classes = given[0].shape[2], given[-1].shape[1]
        own, learned = self._own_room(rank, classes)
        ranks, room = own.proj_a.shape[1], len(own.head)
        scores, losses = np.empty((len(images), room), np.float32), np.empty(len(images))
        down = scores
        if asked != transformer.SCORES:
            down = np.zeros_like(scores)
        if slopes is not None:
            down[:, :classes] = slopes.numpy()
        no_labels, no_divisors = np.empty(0, np.int64), np.empty(0)
        transformer.run(
            asked,
            deep,
            self._frozen_weights,
            _places(given),
            _places(gradients or given),
            rank,
            classes,
            own,
            learned,
            self._room(ranks),
            images.contiguous().numpy(),
            np.asarray(counts, dtype=np.int64),
            np.empty((0, ranks), np.float32) if shares is None else shares,
            self._heads,
            self._scale,
            self._epsilon,
            no_labels if labels is None else labels.contiguous().numpy(),
            no_divisors if divisors is None else divisors.to(torch.float64).contiguous().numpy(),
            losses,
            down,
            scores,
        )
        return torch.from_numpy(scores)[:, :classes], losses


def _filled(size: int) -> int:
    return -(-size // LANES) * LANES


def _places(factors: Sequence[Tensor]) -> np.ndarray:
    """Where the numbers of clients are, [6, 4]; see ``transformer.run``."""
    if any(factor.dtype != torch.float32 for factor in factors):
        raise TypeError("the compiled pass takes factors and heads in float32")
    *adapters, head, bias = factors
    steps = [factor.stride()[:3] for factor in adapters]
    steps += [(head.stride(0), 0, head.stride(1)), (bias.stride(0), 0, 0)]
    places = [
        (factor.data_ptr(), *(4 * step for step in own))
        for factor, own in zip(factors, steps, strict=True)
    ]
    return np.array(places, dtype=np.int64)


def _any_factor(ctx: Any) -> bool:
    """Whether a gradient by a factor is asked for: the last two inputs are those of the head."""
    return any(ctx.needs_input_grad[:-2])


def _room_for_gradients(factors: Sequence[Tensor]) -> list[Tensor]:
    """Numbers to be filled in: in the order of the factors, but of each b turned."""
    turned = (False, True, False, True, False, False)
    return [
        torch.empty(factor.mT.shape if b else factor.shape)
        for factor, b in zip(factors, turned, strict=True)
    ]


def _by_factors(gradients: Sequence[Tensor]) -> list[Tensor]:
    proj_a, proj_b, fc2_a, fc2_b, head, bias = gradients
    return [proj_a, proj_b.mT, fc2_a, fc2_b.mT, head, bias]


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
        gradients = _room_for_gradients(factors)
        _, losses = model._run(
            transformer.CROSS_ENTROPY, factors, images, counts, gradients, labels, divisors,
            deep=_any_factor(ctx),
        )  # fmt: skip
        ctx.gradients = _by_factors(gradients)
        return torch.from_numpy(losses.astype(np.float32))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        if len(slope) and bool((slope != slope[0]).any()):
            raise ValueError("the gradient of `losses` is that of their sum; take it of `logits`")
        factor = float(slope[0]) if len(slope) else 0.0
        by_sum = ctx.gradients if factor == 1 else [one * factor for one in ctx.gradients]
        return (None,) * 5 + tuple(by_sum)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, model: CompiledModel, images: Tensor, counts: Sequence[int], *factors: Tensor
    ) -> Tensor:
        scores, _ = model._run(transformer.SCORES, factors, images, counts)
        ctx.save_for_backward(images, *factors)
        ctx.model, ctx.counts = model, counts
        return scores.contiguous()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        images, *factors = ctx.saved_tensors
        gradients = _room_for_gradients(factors)
        ctx.model._run(
            transformer.SLOPES, factors, images, ctx.counts, gradients, slopes=slopes[0],
            deep=_any_factor(ctx),
        )  # fmt: skip
        return (None,) * 3 + tuple(_by_factors(gradients))


def _embedding(vit: Any) -> transformer.Embedding:
    """What makes tokens of patches, as the pass reads it."""
    convolution = vit.patch_embed.proj
    start = vit.pos_embed.detach()[0].clone()
    start[0] += vit.cls_token.detach()[0, 0]
    start[1:] += convolution.bias.detach()
    weight = convolution.weight.detach().flatten(1).mT
    return transformer.Embedding(weight.contiguous().numpy(), start.numpy())


def _frozen(vit: Any) -> transformer.Frozen:
    """The weights of a plain vision transformer as the pass reads them."""

    def stacked(of: Callable[[Any], Tensor]) -> np.ndarray:
        found = torch.stack([of(block).detach() for block in vit.blocks])
        values: np.ndarray = found.contiguous().numpy()
        return values

    def norms(name: str) -> np.ndarray:
        return stacked(lambda block: torch.stack([*block.get_submodule(name).parameters()]))

    def layer(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            stacked(lambda block: block.get_submodule(name).weight.mT),
            stacked(lambda block: block.get_submodule(name).weight),
            stacked(lambda block: block.get_submodule(name).bias),
        )

    return transformer.Frozen(
        norms("norm1"),
        *layer("attn.qkv"),
        *layer("attn.proj"),
        norms("norm2"),
        *layer("mlp.fc1"),
        *layer("mlp.fc2"),
        torch.stack([*vit.norm.parameters()]).detach().numpy(),
    )
