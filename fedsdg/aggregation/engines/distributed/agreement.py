"""That all ranks make the same call: shown by short digests before anything depends on it."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch

from fedsdg.aggregation.engines.distributed.exchange import bytes_of
from fedsdg.aggregation.engines.distributed.peers import Peers
from fedsdg.aggregation.types import Rule

ITEMS = 12
"""Most items of one call; every call exchanges as many numbers, so that any two can be compared."""


def check_agreement(peers: Peers, items: Callable[[], Mapping[str, Any]]) -> None:
    """ValueError, the same on all ranks, when items() differ between ranks; or what items raises.

    items: what the ranks have to agree about, each with a repr that shows all of it; the first is
    the name of the function called.
    """
    found: dict[str, Any] = {}

    def digests() -> list[float]:
        found.update(items())
        assert len(found) <= ITEMS
        numbers = [_number(value) for value in found.values()]
        return numbers + [0.0] * (ITEMS - len(numbers))

    rows = peers.gathered(digests, ITEMS)
    for position, name in enumerate(found):
        for rank, row in enumerate(rows):
            if row[position] != rows[0, position]:
                raise ValueError(
                    f"the ranks disagree about {name}: rank {rank} differs from rank 0; make the "
                    f"same call on every rank"
                )


def content(rule: Rule) -> str:
    """A rule as text: its type, and its parameters where it is a dataclass."""
    type_ = type(rule)
    return f"{type_.__module__}.{repr(rule) if is_dataclass(rule) else type_.__qualname__}"


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Names, dtypes, shapes and a hash of the numbers; a bit that differs shows."""
    marks = []
    for name, tensor in tensors.items():
        data = bytes_of(tensor.detach().reshape(-1).cpu()).numpy().data
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        marks.append((name, str(tensor.dtype), tuple(tensor.shape), digest))
    return marks


def _number(value: Any) -> float:
    """48 bits of a hash: a whole number that float64 holds."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=6).digest()
    return float(int.from_bytes(digest, "big"))
