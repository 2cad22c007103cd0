"""The triton kernels, which run on a GPU or, slowly, in triton's interpreter.

A launch reads all tensors of a block through a table of their addresses, so that parameters of many
small tensors cost no more than one large one. Within a program products are formed and added in
`REAL` (float32 unless the numbers are float64), over programs in float64. Nothing is added
atomically, and how columns are cut depends on sizes alone, so results are the same from run to run.

`facts` [T, 2 + R] int64 has, for every tensor, how many numbers it has, the address of its result
and those of its R rows; `begins` [1 + 2^n] int64 has 2^n / 2, then the first piece of every tensor
and, up to 2^n >= T numbers, the largest one. `like` is a tensor of the block's dtype, which gives
pointers their type.
"""

import triton
import triton.language as tl


@triton.jit
def _piece(
    piece, facts, begins, pieces, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """The address of the facts of the piece's tensor, its columns [BLOCK], and which exist."""
    tensor = tl.cast(piece, tl.int64) * 0
    half = tl.load(begins)
    while half > 0:
        tensor += tl.where(tl.load(begins + 1 + tensor + half) <= piece, half, 0)
        half = half // 2
    of_tensor = facts + tensor * (ROWS + 2)
    first, numbers = (piece - tl.load(begins + 1 + tensor)) * BLOCK, tl.load(of_tensor)
    if ALIGNED:
        first, numbers = tl.multiple_of(first, 16), tl.multiple_of(numbers, 16)
    j = first + tl.arange(0, BLOCK)
    return of_tensor, j, (j < numbers) & (piece < pieces)


@triton.jit
def _pointer(address, like, ALIGNED: tl.constexpr):
    # A cast from a number tells the compiler nothing about alignment.
    pointer = address.to(like.dtype)
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _rounded(x, DTYPE: tl.constexpr):
    """Round float64 to DTYPE as torch does: to nearest, to 16 bits by way of float32."""
    if DTYPE.primitive_bitwidth == 64:
        return x
    narrow = x.to(tl.float32)
    if DTYPE.is_bf16():  # By its bits: triton's interpreter would cut them off.
        bits = narrow.to(tl.uint32, bitcast=True)
        bits = tl.where(narrow == narrow, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return narrow.to(DTYPE)


@triton.jit
def _gathered(x, PACK: tl.constexpr):
    """[ROWS, BLOCK] to [ROWS, BLOCK / PACK]: the sums of neighbours that a thread reads at once."""
    ROWS: tl.constexpr = x.shape[0]
    LANES: tl.constexpr = x.shape[1] // PACK
    return tl.sum(tl.reshape(x, (ROWS, LANES, PACK)), axis=2) if PACK > 1 else x


@triton.jit(do_not_specialize=["pieces", "parts", "steps"])
def norms_and_dots(
    like,
    facts,
    begins,
    pieces,
    coefficients,
    partial,
    parts,
    steps,
    SIZE: tl.constexpr,
    ORIGIN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    REAL: tl.constexpr,
):
    """partial[part] [2, SIZE + 1] = squares and dots of the rows, then squares of z and the origin.

    A part has the pieces part, part + parts, …: programs that run at once read side by side.
    """
    part = tl.program_id(0)
    k = tl.arange(0, ROWS)
    present = k < SIZE
    c = tl.load(coefficients + k, mask=present, other=0)
    squares = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    dots = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    own = tl.zeros((BLOCK,), dtype=REAL)
    origin = tl.zeros((BLOCK,), dtype=REAL)
    for step in range(steps):
        at, j, there = _piece(part + step * parts, facts, begins, pieces, SIZE + 1, BLOCK, ALIGNED)
        starts = _pointer(tl.load(at + 3 + k, mask=present, other=0), like, ALIGNED)
        inside = present[:, None] & there[None, :]
        x = tl.load(starts[:, None] + j[None, :], mask=inside, other=0).to(REAL)
        if ORIGIN:
            # Beyond the last row too, where neither c nor the store lets it count.
            start = _pointer(tl.load(at + 2), like, ALIGNED)
            o = tl.load(start + j, mask=there, other=0).to(REAL)
            x -= o[None, :]
            origin += o * o
        z = tl.sum(x * c[:, None], axis=0)
        squares += _gathered(x * x, PACK)
        dots += _gathered(x * z[None, :], PACK)
        own += z * z
    to = partial + part.to(tl.int64) * 2 * (SIZE + 1)
    tl.store(to + k, tl.sum(squares.to(tl.float64), axis=1), mask=present)
    tl.store(to + SIZE + 1 + k, tl.sum(dots.to(tl.float64), axis=1), mask=present)
    tl.store(to + SIZE, tl.sum(own.to(tl.float64), axis=0))
    tl.store(to + 2 * SIZE + 1, tl.sum(origin.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["pieces", "size", "parts", "steps"])
def distances(
    like,
    facts,
    begins,
    pieces,
    size,
    partial,
    parts,
    steps,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    REAL: tl.constexpr,
):
    """partial[part] [size, size] = squared distances of TILE rows from TILE rows.

    A thread holds a column of many pairs, so that each number it reads serves TILE differences.
    """
    first, second, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if first > second:
        return
    i = first * TILE + tl.arange(0, TILE)
    k = second * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float64)
    for left in range(part, pieces, parts * steps):
        squares = tl.zeros((TILE, TILE, BLOCK), dtype=REAL)
        for step in range(steps):
            piece = left + step * parts
            at, j, there = _piece(piece, facts, begins, pieces, size + 1, BLOCK, ALIGNED)
            ours = _pointer(tl.load(at + 3 + i, mask=i < size, other=0), like, ALIGNED)
            theirs = _pointer(tl.load(at + 3 + k, mask=k < size, other=0), like, ALIGNED)
            inside = there[None, :]
            x = tl.load(ours[:, None] + j[None, :], mask=inside & (i < size)[:, None], other=0)
            y = tl.load(theirs[:, None] + j[None, :], mask=inside & (k < size)[:, None], other=0)
            apart = x.to(REAL)[:, None, :] - y.to(REAL)[None, :, :]
            squares += apart * apart
        total += tl.sum(squares, axis=2).to(tl.float64)
    to = partial + part.to(tl.int64) * size * size
    mask = (i < size)[:, None] & (k < size)[None, :]
    tl.store(to + i[:, None] * size + k[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["pieces", "size"])
def weighted_sum(
    like,
    facts,
    begins,
    pieces,
    size,
    weights,
    odd,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """odd[part] = how many sums of the piece are not finite."""
    part = tl.program_id(0)
    at, j, inside = _piece(part, facts, begins, pieces, size, BLOCK, ALIGNED)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for k in tl.range(0, size, loop_unroll_factor=4):
        row = _pointer(tl.load(at + 2 + k), like, ALIGNED)
        total += tl.load(weights + k) * tl.load(row + j, mask=inside, other=0).to(tl.float64)
    result = _rounded(total, like.dtype.element_ty)
    tl.store(_pointer(tl.load(at + 1), like, ALIGNED) + j, result, mask=inside)
    faults = inside & (result.to(tl.float64) * 0 != 0)
    tl.store(odd + part, tl.sum(faults.to(tl.int32), axis=0))


@triton.jit
def trimmed_mean(
    like,
    facts,
    begins,
    pieces,
    odd,
    SIZE: tl.constexpr,
    TRIM: tl.constexpr,
    NETWORK: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    REAL: tl.constexpr,
):
    """Write the mean of the middle ranks of each column.

    A thread holds all numbers of its columns in registers and brings the middle ranks into place by
    a comparator network, whose positions are known when the kernel is compiled.
    """
    part = tl.program_id(0)
    at, j, inside = _piece(part, facts, begins, pieces, SIZE + 1, BLOCK, ALIGNED)
    bad = tl.zeros((BLOCK,), dtype=tl.float64)
    xs = ()
    for k in tl.static_range(SIZE):
        row = _pointer(tl.load(at + 3 + k), like, ALIGNED)
        x = tl.load(row + j, mask=inside, other=0).to(REAL)
        bad += x.to(tl.float64) * 0
        xs = xs + (x,)  # type: ignore[assignment] # noqa: RUF005
    for c in tl.static_range(PAIRS):
        # The smaller of two numbers comes first. Triton unpacks no tuple into another, and a
        # function for this would take three times as long to compile.
        low = tl.minimum(xs[NETWORK[2 * c]], xs[NETWORK[2 * c + 1]])
        high = tl.maximum(xs[NETWORK[2 * c]], xs[NETWORK[2 * c + 1]])
        between = xs[NETWORK[2 * c] + 1 : NETWORK[2 * c + 1]]
        after = xs[NETWORK[2 * c + 1] + 1 :]
        xs = xs[: NETWORK[2 * c]] + (low,) + between + (high,) + after  # noqa: RUF005
    mean = bad
    for k in tl.static_range(TRIM, SIZE - TRIM):
        mean += xs[k].to(tl.float64) * (1.0 / (SIZE - 2 * TRIM))
    result = _rounded(mean, like.dtype.element_ty)
    tl.store(_pointer(tl.load(at + 1), like, ALIGNED) + j, result, mask=inside)
    faults = inside & (result.to(tl.float64) * 0 != 0)
    tl.store(odd + part, tl.sum(faults.to(tl.int32), axis=0))
