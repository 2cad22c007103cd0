"""What clients keep to themselves between rounds: private parameters and the terms' vectors."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

#: Bytes of all clients' rows together; up to so many lie in memory, more in a mapped file.
MEMORY_LIMIT = 1 << 30


class ClientBank:
    """Rows of all K clients; a cohort's rows are gathered before a round and scattered after it.

    A client keeps its private parameters [d_p], which start as ``initial``, and for each name in
    ``keeps`` a vector [d] that starts at 0. ``trained`` [K] says who has ever taken part. Rows of
    those who have not are never written, so making a bank costs nothing per client. ``more`` are
    further vectors that start at 0, by name, with the width of each.

    Up to ``limit`` bytes (default ``MEMORY_LIMIT``) the rows lie in memory, on the device of
    ``initial``; beyond, in a file mapped into memory. The file lies in ``folder`` (default: the
    system's temporary one) and has no name, so that it vanishes with the process, however that
    ends. Its room on the disk is reserved here: ``OSError`` when there is too little.
    """

    def __init__(
        self,
        num_clients: int,
        initial: Tensor,
        keeps: Iterable[str],
        d: int,
        folder: Path | None = None,
        limit: int | None = None,
        more: Mapping[str, int] | None = None,
    ) -> None:
        self._initial = initial
        self._private = slice(0, len(initial))
        self._kept: dict[str, slice] = {}
        end = len(initial)
        for name, width in {**dict.fromkeys(keeps, d), **(more or {})}.items():
            self._kept[name] = slice(end, end + width)
            end += width
        self._rows = _room(num_clients, end, initial, folder, limit)
        self.trained = torch.zeros(num_clients, dtype=torch.bool)
        # When each client's row was last written, the latest last.
        self._written: dict[int, int] = {}
        self.moment = 0

    @property
    def names(self) -> tuple[str, ...]:
        """What a client keeps beside its private parameters."""
        return tuple(self._kept)

    def gather(self, clients: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(private rows [M, d_p], kept rows {name: [M, width]}) of these clients, as copies."""
        return self.private(clients), {name: self.kept(name, clients) for name in self._kept}

    def private(self, clients: Tensor) -> Tensor:
        """The private parameters of these clients, [M, d_p], as a copy."""
        return self._read(clients, self._private, self._initial)

    def kept(self, name: str, clients: Tensor) -> Tensor:
        """What is kept of these clients under a name, [M, width], as a copy."""
        return self._read(clients, self._kept[name], self._initial.new_zeros(()))

    def entries(self, clients: Tensor, columns: Tensor) -> Tensor:
        """Some of the private parameters of some clients [n, columns], without reading others."""
        place = self._rows.device
        found = self._rows[clients.to(place)[:, None], columns.to(place)].to(self.device)
        found[~self.trained[clients.cpu()].to(self.device)] = self._initial[columns]
        return found

    def scatter(self, clients: Tensor, private: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Put a cohort's rows back and note that it has taken part."""
        place = clients.to(self._rows.device)
        self._rows[place, self._private] = private.to(self._rows.device)
        for name, rows in kept.items():
            self._rows[place, self._kept[name]] = rows.to(self._rows.device)
        self.trained[clients.cpu()] = True
        self.moment += 1
        for client in clients.tolist():
            self._written.pop(client, None)
            self._written[client] = self.moment

    def written_since(self, moment: int) -> Tensor:
        """Who has taken part and was written after ``moment``, sorted; 0 is before all.

        Costs time by their number, not by K.
        """
        found: list[int] = []
        for client, when in reversed(self._written.items()):
            if when <= moment:
                break
            if self.trained[client]:  # a round that was undone may have been its first
                found.append(client)
        return torch.tensor(sorted(found), dtype=torch.int64)

    @property
    def device(self) -> torch.device:
        """Where gathered rows lie."""
        return self._initial.device

    def rows_in_use(self) -> int:
        """How many clients have ever been written."""
        return len(self._written)

    def widths(self) -> dict[str, int]:
        """Numbers per client: of its private parameters, and of each kept vector by its name."""
        columns = {"private": self._private, **{f"kept.{n}": c for n, c in self._kept.items()}}
        return {name: place.stop - place.start for name, place in columns.items()}

    def bytes_per_client(self) -> int:
        """What one client must store between rounds."""
        return self._rows.shape[1] * self._rows.element_size()

    def _read(self, clients: Tensor, columns: slice, initial: Tensor) -> Tensor:
        rows = self._rows[:, columns][clients.to(self._rows.device)].to(self.device)
        rows[~self.trained[clients.cpu()].to(rows.device)] = initial
        return rows


def _room(clients: int, width: int, like: Tensor, folder: Path | None, limit: int | None) -> Tensor:
    """[K, width] of zeros, in memory or, beyond the limit, in a file without a name."""
    size = clients * width * like.element_size()
    if size <= (MEMORY_LIMIT if limit is None else limit):
        return like.new_zeros(clients, width)
    place = folder or Path(tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            if size > shutil.disk_usage(place).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Without its room, a full disk would kill the process when a page is first written.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                os.ftruncate(file.fileno(), size)
            mapping = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise OSError(
            error.errno,
            f"what {clients} clients keep between rounds takes {size:,} bytes, for which no file "
            f"can be made in {place} ({error.strerror}); free the space, or name a folder on "
            "another disk in the environment variable FEDSDG_STORE",
        ) from None
    return torch.frombuffer(mapping, dtype=like.dtype).view(clients, width)
