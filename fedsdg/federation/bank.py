"""What clients keep to themselves between rounds: private parameters and the terms' vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class ClientBank:
    """Rows of all K clients; a cohort's rows are gathered before a round and scattered after it.

    ``private`` [K, d_p] starts as K copies of ``initial`` [d_p]; each name in ``keeps`` is a
    matrix [K, d] of zeros. ``trained`` [K] says who has ever taken part.
    """

    def __init__(self, num_clients: int, initial: Tensor, keeps: Iterable[str], d: int) -> None:
        self.private = initial.expand(num_clients, -1).clone()
        self.kept = {name: initial.new_zeros(num_clients, d) for name in keeps}
        self.trained = torch.zeros(num_clients, dtype=torch.bool)

    def gather(self, clients: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(private rows [M, d_p], kept rows {name: [M, d]}) of these clients, as copies."""
        place = clients.to(self.private.device)
        return self.private[place], {name: rows[place] for name, rows in self.kept.items()}

    def scatter(self, clients: Tensor, private: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Put a cohort's rows back and note that it has taken part."""
        place = clients.to(self.private.device)
        self.private[place] = private
        for name, rows in kept.items():
            self.kept[name][place] = rows
        self.trained[clients.cpu()] = True

    def bytes_per_client(self) -> int:
        """What one client must store between rounds."""
        rows = (self.private, *self.kept.values())
        return sum(matrix.shape[1] * matrix.element_size() for matrix in rows)
