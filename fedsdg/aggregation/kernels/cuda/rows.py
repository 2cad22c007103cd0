"""The rows x_1 … x_M as the kernels want them."""

from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """x_k = row k of the tensor [M, d], less the origin [d] if there is one.

    A row's numbers lie side by side, rows apart by any stride. The origin is of the same dtype.
    """

    tensor: torch.Tensor
    origin: torch.Tensor | None = None

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
    def stride(self) -> int:
        """Numbers from a row to the next."""
        return self.tensor.stride(0) if self.size > 1 else self.d

    @property
    def pack(self) -> int:
        """How many numbers a thread reads at once: 16 bytes where triton can prove them aligned."""
        facts = (self.d, self.stride, self.tensor.data_ptr())
        aligned = all(fact % 16 == 0 for fact in facts)
        return 16 // self.tensor.element_size() if aligned else 1


def as_rows(rows: torch.Tensor) -> Rows:
    """The rows of a tensor [M, d]."""
    return Rows(rows.detach())
