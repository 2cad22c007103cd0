"""What rules need to know of the updates, in passes over column blocks, accumulated in float64.

Here stands the plain reference, for any device and dtype. A block of columns of all M rows is
converted to float64 at a time, so a second [M, d] copy never exists, whatever the dtype of the
rows; blocks come in a fixed order, so results are the same from run to run. Large rows go to the
kernels (see `backends`). These form products of float32 rows in float32 within blocks of
at most 512 columns and add the blocks in float64; of norms, products and distances the reference
keeps about 12 digits and they keep at least 5 (relative to ||x_k|| sum_j |c_j| ||x_j|| for dots).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsdg.aggregation.engines.backends import kernels_for

if TYPE_CHECKING:
    from fedsdg.aggregation.engines.kernels import columns, cuda

    Rows = columns.Rows | cuda.tables.Rows | cuda.tables.TabledRows

BLOCK_BYTES = 1 << 21
"""Size of one float64 block: about a core's share of the last-level cache."""

ROOM = 450
"""The largest rows measure up to two to this power, where they are not measured in units of 1."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of rows x_1 … x_M, each divided by `unit`; multiply norms by unit, products by unit**2.

    `unit` is 1 except for float64 rows so large or small that their squares would leave float64;
    it is a power of two, so dividing by it is exact. Large rows are 2^450 units, so that the norms
    and dots of others, down to 1e-400 of them, have room too.
    """

    unit: float
    norms: np.ndarray
    """[M] ||x_k||_2 / unit."""
    dots: np.ndarray
    """[M] <x_k, z> / unit**2, z = sum_k c_k x_k the reference: the mean unless asked otherwise."""
    reference_norm: float
    """||z||_2 / unit."""
    gram: np.ndarray | None = None
    """[M, M] <x_i - mean, x_j - mean> / unit**2, or None if it was not asked for."""


def measure(
    rows: torch.Tensor, coefficients: np.ndarray | None = None, *, gram: bool = False
) -> Statistics:
    """Norms, dots with the reference and its norm, and optionally the centred Gram, in one pass.

    rows: [M, d] finite, floating, M >= 1. coefficients: [M] c of the reference z = sum_k c_k x_k;
    None for the mean (c_k = 1/M). The Gram is always centred on the mean: distances from it do not
    cancel when all updates share a large common part.
    """
    if (kernels := kernels_for(rows)) and (
        found := measured_by_kernels(_laid_out(rows, kernels), coefficients, gram=gram, on=kernels)
    ):
        return found
    size, unit = rows.shape[0], _unit(rows)
    if unit != 1.0 and not gram:
        return _measured_apart(rows, coefficients, unit)
    squares = torch.zeros(size, dtype=torch.float64, device=rows.device)
    dots, reference_square = squares.clone(), squares.new_zeros(())
    products = squares.new_zeros(size, size) if gram else None
    c = None if coefficients is None else torch.as_tensor(coefficients).to(squares)
    for _, block in _blocks(rows, unit):
        mean = block.mean(0)
        reference = mean if c is None else c @ block
        squares += block.square().sum(1)
        dots += block @ reference
        reference_square += reference @ reference
        if products is not None:
            centred = block - mean
            products += centred @ centred.T
    return Statistics(
        unit=unit,
        norms=squares.sqrt().cpu().numpy(),
        dots=dots.cpu().numpy(),
        reference_norm=math.sqrt(reference_square.item()),
        gram=None if products is None else ((products + products.T) / 2).cpu().numpy(),
    )


def _measured_apart(rows: torch.Tensor, coefficients: np.ndarray | None, unit: float) -> Statistics:
    """As `measure`, with each row in a unit of its own, so that no square leaves float64."""
    size = rows.shape[0]
    low, high = torch.aminmax(rows, dim=1)
    peaks = torch.maximum(-low, high).cpu().numpy()
    own = np.clip(np.frexp(np.where(np.isfinite(peaks), peaks, 1.0))[1], -1000, 1023)
    c = np.full(size, 1.0 / size) if coefficients is None else np.asarray(coefficients, float)
    terms = (np.frexp(c)[1] + own)[c != 0]
    of_z = int(terms.max()) if len(terms) else 0
    squares = torch.zeros(size, dtype=torch.float64, device=rows.device)
    dots, reference_square = squares.clone(), squares.new_zeros(())
    factors = torch.as_tensor(np.ldexp(1.0, -own)).to(squares)
    shares = torch.as_tensor(np.ldexp(c, own - of_z)).to(squares)
    for _, block in _blocks(rows, 1.0):
        scaled = block * factors[:, None]
        reference = shares @ scaled
        squares += scaled.square().sum(1)
        dots += scaled @ reference
        reference_square += reference @ reference
    one = math.frexp(unit)[1] - 1
    if unit > 1.0:
        one -= ROOM
    with np.errstate(over="ignore"):  # Of rows that are not finite.
        return Statistics(
            unit=math.ldexp(1.0, one),
            norms=np.ldexp(squares.sqrt().cpu().numpy(), own - one),
            dots=np.ldexp(dots.cpu().numpy(), own + of_z - 2 * one),
            reference_norm=float(np.ldexp(math.sqrt(reference_square.item()), of_z - one)),
        )


def squared_distances(rows: torch.Tensor) -> tuple[np.ndarray, float]:
    """([M, M] ||x_i - x_j||^2 / unit**2, unit): symmetric, and exactly zero for equal rows.

    From the centred Gram, D_ij = G_ii + G_jj - 2 G_ij. Where that cancels (rows much closer to each
    other than to the mean, as the honest ones are when an attacker is far away) the distances are
    formed from differences instead, so that each is good to about 1e-12 relative. The kernels form
    them from differences at once.
    """
    if kernels := kernels_for(rows):
        between = distances_by_kernels(_laid_out(rows, kernels), on=kernels)
        if between is not None:
            return between, 1.0
    statistics = measure(rows, gram=True)
    assert statistics.gram is not None
    diagonal = statistics.gram.diagonal()
    sums = diagonal[:, None] + diagonal[None, :]
    with np.errstate(invalid="ignore"):  # Of rows that are not finite, neither are the distances.
        distances = sums - 2 * statistics.gram
    np.fill_diagonal(distances, 0.0)
    off_diagonal = ~np.eye(len(distances), dtype=bool)
    if (distances <= 1e-3 * sums)[off_diagonal].any():
        distances = _distances_from_differences(rows, statistics.unit)
    return distances, statistics.unit


def log_distances(rows: torch.Tensor) -> np.ndarray:
    """[M, M] log2 ||x_i - x_j||, -inf where rows are equal: in the range of any finite numbers.

    Each pair is scaled by itself, which is slow; so this is for rows whose squared distances have
    no common unit.
    """
    size = rows.shape[0]
    squares = np.full((size, size), -np.inf)
    for _, block in _blocks(rows, 1.0):
        half = block / 2  # So that no difference overflows.
        for i in range(size - 1):
            between = (half[i + 1 :] - half[i]).abs_()
            peak = between.amax(1)
            between /= torch.where(peak > 0, peak, 1.0)[:, None]
            found = 2 + 2 * torch.log2(peak) + torch.log2(between.square_().sum(1))
            squares[i, i + 1 :] = np.logaddexp2(squares[i, i + 1 :], found.cpu().numpy())
    return np.asarray(np.maximum(squares, squares.T) / 2)


def centred_products(rows: torch.Tensor, centre: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """[M, M] <y_k, y_l> of y_k = (x_k - sum_l c_l x_l) / 2^e_k, in float64.

    centre: [M] c >= 0 summing to 1. exponents: [M] e in [-1000, 1023].
    """
    size = rows.shape[0]
    total = torch.zeros(size, size, dtype=torch.float64, device=rows.device)
    c = torch.as_tensor(centre).to(total)
    factors = torch.as_tensor(np.ldexp(1.0, 1 - exponents)).to(total)
    for _, block in _blocks(rows, 1.0):
        half = block / 2  # So that no difference overflows.
        half -= c @ half
        half *= factors[:, None]
        total += half @ half.T
    products = total.cpu().numpy()
    return np.asarray((products + products.T) / 2)


def weighted_sum(rows: torch.Tensor, weights: np.ndarray) -> torch.Tensor:
    """sum_k w_k x_k, [d] in the dtype of the rows [M, d]; weights [M]; accumulated in float64."""
    return looked_at_sum(rows, weights)[0]


def looked_at_sum(rows: torch.Tensor, weights: np.ndarray) -> tuple[torch.Tensor, bool | None]:
    """`weighted_sum`, and whether all of it is finite, if that came to light: else None."""
    total = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    if name := kernels_for(rows):
        from fedsdg.aggregation.engines.kernels.packages import load

        kernels = load(name)
        finite = kernels.sums.weighted_sum(kernels.as_rows(rows), np.asarray(weights, float), total)
        return total, finite
    w = torch.as_tensor(weights).to(dtype=torch.float64, device=rows.device)
    for columns, block in _blocks(rows, 1.0):
        total[columns] = (w @ block).to(rows.dtype)
    return total, None


def measured_by_kernels(
    rows: Rows, coefficients: np.ndarray | None = None, *, gram: bool = False, on: str = "numba"
) -> Statistics | None:
    """As `measure`, of rows as kernels want them; None where float64 without scaling is too narrow.

    on: whose kernels, "numba" or "triton".
    """
    from fedsdg.aggregation.engines.kernels.packages import load

    kernels = load(on).moments
    # Coefficients at most 1: their scale comes back in at the end, in float64. One that vanishes
    # in float32 (< 2^-149) is of no account where all |x| < 2^64 and z is in range.
    c = np.ones(rows.size) if coefficients is None else np.asarray(coefficients, dtype=np.float64)
    scale = float(np.abs(c).max()) or 1.0
    for real in _precisions(rows):
        reference: np.ndarray = (c / scale).astype(real)
        squares, dots = kernels.moments(rows, reference, real)
        if kernels.moments_in_range(rows, squares, real):
            break
    else:
        if rows.dtype == torch.float64:
            return None
    between = distances_by_kernels(rows, on=on) if gram else None
    if gram and between is None:
        return None
    scale = 1.0 / rows.size if coefficients is None else scale
    return from_moments(squares, dots, scale, None if between is None else _centred_gram(between))


def from_moments(
    squares: np.ndarray, dots: np.ndarray, scale: float, gram: np.ndarray | None = None
) -> Statistics:
    """From the squares [M + 1] of the rows and of z, and the dots [M] with z; the reference is
    z times the scale."""
    return Statistics(
        unit=1.0,
        norms=np.sqrt(squares[:-1]),
        dots=dots * scale,
        reference_norm=math.sqrt(squares[-1]) * scale,
        gram=gram,
    )


def distances_by_kernels(rows: Rows, *, on: str = "numba") -> np.ndarray | None:
    """[M, M] ||x_i - x_j||^2, of rows as kernels want them; None where float64 is too narrow."""
    from fedsdg.aggregation.engines.kernels.packages import load

    kernels = load(on).moments
    for real in _precisions(rows):
        found = kernels.distances(rows, real)
        if kernels.distances_in_range(rows, found, real):
            return found
    return None if rows.dtype == torch.float64 else found


def _laid_out(rows: torch.Tensor, kernels: str) -> Rows:
    from fedsdg.aggregation.engines.kernels.packages import load

    laid_out: Rows = load(kernels).as_rows(rows)
    return laid_out


def _precisions(rows: Rows) -> list[type]:
    """What the kernels try in turn; float64 has room for the square of every float32."""
    return [np.float64] if rows.dtype == torch.float64 else [np.float32, np.float64]


def _centred_gram(distances: np.ndarray) -> np.ndarray:
    """<x_i - mean, x_j - mean> = -1/2 (D_ij - mean_i D_ij - mean_j D_ij + mean_ij D_ij)."""
    means = distances.mean(axis=0)
    return -0.5 * (distances - means[:, None] - means[None, :] + means.mean())


def _distances_from_differences(rows: torch.Tensor, unit: float) -> np.ndarray:
    total = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, block in _blocks(rows, unit):
        direct = "donot_use_mm_for_euclid_dist"
        total += torch.cdist(block, block, compute_mode=direct).square()
    distances = ((total + total.T) / 2).cpu().numpy()
    np.fill_diagonal(distances, 0.0)
    return distances


def _blocks(rows: torch.Tensor, unit: float) -> Iterator[tuple[slice, torch.Tensor]]:
    """Float64 column blocks of rows / unit. A block may be a view of the rows: read it only."""
    width = max(256, BLOCK_BYTES // (8 * rows.shape[0]))
    for start in range(0, rows.shape[1], width):
        columns = slice(start, min(start + width, rows.shape[1]))
        block = rows[:, columns].to(torch.float64)
        yield columns, block if unit == 1.0 else block / unit


def _unit(rows: torch.Tensor) -> float:
    if rows.dtype != torch.float64 or rows.numel() == 0:
        return 1.0
    low, high = torch.aminmax(rows)
    peak = max(-low.item(), high.item())
    if peak == 0 or 2.0**-300 <= peak <= 2.0**300:
        return 1.0
    return math.ldexp(1.0, math.frexp(peak)[1] - 1)
