"""What one step of local training works on: the rows of the clients that take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsdg.models.parameters import Layout, offsets

#: The two rows of a client: what it communicates, and what it keeps to itself.
ROWS = ("shared", "private")


@dataclass(frozen=True)
class PrivateColumns:
    """Where private factors and gate logits stand in a client's private vector.

    ``factors``: bool [d_p], True on entries of adapters' ``_private`` factors. ``gates``: int64
    [L], the columns of the gate logits. ``pairs``: the (A, B) factor slices of each adapted layer
    with their shapes, for penalties on the product B A.
    """

    factors: Tensor
    gates: Tensor
    pairs: tuple[tuple[slice, tuple[int, ...], slice, tuple[int, ...]], ...]

    @classmethod
    def of(cls, layout: Layout, device: torch.device | str = "cpu") -> PrivateColumns:
        """Read the columns off a layout."""
        factors = torch.zeros(layout.d_private, dtype=torch.bool)
        gates: list[int] = []
        places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        columns = offsets(layout.private)
        for spec in layout.private:
            place = columns[spec.name]
            if spec.group == "private" and ".lora_" in spec.name:
                factors[place] = True
                places[spec.name] = (place, spec.shape)
            elif spec.group == "gate":
                gates.extend(range(place.start, place.stop))
        pairs = tuple(
            (*place, *places[name.replace("lora_A_private", "lora_B_private")])
            for name, place in places.items()
            if name.endswith("lora_A_private")
        )
        return cls(factors.to(device), torch.tensor(gates, dtype=torch.int64, device=device), pairs)


@dataclass(frozen=True)
class Rows:
    """Views of the active clients' rows, one row a client.

    Shapes: ``theta``, ``theta_grad``, ``start`` [a, d]; ``private``, ``private_grad`` [a, d_p];
    ``state[name]`` [a, width] is what a term keeps for each client between rounds;
    ``received[name]`` [a, width] is what each client's server sent beside the model.
    """

    theta: Tensor
    theta_grad: Tensor
    start: Tensor
    private: Tensor
    private_grad: Tensor
    columns: PrivateColumns
    state: Mapping[str, Tensor]
    received: Mapping[str, Tensor]

    def of(self, row: str) -> tuple[Tensor, Tensor]:
        """(values, gradients) of the ``shared`` or the ``private`` rows."""
        if row == "shared":
            return self.theta, self.theta_grad
        return self.private, self.private_grad
