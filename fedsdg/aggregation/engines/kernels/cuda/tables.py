"""The rows x_1 … x_M as the kernels want them: one tensor, or many tensors wherever they lie."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

HEAD = 4
"""Facts of a tensor in a table before the addresses of the clients: its numbers, and where the
origin, the base and the result lie."""


class Layout(NamedTuple):
    """Rows cut into blocks of columns, as a kernel is told of them."""

    rows: Tensor
    """What is read; of a table one tensor of many, for its dtype."""
    stride: int
    d: int
    origin: Tensor | None
    table: Tensor | None
    """[T, HEAD + M] int64 of T tensors; None: all lie in `rows`."""
    places: Tensor | None
    """[blocks, 2] int64: of every block the tensor, and its first column there."""
    blocks: int
    """A block has columns of one tensor."""
    aligned: bool
    """Whether all addresses and numbers in the table are multiples of 16."""

    @property
    def sources(self) -> tuple[Any, ...]:
        """The first arguments of every kernel."""
        return self[:7]

    def tensors(self, odd: Tensor) -> list[int]:
        """Of which tensors a block is odd; odd: [blocks]."""
        if not bool(odd.any()):
            return []
        of = torch.zeros_like(odd, dtype=torch.int64) if self.places is None else self.places[:, 0]
        found: list[int] = torch.unique(of[odd != 0]).tolist()
        return found


class Rows(NamedTuple):
    """x_k = row k of the tensor [M, d], less the origin [d] if there is one.

    A row's numbers lie side by side, rows apart by any stride. The origin is of the same dtype.
    """

    tensor: Tensor
    origin: Tensor | None = None

    @property
    def size(self) -> int:
        return self.tensor.shape[0]

    @property
    def d(self) -> int:
        return self.tensor.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def formed(self) -> torch.dtype | None:
        """What differences from the origin are rounded to; None: as they are computed."""
        return None

    @property
    def stride(self) -> int:
        """Numbers from a row to the next."""
        return self.tensor.stride(0) if self.size > 1 else self.d

    @property
    def pack(self) -> int:
        """How many numbers a thread reads at once: 16 bytes where triton can prove them aligned."""
        facts = (self.d, self.stride, self.tensor.data_ptr())
        aligned = all(fact % 16 == 0 for fact in facts)
        return 16 // self.tensor.element_size() if aligned else 1

    def laid_out(self, columns: int) -> Layout:
        """In blocks of so many columns."""
        blocks = -(-self.d // columns)
        return Layout(self.tensor, self.stride, self.d, self.origin, None, None, blocks, False)

    def vanishes(self, k: int, other: int | None) -> bool:
        """Whether x_k is 0 everywhere, or equal to x_other."""
        row = self.tensor[k]
        if other is not None:
            return torch.equal(row, self.tensor[other])
        return not row.any() if self.origin is None else torch.equal(row, self.origin)


class TabledRows:
    """x_k = the tensors of client k one after another, less those of the origin.

    clients: M lists of T tensors with numbers, those at one position of one size, all contiguous,
    of one dtype and on one device; origin: one more such list, or None. dtype: of x_k, float32 or
    float64; differences are rounded to it. Nothing is copied: a table says where everything lies.
    """

    def __init__(
        self,
        clients: Sequence[Sequence[Tensor]],
        origin: Sequence[Tensor] | None,
        dtype: torch.dtype,
    ) -> None:
        self.clients, self.origin, self.dtype = clients, origin, dtype
        self.tensor = clients[0][0]
        self.numbers = np.array([tensor.numel() for tensor in clients[0]], dtype=np.int64)
        read = [_addresses(tensors) for tensors in clients]
        start = _addresses(origin) if origin is not None else 0 * read[0]
        nowhere = 0 * read[0]
        self._facts = np.stack([self.numbers, start, nowhere, nowhere, *read], axis=1)
        self._sent: dict[int, Layout] = {}

    @property
    def size(self) -> int:
        return len(self.clients)

    @property
    def d(self) -> int:
        return int(self.numbers.sum())

    @property
    def formed(self) -> torch.dtype | None:
        return self.dtype

    @property
    def aligned(self) -> bool:
        return bool((self._facts % 16 == 0).all())

    @property
    def pack(self) -> int:
        return 16 // self.tensor.element_size() if self.aligned else 1

    def into(self, outs: Sequence[Tensor], bases: Sequence[Tensor] | None) -> "TabledRows":
        """The same rows, with places for a result and what is added to it, a list of T each."""
        rows = TabledRows(self.clients, self.origin, self.dtype)
        rows._facts[:, 3] = _addresses(outs)
        if bases is not None:
            rows._facts[:, 2] = _addresses(bases)
        return rows

    def laid_out(self, columns: int) -> Layout:
        """In blocks of so many columns; the host does not wait for anything."""
        if columns not in self._sent:
            from fedsdg.aggregation.engines.kernels.cuda.launching import sent

            device = self.tensor.device
            blocks = -(-self.numbers // columns)
            ends = np.cumsum(blocks)
            until, count = sent(np.stack([ends, ends - blocks]), device), int(ends[-1])
            at = torch.arange(count, device=device)
            owners = torch.searchsorted(until[0], at, right=True)
            places = torch.stack([owners, (at - until[1][owners]) * columns], dim=1)
            origin = None if self.origin is None else self.origin[0]
            table = sent(self._facts, device)
            self._sent[columns] = Layout(
                self.tensor, 0, 0, origin, table, places, count, self.aligned
            )
        return self._sent[columns]

    def vanishes(self, k: int, other: int | None) -> bool:
        """As `Rows.vanishes`."""
        against = self.origin if other is None else self.clients[other]
        if against is None:
            return not any(bool(tensor.any()) for tensor in self.clients[k])
        pairs = zip(self.clients[k], against, strict=True)
        return all(torch.equal(one, two) for one, two in pairs)


def as_rows(rows: Tensor) -> Rows:
    """The rows of a tensor [M, d]."""
    return Rows(rows.detach())


def _addresses(tensors: Sequence[Tensor]) -> np.ndarray:
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
