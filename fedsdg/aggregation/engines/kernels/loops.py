"""All compiled code (numba): what is done with the columns start … stop of the rows.

In one file, because numba recognises that a kernel it has kept on disk is out of date by the file
the kernel stands in, not by the files of what it calls.

Rows come as `source`: (addresses [M], address of the origin or 0, storage, wide, address of zeros);
see `columns.Rows`. A kernel goes through them in cache blocks of `width` columns, in `real`, the
dtype of its buffer: float32 or float64. Numbers that lie in memory as `real` are used where they
lie; others, and differences from an origin, are formed once per block, in the buffer. So column j
of row k is at places[k] + step * j, where step is the size of a number, or in a block from column
`left` on at places[k] + the size of j - left numbers, where step is 0.
"""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types
from numba.extending import intrinsic as _intrinsic

from fedsdg.compiling import compiled

FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)
"""How the numbers of a row are stored."""

FEW_ROWS = 16
"""About as many streams as a processor prefetches side by side."""

LINE = 64
"""Bytes that come from memory together."""

intrinsic: Any = _intrinsic


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), code


@intrinsic
def _bring(typing: Any, address: Any) -> Any:
    """Have the line at an address brought into the cache; harmless for any address."""

    def code(context, builder, signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # To read, into the second cache and below, data.
        options = [ir.Constant(number, option) for option in (0, 2, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], pointer), *options])
        return context.get_dummy_value()

    return types.none(types.int64), code


@intrinsic
def _from_bfloat16(typing: Any, bits: Any) -> Any:
    """bfloat16 is the upper half of float32."""

    def code(context, builder, signature, arguments):
        wide = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic
def _to_bfloat16(typing: Any, value: Any) -> Any:
    """To nearest, ties to even; NaN stays NaN."""

    def code(context, builder, signature, arguments):
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
        nan = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        return builder.trunc(builder.select(nan, word(0x7FC0), rounded), ir.IntType(16))

    return types.uint16(types.float32), code


@intrinsic
def _from_float16(typing: Any, bits: Any) -> Any:
    def code(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic
def _to_float16(typing: Any, value: Any) -> Any:
    def code(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), code


@compiled
def _at(address, n, dtype):
    """The n numbers at an address."""
    return carray(_pointer(address), (n,), dtype)


@compiled
def _bring_next(source, k, right, n):
    """Have the columns right … right + n of row k brought into the cache, while others are used."""
    size = 8 if source[2] == FLOAT64 else 4 if source[2] == FLOAT32 else 2
    first = source[0][k] + size * right
    for line in range(0, size * n, LINE):
        _bring(first + line)


# Not relaxed: the difference of two rounded numbers must not be expanded into sums of products.
@partial(compiled, relaxed=False)
def _form(source, first, last, left, n, buffer, width):
    """From i * width of the buffer on: the columns left … left + n of row first + i, as `real`.

    Differences are formed in float32, or in float64 if `wide`. Without an origin, from zeros.
    """
    addresses, origin, storage, wide, zeros = source
    if storage == FLOAT64:
        o = _at(origin + 8 * left if origin else zeros, n, np.float64)
        for k in range(first, last):
            x = _at(addresses[k] + 8 * left, n, np.float64)
            y = buffer[(k - first) * width : (k - first) * width + n]
            for j in range(n):
                y[j] = x[j] - o[j]
    elif storage == FLOAT32:
        p = _at(origin + 4 * left if origin else zeros, n, np.float32)
        for k in range(first, last):
            u = _at(addresses[k] + 4 * left, n, np.float32)
            y = buffer[(k - first) * width : (k - first) * width + n]
            if wide:
                for j in range(n):
                    y[j] = np.float64(u[j]) - np.float64(p[j])
            else:
                for j in range(n):
                    y[j] = u[j] - p[j]
    elif storage == BFLOAT16:
        q = _at(origin + 2 * left if origin else zeros, n, np.uint16)
        for k in range(first, last):
            v = _at(addresses[k] + 2 * left, n, np.uint16)
            y = buffer[(k - first) * width : (k - first) * width + n]
            if wide:
                for j in range(n):
                    y[j] = np.float64(_from_bfloat16(v[j])) - np.float64(_from_bfloat16(q[j]))
            else:
                for j in range(n):
                    y[j] = _from_bfloat16(v[j]) - _from_bfloat16(q[j])
    else:
        q = _at(origin + 2 * left if origin else zeros, n, np.uint16)
        for k in range(first, last):
            v = _at(addresses[k] + 2 * left, n, np.uint16)
            y = buffer[(k - first) * width : (k - first) * width + n]
            if wide:
                for j in range(n):
                    y[j] = np.float64(_from_float16(v[j])) - np.float64(_from_float16(q[j]))
            else:
                for j in range(n):
                    y[j] = _from_float16(v[j]) - _from_float16(q[j])


@compiled
def _stored(total, n, left, base, out, storage):
    """out = base + total in the storage of both; returns 0, or NaN if a number is not finite.

    The base may be where out is: all of the block is read before any of it is written.
    """
    if storage == FLOAT64:
        if base:
            a = _at(base + 8 * left, n, np.float64)
            for j in range(n):
                total[j] += a[j]
        y = _at(out + 8 * left, n, np.float64)
        unseen = 0.0
        for j in range(n):
            y[j] = total[j]
            unseen += total[j] * 0.0
        return unseen
    finite = np.float32(0)
    if storage == FLOAT32:
        if base:
            b = _at(base + 4 * left, n, np.float32)
            for j in range(n):
                total[j] += b[j]
        z = _at(out + 4 * left, n, np.float32)
        for j in range(n):
            rounded = np.float32(total[j])
            z[j] = rounded
            finite += rounded * np.float32(0)
        return np.float64(finite)
    h = _at(out + 2 * left, n, np.uint16)
    if base:
        e = _at(base + 2 * left, n, np.uint16)
        for j in range(n):
            if storage == BFLOAT16:
                total[j] += _from_bfloat16(e[j])
            else:
                total[j] += _from_float16(e[j])
    for j in range(n):
        if storage == BFLOAT16:
            bits = _to_bfloat16(np.float32(total[j]))
            finite += _from_bfloat16(bits) * np.float32(0)
        else:
            bits = _to_float16(np.float32(total[j]))
            finite += _from_float16(bits) * np.float32(0)
        h[j] = bits
    return np.float64(finite)


@compiled
def moments(source, start, stop, width, buffer, places, step, coefficients, reference, totals):
    """Add to totals [2, M + 1] the squares and dots with z of every row, then those of z itself.

    z = sum_k coefficients[k] x_k. Rows that lie in memory as `real` are read less the origin.
    buffer [M * width] (or empty), places [M], reference [width].
    """
    dtype = reference.dtype
    real = dtype.type
    size = len(source[0])
    moved = source[1] != 0 and step != 0
    for left in range(start, stop, width):
        n = min(width, stop - left)
        right, following, o = left + n, min(width, stop - left - n), step * left
        z = reference[:n]
        z[:] = real(0)
        if step == 0:
            _form(source, 0, size, left, n, buffer, width)
        h = _at(source[1] + o if moved else source[4], n, dtype)
        for k in range(0, size - size % 4, 4):
            a, b = _at(places[k] + o, n, dtype), _at(places[k + 1] + o, n, dtype)
            c, e = _at(places[k + 2] + o, n, dtype), _at(places[k + 3] + o, n, dtype)
            p, q = coefficients[k], coefficients[k + 1]
            r, s = coefficients[k + 2], coefficients[k + 3]
            if moved:
                for j in range(n):
                    x = h[j]
                    z[j] += (p * (a[j] - x) + q * (b[j] - x)) + (r * (c[j] - x) + s * (e[j] - x))
            else:
                for j in range(n):
                    z[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * e[j])
        for k in range(size - size % 4, size):
            a = _at(places[k] + o, n, dtype)
            p = coefficients[k]
            for j in range(n):
                z[j] += p * (a[j] - h[j])
        for k in range(size):
            if size > FEW_ROWS:  # Few the processor follows by itself.
                _bring_next(source, k, right, following)
            a = _at(places[k] + o, n, dtype)
            square, dot = real(0), real(0)
            if moved:
                for j in range(n):
                    x = a[j] - h[j]
                    square += x * x
                    dot += x * z[j]
            else:
                for j in range(n):
                    square += a[j] * a[j]
                    dot += a[j] * z[j]
            totals[0, k] += square
            totals[1, k] += dot
        square = real(0)
        for j in range(n):
            square += z[j] * z[j]
        totals[0, size] += square


@compiled
def distances(source, start, stop, width, buffer, places, step, totals):
    """Add to totals [M + 4, M + 4] the squared distances of rows.

    Only where the row is before the column; elsewhere, and beyond M, totals hold anything. In tiles
    of 2 x 4 pairs, so that what is loaded is used again. buffer [M * width], places [M + 4].
    """
    dtype = buffer.dtype
    size, zero = len(source[0]), dtype.type(0)
    for left in range(start, stop, width):
        n = min(width, stop - left)
        right, following, o = left + n, min(width, stop - left - n), step * left
        if step == 0:
            _form(source, 0, size, left, n, buffer, width)
        for i in range(0, size, 2):
            x = _at(places[i] + o, n, dtype)
            y = _at(places[i + 1] + o, n, dtype)
            for k in range(i, min(i + 2, size) if size > FEW_ROWS else i):
                _bring_next(source, k, right, following)
            for j in range(i + 1, size, 4):
                a, b = _at(places[j] + o, n, dtype), _at(places[j + 1] + o, n, dtype)
                c, e = _at(places[j + 2] + o, n, dtype), _at(places[j + 3] + o, n, dtype)
                p0, p1, p2, p3 = zero, zero, zero, zero
                q0, q1, q2, q3 = zero, zero, zero, zero
                for t in range(n):
                    p0 += (x[t] - a[t]) * (x[t] - a[t])
                    p1 += (x[t] - b[t]) * (x[t] - b[t])
                    p2 += (x[t] - c[t]) * (x[t] - c[t])
                    p3 += (x[t] - e[t]) * (x[t] - e[t])
                    q0 += (y[t] - a[t]) * (y[t] - a[t])
                    q1 += (y[t] - b[t]) * (y[t] - b[t])
                    q2 += (y[t] - c[t]) * (y[t] - c[t])
                    q3 += (y[t] - e[t]) * (y[t] - e[t])
                total = totals[i : i + 2, j : j + 4]
                total[0, 0] += p0
                total[0, 1] += p1
                total[0, 2] += p2
                total[0, 3] += p3
                total[1, 0] += q0
                total[1, 1] += q1
                total[1, 2] += q2
                total[1, 3] += q3


@compiled
def nonzeros(source, start, stop, width, buffer):
    """How many blocks of the first row hold a number other than 0. buffer [width] real."""
    zero, found = buffer.dtype.type(0), 0
    for left in range(start, stop, width):
        n = min(width, stop - left)
        _form(source, 0, 1, left, n, buffer, width)
        largest = zero
        for j in range(n):
            largest = max(largest, abs(buffer[j]))
        found += largest != zero
    return found


@compiled
def weighted_sum(
    source, start, stop, width, buffer, places, step, weights, total, base, out, storage
):
    """out = base + sum_k weights[k] x_k, eight or four rows at a time; returns as `_stored`.

    Differences from an origin are formed in float64: it is the last row of source, which has no
    other, behind those that have weights. buffer: row k is at (k % 8) * width, the origin at
    8 * width, or it is empty. total [width] float64.
    """
    dtype = buffer.dtype
    size, rows, finite = len(weights), len(source[0]), 0.0
    for left in range(start, stop, width):
        n = min(width, stop - left)
        o = step * left
        z = total[:n]
        z[:] = 0.0
        if rows > size and step == 0:
            _form(source, size, rows, left, n, buffer[8 * width :], width)
        h = _at(places[size] + o if rows > size else source[4], n, dtype)
        eights = size - size % 8 if rows == size else 0
        for k in range(0, eights, 8):
            if step == 0:
                _form(source, k, k + 8, left, n, buffer, width)
            a, b = _at(places[k] + o, n, dtype), _at(places[k + 1] + o, n, dtype)
            c, e = _at(places[k + 2] + o, n, dtype), _at(places[k + 3] + o, n, dtype)
            f, g = _at(places[k + 4] + o, n, dtype), _at(places[k + 5] + o, n, dtype)
            u, v = _at(places[k + 6] + o, n, dtype), _at(places[k + 7] + o, n, dtype)
            w = weights[k : k + 8]
            for j in range(n):
                z[j] += ((w[0] * a[j] + w[1] * b[j]) + (w[2] * c[j] + w[3] * e[j])) + (
                    (w[4] * f[j] + w[5] * g[j]) + (w[6] * u[j] + w[7] * v[j])
                )
        for k in range(eights, size, 4):
            last = min(k + 4, size)
            if step == 0:
                _form(source, k, last, left, n, buffer[k % 8 * width :], width)
            if last < k + 4:
                for i in range(k, last):
                    a = _at(places[i] + o, n, dtype)
                    p = weights[i]
                    for j in range(n):
                        z[j] += p * (np.float64(a[j]) - np.float64(h[j]))
                continue
            a, b = _at(places[k] + o, n, dtype), _at(places[k + 1] + o, n, dtype)
            c, e = _at(places[k + 2] + o, n, dtype), _at(places[k + 3] + o, n, dtype)
            p, q, r, s = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
            if rows > size:
                for j in range(n):
                    x = np.float64(h[j])
                    z[j] += (p * (a[j] - x) + q * (b[j] - x)) + (r * (c[j] - x) + s * (e[j] - x))
            else:
                for j in range(n):
                    z[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * e[j])
        finite += _stored(z, n, left, base, out, storage)
    return finite


@compiled
def _zero_if_finite(numbers):
    zero = numbers.dtype.type(0)
    total = zero
    for j in range(len(numbers)):
        total += numbers[j] * zero
    return total


# Not relaxed: numbers that are halved before they are added, lest they overflow, must stay so.
@partial(compiled, relaxed=False)
def trimmed_mean(source, start, stop, width, buffer, network, trim, total, base, out, storage):
    """out = base + the mean of ranks trim … M-1-trim of every column; returns as `_stored`.

    NaN where a number of the column is not finite. network [n, 2]: comparators that bring these
    ranks into the middle rows. buffer [M * width] finite, total [width] float64.
    """
    zero = buffer.dtype.type(0)
    size, finite = len(source[0]), 0.0
    count = size - 2 * trim
    scale = 1.0
    while scale * count > 1:
        scale *= 0.5
    for left in range(start, stop, width):
        n = min(width, stop - left)
        right, following = left + n, min(width, stop - left - n)
        z = total[:n]
        z[:] = 0.0
        _form(source, 0, size, left, n, buffer, width)
        if _zero_if_finite(buffer) != zero:
            for k in range(size):
                x = buffer[k * width : k * width + n]
                for t in range(n):
                    z[t] += x[t] * zero
        for c in range(network.shape[0]):
            if c < size:
                _bring_next(source, c, right, following)
            x = buffer[network[c, 0] * width : network[c, 0] * width + n]
            y = buffer[network[c, 1] * width : network[c, 1] * width + n]
            for t in range(n):
                p, q = x[t], y[t]
                x[t] = p if p < q else q
                y[t] = q if p < q else p
        for k in range(trim, size - trim):
            x = buffer[k * width : k * width + n]
            for t in range(n):
                z[t] += scale * np.float64(x[t])
        if scale * count != 1:
            for t in range(n):
                z[t] /= scale * count
        finite += _stored(z, n, left, base, out, storage)
    return finite
