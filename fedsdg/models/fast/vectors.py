"""Sixteen float32 numbers at a time in compiled code, with the same bits on every processor.

Expressions of these operations are rounded as they are written: a product and a sum are fused where
``fused`` stands and nowhere else, and a sum over the sixteen numbers has one order. LLVM cuts a
vector into as many registers as the processor needs, which changes no bit. Addresses are integers,
in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as typed_intrinsic
from numba.extending import models, register_model

#: Its results take other arguments in compiled code than their definitions say.
intrinsic: Any = typed_intrinsic

#: Numbers in a vector.
LANES = 16
#: Bytes of a number, and of a vector.
NUMBER = 4
STEP = NUMBER * LANES

_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT, LANES)


class Vector(types.Type):
    """The type of a vector in compiled code."""

    def __init__(self) -> None:
        super().__init__(name="Vector16")


VECTOR = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def exact(function: Callable[..., Any]) -> Any:
    """Compile to the letter: nothing is reordered, nor fused unless written so.

    The machine code is kept with that of the function that is called from outside.
    """
    return numba.njit(nogil=True, error_model="numpy", fastmath=False)(function)


def filled(size: int) -> int:
    """Return the least multiple of LANES that is not below a size."""
    return -(-size // LANES) * LANES


# --- Operations on vectors ------------------------------------------------------------------------


def _call(builder: Any, name: str, *values: Any) -> Any:
    """Emit a call of LLVM's function of this name for vectors."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, values)


def _operation(arity: int, build: Callable[..., Any]) -> Any:
    """Return a function of vectors for compiled code; ``build(builder, *values)`` emits it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    def typed(*kinds: Any) -> Any:
        if all(isinstance(kind, Vector) for kind in kinds):
            return VECTOR(*kinds), generate
        return None

    if arity == 1:
        return intrinsic(lambda context, x: typed(x))
    if arity == 2:
        return intrinsic(lambda context, x, y: typed(x, y))
    return intrinsic(lambda context, x, y, z: typed(x, y, z))


add = _operation(2, lambda builder, x, y: builder.fadd(x, y))
subtract = _operation(2, lambda builder, x, y: builder.fsub(x, y))
multiply = _operation(2, lambda builder, x, y: builder.fmul(x, y))
divide = _operation(2, lambda builder, x, y: builder.fdiv(x, y))
#: x · y + z, rounded once.
fused = _operation(3, lambda builder, x, y, z: _call(builder, "fma", x, y, z))
square_root = _operation(1, lambda builder, x: _call(builder, "sqrt", x))
absolute = _operation(1, lambda builder, x: _call(builder, "fabs", x))
#: To the nearest whole number; halves to the even one.
nearest = _operation(1, lambda builder, x: _call(builder, "rint", x))


def _maximum(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


#: The larger one; the second where one is not a number.
maximum = _operation(2, _maximum)


def _unless_negative(builder: Any, x: Any, y: Any, z: Any) -> Any:
    zeros = ir.Constant(_FLOATS, [0.0] * LANES)
    return builder.select(builder.fcmp_ordered(">=", x, zeros), y, z)


#: y where x ≥ 0, else z.
unless_negative = _operation(3, _unless_negative)


def _power_of_two(builder: Any, x: Any) -> Any:
    exponent = builder.add(builder.fptosi(x, _INTS), ir.Constant(_INTS, [127] * LANES))
    return builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _FLOATS)


#: 2^x for whole x in -126 … 127.
power_of_two = _operation(1, _power_of_two)


# --- Between vectors, numbers and memory ----------------------------------------------------------


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _FLOATS.as_pointer())


@intrinsic
def fused_number(context: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x · y + z of single numbers, rounded once.

    Args:
        context: of numba's typing, as in the following ones.
        x: float32.
        y: float32.
        z: float32.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")
        return builder.call(function, values)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def load(context: Any, address: Any) -> Any:
    """Return sixteen numbers.

    Args:
        context: of numba's typing.
        address: of the first one.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_at(builder, values[0]), align=NUMBER)

    return VECTOR(types.int64), generate


@intrinsic
def store(context: Any, address: Any, vector: Any) -> Any:
    """Write sixteen numbers.

    Args:
        context: of numba's typing.
        address: of the first one.
        vector: the numbers.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[1], _at(builder, values[0]), align=NUMBER)
        return context.get_dummy_value()

    return types.none(types.int64, VECTOR), generate


@intrinsic
def transpose_square(context: Any, source: Any, step: Any, target: Any, target_step: Any) -> Any:
    """Write sixteen vectors transposed: number j of vector i becomes number i of vector j.

    Args:
        context: of numba's typing.
        source: address of the first vector.
        step: bytes from vector to vector there.
        target: address to which the first vector is written.
        target_step: bytes from vector to vector there.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, step, target, target_step = values

        def pointers(first: Any, step: Any) -> list[Any]:
            starts = (builder.add(first, builder.mul(step, _LONG(i))) for i in range(LANES))
            return [_at(builder, start) for start in starts]

        rows = [builder.load(pointer, align=NUMBER) for pointer in pointers(source, step)]
        width = LANES // 2
        while width:
            # Exchange the squares of this width beside the diagonal.
            for i in range(LANES):
                if i & width:
                    continue
                pair = rows[i], rows[i + width]
                for row, begin in ((i, 0), (i + width, width)):
                    order = [
                        begin + j if not j & width else begin + LANES + j - width
                        for j in range(LANES)
                    ]
                    rows[row] = builder.shuffle_vector(*pair, ir.Constant(_INTS, order))
            width //= 2
        for row, pointer in zip(rows, pointers(target, target_step), strict=True):
            builder.store(row, pointer, align=NUMBER)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def splat(context: Any, number: Any) -> Any:
    """Return a vector of one number sixteen times.

    Args:
        context: of numba's typing.
        number: float32.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        single = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), values[0], _INT(0))
        zeros = ir.Constant(_INTS, [0] * LANES)
        return builder.shuffle_vector(single, ir.Constant(_FLOATS, ir.Undefined), zeros)

    return VECTOR(types.float32), generate


@intrinsic
def total(context: Any, vector: Any) -> Any:
    """Return the sum: x_i + x_{i+8} first, then the halves of that, and so on.

    Args:
        context: of numba's typing.
        vector: x.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (left,) = values
        width = LANES
        while width > 1:
            width //= 2
            order = [*range(width, 2 * width), *range(LANES - width)]
            undefined = ir.Constant(_FLOATS, ir.Undefined)
            moved = builder.shuffle_vector(left, undefined, ir.Constant(_INTS, order))
            left = builder.fadd(left, moved)
        return builder.extract_element(left, _INT(0))

    return types.float32(VECTOR), generate


@exact
def address(array: Any) -> Any:
    """Return the address of an array's first number."""
    return np.int64(array.ctypes.data)
