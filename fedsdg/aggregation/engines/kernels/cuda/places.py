"""Where a kernel finds the numbers of a block of columns: in one tensor, or through a table.

See `rows.Layout`. `table` is None, which the compiler knows, or the table.
"""

import triton
import triton.language as tl

from fedsdg.aggregation.engines.kernels.cuda.tables import HEAD as _HEAD

HEAD = tl.constexpr(_HEAD)
ORIGIN = tl.constexpr(1)
BASE = tl.constexpr(2)
RESULT = tl.constexpr(3)


@triton.jit
def columns_of(block, d, size, table, places, blocks, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """(where the facts of the block's tensor begin, its columns there [BLOCK], which there are)."""
    if table is None:
        facts = 0
        j = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = j < d
    else:
        known = block < blocks
        at = places + 2 * tl.cast(block, tl.int64)
        facts = table + tl.load(at, mask=known, other=0) * (size + HEAD)
        first = tl.load(at + 1, mask=known, other=0)
        numbers = tl.load(facts)
        if ALIGNED:
            first, numbers = tl.multiple_of(first, 16), tl.multiple_of(numbers, 16)
        j = first + tl.arange(0, BLOCK)
        inside = (j < numbers) & known
    return facts, j, inside


@triton.jit
def row_starts(rows, stride, k, present, facts, table, ALIGNED: tl.constexpr):
    """Pointers to the first numbers of the rows k [ROWS], in the block's tensor."""
    if table is None:
        starts = rows + tl.cast(k, tl.int64) * stride
    else:
        starts = _pointer(tl.load(facts + HEAD + k, mask=present, other=0), rows, ALIGNED)
    return starts


@triton.jit
def row_start(rows, stride, k, facts, table, ALIGNED: tl.constexpr):
    """As `row_starts`, for one row."""
    if table is None:
        start = rows + tl.cast(k, tl.int64) * stride
    else:
        start = _pointer(tl.load(facts + HEAD + k), rows, ALIGNED)
    return start


@triton.jit
def vector_start(vector, fact: tl.constexpr, facts, table, ALIGNED: tl.constexpr):
    """Pointer to the first number of the origin, the base or the result, in the block's tensor."""
    return vector if table is None else _pointer(tl.load(facts + fact), vector, ALIGNED)


@triton.jit
def _pointer(address, like, ALIGNED: tl.constexpr):
    # Said of the pointer, for a cast from a number tells the compiler nothing.
    pointer = address.to(like.dtype)
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer
