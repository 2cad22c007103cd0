"""What clients keep to themselves between rounds: private parameters, vectors of terms, counts."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MEMORY_LIMIT = 1 << 30
"""Bytes of all clients' rows together that are held in memory; more are held in a mapped file."""


@dataclass(frozen=True)
class Counts:
    """Counts of all K clients, int64 [K]."""

    trained: np.ndarray
    "the last round in which each trained; 0: never"
    arrived: np.ndarray
    "the last round in which an update of each arrived; 0: never"
    steps: np.ndarray
    "local steps so far"


class ClientStore:
    """Rows of all K clients in one matrix.

    Rows of clients that have never trained are never written, so they cost nothing.
    """

    def __init__(
        self, clients: int, first: Mapping[str, Tensor], folder: Path | None = None
    ) -> None:
        """Reserve the rows.

        Args:
            clients: K.
            first: [width] the first value of what is kept under each name.
            folder: Where a mapped file lies, which has no name and vanishes with the process;
                None: the system's temporary folder.

        Raises:
            OSError: There is too little room for the file.
        """
        ends = np.cumsum([0, *(len(value) for value in first.values())]).tolist()
        self.first = dict(first)
        self.columns = dict(zip(first, map(slice, ends, ends[1:]), strict=False))
        self.counts = Counts(*np.zeros((3, clients), dtype=np.int64))
        self._like = next(iter(first.values()))
        self._rows = _reserve((clients, ends[-1]), self._like, folder)

    def read(self, name: str, clients: np.ndarray) -> Tensor:
        """Return a copy of what these clients keep under a name, [n, width]."""
        place = torch.from_numpy(clients).to(self._rows.device)
        rows = self._rows[:, self.columns[name]][place].to(self._like.device)
        rows[torch.from_numpy(self.counts.trained[clients] == 0)] = self.first[name]
        return rows

    def write(self, rows: Mapping[str, Tensor], clients: np.ndarray, counts: Counts) -> None:
        """Replace what these clients keep, and the counts of all."""
        place = torch.from_numpy(clients).to(self._rows.device)
        for name, value in rows.items():
            self._rows[place, self.columns[name]] = value.to(self._rows)
        self.counts = counts


@dataclass(frozen=True)
class PendingRows:
    """What clients keep, with other rows of some of them: after a round or for an evaluation."""

    below: "ClientRows"
    "what the other rows are read from"
    clients: np.ndarray
    "[n] clients with other rows"
    rows: Mapping[str, Tensor]
    "[n, width] by name"
    counts: Counts
    "counts of all clients, as they are with these rows"

    def read(self, name: str, clients: np.ndarray) -> Tensor:
        """Return a copy of what these clients keep under a name, [n, width]."""
        values = self.below.read(name, clients)
        if name in self.rows:
            _, source, place = np.intersect1d(self.clients, clients, return_indices=True)
            values[torch.from_numpy(place)] = self.rows[name][torch.from_numpy(source)].to(values)
        return values


ClientRows = ClientStore | PendingRows
"""What clients keep, to be read: the store, or the store with rows that are not yet in it."""


def _reserve(shape: tuple[int, int], like: Tensor, folder: Path | None) -> Tensor:
    """Return zeros in memory or, beyond the limit, in a file."""
    size = shape[0] * shape[1]
    needed = size * like.element_size()
    if needed <= MEMORY_LIMIT:
        return like.new_zeros(shape)
    place = folder or Path(tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OSError(
            f"what {shape[0]} clients keep between rounds takes {needed:,} bytes, but {place} has "
            f"{free:,}; free the space, or name a folder on another disk in the environment "
            "variable FEDSDG_STORE"
        )
    with tempfile.NamedTemporaryFile(dir=place) as file:
        # Without room of its own a full disk would kill the process at the first write.
        os.posix_fallocate(file.fileno(), 0, needed)
        mapped = torch.from_file(
            file.name,
            shared=True,
            size=size,
            dtype=like.dtype,
        )
        return mapped.view(shape)
