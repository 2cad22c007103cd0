"""Products of small matrices with the same bits on every processor.

Every entry of a product is the sum over k in its order, one fused product and sum at a time, so it
does not depend on which entries are computed side by side. Their number is a matter of speed: a
tile of rows and vectors fills the processor's registers.
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

_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_LONG = ir.IntType(64)


def has_wide_registers() -> bool:
    """Whether code is compiled for registers of sixteen numbers, with AVX-512."""
    config: Any = numba.config
    if config.CPU_NAME:
        return "avx512" in f"{config.CPU_NAME} {config.CPU_FEATURES}"
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


#: Numbers in a register, and tiles (rows, registers in a row) for wide and narrow products.
REGISTER, WIDE, NARROW = (16, (4, 4), (8, 1)) if has_wide_registers() else (8, (4, 3), (8, 1))
#: Numbers in a row of the widest tile on any processor.
WIDEST = 64


def _tile(rows: int, registers: int) -> Any:
    """Return a tile of a product for compiled code: C = start + A B for some rows of A and C.

    Its arguments are addresses and steps in bytes: A, from row to row, from column to column; B,
    from row to row; C, from row to row; the length of the sums; the address of the start, and from
    row to row there (0: one row for all).
    """
    vector = ir.VectorType(_FLOAT, REGISTER)
    width = NUMBER * REGISTER

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, a_row, a_column, b, b_row, c, c_row, length, start, start_row = values

        def load(address: Any, kind: Any) -> Any:
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=NUMBER)

        def addresses(first: Any, step: Any) -> list[list[Any]]:
            begins = [builder.add(first, builder.mul(step, _LONG(i))) for i in range(rows)]
            return [
                [builder.add(begin, _LONG(width * j)) for j in range(registers)] for begin in begins
            ]

        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{REGISTER}f32")
        begins = [[load(at, vector) for at in row] for row in addresses(start, start_row)]
        targets = addresses(c, c_row)
        before = builder.block
        loop, after = builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)

        builder.position_at_end(loop)
        k, at_a, at_b = (builder.phi(_LONG) for _ in range(3))
        sums = [[builder.phi(vector) for _ in row] for row in begins]
        right = [load(builder.add(at_b, _LONG(width * j)), vector) for j in range(registers)]
        undefined = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_INT, REGISTER), [0] * REGISTER)
        updated = []
        for i, row in enumerate(sums):
            number = load(builder.add(at_a, builder.mul(a_row, _LONG(i))), _FLOAT)
            single = builder.insert_element(undefined, number, _INT(0))
            left = builder.shuffle_vector(single, undefined, zeros)
            pairs = zip(right, row, strict=True)
            updated.append([builder.call(fma, [left, x, y]) for x, y in pairs])
        counters = ((k, _LONG(0), _LONG(1)), (at_a, a, a_column), (at_b, b, b_row))
        loop_values = [(phi, first, builder.add(phi, step)) for phi, first, step in counters]
        ends = loop_values[0][2]
        loop_values += zip(_flat(sums), _flat(begins), _flat(updated), strict=True)
        for phi, first, following in loop_values:
            phi.add_incoming(first, before)
            phi.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", ends, length), loop, after)

        builder.position_at_end(after)
        for target, result in zip(_flat(targets), _flat(updated), strict=True):
            pointer = builder.inttoptr(target, vector.as_pointer())
            builder.store(result, pointer, align=NUMBER)
        return context.get_dummy_value()

    def typed(
        context: Any, a: Any, a_row: Any, a_column: Any, b: Any, b_row: Any, c: Any, c_row: Any,
        length: Any, start: Any, start_row: Any,
    ) -> Any:  # fmt: skip
        return types.none(*[types.int64] * 10), generate

    return intrinsic(typed)


def _flat(rows: list[list[Any]]) -> list[Any]:
    return [value for row in rows for value in row]


def _band(rows: int, registers: int) -> Any:
    """Return a function for as many columns of a product as a tile has, and any number of rows."""
    tile, single = _tile(rows, registers), _tile(1, registers)

    @exact
    def band(
        a: int, a_row: int, a_column: int, b: int, b_row: int, c: int, c_row: int,
        count: int, length: int, start: int, start_row: int,
    ) -> None:  # fmt: skip
        m = 0
        while m + rows <= count:
            tile(a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row,
                 length, start + m * start_row, start_row)  # fmt: skip
            m += rows
        while m < count:
            single(a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row,
                   length, start + m * start_row, start_row)  # fmt: skip
            m += 1

    return band


_wide_band, _narrow_band = _band(*WIDE), _band(*NARROW)
_COLUMNS = WIDE[1] * REGISTER


@exact
def _multiply(
    a: int, a_row: int, a_column: int, b: int, b_row: int, c: int, c_row: int,
    rows: int, columns: int, length: int, start: int, start_row: int, start_step: int,
) -> None:  # fmt: skip
    """Compute C [rows, columns] = start + A B, by addresses and steps in bytes.

    ``start_step``: from number to number of a row; 0: every tile starts from the same numbers.
    """
    n = 0
    while n < columns:
        right, into, begin = b + 4 * n, c + 4 * n, start + start_step * n
        if n + _COLUMNS <= columns:
            _wide_band(a, a_row, a_column, right, b_row, into, c_row,
                       rows, length, begin, start_row)  # fmt: skip
            n += _COLUMNS
        else:
            _narrow_band(a, a_row, a_column, right, b_row, into, c_row,
                         rows, length, begin, start_row)  # fmt: skip
            n += REGISTER


@exact
def product(
    a: int, a_row: int, a_column: int, b: int, c: int, rows: int, columns: int, length: int,
    start: int, start_step: int,
) -> None:  # fmt: skip
    """Compute C [rows, columns] = start + A B, with B [length, columns] and C without gaps.

    Args:
        a: address of A.
        a_row: numbers from row to row of A.
        a_column: numbers from column to column of A.
        b: address of B.
        c: address of C.
        rows: of A and C.
        columns: of B and C, in whole vectors.
        length: of the sums.
        start: address of a row that all rows start from (``start_step`` 1), or of ``WIDEST`` zeros
            (0).
        start_step: 1 or 0.
    """
    _multiply(
        a, 4 * a_row, 4 * a_column, b, 4 * columns, c, 4 * columns, rows, columns, length,
        start, 0, 4 * start_step,
    )  # fmt: skip


@exact
def add_product(
    a: int, a_row: int, a_column: int, b: int, c: int, rows: int, columns: int, length: int
) -> None:
    """Compute C += A B; see ``product``.

    Args:
        a: address of A.
        a_row: numbers from row to row of A.
        a_column: numbers from column to column of A.
        b: address of B.
        c: address of C.
        rows: of A and C.
        columns: of B and C, in whole vectors.
        length: of the sums.
    """
    _multiply(
        a, 4 * a_row, 4 * a_column, b, 4 * columns, c, 4 * columns, rows, columns, length,
        c, 4 * columns, 4,
    )  # fmt: skip
