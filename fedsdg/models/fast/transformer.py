"""Forward and backward pass of a frozen vision transformer with adapters, a few images at a time.

All activations of sixteen images fit into a processor's own cache; those of a whole batch do not.
Images stand client by client, and each goes through the adapters and the head of its own client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedsdg.compiling import compiled_with
from fedsdg.models.fast import layers, tiles, vectors
from fedsdg.models.fast.layers import (
    add_rows,
    attend,
    attend_back,
    copy_rows,
    cross_entropy,
    gelu,
    multiply_rows,
    normalise,
    normalise_back,
    transpose,
)
from fedsdg.models.fast.tiles import WIDEST, add_product, product
from fedsdg.models.fast.vectors import LANES, address, exact

#: Images that go through the network together: the lanes of a vector in attention.
TOGETHER = LANES
#: Modes of a pass: scores alone; also losses and gradients of cross-entropy; gradients for given
#: slopes of a loss by the scores.
SCORES, CROSS_ENTROPY, SLOPES = 0, 1, 2
#: The score of a class that only fills up a vector; its share of a softmax is 0.
NEVER = -1e30


class Frozen(NamedTuple):
    """The weights of L frozen blocks of width D and hidden width H, and the last norm.

    A matrix stands as it is used forward, [L, in, out], and backward (``…_back``), [L, out, in].
    """

    norm1: np.ndarray
    "[L, 2, D]: weight and bias"
    qkv: np.ndarray
    qkv_back: np.ndarray
    qkv_bias: np.ndarray
    proj: np.ndarray
    proj_back: np.ndarray
    proj_bias: np.ndarray
    norm2: np.ndarray
    fc1: np.ndarray
    fc1_back: np.ndarray
    fc1_bias: np.ndarray
    fc2: np.ndarray
    fc2_back: np.ndarray
    fc2_bias: np.ndarray
    norm: np.ndarray
    "[2, D]"
    patches: np.ndarray
    "[P, D]: makes a token of a patch of P numbers"
    tokens: np.ndarray
    "[T, D]: class token, bias of the patches, and positions"
    heads: int
    scale: np.float32
    "of attention's scores"
    epsilon: np.float32
    "of the norms"


class Factors(NamedTuple):
    """Adapters and heads of M clients, or gradients by them.

    ΔW = b a of the attention's output projection and of the second feed-forward layer. Ranks R and
    classes C are filled up to whole vectors, with zeros and with biases of ``NEVER``.
    """

    proj_a: np.ndarray
    "[M, L, R, D]"
    proj_b: np.ndarray
    "[M, L, D, R]; [M, L, R, D] for the gradient, which is that by bᵀ"
    fc2_a: np.ndarray
    "[M, L, R, H]"
    fc2_b: np.ndarray
    "as proj_b"
    head: np.ndarray
    "[M, C, D]"
    head_bias: np.ndarray
    "[M, C]"


class Transposed(NamedTuple):
    """The factors and the head of one client, transposed."""

    proj_a: np.ndarray
    "[L, D, R]"
    proj_b: np.ndarray
    "[L, R, D]"
    fc2_a: np.ndarray
    "[L, H, R]"
    fc2_b: np.ndarray
    "[L, R, D]"
    head: np.ndarray
    "[D, C]"


class Activations(NamedTuple):
    """Room for the activations of ``TOGETHER`` images.

    Those before ``x`` are kept of every block for the backward pass: the normalised tokens and
    their 1/√variance, attention's lanes and shares, the inputs of the adapted layers and their
    low-rank products, the slope of the GELU. The first block has its norm in the prefix, so
    ``hat1[0]`` and ``root1[0]`` keep those of the last norm.
    """

    hat1: np.ndarray
    root1: np.ndarray
    lanes: np.ndarray
    shares: np.ndarray
    mixed: np.ndarray
    low1: np.ndarray
    hat2: np.ndarray
    root2: np.ndarray
    slope: np.ndarray
    hidden: np.ndarray
    low2: np.ndarray
    x: np.ndarray
    y: np.ndarray
    dx: np.ndarray
    g: np.ndarray
    wide: np.ndarray
    qkv: np.ndarray
    dqkv: np.ndarray
    dlow: np.ndarray
    spare: np.ndarray
    zeros: np.ndarray


def activations(frozen: Frozen, ranks: int) -> Activations:
    """Allocate the room for the activations of a pass.

    Args:
        frozen: the backbone.
        ranks: of the adapters, filled up to whole vectors; fewer will do as well.

    Returns:
        Zeros.
    """
    blocks, dim, hidden = frozen.fc1.shape
    tokens, heads = len(frozen.tokens), frozen.heads
    rows = TOGETHER * tokens

    def empty(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    return Activations(
        hat1=empty(blocks, rows, dim), root1=empty(blocks, rows, LANES),
        lanes=empty(blocks, heads, 3, tokens, dim // heads, TOGETHER),
        shares=empty(blocks, heads, tokens, tokens, TOGETHER),
        mixed=empty(blocks, rows, dim), low1=empty(blocks, rows, ranks),
        hat2=empty(blocks, rows, dim), root2=empty(blocks, rows, LANES),
        slope=empty(blocks, rows, hidden), hidden=empty(blocks, rows, hidden),
        low2=empty(blocks, rows, ranks),
        x=empty(rows, dim), y=empty(rows, dim), dx=empty(rows, dim), g=empty(rows, dim),
        wide=empty(rows, hidden), qkv=empty(rows, 3 * dim), dqkv=empty(rows, 3 * dim),
        dlow=empty(rows, ranks), spare=empty(5, tokens, dim // heads, TOGETHER),
        zeros=empty(max(dim, WIDEST)),
    )  # fmt: skip


def transposed(frozen: Frozen, ranks: int, classes: int) -> Transposed:
    """Allocate the room for one client's factors and head.

    Args:
        frozen: the backbone.
        ranks: of the adapters, filled up to whole vectors.
        classes: of the head, filled up likewise.

    Returns:
        Numbers to be overwritten.
    """
    blocks, dim, hidden = frozen.fc1.shape
    return Transposed(
        proj_a=np.empty((blocks, dim, ranks), np.float32),
        proj_b=np.empty((blocks, ranks, dim), np.float32),
        fc2_a=np.empty((blocks, hidden, ranks), np.float32),
        fc2_b=np.empty((blocks, ranks, dim), np.float32),
        head=np.empty((dim, classes), np.float32),
    )


@exact
def _transpose_client(factors: Any, client: int, factors_t: Any) -> None:
    blocks, ranks, dim = factors.proj_a.shape[1:]
    hidden = factors.fc2_a.shape[3]
    for block in range(blocks):
        a, b = factors.proj_a[client, block], factors.proj_b[client, block]
        transpose(ranks, dim, address(a), address(factors_t.proj_a[block]))
        transpose(dim, ranks, address(b), address(factors_t.proj_b[block]))
        a, b = factors.fc2_a[client, block], factors.fc2_b[client, block]
        transpose(ranks, hidden, address(a), address(factors_t.fc2_a[block]))
        transpose(dim, ranks, address(b), address(factors_t.fc2_b[block]))
    head = factors.head[client]
    transpose(len(head), dim, address(head), address(factors_t.head))


# --- Linear layers --------------------------------------------------------------------------------


@exact
def _linear(rows: int, x: int, weight: Any, bias: Any, y: int) -> None:
    """Compute y = x W + bias with W [in, out]."""
    inputs, outputs = weight.shape
    product(x, inputs, 1, address(weight), y, rows, outputs, inputs, address(bias), 1)


@exact
def _linear_back(rows: int, dy: int, weight: Any, zeros: int, dx: int) -> None:
    """Compute dx = dy W with W [out, in]."""
    outputs, inputs = weight.shape
    product(dy, outputs, 1, address(weight), dx, rows, inputs, outputs, zeros, 0)


@exact
def _adapted(
    rows: int, x: int, weight: Any, bias: Any, a_t: Any, b_t: Any, rank: int, low: int, zeros: int,
    y: int,
) -> None:  # fmt: skip
    """Compute y = x W + bias + (x aᵀ) bᵀ, and ``low`` = x aᵀ."""
    inputs, ranks = a_t.shape
    product(x, inputs, 1, address(a_t), low, rows, ranks, inputs, zeros, 0)
    _linear(rows, x, weight, bias, y)
    add_product(low, ranks, 1, address(b_t), y, rows, b_t.shape[1], rank)


@exact
def _adapters_back(
    rows: int, dy: int, x: int, low: int, b: Any, rank: int, dlow: int, zeros: int, to_a: Any,
    to_b_t: Any,
) -> None:  # fmt: skip
    """Compute ``dlow`` = dy b and the gradients by a and bᵀ."""
    outputs, ranks = b.shape
    add_product(low, 1, ranks, dy, address(to_b_t), rank, outputs, rows)
    product(dy, outputs, 1, address(b), dlow, rows, ranks, outputs, zeros, 0)
    add_product(dlow, 1, ranks, x, address(to_a), rank, to_a.shape[1], rows)


@exact
def _adapted_back(
    rows: int, dy: int, weight: Any, a: Any, rank: int, dlow: int, zeros: int, dx: int
) -> None:
    """Compute dx = dy W + dlow a with W [out, in]."""
    ranks, inputs = a.shape
    _linear_back(rows, dy, weight, zeros, dx)
    add_product(dlow, ranks, 1, address(a), dx, rows, inputs, rank)


# --- Passes ---------------------------------------------------------------------------------------


def _embed(frozen: Any, work: Any, patches: Any, prefixes: Any) -> None:
    """Fill in the part of a pass that is frozen.

    Args:
        frozen: see there.
        work: activations, see there.
        patches: [n, N, P], the patches of each image.
        prefixes: [n, 2, T, D], of each image the tokens that enter the first block, and the output
            of its attention before the output projection, the first layer with adapters.
    """
    tokens, dim = frozen.tokens.shape
    length = frozen.patches.shape[0]
    numbers = tokens * dim
    x, y, mixed, qkv = address(work.x), address(work.y), address(work.mixed[0]), address(work.qkv)
    for begin in range(0, len(patches), TOGETHER):
        images = min(TOGETHER, len(patches) - begin)
        for i in range(images):
            copy_rows(numbers, address(frozen.tokens), x + 4 * i * numbers)
            add_product(address(patches[begin + i]), length, 1, address(frozen.patches),
                        x + 4 * (i * numbers + dim), tokens - 1, dim, length)  # fmt: skip
        rows = images * tokens
        normalise(rows, x, frozen.norm1[0], frozen.epsilon, address(work.hat1[0]),
                  address(work.root1[0]), y)  # fmt: skip
        _linear(rows, y, frozen.qkv[0], frozen.qkv_bias[0], qkv)
        attend(tokens, tokens, frozen.heads, dim // frozen.heads, frozen.scale, qkv,
               address(work.lanes[0]), address(work.shares[0]), mixed,
               address(work.spare))  # fmt: skip
        for i in range(images):
            to = address(prefixes[begin + i])
            copy_rows(numbers, x + 4 * i * numbers, to)
            copy_rows(numbers, mixed + 4 * i * numbers, to + 4 * numbers)


@exact
def _forward(frozen: Any, factors_t: Any, work: Any, rank: int, images: int, deep: bool) -> None:
    """Take the tokens ``work.x`` through all blocks; the class tokens then stand in ``work.y``.

    The output of the first block's attention stands in ``work.mixed`` already.
    """
    blocks = frozen.norm1.shape[0]
    tokens, dim = frozen.tokens.shape
    hidden = frozen.fc1.shape[2]
    zeros, x, y = address(work.zeros), address(work.x), address(work.y)
    wide, qkv = address(work.wide), address(work.qkv)
    rows = images * tokens
    for block in range(blocks):
        at = block if deep else 0
        mixed = address(work.mixed[at])
        if block:
            normalise(rows, x, frozen.norm1[block], frozen.epsilon, address(work.hat1[at]),
                      address(work.root1[at]), y)  # fmt: skip
            _linear(rows, y, frozen.qkv[block], frozen.qkv_bias[block], qkv)
            asking = 1 if block == blocks - 1 else tokens
            attend(asking, tokens, frozen.heads, dim // frozen.heads, frozen.scale, qkv,
                   address(work.lanes[at]), address(work.shares[at]), mixed,
                   address(work.spare))  # fmt: skip
        if block == blocks - 1:
            # From here on the class tokens alone, the only ones that a head reads.
            rows = images
            for i in range(1, images):
                copy_rows(dim, x + 4 * i * tokens * dim, x + 4 * i * dim)
                copy_rows(dim, mixed + 4 * i * tokens * dim, mixed + 4 * i * dim)
        _adapted(rows, mixed, frozen.proj[block], frozen.proj_bias[block], factors_t.proj_a[block],
                 factors_t.proj_b[block], rank, address(work.low1[at]), zeros, y)  # fmt: skip
        add_rows(rows * dim, x, y)
        normalise(rows, x, frozen.norm2[block], frozen.epsilon, address(work.hat2[at]),
                  address(work.root2[at]), y)  # fmt: skip
        _linear(rows, y, frozen.fc1[block], frozen.fc1_bias[block], wide)
        after = address(work.hidden[at])
        gelu(rows * hidden, wide, after, address(work.slope[at]), deep)
        _adapted(rows, after, frozen.fc2[block], frozen.fc2_bias[block], factors_t.fc2_a[block],
                 factors_t.fc2_b[block], rank, address(work.low2[at]), zeros, y)  # fmt: skip
        add_rows(rows * dim, x, y)
    normalise(images, x, frozen.norm, frozen.epsilon, address(work.hat1[0]),
              address(work.root1[0]), y)  # fmt: skip


@exact
def _backward(
    frozen: Any, factors: Any, gradients: Any, client: int, work: Any, rank: int, images: int,
    slopes: int,
) -> None:  # fmt: skip
    """Add the gradients by the factors, from the slopes [images, C] of the loss by the scores."""
    blocks = frozen.norm1.shape[0]
    tokens, dim = frozen.tokens.shape
    hidden = frozen.fc1.shape[2]
    zeros, dx, g = address(work.zeros), address(work.dx), address(work.g)
    wide, dlow, dqkv = address(work.wide), address(work.dlow), address(work.dqkv)
    _linear_back(images, slopes, factors.head[client], zeros, g)
    normalise_back(images, g, address(work.hat1[0]), address(work.root1[0]), frozen.norm, dx,
                   False)  # fmt: skip
    rows = images
    for back in range(blocks):
        at = blocks - 1 - back
        a, b = factors.fc2_a[client, at], factors.fc2_b[client, at]
        _adapters_back(rows, dx, address(work.hidden[at]), address(work.low2[at]), b, rank, dlow,
                       zeros, gradients.fc2_a[client, at], gradients.fc2_b[client, at])  # fmt: skip
        _adapted_back(rows, dx, frozen.fc2_back[at], a, rank, dlow, zeros, wide)
        multiply_rows(rows * hidden, wide, address(work.slope[at]))
        _linear_back(rows, wide, frozen.fc1_back[at], zeros, g)
        normalise_back(rows, g, address(work.hat2[at]), address(work.root2[at]),
                       frozen.norm2[at], dx, True)  # fmt: skip
        a, b = factors.proj_a[client, at], factors.proj_b[client, at]
        _adapters_back(rows, dx, address(work.mixed[at]), address(work.low1[at]), b, rank, dlow,
                       zeros, gradients.proj_a[client, at],
                       gradients.proj_b[client, at])  # fmt: skip
        if at == 0:
            break
        _adapted_back(rows, dx, frozen.proj_back[at], a, rank, dlow, zeros, g)
        asking = tokens
        if at == blocks - 1:
            # Back to all tokens; the gradient by the others is zero here.
            rows, asking = images * tokens, 1
            for i in range(images - 1, -1, -1):
                for where in (g, dx):
                    _spread_class_token(tokens, dim, where, i, address(work.y), zeros)
        attend_back(asking, tokens, frozen.heads, dim // frozen.heads, frozen.scale,
                    address(work.lanes[at]), address(work.shares[at]), g, dqkv,
                    address(work.spare))  # fmt: skip
        _linear_back(rows, dqkv, frozen.qkv_back[at], zeros, g)
        normalise_back(rows, g, address(work.hat1[at]), address(work.root1[at]),
                       frozen.norm1[at], dx, True)  # fmt: skip


@exact
def _spread_class_token(tokens: int, dim: int, x: int, image: int, spare: int, zeros: int) -> None:
    """Move row ``image`` of x to the first token of that image, and set its other tokens to 0."""
    copy_rows(dim, x + 4 * image * dim, spare)
    for j in range(tokens):
        copy_rows(dim, zeros, x + 4 * (image * tokens + j) * dim)
    copy_rows(dim, spare, x + 4 * image * tokens * dim)


def _run(
    mode: int, deep: bool, frozen: Any, work: Any, factors_t: Any, factors: Any, gradients: Any,
    rank: int, prefixes: Any, counts: Any, labels: Any, divisors: Any, losses: Any, slopes: Any,
    scores: Any,
) -> None:  # fmt: skip
    """Take every client's images through the network.

    Args:
        mode: ``SCORES``, ``CROSS_ENTROPY`` or ``SLOPES``.
        deep: whether gradients by the factors are needed too, not by the heads alone.
        frozen: see there.
        work: activations, see there.
        factors_t: room for one client's factors, transposed.
        factors: factors and heads of all clients.
        gradients: their gradients, to which is added.
        rank: of the factors, before they are filled up.
        prefixes: [B, 2, T, D], see ``embed``.
        counts: [M], images of each client.
        labels: [B], classes, for cross-entropy.
        divisors: [B], which divide the losses, for cross-entropy.
        losses: [B] float64, filled for cross-entropy.
        slopes: [B, C] of the loss by the scores: filled for cross-entropy, read for ``SLOPES``.
        scores: [B, C], filled.
    """
    tokens, dim = frozen.tokens.shape
    classes = factors.head.shape[1]
    numbers = tokens * dim
    x, y, mixed = address(work.x), address(work.y), address(work.mixed[0])
    first = 0
    for client in range(len(counts)):
        end = first + counts[client]
        if end > first:
            _transpose_client(factors, client, factors_t)
        for begin in range(first, end, TOGETHER):
            images = min(TOGETHER, end - begin)
            for i in range(images):
                prefix = address(prefixes[begin + i])
                copy_rows(numbers, prefix, x + 4 * i * numbers)
                copy_rows(numbers, prefix + 4 * numbers, mixed + 4 * i * numbers)
            _forward(frozen, factors_t, work, rank, images, deep)
            to = address(scores[begin:end])
            _linear(images, y, factors_t.head, factors.head_bias[client], to)
            if mode == SCORES:
                continue
            down = address(slopes[begin:end])
            if mode == CROSS_ENTROPY:
                part = slice(begin, begin + images)
                cross_entropy(scores[part], labels[part], divisors[part], losses[part],
                              slopes[part])  # fmt: skip
            add_product(down, 1, classes, y, address(gradients.head[client]), classes, dim, images)
            for i in range(images):
                add_rows(classes, address(gradients.head_bias[client]), down + 4 * i * classes)
            if deep:
                _backward(frozen, factors, gradients, client, work, rank, images, down)
        first = end


embed = compiled_with(_embed, (vectors, tiles, layers))
run = compiled_with(_run, (vectors, tiles, layers))
