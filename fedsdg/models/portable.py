"""One trained model in terms that other libraries have: LoRA factors, a head, whole weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

HEAD = ("head.weight", "head.bias")
_A, _B = ".lora_A", ".lora_B"


@dataclass(frozen=True)
class Portable:
    """Adapters of a frozen backbone with their head, or a network with weights of its own."""

    factors: Mapping[str, tuple[Tensor, Tensor]]
    """adapted layer -> (A [R, in], B [out, R]); the weight of the layer is W + scale · B A; empty
    where no backbone is adapted"""
    weights: Mapping[str, Tensor]
    "beside adapters the head, or nothing where clients keep it; otherwise all weights"
    scale: float = 1.0
    "the scale s of the adapters"
    own_rank: int = 0
    """number of the last ranks that a client adds to a shared model, whose head it also uses; 0
    where the two cannot be told apart"""

    @property
    def rank(self) -> int:
        """Rank R of the adapters; 0 without adapters."""
        return next((len(a) for a, _ in self.factors.values()), 0)

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 without a head."""
        return len(self.weights[HEAD[1]]) if HEAD[1] in self.weights else 0

    def own(self) -> Portable:
        """Return the addition of the client alone, as adapters without a head.

        Raises:
            ValueError: the model is not a shared one with an addition.
        """
        if not self.own_rank:
            raise ValueError("the model is not a shared one with an addition of the client's own")
        first = self.rank - self.own_rank
        factors = {layer: (a[first:], b[:, first:]) for layer, (a, b) in self.factors.items()}
        return Portable(factors, {}, self.scale)

    def merged(self, backbone: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights by timm's names: the backbone with W + scale · B A, and the head.

        Args:
            backbone: the frozen weights by timm's names; they stay as they are.

        Returns:
            A state dict.
        """
        state = dict(backbone)
        for layer, (a, b) in self.factors.items():
            name = f"{layer}.weight"
            state[name] = state[name].addmm(b, a, alpha=self.scale)
        return {**state, **self.weights}

    def tensors(self) -> dict[str, Tensor]:
        """Return factors and weights by name, as copies in the memory of the CPU."""
        named = dict(self.weights)
        for layer, (a, b) in self.factors.items():
            named |= {f"{layer}{_A}": a, f"{layer}{_B}": b}
        return {name: value.detach().cpu().contiguous().clone() for name, value in named.items()}

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], scale: float = 1.0, own_rank: int = 0
    ) -> Portable:
        """Invert `tensors`.

        Args:
            tensors: factors and weights by name.
            scale: of the adapters.
            own_rank: see there.

        Returns:
            The model.

        Raises:
            ValueError: an adapted layer lacks one of its factors, or they differ in rank.
        """
        suffixes = (_A, _B)
        layers = [name.removesuffix(s) for name in tensors for s in suffixes if name.endswith(s)]
        factors = {}
        for layer in dict.fromkeys(layers):
            if f"{layer}{_A}" not in tensors or f"{layer}{_B}" not in tensors:
                raise ValueError(f"the layer {layer} has one of its two factors alone")
            a, b = tensors[f"{layer}{_A}"], tensors[f"{layer}{_B}"]
            if a.dim() != 2 or b.dim() != 2:
                raise ValueError(f"the factors of the layer {layer} are no matrices")
            if a.shape[0] != b.shape[1]:
                raise ValueError(
                    f"the factors of the layer {layer} have ranks {(a.shape[0], b.shape[1])}"
                )
            factors[layer] = (a, b)
        weights = {name: value for name, value in tensors.items() if not name.endswith(suffixes)}
        return cls(factors, weights, scale, own_rank)
