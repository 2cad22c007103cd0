"""Checkpoints: a federation between two rounds as one file, from which it goes on bit for bit.

`round~N~HASH.safetensors` holds the server, the rows of clients that have trained, what observers
remember and, as JSON in its metadata, the records and all that the run depends on. HASH is that of
the file. Two files are kept; one whose bytes are not those of its name gives way to the one before
it. Optimisers and random streams need no place: the former start afresh in each round or are rows
of clients, the latter are addressed by the round.
"""

import contextlib
import fcntl
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedsdg.files import write_bytes
from fedsdg.next_federation.setup import Server, Setup, Updates
from fedsdg.next_federation.store import ClientStore, Counts

KEPT = 2
"""Number of checkpoints that are kept."""
SHARE = 0.05
"""Saving takes at most this share of the time."""
_NAME = re.compile(r"round~(\d+)~([0-9a-f]{16})\.safetensors")
_FACTS = "fedsdg"


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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, which one process at a time may do.

        Raises:
            BlockingIOError: Another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

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
        }
        facts = json.dumps({"made_for": self.made_for, "records": records})
        content = save(_flat("", parts), {_FACTS: facts})
        name = f"round~{t}~{_digest(content)}.safetensors"
        write_bytes(self.folder / name, content, durable=True)
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
            if _digest(file.read_bytes()) != file.stem.split("~")[2]:
                file.unlink()
                continue
            with safe_open(file, "pt") as stored:
                facts = json.loads(stored.metadata()[_FACTS])
                parts = _nested({name: stored.get_tensor(name) for name in stored.keys()})  # noqa: SIM118
            if facts["made_for"] != self.made_for:
                raise ValueError(f"{file} was made for another run; delete {self.folder}")
            store.write(parts["rows"], parts["clients"].numpy())
            store.counts = Counts(**{n: x.numpy() for n, x in parts["counts"].items()})
            for k, observer in enumerate(setup.observers):
                observer.state = parts.get("observers", {}).get(str(k), {})
            saved = parts["server"]
            after = Server(
                models=saved["models"].to(server.models),
                state=saved.get("state", {}),
                in_flight=_updates(saved["in_flight"], server) if "in_flight" in saved else None,
                now=float(saved["now"]),
            )
            return _round_of(file), after, facts["records"]
        return None

    def remove(self) -> None:
        """Delete all checkpoints of the run."""
        for file in self._newest_first():
            file.unlink()
        (self.folder / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _newest_first(self) -> list[Path]:
        files = [file for file in self.folder.glob("round~*") if _NAME.fullmatch(file.name)]
        return sorted(files, key=_round_of, reverse=True)


def _round_of(file: Path) -> int:
    return int(file.name.split("~")[1])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _flat(prefix: str, value: Any) -> dict[str, Tensor]:
    """Return a dataclass, a mapping, an array or a number as tensors by path; nothing of None."""
    if isinstance(value, Server | Updates | Counts):
        value = vars(value)
    if isinstance(value, Mapping):
        parts = [_flat(f"{prefix}/{key}", entry) for key, entry in value.items()]
        return {name: tensor for part in parts for name, tensor in part.items()}
    if value is None:
        return {}
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
    return {prefix: tensor.contiguous().cpu()}


def _nested(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return tensors by path as nested mappings."""
    nested: dict[str, Any] = {}
    for path, value in tensors.items():
        level = nested
        *parents, last = path.split("/")[1:]
        for key in parents:
            level = level.setdefault(key, {})
        level[last] = value
    return nested


def _updates(saved: Mapping[str, Any], server: Server) -> Updates:
    """Return updates on the device of the server."""
    arrays = {name: x.numpy() for name, x in saved.items() if name != "rows"}
    rows = {name: value.to(server.models.device) for name, value in saved["rows"].items()}
    return Updates(rows=rows, **arrays)
