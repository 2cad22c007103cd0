"""The operations of a transformer between its products, forward and backward, on rows of numbers.

Rows lie one behind the other from an address on; widths are multiples of sixteen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedsdg.models.fast.vectors import (
    LANES,
    STEP,
    absolute,
    add,
    address,
    divide,
    exact,
    fused,
    load,
    maximum,
    multiply,
    nearest,
    power_of_two,
    splat,
    square_root,
    store,
    subtract,
    total,
    transpose_square,
    unless_negative,
)

_f = np.float32

#: Coefficients of Cephes' `expf` (S. Moshier), the highest power first.
_EXPONENTIAL = (
    _f(1.9875691500e-4), _f(1.3981999507e-3), _f(8.3334519073e-3),
    _f(4.1665795894e-2), _f(1.6666665459e-1), _f(5.0000001201e-1),
)  # fmt: skip
#: The coefficients of P in `gelu`, the highest power first, fitted to erfc(z) e^(z²) / t at 400
#: Chebyshev nodes of t.
_GELU = (
    _f(0.06795177608728409), _f(-0.245327889919281), _f(0.21855215728282928),
    _f(0.030387382954359055), _f(0.1944056749343872), _f(0.22618433833122253),
    _f(0.25395986437797546), _f(0.25388696789741516),
)  # fmt: skip


@exact
def _polynomial(coefficients: Any, x: Any) -> Any:
    """Return Σ c_k x^(n − k) by Horner's rule, each step rounded once."""
    p = splat(_f(0.0))
    for c in coefficients:
        p = fused(p, x, splat(c))
    return p


@exact
def exponential(x: Any) -> Any:
    """Return e^x for x ≤ 0, within 1.5 units in the last place; below -87 the value at -87."""
    x = maximum(x, splat(_f(-87.0)))
    n = nearest(multiply(x, splat(_f(1.44269504))))
    r = fused(n, splat(_f(-0.693359375)), x)
    r = fused(n, splat(_f(2.12194440e-4)), r)
    p = _polynomial(_EXPONENTIAL, r)
    p = add(fused(p, multiply(r, r), r), splat(_f(1.0)))
    return multiply(p, power_of_two(n))


@exact
def gelu(numbers: int, x: int, y: int, slope: int, with_slope: bool) -> None:
    """Compute y = x Φ(x) and its slope Φ(x) + x φ(x), Φ and φ of the normal distribution.

    1 - erf(z) = t P(t) e^(-z²) with t = 1 / (1 + 0.45 z).

    Args:
        numbers: how many, in whole vectors.
        x: address of x.
        y: address of y.
        slope: address of the slopes.
        with_slope: whether slopes are needed.
    """
    for at in range(0, 4 * numbers, STEP):
        v = load(x + at)
        z = multiply(absolute(v), splat(_f(0.70710678)))
        bell = exponential(multiply(multiply(z, splat(_f(-1.0))), z))
        t = divide(splat(_f(1.0)), fused(z, splat(_f(0.45)), splat(_f(1.0))))
        p = _polynomial(_GELU, t)
        half = multiply(multiply(multiply(p, t), bell), splat(_f(0.5)))
        share = unless_negative(v, subtract(splat(_f(1.0)), half), half)
        store(y + at, multiply(v, share))
        if with_slope:
            store(slope + at, fused(multiply(v, bell), splat(_f(0.39894228)), share))


@exact
def normalise(rows: int, x: int, norm: Any, epsilon: Any, hat: int, root: int, y: int) -> None:
    """Compute y = h ∘ weight + bias with h = (x - mean) · r and r = 1 / √(variance + ε).

    Args:
        rows: number of rows.
        x: address of x [rows, width].
        norm: array [2, width], weight and bias.
        epsilon: ε.
        hat: address at which h [rows, width] is kept.
        root: address at which r [rows, 16] is kept.
        y: address of y [rows, width].
    """
    width = norm.shape[1]
    size = 4 * width
    weight = address(norm)
    bias = weight + size
    for i in range(rows):
        start = i * size
        sums = load(x + start)
        for at in range(STEP, size, STEP):
            sums = add(sums, load(x + start + at))
        mean = splat(total(sums) / _f(width))
        v = subtract(load(x + start), mean)
        squares = multiply(v, v)
        for at in range(STEP, size, STEP):
            v = subtract(load(x + start + at), mean)
            squares = fused(v, v, squares)
        variance = splat(total(squares) / _f(width) + epsilon)
        r = divide(splat(_f(1.0)), square_root(variance))
        store(root + STEP * i, r)
        for at in range(0, size, STEP):
            h = multiply(subtract(load(x + start + at), mean), r)
            store(hat + start + at, h)
            store(y + start + at, fused(h, load(weight + at), load(bias + at)))


@exact
def normalise_back(rows: int, g: int, hat: int, root: int, norm: Any, dx: int, added: bool) -> None:
    """Compute dx (+)= r (u - mean(u) - h · mean(u ∘ h)) with u = g ∘ weight; see ``normalise``.

    Args:
        rows: number of rows.
        g: address of the gradient by y.
        hat: address of h.
        root: address of r.
        norm: array [2, width], weight and bias.
        dx: address of the gradient by x.
        added: whether it is added to.
    """
    width = norm.shape[1]
    size = 4 * width
    weight = address(norm)
    for i in range(rows):
        start = i * size
        u = multiply(load(g + start), load(weight))
        first, second = u, multiply(u, load(hat + start))
        for at in range(STEP, size, STEP):
            u = multiply(load(g + start + at), load(weight + at))
            first = add(first, u)
            second = fused(u, load(hat + start + at), second)
        a, b = splat(total(first) / _f(width)), splat(total(second) / _f(width))
        r = load(root + STEP * i)
        for at in range(0, size, STEP):
            u = multiply(load(g + start + at), load(weight + at))
            d = multiply(subtract(subtract(u, a), multiply(load(hat + start + at), b)), r)
            if added:
                d = add(load(dx + start + at), d)
            store(dx + start + at, d)


@exact
def _lanes_of_images(tokens: int, width: int, x: int, row: int, lanes: int) -> None:
    """Transpose ``width`` numbers of every token of sixteen images to [tokens, width, 16]."""
    for i in range(tokens):
        for at in range(0, 4 * width, STEP):
            to = lanes + LANES * (4 * i * width + at)
            transpose_square(x + i * row + at, tokens * row, to, STEP)


@exact
def _images_of_lanes(tokens: int, images: int, width: int, lanes: int, x: int, row: int) -> None:
    """Invert ``_lanes_of_images``, for the first tokens of images with ``images`` tokens each."""
    for i in range(tokens):
        for at in range(0, 4 * width, STEP):
            start = lanes + LANES * (4 * i * width + at)
            transpose_square(start, STEP, x + i * row + at, images * row)


@exact
def attend(
    asking: int, tokens: int, heads: int, width: int, scale: Any, qkv: int, lanes: int,
    shares: int, mixed: int, spare: int,
) -> None:  # fmt: skip
    """softmax(scale · q kᵀ) v for the first ``asking`` tokens of sixteen images, head by head.

    Sixteen images are the lanes of a vector, so that no sum goes across one.

    Args:
        asking: tokens whose output is needed.
        tokens: of an image.
        heads: number of heads.
        width: of a head.
        scale: factor of the scores.
        qkv: address of queries, keys and values [16, tokens, 3 · heads · width].
        lanes: address at which they are kept as [heads, 3, tokens, width, 16].
        shares: address at which the softmax is kept, [heads, asking, tokens, 16].
        mixed: address of the output [16, tokens, heads · width].
        spare: address of room for tokens · width vectors.
    """
    out = 4 * heads * width
    part, one = tokens * width * STEP, width * STEP
    for h in range(heads):
        q = lanes + 3 * h * part
        k, v = q + part, q + 2 * part
        for kind in range(3):
            start = qkv + kind * out + 4 * h * width
            _lanes_of_images(tokens, width, start, 3 * out, q + kind * part)
        for i in range(asking):
            share = shares + STEP * (h * asking + i) * tokens
            largest = splat(_f(-np.inf))
            for j in range(tokens):
                s = splat(_f(0.0))
                for at in range(0, one, STEP):
                    s = fused(load(q + i * one + at), load(k + j * one + at), s)
                s = multiply(s, splat(scale))
                store(share + STEP * j, s)
                largest = maximum(s, largest)
            sums = splat(_f(0.0))
            for j in range(tokens):
                e = exponential(subtract(load(share + STEP * j), largest))
                store(share + STEP * j, e)
                sums = add(sums, e)
            whole = divide(splat(_f(1.0)), sums)
            for j in range(tokens):
                store(share + STEP * j, multiply(load(share + STEP * j), whole))
            for at in range(0, one, STEP):
                s = multiply(load(share), load(v + at))
                for j in range(1, tokens):
                    s = fused(load(share + STEP * j), load(v + j * one + at), s)
                store(spare + i * one + at, s)
        _images_of_lanes(asking, tokens, width, spare, mixed + 4 * h * width, out)


@exact
def attend_back(
    asking: int, tokens: int, heads: int, width: int, scale: Any, lanes: int, shares: int,
    g: int, dqkv: int, spare: int,
) -> None:  # fmt: skip
    """Compute the gradient by q, k and v; see ``attend``.

    Args:
        asking: as there.
        tokens: as there.
        heads: as there.
        width: as there.
        scale: as there.
        lanes: as there.
        shares: as there.
        g: address of the gradient by the output.
        dqkv: address of the gradient by queries, keys and values.
        spare: address of room for 5 · tokens · width vectors.
    """
    out = 4 * heads * width
    part, one = tokens * width * STEP, width * STEP
    o, dq, dk, dv = spare, spare + part, spare + 2 * part, spare + 3 * part
    slopes = spare + 4 * part
    for h in range(heads):
        q = lanes + 3 * h * part
        k, v = q + part, q + 2 * part
        for i in range(asking):
            for at in range(0, 4 * width, STEP):
                start = g + i * out + 4 * h * width + at
                transpose_square(start, tokens * out, o + LANES * (4 * i * width + at), STEP)
        for at in range(0, 3 * part, STEP):
            store(dq + at, splat(_f(0.0)))
        for i in range(asking):
            share = shares + STEP * (h * asking + i) * tokens
            mean = splat(_f(0.0))
            for j in range(tokens):
                s = splat(_f(0.0))
                for at in range(0, one, STEP):
                    s = fused(load(o + i * one + at), load(v + j * one + at), s)
                store(slopes + STEP * j, s)
                mean = fused(s, load(share + STEP * j), mean)
            for j in range(tokens):
                p = load(share + STEP * j)
                down = multiply(p, subtract(load(slopes + STEP * j), mean))
                down = multiply(down, splat(scale))
                for at in range(0, one, STEP):
                    to = i * one + at
                    store(dq + to, fused(down, load(k + j * one + at), load(dq + to)))
                    to = j * one + at
                    store(dk + to, fused(down, load(q + i * one + at), load(dk + to)))
                    store(dv + to, fused(p, load(o + i * one + at), load(dv + to)))
        for kind in range(3):
            target = dqkv + kind * out + 4 * h * width
            _images_of_lanes(tokens, tokens, width, dq + kind * part, target, 3 * out)


@exact
def add_rows(numbers: int, x: int, y: int) -> None:
    """Compute x += y.

    Args:
        numbers: how many, in whole vectors.
        x: address of x.
        y: address of y.
    """
    for at in range(0, 4 * numbers, STEP):
        store(x + at, add(load(x + at), load(y + at)))


@exact
def multiply_rows(numbers: int, x: int, y: int) -> None:
    """Compute x *= y.

    Args:
        numbers: how many, in whole vectors.
        x: address of x.
        y: address of y.
    """
    for at in range(0, 4 * numbers, STEP):
        store(x + at, multiply(load(x + at), load(y + at)))


@exact
def copy_rows(numbers: int, x: int, y: int) -> None:
    """Copy x to y.

    Args:
        numbers: how many, in whole vectors.
        x: address of x.
        y: address of y.
    """
    for at in range(0, 4 * numbers, STEP):
        store(y + at, load(x + at))


@exact
def transpose(rows: int, columns: int, x: int, y: int) -> None:
    """Compute y [columns, rows] = xᵀ.

    Args:
        rows: of x, in whole vectors.
        columns: of x, in whole vectors.
        x: address of x.
        y: address of y.
    """
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            start, to = x + 4 * (i * columns + j), y + 4 * (j * rows + i)
            transpose_square(start, 4 * columns, to, 4 * rows)


@exact
def logarithm(x: float) -> Any:
    """Return ln x of a float64 x > 0 by its series, in operations that round alike everywhere."""
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = 2 * m, e - 1
    z = (m - 1) / (m + 1)
    s, term, power = 0.0, z, z * z
    for k in range(12):
        s += term / (2 * k + 1)
        term *= power
    return 2 * s + e * 0.69314718055994531


@exact
def cross_entropy(scores: Any, labels: Any, divisors: Any, losses: Any, slopes: Any) -> None:
    """Compute ℓ = ln Σ_c e^(x_c) - x_y over its divisor, and its slopes by the scores x.

    Args:
        scores: x [n, C], in whole vectors.
        labels: y [n].
        divisors: [n].
        losses: [n] float64, filled.
        slopes: [n, C], filled.
    """
    classes = scores.shape[1]
    for i in range(len(scores)):
        x, to = address(scores[i]), address(slopes[i])
        largest = scores[i, 0]
        for c in range(1, classes):
            largest = max(largest, scores[i, c])
        top = splat(largest)
        sums = splat(_f(0.0))
        for at in range(0, 4 * classes, STEP):
            e = exponential(subtract(load(x + at), top))
            store(to + at, e)
            sums = add(sums, e)
        whole = total(sums)
        score = float(scores[i, labels[i]] - largest)
        losses[i] = (logarithm(float(whole)) - score) / divisors[i]
        part = splat(_f(1.0 / divisors[i]) / whole)
        for at in range(0, 4 * classes, STEP):
            store(to + at, multiply(load(to + at), part))
        # The label's own slope is minus the sum of the others: 1 - p would cancel near 1.
        others = _f(0.0)
        for c in range(classes):
            if c != labels[i]:
                others += slopes[i, c]
        slopes[i, labels[i]] = -others
