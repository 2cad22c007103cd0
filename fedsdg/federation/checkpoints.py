"""Checkpoints: a federation between two rounds as one file, from which it goes on bit for bit.

`round~N~HASH.pt` holds the server, the rows of clients that have trained, what observers remember
and, as JSON, the records and all that the run depends on. HASH is that of the file. Two files are
kept; one whose bytes are not those of its name gives way to the one before it. Optimisers and
random streams need no place: the former start afresh in each round or are rows of clients, the
latter are addressed by the round.
"""

import hashlib
import io
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.setup import Server, Setup, Updates
from fedsdg.federation.store import ClientStore, Counts
from fedsdg.files import write_bytes

KEPT = 2
"""Number of checkpoints that are kept."""
SHARE = 0.05
"""Saving takes at most this share of the time."""


class Checkpoints:
    """The newest checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path, made_for: Mapping[str, Any]) -> None:
        """Name the folder.

        Args:
            folder: It is created with the first checkpoint.
            made_for: What the run depends on, in JSON's types; checkpoints that were made for
                anything else are refused.
        """
        self.folder = folder
        self.made_for = json.loads(json.dumps(made_for))
        self._saved_at = time.monotonic()
        self._seconds = 0.0

    def due(self, seconds: float) -> bool:
        """Return whether the last checkpoint is so many seconds old, and saving is cheap enough."""
        return time.monotonic() - self._saved_at >= max(seconds, self._seconds / SHARE)

    def save(
        self, t: int, setup: Setup, server: Server, store: ClientStore, records: Mapping[str, Any]
    ) -> None:
        """Save the state after round t.

        Args:
            t: The round.
            setup: The federation, whose observers remember something.
            server: The server after the round.
            store: What clients keep.
            records: The records so far and further facts, in JSON's types.

        Raises:
            OSError: The file cannot be written.
        """
        started = time.monotonic()
        clients = np.flatnonzero(store.counts.trained)
        parts = {
            "server": server,
            "counts": store.counts,
            "clients": clients,
            "rows": {name: store.read(name, clients) for name in store.first},
            "observers": {str(k): observer.state for k, observer in enumerate(setup.observers)},
            "facts": json.dumps({"made_for": self.made_for, "records": records}),
        }
        buffer = io.BytesIO()
        torch.save(_plain(parts), buffer)
        content = buffer.getvalue()
        write_bytes(self.folder / f"round~{t}~{_digest(content)}.pt", content, durable=True)
        for file in self._newest_first()[KEPT:]:
            file.unlink()
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - started

    def restore(
        self, setup: Setup, server: Server, store: ClientStore
    ) -> tuple[int, Server, dict[str, Any]] | None:
        """Restore the newest checkpoint that is whole; damaged ones are deleted.

        Args:
            setup: The federation, whose observers get back what they remembered.
            server: The server before the first round.
            store: What clients keep before it; it is written.

        Returns:
            The round, the server after it and the records; None if there is no checkpoint.

        Raises:
            ValueError: The checkpoint was made for another run.
        """
        for file in self._newest_first():
            content = file.read_bytes()
            if _digest(content) != file.stem.split("~")[2]:
                file.unlink()
                continue
            parts = torch.load(io.BytesIO(content), weights_only=True)
            facts = json.loads(parts["facts"])
            if facts["made_for"] != self.made_for:
                raise ValueError(f"{file} was made for another run; delete {self.folder}")
            counts = Counts(**{name: x.numpy() for name, x in parts["counts"].items()})
            store.write(parts["rows"], parts["clients"].numpy(), counts)
            for observer, state in zip(setup.observers, parts["observers"].values(), strict=True):
                observer.state = state
            saved = parts["server"]
            in_flight = saved["in_flight"] and _updates(saved["in_flight"], server)
            after = Server(
                models=saved["models"].to(server.models),
                state=saved["state"],
                in_flight=in_flight,
                now=saved["now"],
            )
            return _round_of(file), after, facts["records"]
        return None

    def remove(self) -> None:
        """Delete all checkpoints of the run, and what a process that was killed left of one."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("round~*.pt"), key=_round_of, reverse=True)


def _round_of(file: Path) -> int:
    return int(file.name.split("~")[1])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return dataclasses, mappings and arrays as mappings and tensors."""
    if isinstance(value, Server | Updates | Counts):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return value.cpu()
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _updates(saved: Mapping[str, Any], server: Server) -> Updates:
    """Return updates on the device of the server."""
    arrays = {name: x.numpy() for name, x in saved.items() if name != "rows"}
    rows = {name: value.to(server.models.device) for name, value in saved["rows"].items()}
    return Updates(rows=rows, **arrays)
