"""All code compiled by numba: loops over the columns start … stop of a table of tensors.

Of T tensors of R rows each, the numbers of row r lie at table[t, r] (an address; 0: all zeros), and
those of tensor t are the columns ends[t - 1] … ends[t]. A kernel goes through them in cache blocks
of `width` columns; `span` is (ends, start, stop, width, storage). Numbers of 32 and 64 bits are
read where they lie; those of 16 bits are converted to float32, once per cache block. `zero` [1]
gives the dtype in which a kernel computes; `zeros` is the address of `PIECE` zeros.

All kernels are in one file, because numba invalidates a kernel kept on disk by the file of the
kernel itself, not by those of the functions that it calls.
"""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic as _intrinsic

from fedsdg.compiling import compiled

FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)
"""How the numbers of a row are stored."""
STREAMS = 12
"""About as many rows as a processor prefetches by itself at the same time."""
PIECE = 128
"""Columns of `STREAMS` rows that fit the first cache."""
AHEAD = 2
"""How many cache blocks before they are read rows are prefetched."""
LINE = 64
"""Bytes of a cache line."""

intrinsic: Any = _intrinsic


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), code


@intrinsic
def _prefetch(typing: Any, address: Any) -> Any:
    """Prefetch the cache line at an address; harmless for any address."""

    def code(context, builder, signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # To read, into the second cache and below, data.
        options = [ir.Constant(number, option) for option in (0, 2, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], pointer), *options])
        return context.get_dummy_value()

    return types.none(types.int64), code


def _conversion(kind, build):
    """Return a function of one number, given its signature and its LLVM instructions."""

    @intrinsic
    def convert(typing, value):
        return kind, lambda context, builder, signature, values: build(builder, values[0])

    return convert


def _rounded_bits(builder, value):
    """The upper half of float32, rounded to nearest, ties to even; NaN stays NaN."""
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(bits, word(16)), word(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(nan, word(0x7FC0), rounded), ir.IntType(16))


_from_bfloat16 = _conversion(
    types.float32(types.uint16),
    lambda builder, bits: builder.bitcast(
        builder.shl(builder.zext(bits, ir.IntType(32)), ir.IntType(32)(16)), ir.FloatType()
    ),
)
_to_bfloat16 = _conversion(types.uint16(types.float32), _rounded_bits)
_from_float16 = _conversion(
    types.float32(types.uint16),
    lambda builder, bits: builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType()),
)
_to_float16 = _conversion(
    types.uint16(types.float32),
    lambda builder, value: builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16)),
)


@compiled
def _at(address, n, dtype):
    """The n numbers at an address."""
    return carray(_pointer(address), (n,), dtype)


@compiled
def _prefetch_lines(address, size):
    """Prefetch so many bytes at an address."""
    for line in range(0, size, LINE):
        _prefetch(address + line)


@compiled
def _itemsize(storage):
    return 8 if storage == FLOAT64 else 4 if storage == FLOAT32 else 2


@compiled
def _buffer(rows, width, storage, dtype):
    """Room for converted numbers of 16 bits; none for numbers that are read where they lie."""
    return np.empty((rows if storage >= BFLOAT16 else 0, width), dtype)


@compiled
def _copy(address, n, storage, out):
    """Copy the n numbers at an address to `out`, converted to its dtype."""
    if storage >= BFLOAT16:
        bits = _at(address, n, np.uint16)
        for j in range(n):
            out[j] = _from_bfloat16(bits[j]) if storage == BFLOAT16 else _from_float16(bits[j])
    else:
        numbers = _at(address, n, out.dtype)
        for j in range(n):
            out[j] = numbers[j]


@compiled
def _load(rows, skip, n, storage, zeros, buffer, places):
    """Set places[r] to the address of n numbers of row r in the dtype of the buffer.

    rows [R]: addresses of a tensor's rows, of which the first `skip` numbers are left out.
    """
    for r in range(len(rows)):
        places[r] = rows[r] + buffer.itemsize * skip if rows[r] else zeros
    for r in range(len(rows) if storage >= BFLOAT16 else 0):
        if rows[r]:
            _copy(rows[r] + 2 * skip, n, storage, buffer[r])
            places[r] = buffer.ctypes.data + buffer.itemsize * buffer.shape[1] * r


@compiled
def norms_and_dots(table, span, zeros, coefficients):
    """Return [2, M + 1] the squares of every row and its dots with z, then z's and the origin's.

    z = sum_k coefficients[k] x_k, x_k = row 1 + k minus row 0, the origin.
    """
    ends, start, stop, width, storage = span
    dtype, item = coefficients.dtype, _itemsize(storage)
    real = dtype.type
    size, first, half = len(coefficients), 0, item * width // 2
    totals, places = np.zeros((2, size + 1)), np.empty(size + 1, np.int64)
    buffer, reference = _buffer(size + 1, width, storage, dtype), np.empty(width, dtype)
    for t in range(len(ends)):
        last = min(stop, ends[t])
        for left in range(max(start, first), last, width):
            n = min(width, last - left)
            # Half now, half with the dots: requests beyond what memory can serve are dropped.
            ahead = item * (left - first + AHEAD * width)
            # Inlined from `_load`, whose call takes a tenth of the time of a few rows.
            for r in range(size + 1):
                places[r] = table[t, r] + item * (left - first) if table[t, r] else zeros
            if storage >= BFLOAT16:
                _load(table[t], left - first, n, storage, zeros, buffer, places)
            h, z = _at(places[0], n, dtype), reference[:n]
            z[:] = real(0)
            for k in range(0, size - size % 4, 4):
                for i in range(k + 1, k + 5):
                    _prefetch_lines(table[t, i] + ahead, half)
                a, b = _at(places[k + 1], n, dtype), _at(places[k + 2], n, dtype)
                c, e = _at(places[k + 3], n, dtype), _at(places[k + 4], n, dtype)
                p, q = coefficients[k], coefficients[k + 1]
                r, s = coefficients[k + 2], coefficients[k + 3]
                for j in range(n):
                    x = h[j]
                    z[j] += (p * (a[j] - x) + q * (b[j] - x)) + (r * (c[j] - x) + s * (e[j] - x))
            for k in range(size - size % 4, size):
                a, p = _at(places[k + 1], n, dtype), coefficients[k]
                for j in range(n):
                    z[j] += p * (a[j] - h[j])
            for k in range(size):
                _prefetch_lines(table[t, k + 1] + ahead + half, half)
                a, square, dot = _at(places[k + 1], n, dtype), real(0), real(0)
                for j in range(n):
                    x = a[j] - h[j]
                    square += x * x
                    dot += x * z[j]
                totals[0, k] += square
                totals[1, k] += dot
            square, origin = real(0), real(0)
            for j in range(n):
                square += z[j] * z[j]
                origin += h[j] * h[j]
            totals[0, size] += square
            totals[1, size] += origin
        first = ends[t]
    return totals


@compiled
def distances(table, span, zero):
    """Return [M + 4, M + 4] the squared distances of rows, given their table [T, M].

    Only if the row is before the column; elsewhere, and beyond M, it holds anything. In tiles of
    2 x 4 pairs, so that loaded numbers are used several times.
    """
    ends, start, stop, width, storage = span
    dtype, item, nothing = zero.dtype, _itemsize(storage), zero[0]
    size, first = table.shape[1], 0
    totals, places = np.zeros((size + 4, size + 4)), np.empty(size + 4, np.int64)
    buffer = _buffer(size, width, storage, dtype)
    for t in range(len(ends)):
        last = min(stop, ends[t])
        for left in range(max(start, first), last, width):
            n = min(width, last - left)
            _load(table[t], left - first, n, storage, 0, buffer, places)
            places[size:] = places[size - 1]
            for i in range(0, size, 2):
                x, y = _at(places[i], n, dtype), _at(places[i + 1], n, dtype)
                for k in range(i, min(i + 2, size)):
                    _prefetch_lines(table[t, k] + item * (left - first + width), item * width)
                for j in range(i + 1, size, 4):
                    a, b = _at(places[j], n, dtype), _at(places[j + 1], n, dtype)
                    c, e = _at(places[j + 2], n, dtype), _at(places[j + 3], n, dtype)
                    p0, p1, p2, p3 = nothing, nothing, nothing, nothing
                    q0, q1, q2, q3 = nothing, nothing, nothing, nothing
                    for s in range(n):
                        p0 += (x[s] - a[s]) * (x[s] - a[s])
                        p1 += (x[s] - b[s]) * (x[s] - b[s])
                        p2 += (x[s] - c[s]) * (x[s] - c[s])
                        p3 += (x[s] - e[s]) * (x[s] - e[s])
                        q0 += (y[s] - a[s]) * (y[s] - a[s])
                        q1 += (y[s] - b[s]) * (y[s] - b[s])
                        q2 += (y[s] - c[s]) * (y[s] - c[s])
                        q3 += (y[s] - e[s]) * (y[s] - e[s])
                    total = totals[i : i + 2, j : j + 4]
                    total[0, 0] += p0
                    total[0, 1] += p1
                    total[0, 2] += p2
                    total[0, 3] += p3
                    total[1, 0] += q0
                    total[1, 1] += q1
                    total[1, 2] += q2
                    total[1, 3] += q3
        first = ends[t]
    return totals


@compiled
def _store(total, address, n, storage, zero):
    """Write numbers in their storage; return 0, or NaN if one of them is not finite."""
    real, finite = zero.dtype.type, zero[0]
    if storage < BFLOAT16:
        out = _at(address, n, zero.dtype)
        for j in range(n):
            rounded = real(total[j])
            out[j] = rounded
            finite += rounded * zero[0]
        return float(finite)
    bits = _at(address, n, np.uint16)
    for j in range(n):
        x = np.float32(total[j])
        bits[j] = _to_bfloat16(x) if storage == BFLOAT16 else _to_float16(x)
        x = _from_bfloat16(bits[j]) if storage == BFLOAT16 else _from_float16(bits[j])
        finite += x * zero[0]
    return float(finite)


@compiled
def weighted_sum(table, outs, span, zeros, weights, zero):
    """Write sum_r weights[r] times row r, added in float64, to outs; return as `_store`.

    Rows are read STREAMS at a time, each over the whole width: many short reads would be slower.
    """
    ends, start, stop, width, storage = span
    dtype, item = zero.dtype, _itemsize(storage)
    size, first, finite = len(weights), 0, 0.0
    places, total = np.empty(STREAMS, np.int64), np.empty(width)
    buffer = _buffer(STREAMS, PIECE, storage, dtype)
    for t in range(len(ends)):
        last = min(stop, ends[t])
        for left in range(max(start, first), last, width):
            n = min(width, last - left)
            total[:n] = 0.0
            for k in range(0, size, STREAMS):
                rows, w = table[t, k : k + STREAMS], weights[k : k + STREAMS]
                for skip in range(0, n, PIECE):
                    m = min(PIECE, n - skip)
                    z = total[skip : skip + m]
                    _load(rows, left - first + skip, m, storage, zeros, buffer, places)
                    for i in range(0, len(w) - len(w) % 4, 4):
                        a, b = _at(places[i], m, dtype), _at(places[i + 1], m, dtype)
                        c, e = _at(places[i + 2], m, dtype), _at(places[i + 3], m, dtype)
                        p, q, r, s = w[i], w[i + 1], w[i + 2], w[i + 3]
                        for j in range(m):
                            z[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * e[j])
                    for i in range(len(w) - len(w) % 4, len(w)):
                        a, p = _at(places[i], m, dtype), w[i]
                        for j in range(m):
                            z[j] += p * a[j]
            finite += _store(total[:n], outs[t] + item * (left - first), n, storage, zero)
        first = ends[t]
    return finite


@compiled
def _zero_if_finite(numbers):
    """0, or NaN if one of the numbers is not finite."""
    zero = numbers.dtype.type(0)
    total = zero
    for j in range(len(numbers)):
        total += numbers[j] * zero
    return total


# Not relaxed: numbers that are scaled before they are added, so that they do not overflow, must
# stay so.
@partial(compiled, relaxed=False)
def trimmed_mean(table, outs, span, network, trim, zero):
    """Write the mean of ranks trim … M-1-trim of every column to outs; return as `_store`.

    NaN if a number of the column is not finite. network [n, 2]: comparators that bring these
    ranks into the middle rows. table [T, M].
    """
    ends, start, stop, width, storage = span
    nothing, item = zero[0], _itemsize(storage)
    size, first, finite = table.shape[1], 0, 0.0
    buffer, total = np.empty((size, width), zero.dtype), np.empty(width)
    share = 1.0 / (size - 2 * trim)
    for t in range(len(ends)):
        last = min(stop, ends[t])
        for left in range(max(start, first), last, width):
            n, skip = min(width, last - left), item * (left - first)
            z, fault = total[:n], nothing
            z[:] = 0.0
            for k in range(size):
                _copy(table[t, k] + skip, n, storage, buffer[k])
                fault += _zero_if_finite(buffer[k, :n])
            for k in range(size if fault != nothing else 0):
                x = buffer[k, :n]
                for j in range(n):
                    z[j] += x[j] * nothing
            for c in range(network.shape[0]):
                if c < size:
                    _prefetch_lines(table[t, c] + skip + item * width, item * width)
                x, y = buffer[network[c, 0], :n], buffer[network[c, 1], :n]
                for j in range(n):
                    p, q = x[j], y[j]
                    x[j] = p if p < q else q
                    y[j] = q if p < q else p
            for k in range(trim, size - trim):
                x = buffer[k, :n]
                for j in range(n):
                    z[j] += share * x[j]
            finite += _store(z, outs[t] + skip, n, storage, zero)
        first = ends[t]
    return finite
