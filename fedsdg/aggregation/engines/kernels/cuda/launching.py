"""What every launch needs: how large a tile is, on which device it runs."""

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.engines.kernels.cuda.tables import Rows, TabledRows

AnyRows = Rows | TabledRows

PROGRAMS = 8192
"""Into so many programs large rows are cut: many for each processor of a GPU, so that the last
ones, which leave others idle, take a small part of the time."""

REALS = {np.float32: tl.float32, np.float64: tl.float64}


class Tile(NamedTuple):
    """rows x columns held by so many warps; both are powers of two."""

    rows: int
    columns: int
    warps: int

    @property
    def sizes(self) -> dict[str, int]:
        """As a kernel is told."""
        return {"ROWS": self.rows, "BLOCK": self.columns, "num_warps": self.warps}


def tile(size: int, numbers: int, of_thread: int, real: Any, least: int = 16) -> Tile:
    """All rows, and columns for about `numbers` numbers; `of_thread` of them in each thread.

    At most 1024 columns; at least 16, for shorter pieces waste what the memory delivers (where that
    is not what a kernel waits for, `least`). Half as much of all in float64.
    """
    share = 2 if real is np.float64 else 1
    rows = triton.next_power_of_2(size)
    columns = max(least, min(1024, numbers // rows)) // share
    return Tile(rows, columns, max(1, min(32, rows * columns * share // (32 * of_thread))))


def sent(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """A few numbers on the device; the host does not wait for what is queued there."""
    here = torch.from_numpy(numbers)
    # What is copied from memory that may be moved, the host waits for.
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def formed(rows: AnyRows, real: Any) -> Any:
    """What differences are rounded to on their way to `real`."""
    kinds = {None: REALS[real], torch.float32: tl.float32, torch.float64: tl.float64}
    return kinds[rows.formed]


def on_device(rows: AnyRows) -> torch.cuda.device_of:
    """Triton launches on the current device, which need not be that of the rows."""
    return torch.cuda.device_of(rows.tensor)


def is_interpreted() -> bool:
    """Whether triton was imported to interpret kernels on the CPU."""
    return not isinstance(_probe, triton.JITFunction)


@triton.jit
def _probe():
    pass
