"""What a federation has come to, as three hashes: two runs that end alike have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from fedsdg.federation.bank import ClientBank
from fedsdg.federation.rounds import Federation

#: Bytes of clients' rows that are read at a time.
AT_ONCE = 64 << 20


def fingerprint(federation: Federation) -> dict[str, str]:
    """SHA-256 of the server's ``models``, of the ``rule``'s state, and of the clients' ``bank``.

    Of types, shapes and contents alone; what a tensor is called plays no part.
    """
    return {
        "models": _joined([_of([federation.theta])]),
        "rule": _joined(_of([value]) for value in federation.state.values()),
        "bank": _joined(_of(pieces) for pieces in _columns(federation.bank)),
    }


def _columns(bank: ClientBank) -> Iterable[Iterable[Tensor]]:
    """Who has taken part, and what is kept of them: for each name some clients at a time."""
    clients = bank.written_since(0)
    some = clients.split(max(1, AT_ONCE // max(1, bank.bytes_per_client())))
    yield [clients]
    yield (bank.private(few) for few in some)
    for name in bank.names:
        yield (bank.kept(name, few) for few in some)


def _of(pieces: Iterable[Tensor]) -> bytes:
    """Of one tensor, whose rows may come in pieces."""
    digest, kind, rows = hashlib.sha256(), "", 0
    for piece in pieces:
        kind = f"{piece.dtype} {piece.dim()} {tuple(piece.shape[1:])}"
        rows += len(piece) if piece.dim() else 1
        plain = piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
    digest.update(f"{kind} {rows}".encode())
    return digest.digest()


def _joined(digests: Iterable[bytes]) -> str:
    """Of several, in whatever order they come."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()
