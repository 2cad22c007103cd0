"""What a pass of a kernel moves between memory and processor by design, in bytes.

Every number of the rows is read once and every number of a result is written once; what else a
kernel needs stays in the cache. (A store also reads the line it writes to: the bytes of the result
once more, which is not counted here.)
"""

from typing import NamedTuple

import torch

from fedsdg.aggregation.engines.kernels.columns import Rows


class Traffic(NamedTuple):
    """Bytes."""

    read: int
    written: int


def measuring(rows: Rows) -> Traffic:
    """Of moments or distances."""
    vectors = rows.size + (rows.origin != 0)
    return Traffic(vectors * rows.d * rows.storage.itemsize, 0)


def writing(rows: Rows, out: torch.Tensor, base: torch.Tensor | None = None) -> Traffic:
    """Of a weighted sum or a trimmed mean. A base that is the origin is not read again."""
    further = 0 if base is None or base.data_ptr() == rows.origin else out.nbytes
    return Traffic(measuring(rows).read + further, out.nbytes)
