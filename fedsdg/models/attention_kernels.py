"""Compiled attention (numba) of few tokens in float32 on the CPU, image by image, head by head.

Products of 5 x 16 numbers are too small for a library: its calls, and the copies that bring heads
together, cost several times their arithmetic. Here queries, keys and values are read where they
lie in the packed tensor; a head's row is one vector, as wide as the head. All is done per image in
one thread, so that an image's result depends on nothing but the image.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedsdg.compiling import compiled

_intrinsic: Any = intrinsic
_of_known_width = _intrinsic(prefer_literal=True)
_FLOAT, _WORD = ir.FloatType(), ir.IntType(32)
_SIZE = 4  # bytes of a number
_SUMS = ("reassoc", "contract", "nsz")


def _vector(builder: Any, address: Any, width: int) -> Any:
    """A pointer to `width` numbers at an address."""
    return builder.inttoptr(address, ir.VectorType(_FLOAT, width).as_pointer())


def _spread(builder: Any, value: Any, width: int) -> Any:
    """A vector of `width` times the same number."""
    kind, word = ir.VectorType(_FLOAT, width), ir.Constant(_WORD, 0)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, word)
    places = ir.Constant(ir.VectorType(_WORD, width), [0] * width)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), places)


@_of_known_width
def _dot(typing: Any, a: Any, b: Any, width: Any) -> Any:
    """Σ_d a_d b_d of `width` numbers at two addresses."""
    size = width.literal_value

    def code(context, builder, signature, arguments):
        left, right = (
            builder.load(_vector(builder, place, size), align=_SIZE) for place in arguments[:2]
        )
        product = builder.fmul(left, right, flags=_SUMS)
        kind = ir.FunctionType(_FLOAT, [_FLOAT, product.type])
        name = f"llvm.vector.reduce.fadd.v{size}f32"
        add = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(add, [ir.Constant(_FLOAT, 0.0), product], fastmath=_SUMS)

    return types.float32(types.int64, types.int64, width), code


@_of_known_width
def _mix(typing: Any, out: Any, shares: Any, step: Any, x: Any, apart: Any, n: Any, w: Any) -> Any:
    """out = Σ_j s_j x_j of n vectors of `w` numbers, x_j being `apart` bytes apart, s_j `step`."""
    size = w.literal_value

    def code(context, builder, signature, arguments):
        out, shares, step, x, apart, n, _ = arguments
        before = builder.block
        loop, after = builder.append_basic_block("mix"), builder.append_basic_block("mixed")
        builder.branch(loop)
        builder.position_at_end(loop)
        kind = ir.VectorType(_FLOAT, size)
        j, total = builder.phi(n.type), builder.phi(kind)
        places = builder.phi(n.type), builder.phi(n.type)
        share = builder.load(builder.inttoptr(places[0], _FLOAT.as_pointer()), align=_SIZE)
        values = builder.load(_vector(builder, places[1], size), align=_SIZE)
        product = builder.fmul(_spread(builder, share, size), values, flags=_SUMS)
        found = builder.fadd(total, product, flags=_SUMS)
        following = builder.add(j, n.type(1))
        for phi, start, then in (
            (j, n.type(0), following),
            (total, ir.Constant(kind, [0.0] * size), found),
            (places[0], shares, builder.add(places[0], step)),
            (places[1], x, builder.add(places[1], apart)),
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, after)
        builder.position_at_end(after)
        builder.store(found, _vector(builder, out, size), align=_SIZE)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 6, w), code


@_intrinsic
def _exp(typing: Any, value: Any) -> Any:
    """e^x for x <= 0 to about one unit in the last place; 0 below the range of normal numbers.

    x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by the polynomial of Cephes' `expf` (S. Moshier).
    Unlike the C library's, a loop over it fills vectors.
    """

    def code(context, builder, signature, arguments):
        x = arguments[0]

        def number(value: float) -> Any:
            return ir.Constant(_FLOAT, float(np.float32(value)))

        def times_plus(a: Any, b: Any, c: Any) -> Any:
            return builder.fma(a, b, c)

        shift = number(1.5 * 2**23)  # added, it leaves n in the lowest bits
        shifted = times_plus(x, number(1.44269504088896341), shift)
        n = builder.fsub(shifted, shift)
        r = times_plus(n, number(-0.693359375), x)
        r = times_plus(n, number(2.12194440e-4), r)
        power = number(1.9875691500e-4)
        for coefficient in (
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ):
            power = times_plus(power, r, number(coefficient))
        power = builder.fadd(times_plus(power, builder.fmul(r, r), r), number(1.0))
        exponent = builder.shl(builder.bitcast(shifted, _WORD), _WORD(23))
        scale = builder.bitcast(builder.add(exponent, _WORD(0x3F800000)), _FLOAT)
        tiny = builder.fcmp_ordered("<", x, number(-87.0))
        return builder.select(tiny, number(0.0), builder.fmul(power, scale))

    return types.float32(types.float32), code


class Kernels(NamedTuple):
    """For heads of one width. Tensors come as addresses, `probabilities` and `slopes` as arrays.

    B images, Q queries, N tokens, H heads; places of keys and values in a token of `packed`, and
    bytes from one token to the next of each tensor, are told by `own`: whether queries have a
    tensor of their own.

    forward(packed, query, out, probabilities, address of them, B, Q, N, H, scale, own, keep):
    `probabilities` [B, H, Q, N], or of one image where they are not to `keep`.

    backward(packed, query, slope, to_packed, to_query, probabilities, address of them, slopes
    [Q, N] as scratch, address of it, B, Q, N, H, scale, own).
    """

    forward: Callable[..., None]
    backward: Callable[..., None]


@functools.cache
def kernels(width: int) -> Kernels:
    """Compiled at their first call in any process, then kept on disk (see `compiling`)."""

    def forward(packed, query, out, p, p_at, images, queries, tokens, heads, scale, own, keep):
        row = _SIZE * width
        line = row * heads
        apart = 2 * line if own else 3 * line
        query_apart = line if own else apart
        keys = packed if own else packed + line
        count = heads * queries * tokens
        for image in range(images):
            first = image * count if keep else 0
            place = first
            for head in range(heads):
                for i in range(queries):
                    q = query + (image * queries + i) * query_apart + head * row
                    k = keys + image * tokens * apart + head * row
                    top = np.float32(-np.inf)
                    for j in range(tokens):
                        score = scale * _dot(q, k + j * apart, width)
                        top = max(top, score)
                        p[place + j] = score
                    for j in range(tokens):
                        p[place + j] -= top
                    place += tokens
            for place in range(first, first + count):
                p[place] = _exp(p[place])
            place = first
            for head in range(heads):
                v = keys + line + image * tokens * apart + head * row
                for i in range(queries):
                    total = np.float32(0)
                    for j in range(tokens):
                        total += p[place + j]
                    share = np.float32(1) / total
                    for j in range(tokens):
                        p[place + j] *= share
                    target = out + (image * queries + i) * line + head * row
                    _mix(target, p_at + _SIZE * place, _SIZE, v, apart, tokens, width)
                    place += tokens

    def backward(
        packed,
        query,
        slope,
        to_packed,
        to_query,
        p,
        p_at,
        slopes,
        slopes_at,
        images,
        queries,
        tokens,
        heads,
        scale,
        own,
    ):
        row = _SIZE * width
        line = row * heads
        apart = 2 * line if own else 3 * line
        query_apart = line if own else apart
        keys = 0 if own else line
        place = 0
        for image in range(images):
            for head in range(heads):
                k = keys + image * tokens * apart + head * row
                v = k + line
                q = image * queries * query_apart + head * row
                out = slope + image * queries * line + head * row
                for i in range(queries):
                    mean = np.float32(0)
                    for j in range(tokens):
                        found = _dot(out + i * line, packed + v + j * apart, width)
                        slopes[i * tokens + j] = found
                        mean += p[place + i * tokens + j] * found
                    for j in range(tokens):
                        at = i * tokens + j
                        slopes[at] = scale * p[place + at] * (slopes[at] - mean)
                    start = slopes_at + _SIZE * i * tokens
                    target = to_query + q + i * query_apart
                    _mix(target, start, _SIZE, packed + k, apart, tokens, width)
                step = _SIZE * tokens
                for j in range(tokens):
                    start = slopes_at + _SIZE * j
                    target = to_packed + k + j * apart
                    _mix(target, start, step, query + q, query_apart, queries, width)
                    start = p_at + _SIZE * (place + j)
                    _mix(to_packed + v + j * apart, start, step, out, line, queries, width)
                place += queries * tokens

    return Kernels(compiled(forward), compiled(backward))
