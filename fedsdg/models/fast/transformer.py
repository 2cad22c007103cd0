"""Forward and backward pass of a frozen vision transformer with adapters, a few images at a time.

Of sixteen images all activations of a pass fit into a processor's own cache; of a whole batch they
do not. Images stand client by client, and each goes through its own client's adapters and head.
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
    copy_columns,
    copy_rows,
    cross_entropy,
    gelu,
    normalise,
    normalise_back,
    scale_images,
    times_rows,
    transpose,
)
from fedsdg.models.fast.tiles import WIDEST, add_product, product
from fedsdg.models.fast.vectors import LANES, address, exact

#: Images that go through the network together: the lanes of a vector in attention.
TOGETHER = 16
#: What a pass is asked for: scores alone; also losses and gradients of cross-entropy; gradients
#: for given slopes of a loss by the scores.
SCORES, CROSS_ENTROPY, SLOPES = 0, 1, 2
#: The score of a class that only fills up a vector; its share of a softmax is 0.
NEVER = -1e30


class Frozen(NamedTuple):
    """The weights of L frozen blocks of width D and hidden width H, and the last norm.

    A matrix stands as it is used forward, [L, in, out], and backward (``…_back``), [L, out, in].
    """

    norm1: np.ndarray  # [L, 2, D]: weight and bias
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
    norm: np.ndarray  # [2, D]


class Embedding(NamedTuple):
    """What makes tokens of N patches of P numbers each; the class token is the first of T."""

    weight: np.ndarray  # [P, D]
    start: np.ndarray  # [T, D]: class token, biases and positions


class Own(NamedTuple):
    """Adapters and head of one client, ranks R and classes C filled up to whole vectors.

    ΔW = b a of the attention's output projection and of the second feed-forward layer.
    """

    proj_a: np.ndarray  # [L, R, D]
    proj_a_turned: np.ndarray  # [L, D, R]
    proj_b: np.ndarray  # [L, D, R]
    proj_b_turned: np.ndarray  # [L, R, D]
    fc2_a: np.ndarray  # [L, R, H]
    fc2_a_turned: np.ndarray  # [L, H, R]
    fc2_b: np.ndarray  # [L, D, R]
    fc2_b_turned: np.ndarray  # [L, R, D]
    head: np.ndarray  # [C, D]
    head_turned: np.ndarray  # [D, C]
    head_bias: np.ndarray  # [C]


class Gradients(NamedTuple):
    """Gradients of one client by a, by bᵀ and by the head; a pass adds to them."""

    proj_a: np.ndarray  # [L, R, D]
    proj_b_turned: np.ndarray  # [L, R, D]
    fc2_a: np.ndarray  # [L, R, H]
    fc2_b_turned: np.ndarray  # [L, R, D]
    head: np.ndarray  # [C, D]
    head_bias: np.ndarray  # [C]


class Work(NamedTuple):
    """Room for the activations of ``TOGETHER`` images: of every block, then of one at a time."""

    hat1: np.ndarray
    root1: np.ndarray
    turned: np.ndarray
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
    du: np.ndarray
    tokens: np.ndarray
    token_hat: np.ndarray
    token_root: np.ndarray
    dtokens: np.ndarray
    spare: np.ndarray
    zeros: np.ndarray


def room(blocks: int, tokens: int, dim: int, hidden: int, heads: int, rank: int) -> Work:
    """The room that a pass works in, to be used again by the next."""
    rows = TOGETHER * tokens

    def empty(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    return Work(
        hat1=empty(blocks, rows, dim), root1=empty(blocks, rows, 16),
        qkv=empty(rows, 3 * dim), turned=empty(blocks, heads, 3, tokens, dim // heads, TOGETHER),
        shares=empty(blocks, heads, tokens, tokens, TOGETHER),
        mixed=empty(blocks, rows, dim), low1=empty(blocks, rows, rank),
        hat2=empty(blocks, rows, dim), root2=empty(blocks, rows, 16),
        slope=empty(blocks, rows, hidden), hidden=empty(blocks, rows, hidden),
        low2=empty(blocks, rows, rank),
        x=empty(rows, dim), y=empty(rows, dim), dx=empty(rows, dim), g=empty(rows, dim),
        wide=empty(rows, hidden), dqkv=empty(rows, 3 * dim), du=empty(rows, rank),
        tokens=empty(TOGETHER, dim), token_hat=empty(TOGETHER, dim),
        token_root=empty(TOGETHER, 16), dtokens=empty(TOGETHER, dim),
        spare=empty(5, tokens, dim // heads, TOGETHER), zeros=empty(max(dim, WIDEST)),
    )  # fmt: skip


def own_room(blocks: int, dim: int, hidden: int, rank: int, classes: int) -> tuple[Own, Gradients]:
    """The room for a client's adapters and head, and for their gradients.

    What only fills up a vector stays as it is here: zeros, and scores that no class has.
    """
    ranks, scores = (-(-size // LANES) * LANES for size in (rank, classes))

    def empty(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    own = Own(
        proj_a=empty(blocks, ranks, dim), proj_a_turned=empty(blocks, dim, ranks),
        proj_b=empty(blocks, dim, ranks), proj_b_turned=empty(blocks, ranks, dim),
        fc2_a=empty(blocks, ranks, hidden), fc2_a_turned=empty(blocks, hidden, ranks),
        fc2_b=empty(blocks, dim, ranks), fc2_b_turned=empty(blocks, ranks, dim),
        head=empty(scores, dim), head_turned=empty(dim, scores),
        head_bias=np.full(scores, NEVER, np.float32),
    )  # fmt: skip
    gradients = Gradients(
        proj_a=np.zeros_like(own.proj_a), proj_b_turned=np.zeros_like(own.proj_b_turned),
        fc2_a=np.zeros_like(own.fc2_a), fc2_b_turned=np.zeros_like(own.fc2_b_turned),
        head=np.zeros_like(own.head), head_bias=np.zeros_like(own.head_bias),
    )  # fmt: skip
    return own, gradients


@exact
def _place(places: Any, kind: int, client: int, block: int) -> Any:
    return places[kind, 0] + client * places[kind, 1] + block * places[kind, 2]


@exact
def _take(own: Any, places: Any, client: int, rank: int, classes: int) -> None:
    """Copy a client's factors and head into the room; see ``run``."""
    blocks, ranks, dim = own.proj_a.shape
    hidden, scores = own.fc2_a.shape[2], own.head.shape[0]
    for block in range(blocks):
        for kind, width, a, a_turned, b, b_turned in (
            (0, dim, own.proj_a, own.proj_a_turned, own.proj_b, own.proj_b_turned),
            (2, hidden, own.fc2_a, own.fc2_a_turned, own.fc2_b, own.fc2_b_turned),
        ):
            to = address(a[block])
            copy_columns(rank, width, _place(places, kind, client, block), places[kind, 3],
                         to, 4 * width)  # fmt: skip
            transpose(ranks, width, to, address(a_turned[block]))
            to = address(b[block])
            copy_columns(dim, rank, _place(places, kind + 1, client, block), places[kind + 1, 3],
                         to, 4 * ranks)  # fmt: skip
            transpose(dim, ranks, to, address(b_turned[block]))
    to = address(own.head)
    copy_columns(classes, dim, _place(places, 4, client, 0), places[4, 3], to, 4 * dim)
    transpose(scores, dim, to, address(own.head_turned))
    copy_columns(1, classes, _place(places, 5, client, 0), 0, address(own.head_bias), 0)


@exact
def _give(gradients: Any, places: Any, client: int, rank: int, classes: int) -> None:
    """Write a client's gradients to their places; see ``run``."""
    blocks, _, dim = gradients.proj_a.shape
    hidden = gradients.fc2_a.shape[2]
    for block in range(blocks):
        for kind, width, of_block in (
            (0, dim, gradients.proj_a[block]),
            (1, dim, gradients.proj_b_turned[block]),
            (2, hidden, gradients.fc2_a[block]),
            (3, dim, gradients.fc2_b_turned[block]),
        ):
            to = _place(places, kind, client, block)
            copy_columns(rank, width, address(of_block), 4 * width, to, places[kind, 3])
    to = _place(places, 4, client, 0)
    copy_columns(classes, dim, address(gradients.head), 4 * dim, to, places[4, 3])
    copy_columns(1, classes, address(gradients.head_bias), 0, _place(places, 5, client, 0), 0)


@exact
def _clear(gradients: Any) -> None:
    gradients.proj_a[:] = 0
    gradients.proj_b_turned[:] = 0
    gradients.fc2_a[:] = 0
    gradients.fc2_b_turned[:] = 0
    gradients.head[:] = 0
    gradients.head_bias[:] = 0


def _embed(
    embedding: Any, frozen: Any, work: Any, heads: int, scale: Any, epsilon: Any, patches: Any,
    prefixes: Any,
) -> None:  # fmt: skip
    """Fill in what of images is frozen.

    Args:
        embedding, frozen, work, heads, scale, epsilon: as in ``run``.
        patches: [n, N, P] of each image its patches.
        prefixes: [n, 2, T, D] of each image the tokens that enter the first block, and what its
            attention makes of them before its output projection, the first layer with adapters.
    """
    tokens, dim = embedding.start.shape
    length = embedding.weight.shape[0]
    numbers, norm = tokens * dim, address(frozen.norm1[0])
    x, y, mixed = address(work.x), address(work.y), address(work.mixed[0])
    for begin in range(0, len(patches), TOGETHER):
        images = min(TOGETHER, len(patches) - begin)
        for i in range(images):
            copy_rows(numbers, address(embedding.start), x + 4 * i * numbers)
            add_product(address(patches[begin + i]), length, 1, address(embedding.weight),
                        x + 4 * (i * numbers + dim), tokens - 1, dim, length)  # fmt: skip
        rows = images * tokens
        normalise(rows, dim, x, norm, norm + 4 * dim, epsilon, address(work.hat1[0]),
                  address(work.root1[0]), y)  # fmt: skip
        qkv = address(work.qkv)
        product(y, dim, 1, address(frozen.qkv[0]), qkv, rows, 3 * dim, dim,
                address(frozen.qkv_bias[0]), 1)  # fmt: skip
        attend(tokens, tokens, heads, dim // heads, scale, qkv, address(work.turned[0]),
               address(work.shares[0]), mixed, address(work.spare))  # fmt: skip
        for i in range(images):
            to = address(prefixes[begin + i])
            copy_rows(numbers, x + 4 * i * numbers, to)
            copy_rows(numbers, mixed + 4 * i * numbers, to + 4 * numbers)


def _run(
    asked: int, deep: bool, frozen: Any, given: Any, taken: Any, rank: int, classes: int,
    own: Any, gradients: Any, work: Any, prefixes: Any, counts: Any, shares: Any, heads: int,
    scale: Any, epsilon: Any, labels: Any, divisors: Any, losses: Any, slopes: Any, scores: Any,
) -> None:  # fmt: skip
    """Take every client's images through the network.

    Args:
        asked: ``SCORES``, ``CROSS_ENTROPY`` or ``SLOPES``.
        deep: whether of the factors too gradients are asked for, not of the heads alone.
        frozen: see there.
        given: [6, 4] int64, where the clients' factors and heads are: a and b of the projection,
            those of the second feed-forward layer, head and bias. Of each the address of the first
            number, and how many bytes lie from client to client, from block to block (a head has
            none) and from row to row.
        taken: [6, 4] where their gradients are written to, those by b turned.
        rank, classes: of the factors and heads.
        own, gradients, work: rooms, see there.
        prefixes: [B, 2, T, D] of each image the tokens that enter the first block, and what its
            attention makes of them, both frozen.
        counts: [M] images of each client.
        shares: [B, R] what an image takes of each rank of its client's adapters, for ``SCORES``
            alone; [0, R]: all of them.
        heads, scale, epsilon: of the attention, and of the norms.
        labels, divisors: [B] for cross-entropy: the class, and what the loss is divided by.
        losses: [B] float64, filled for cross-entropy.
        slopes: [B, C] of the loss by the scores: filled for cross-entropy, read for ``SLOPES``.
        scores: [B, C], filled.
    """
    blocks, dim = frozen.norm1.shape[0], frozen.norm1.shape[2]
    hidden, tokens = frozen.fc1.shape[2], prefixes.shape[2]
    ranks, width = own.proj_a.shape[1], own.head.shape[0]
    head = dim // heads
    zeros = address(work.zeros)
    x, y, dx, g = (address(work.x), address(work.y), address(work.dx), address(work.g))
    wide, du, qkv = address(work.wide), address(work.du), address(work.qkv)
    dqkv, spare = address(work.dqkv), address(work.spare)
    first = 0
    for client in range(len(counts)):
        end = first + counts[client]
        if end > first:
            _take(own, given, client, rank, classes)
        if asked != SCORES:
            _clear(gradients)
        for begin in range(first, end, TOGETHER):
            images = min(TOGETHER, end - begin)
            for i in range(images):
                prefix = address(prefixes[begin + i])
                copy_rows(tokens * dim, prefix, x + 4 * i * tokens * dim)
                copy_rows(
                    tokens * dim,
                    prefix + 4 * tokens * dim,
                    address(work.mixed[0]) + 4 * i * tokens * dim,
                )
            for block in range(blocks):
                at = block if deep else 0
                rows = images * tokens
                mixed = address(work.mixed[at])
                if block:
                    norm = address(frozen.norm1[block])
                    normalise(rows, dim, x, norm, norm + 4 * dim, epsilon,
                              address(work.hat1[at]), address(work.root1[at]), y)  # fmt: skip
                    product(y, dim, 1, address(frozen.qkv[block]), qkv, rows, 3 * dim, dim,
                            address(frozen.qkv_bias[block]), 1)  # fmt: skip
                    asking = 1 if block == blocks - 1 else tokens
                    attend(asking, tokens, heads, head, scale, qkv, address(work.turned[at]),
                           address(work.shares[at]), mixed, spare)  # fmt: skip
                if block == blocks - 1:
                    # From here on the class tokens alone, the only ones that a head reads.
                    rows = images
                    for i in range(1, images):
                        copy_rows(dim, x + 4 * i * tokens * dim, x + 4 * i * dim)
                        copy_rows(dim, mixed + 4 * i * tokens * dim, mixed + 4 * i * dim)
                low = address(work.low1[at])
                product(mixed, dim, 1, address(own.proj_a_turned[block]), low, rows,
                        ranks, dim, zeros, 0)  # fmt: skip
                if len(shares):
                    scale_images(images, rows // images, ranks, low, address(shares[begin:end]))
                product(mixed, dim, 1, address(frozen.proj[block]), y, rows, dim, dim,
                        address(frozen.proj_bias[block]), 1)  # fmt: skip
                add_product(low, ranks, 1, address(own.proj_b_turned[block]), y, rows,
                            dim, rank)  # fmt: skip
                add_rows(rows * dim, x, y)
                norm = address(frozen.norm2[block])
                normalise(rows, dim, x, norm, norm + 4 * dim, epsilon,
                          address(work.hat2[at]), address(work.root2[at]), y)  # fmt: skip
                product(y, dim, 1, address(frozen.fc1[block]), wide, rows, hidden, dim,
                        address(frozen.fc1_bias[block]), 1)  # fmt: skip
                after = address(work.hidden[at])
                gelu(rows, hidden, wide, after, address(work.slope[at]), deep)
                low = address(work.low2[at])
                product(after, hidden, 1, address(own.fc2_a_turned[block]), low, rows,
                        ranks, hidden, zeros, 0)  # fmt: skip
                if len(shares):
                    scale_images(images, rows // images, ranks, low, address(shares[begin:end]))
                product(after, hidden, 1, address(frozen.fc2[block]), y, rows, dim, hidden,
                        address(frozen.fc2_bias[block]), 1)  # fmt: skip
                add_product(low, ranks, 1, address(own.fc2_b_turned[block]), y, rows,
                            dim, rank)  # fmt: skip
                add_rows(rows * dim, x, y)
            norm = address(frozen.norm)
            tokens_out = address(work.tokens)
            normalise(images, dim, x, norm, norm + 4 * dim, epsilon, address(work.token_hat),
                      address(work.token_root), tokens_out)  # fmt: skip
            here = address(scores[begin:end])
            product(tokens_out, dim, 1, address(own.head_turned), here, images, width,
                    dim, address(own.head_bias), 1)  # fmt: skip
            if asked == SCORES:
                continue
            down = address(slopes[begin:end])
            if asked == CROSS_ENTROPY:
                part = slice(begin, begin + images)
                cross_entropy(images, width, here, labels[part], divisors[part], losses[part],
                              down)  # fmt: skip
            add_product(down, 1, width, tokens_out, address(gradients.head), width,
                        dim, images)  # fmt: skip
            for i in range(images):
                add_rows(width, address(gradients.head_bias), down + 4 * i * width)
            if not deep:
                continue
            d = address(work.dtokens)
            product(down, width, 1, address(own.head), d, images, dim, width,
                    zeros, 0)  # fmt: skip
            normalise_back(images, dim, d, address(work.token_hat), address(work.token_root),
                           norm, dx, False)  # fmt: skip
            rows = images
            for back in range(blocks):
                at = blocks - 1 - back
                to = address(gradients.fc2_b_turned[at])
                add_product(address(work.low2[at]), 1, ranks, dx, to, rank, dim, rows)
                product(dx, dim, 1, address(own.fc2_b[at]), du, rows, ranks, dim, zeros, 0)
                after = address(work.hidden[at])
                to = address(gradients.fc2_a[at])
                add_product(du, 1, ranks, after, to, rank, hidden, rows)
                product(dx, dim, 1, address(frozen.fc2_back[at]), wide, rows, hidden, dim,
                        zeros, 0)  # fmt: skip
                add_product(du, ranks, 1, address(own.fc2_a[at]), wide, rows, hidden, rank)
                times_rows(rows * hidden, wide, address(work.slope[at]))
                product(wide, hidden, 1, address(frozen.fc1_back[at]), g, rows, dim, hidden,
                        zeros, 0)  # fmt: skip
                normalise_back(rows, dim, g, address(work.hat2[at]), address(work.root2[at]),
                               address(frozen.norm2[at]), dx, True)  # fmt: skip
                to = address(gradients.proj_b_turned[at])
                add_product(address(work.low1[at]), 1, ranks, dx, to, rank, dim, rows)
                product(dx, dim, 1, address(own.proj_b[at]), du, rows, ranks, dim,
                        zeros, 0)  # fmt: skip
                to = address(gradients.proj_a[at])
                add_product(du, 1, ranks, address(work.mixed[at]), to, rank, dim, rows)
                if at == 0:
                    break
                product(dx, dim, 1, address(frozen.proj_back[at]), g, rows, dim, dim, zeros, 0)
                add_product(du, ranks, 1, address(own.proj_a[at]), g, rows, dim, rank)
                asking = tokens
                if at == blocks - 1:
                    # Back to all tokens; of the others nothing was asked.
                    rows, asking = images * tokens, 1
                    for back_image in range(images):
                        i = images - 1 - back_image
                        for where in (g, dx):
                            copy_rows(dim, where + 4 * i * dim, y)
                            for j in range(tokens):
                                copy_rows(dim, zeros, where + 4 * (i * tokens + j) * dim)
                            copy_rows(dim, y, where + 4 * i * tokens * dim)
                attend_back(asking, tokens, heads, head, scale, address(work.turned[at]),
                            address(work.shares[at]), g, dqkv, spare)  # fmt: skip
                product(dqkv, 3 * dim, 1, address(frozen.qkv_back[at]), g, rows, dim, 3 * dim,
                        zeros, 0)  # fmt: skip
                normalise_back(rows, dim, g, address(work.hat1[at]), address(work.root1[at]),
                               address(frozen.norm1[at]), dx, True)  # fmt: skip
        if asked != SCORES:
            _give(gradients, taken, client, rank, classes)
        first = end


embed = compiled_with(_embed, (vectors, tiles, layers))
run = compiled_with(_run, (vectors, tiles, layers))
