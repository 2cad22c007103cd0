"""The triton kernels on blocks of a GPU: their arguments and how columns are cut into programs.

Without a GPU they run, slowly, in triton's interpreter: set TRITON_INTERPRET=1 before triton is
imported.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsdg.aggregation.kernels import triton_kernels
from fedsdg.aggregation.kernels.networks import selection_network
from fedsdg.aggregation.kernels.range import distances_in_range, norms_in_range
from fedsdg.aggregation.rows import Block

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MOST_SORTED = 64
"""The numbers of a column of at most so many rows fit the registers of a thread."""
PROGRAMS = 8192
"""Large blocks are cut into so many programs: many for each processor of a GPU, so that the last
ones, which leave other processors idle, take a small part of the time."""
MOST_STEPS = 32
"""Pieces of columns that a program adds up in `REAL` before float64."""
PAIRED_STEPS = 64
"""The same, for pairs of rows."""


class Table(NamedTuple):
    """Where the numbers of a block lie, on the device."""

    facts: Tensor
    "[T, 2 + R] int64: numbers of a tensor, address of the result, addresses of R rows"
    begins: Tensor
    "[1 + 2^n] int64: 2^n / 2, then of every tensor the first piece of columns, padded"
    pieces: int
    aligned: bool
    "whether all addresses and numbers are multiples of 16"


def norms_and_dots(block: Block, coefficients: np.ndarray) -> np.ndarray | None:
    """Return [2, M + 1] norms and dots, as `loops`; None if squares leave float32's range."""
    size, scale = block.size, float(np.abs(coefficients).max(initial=0.0)) or 1.0
    real, kind, share = _real(block)
    rows = max(1, triton.next_power_of_2(size))
    facts = _facts(block, np.arange(size + 1), None)
    numbers, of_thread = (8192, 64) if _is_aligned(facts) and size <= 32 else (4096, 32)
    columns = max(16, min(1024, numbers // rows)) // share
    table = _table(block, facts, columns)
    steps = max(1, min(MOST_STEPS, table.pieces // PROGRAMS))
    parts = triton.cdiv(table.pieces, steps)
    sums = torch.empty(parts, 2, size + 1, dtype=torch.float64, device=block.first.device)
    with torch.cuda.device_of(block.first):
        triton_kernels.norms_and_dots[(parts,)](
            block.first,
            *table[:3],
            torch.as_tensor(coefficients / scale, dtype=real, device=block.first.device),
            sums,
            parts,
            steps,
            SIZE=size,
            ORIGIN=block.formed,
            ROWS=rows,
            BLOCK=columns,
            PACK=16 // block.dtype.itemsize if table.aligned else 1,
            ALIGNED=table.aligned,
            REAL=kind,
            num_warps=max(1, min(32, rows * columns * share // (32 * of_thread))),
        )
    return norms_in_range(sums.sum(dim=0).cpu().numpy(), scale, block)


def distances(block: Block) -> np.ndarray | None:
    """Return [M, M] ||x_i - x_j||^2: exactly symmetric, zero for equal rows; None as above."""
    size = block.size
    side, columns = (4, 256) if size <= 16 else (8, 64)
    tiles = triton.cdiv(size, side)
    table = _table(block, _facts(block, np.arange(size + 1), None), columns)
    parts = max(1, min(table.pieces, 2 * PROGRAMS // (tiles * (tiles + 1))))
    sums = torch.zeros(parts, size, size, dtype=torch.float64, device=block.first.device)
    with torch.cuda.device_of(block.first):
        triton_kernels.distances[(tiles, tiles, parts)](
            block.first,
            *table[:3],
            size,
            sums,
            parts,
            min(PAIRED_STEPS, triton.cdiv(table.pieces, parts)),
            TILE=side,
            BLOCK=columns,
            ALIGNED=table.aligned,
            REAL=_real(block)[1],
            num_warps=4,
        )
    return distances_in_range(sums.sum(dim=0).cpu().numpy(), block)


def weighted_sum(block: Block, weights: np.ndarray, outs: list[Tensor]) -> bool:
    """Write sum_r w_r row r, row 0 being theta_g; return whether all of it is finite."""
    used = np.flatnonzero(weights)
    columns = 1024 if block.ends[-1] >= 1 << 20 else 256
    table = _table(block, _facts(block, used, outs), columns)
    faults = torch.empty(table.pieces, dtype=torch.int32, device=block.first.device)
    with torch.cuda.device_of(block.first):
        triton_kernels.weighted_sum[(len(faults),)](
            outs[0],
            *table[:3],
            len(used),
            torch.as_tensor(weights[used], device=block.first.device),
            faults,
            BLOCK=columns,
            ALIGNED=table.aligned,
            num_warps=4,
        )
    return not bool(faults.any())


def trimmed_mean(block: Block, trim: int, outs: list[Tensor]) -> bool:
    """Write the mean of ranks trim … M-1-trim of every column; return whether all is finite."""
    size = block.size
    _, kind, share = _real(block)
    # A thread reads at most 16 bytes of a row at once, and holds about 32 numbers.
    columns = 128 * max(1, min(4, 32 // triton.next_power_of_2(size)) // share)
    table = _table(block, _facts(block, np.arange(size + 1), outs), columns)
    faults = torch.empty(table.pieces, dtype=torch.int32, device=block.first.device)
    network = selection_network(size, trim).reshape(-1).tolist()
    with torch.cuda.device_of(block.first):
        triton_kernels.trimmed_mean[(len(faults),)](
            outs[0],
            *table[:3],
            faults,
            SIZE=size,
            TRIM=trim,
            NETWORK=tuple(network),
            PAIRS=len(network) // 2,
            BLOCK=columns,
            ALIGNED=table.aligned,
            REAL=kind,
            num_warps=4,
        )
    return not bool(faults.any())


def _real(block: Block) -> tuple[torch.dtype, Any, int]:
    """What products are formed in, for torch and for triton, and its size in float32."""
    if block.dtype == torch.float64:
        return torch.float64, tl.float64, 2
    return torch.float32, tl.float32, 1


def _facts(block: Block, rows: np.ndarray, outs: list[Tensor] | None) -> np.ndarray:
    """[T, 2 + R] numbers, address of the result, and addresses of rows, 0 being theta_g."""
    numbers = np.diff(block.ends, prepend=0)
    results = 0 * numbers if outs is None else np.array([out.data_ptr() for out in outs])
    return np.column_stack([numbers, results, block.table[:, rows]])


def _table(block: Block, facts: np.ndarray, columns: int) -> Table:
    """Return the table for the device, with tensors cut into pieces of so many columns."""
    ends = np.cumsum(-(-facts[:, 0] // columns))
    width = triton.next_power_of_2(len(ends))
    begins = np.full(1 + width, np.iinfo(np.int64).max)
    begins[: 1 + len(ends)] = width // 2, 0, *ends[:-1]
    tensors = (_to_device(facts, block), _to_device(begins, block))
    return Table(*tensors, int(ends[-1]), _is_aligned(facts))


def _to_device(numbers: np.ndarray, block: Block) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(block.first.device)


def _is_aligned(facts: np.ndarray) -> bool:
    return bool((facts % 16 == 0).all())
