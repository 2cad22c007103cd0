"""Products of small matrices, whose bytes are the same on every processor.

Every entry of a product is the sum over k in its order, one fused product and sum at a time, so it
does not depend on which entries are computed side by side. How many are is a matter of speed: a
tile of rows and vectors that fills the processor's registers.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedsdg.models.fast.vectors import NUMBER, exact

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)


def wide() -> bool:
    """Whether code is compiled for registers of sixteen numbers, with AVX-512."""
    config: Any = numba.config
    if config.CPU_NAME:
        return "avx512" in f"{config.CPU_NAME} {config.CPU_FEATURES}"
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


#: Numbers in a register, and tiles (rows, registers in a row) for wide and narrow products.
LANES, TILE, NARROW = (16, (4, 4), (8, 1)) if wide() else (8, (4, 3), (8, 1))


def _tile(rows: int, registers: int) -> Any:
    """A tile of a product for compiled code: C = start + A B for ``rows`` rows of A and C.

    It takes addresses and steps in bytes: A, from row to row, from column to column; B, from row to
    row; C, from row to row; the length of the sums; where the tile starts from, and from row to row
    there (0: one row for all).
    """
    vector = ir.VectorType(_FLOAT, LANES)
    width = NUMBER * LANES

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, a_row, a_column, b, b_row, c, c_row, length, start, start_row = values

        def load(place: Any, kind: Any) -> Any:
            return builder.load(builder.inttoptr(place, kind.as_pointer()), align=NUMBER)

        def places(first: Any, step: Any) -> list[list[Any]]:
            starts = [builder.add(first, builder.mul(step, _LONG(i))) for i in range(rows)]
            return [
                [builder.add(one, _LONG(width * j)) for j in range(registers)] for one in starts
            ]

        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        begins = [[load(place, vector) for place in row] for row in places(start, start_row)]
        into = places(c, c_row)
        before = builder.block
        loop, after = builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)

        builder.position_at_end(loop)
        k, at_a, at_b = (builder.phi(_LONG) for _ in range(3))
        sums = [[builder.phi(vector) for _ in row] for row in begins]
        right = [load(builder.add(at_b, _LONG(width * j)), vector) for j in range(registers)]
        undefined = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
        more = []
        for i, row in enumerate(sums):
            one = load(builder.add(at_a, builder.mul(a_row, _LONG(i))), _FLOAT)
            single = builder.insert_element(undefined, one, _INT(0))
            left = builder.shuffle_vector(single, undefined, zeros)
            more.append([builder.call(fma, [left, x, y]) for x, y in zip(right, row, strict=True)])
        steps = ((k, _LONG(0), _LONG(1)), (at_a, a, a_column), (at_b, b, b_row))
        moved = [builder.add(phi, step) for phi, _, step in steps]
        starts = [begin for _, begin, _ in steps]
        phis = [phi for phi, _, _ in steps]
        for phi, first, next_ in zip(
            [*phis, *_flat(sums)], [*starts, *_flat(begins)], [*moved, *_flat(more)], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(next_, loop)
        builder.cbranch(builder.icmp_signed("<", moved[0], length), loop, after)

        builder.position_at_end(after)
        for place, result in zip(_flat(into), _flat(more), strict=True):
            pointer = builder.inttoptr(place, vector.as_pointer())
            builder.store(result, pointer, align=NUMBER)
        return context.get_dummy_value()

    def typed(
        context: Any, a: Any, a_row: Any, a_column: Any, b: Any, b_row: Any, c: Any, c_row: Any,
        length: Any, start: Any, start_row: Any,
    ) -> Any:  # fmt: skip
        return types.none(*[types.int64] * 10), generate

    return intrinsic(typed)


def _flat(rows: list[list[Any]]) -> list[Any]:
    return [one for row in rows for one in row]


_WIDE, _WIDE_ROW = _tile(*TILE), _tile(1, TILE[1])
_SLIM, _SLIM_ROW = _tile(*NARROW), _tile(1, NARROW[1])
_ROWS, _COLUMNS = TILE[0], TILE[1] * LANES
_SLIM_ROWS = NARROW[0]
#: Numbers in a row of the widest tile there is.
WIDEST = 64


@exact
def _into(
    a: int, a_row: int, a_column: int, b: int, b_row: int, c: int, c_row: int,
    rows: int, columns: int, length: int, start: int, start_row: int, start_step: int,
) -> None:  # fmt: skip
    """C [rows, columns] = start + A B, by addresses and steps in bytes.

    ``start_step``: from number to number of a row; 0: every tile starts from the same numbers.
    """
    n = 0
    while n < columns:
        whole = n + _COLUMNS <= columns
        right, into, begin = b + 4 * n, c + 4 * n, start + start_step * n
        m = 0
        if whole:
            while m + _ROWS <= rows:
                _WIDE(
                    a + m * a_row, a_row, a_column, right, b_row, into + m * c_row, c_row,
                    length, begin + m * start_row, start_row,
                )  # fmt: skip
                m += _ROWS
            while m < rows:
                _WIDE_ROW(
                    a + m * a_row, a_row, a_column, right, b_row, into + m * c_row, c_row,
                    length, begin + m * start_row, start_row,
                )  # fmt: skip
                m += 1
            n += _COLUMNS
        else:
            while m + _SLIM_ROWS <= rows:
                _SLIM(
                    a + m * a_row, a_row, a_column, right, b_row, into + m * c_row, c_row,
                    length, begin + m * start_row, start_row,
                )  # fmt: skip
                m += _SLIM_ROWS
            while m < rows:
                _SLIM_ROW(
                    a + m * a_row, a_row, a_column, right, b_row, into + m * c_row, c_row,
                    length, begin + m * start_row, start_row,
                )  # fmt: skip
                m += 1
            n += LANES


@exact
def product(
    a: int, a_row: int, a_column: int, b: int, c: int, rows: int, columns: int, length: int,
    start: int, start_step: int,
) -> None:  # fmt: skip
    """C [rows, columns] = start + A B, with B [length, columns] and C without gaps.

    Args:
        a, b, c: Addresses.
        a_row, a_column: Numbers from row to row of A, and from column to column.
        rows, columns, length: ``columns`` in whole vectors.
        start: The address of a row that all rows start from (``start_step`` 1), or of ``WIDEST``
            zeros (0).
        start_step: 1 or 0.
    """
    _into(
        a, 4 * a_row, 4 * a_column, b, 4 * columns, c, 4 * columns, rows, columns, length,
        start, 0, 4 * start_step,
    )  # fmt: skip


@exact
def add_product(
    a: int, a_row: int, a_column: int, b: int, c: int, rows: int, columns: int, length: int
) -> None:
    """C += A B; see ``product``."""
    _into(
        a, 4 * a_row, 4 * a_column, b, 4 * columns, c, 4 * columns, rows, columns, length,
        c, 4 * columns, 4,
    )  # fmt: skip
