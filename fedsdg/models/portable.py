"""One trained model in terms that other libraries have: LoRA factors, a head, whole weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

HEAD = ("head.weight", "head.bias")
_A, _B = ".lora_A", ".lora_B"


@dataclass(frozen=True)
class Portable:
    """Adapters of a frozen backbone with their head, or a network with weights of its own.

    Attributes:
        factors: adapted layer -> (A [R, in], B [out, R]); the layer's weight is W + scale · B A.
            Empty where no backbone is adapted.
        weights: beside adapters the head, or nothing where clients keep it; else all weights.
        scale: s.
        own_rank: the last so many of the R ranks are what a client adds to the model that it
            shares with the others, head and all; 0: the two cannot be told apart.
    """

    factors: Mapping[str, tuple[Tensor, Tensor]]
    weights: Mapping[str, Tensor]
    scale: float = 1.0
    own_rank: int = 0

    @property
    def rank(self) -> int:
        """R; 0 without adapters."""
        return next((a.shape[0] for a, _ in self.factors.values()), 0)

    @property
    def num_classes(self) -> int:
        """What the head tells apart; 0 without a head."""
        return len(self.weights[HEAD[1]]) if HEAD[1] in self.weights else 0

    def own(self) -> Portable:
        """The client's own addition, as adapters without a head."""
        if not self.own_rank:
            raise ValueError("the model is not a shared one with an addition of the client's own")
        first = self.rank - self.own_rank
        factors = {layer: (a[first:], b[:, first:]) for layer, (a, b) in self.factors.items()}
        return Portable(factors, {}, self.scale)

    def merged(self, backbone: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All weights by timm's names: those of the backbone with W + scale · B A, and the head."""
        state = dict(backbone)
        for layer, (a, b) in self.factors.items():
            name = f"{layer}.weight"
            state[name] = state[name].addmm(b, a, alpha=self.scale)
        return {**state, **self.weights}

    def tensors(self) -> dict[str, Tensor]:
        """Factors and weights under names of their own, in memory of the CPU."""
        named = dict(self.weights)
        for layer, (a, b) in self.factors.items():
            named |= {f"{layer}{_A}": a, f"{layer}{_B}": b}
        return {name: value.detach().cpu().contiguous().clone() for name, value in named.items()}

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], scale: float = 1.0, own_rank: int = 0
    ) -> Portable:
        """From what ``tensors`` returned.

        Raises:
            ValueError: an adapted layer lacks one of its factors, or they differ in rank.
        """
        layers = dict.fromkeys(
            name.removesuffix(end) for name in tensors for end in (_A, _B) if name.endswith(end)
        )
        for layer in layers:
            if f"{layer}{_A}" not in tensors or f"{layer}{_B}" not in tensors:
                raise ValueError(f"the layer {layer} has one of its two factors alone")
            if any(tensors[f"{layer}{end}"].dim() != 2 for end in (_A, _B)):
                raise ValueError(f"the factors of the layer {layer} are no matrices")
            ranks = tensors[f"{layer}{_A}"].shape[0], tensors[f"{layer}{_B}"].shape[1]
            if ranks[0] != ranks[1]:
                raise ValueError(f"the factors of the layer {layer} have ranks {ranks}")
        factors = {layer: (tensors[f"{layer}{_A}"], tensors[f"{layer}{_B}"]) for layer in layers}
        weights = {n: value for n, value in tensors.items() if not n.endswith((_A, _B))}
        return cls(factors, weights, scale, own_rank)
