"""What a federation has come to, as three hashes: runs that end alike have the same."""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.setup import Server
from fedsdg.federation.store import ClientStore

CLIENTS_AT_ONCE = 1024


def fingerprint(server: Server, store: ClientStore) -> dict[str, str]:
    """Return the SHA-256 of the server's `models`, the `rule`'s state and the clients' `bank`.

    They depend on types, shapes and contents alone, and not on names.

    Args:
        server: The server after a round.
        store: What clients keep after it.
    """
    clients = np.flatnonzero(store.counts.trained)
    parts = np.split(clients, range(CLIENTS_AT_ONCE, len(clients), CLIENTS_AT_ONCE))
    bank = [_digest([torch.from_numpy(clients)])]
    for name in store.first:
        bank.append(_digest(store.read(name, part) for part in parts))
    return {
        "models": _joined([_digest([server.models.squeeze(0)])]),
        "rule": _joined([_digest([value]) for value in server.state.values()]),
        "bank": _joined(bank),
    }


def _digest(pieces: Iterable[Tensor]) -> bytes:
    """Return the hash of one tensor, whose rows may come in pieces."""
    digest = hashlib.sha256()
    kind = ""
    rows = 0
    for piece in pieces:
        kind = f"{piece.dtype} {piece.dim()} {tuple(piece.shape[1:])}"
        rows += len(piece) if piece.dim() else 1
        plain = piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
    digest.update(f"{kind} {rows}".encode())
    return digest.digest()


def _joined(digests: list[bytes]) -> str:
    """Return the hash of several, in whatever order they come."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()
