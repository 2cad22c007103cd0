"""The trimmed mean of every column, of which the median is the extreme case.

Here stands the plain reference, for any device and dtype; large rows go to the kernels.
"""

import torch

from fedsdg.aggregation.engines.backends import kernels_for

SORTED_NUMBERS = 1 << 18
"""Numbers that are sorted at a time."""


def trimmed_mean(rows: torch.Tensor, trim: int) -> torch.Tensor:
    """[d] of each column of [M, d] the mean of the numbers of rank trim … M-1-trim (from 0).

    In the dtype of the rows, added in float64. NaN where a number of the column is not finite.
    trim = (M-1)//2 is the median: the middle number, or the mean of the two middle ones.
    """
    return looked_at_mean(rows, trim)[0]


def looked_at_mean(rows: torch.Tensor, trim: int) -> tuple[torch.Tensor, bool | None]:
    """`trimmed_mean`, and whether all of it is finite, if that came to light: else None."""
    size, d = rows.shape
    if not 0 <= 2 * trim < size:
        raise ValueError(f"of {size} numbers, {trim} cannot be left out at both ends")
    result = torch.empty(d, dtype=rows.dtype, device=rows.device)
    if name := kernels_for(rows):
        from fedsdg.aggregation.engines.kernels.packages import load

        kernels = load(name)
        if size <= kernels.trimmed_means.MOST_ROWS:
            finite = kernels.trimmed_means.trimmed_mean(kernels.as_rows(rows), trim, result)
            return result, finite
    width = max(256, SORTED_NUMBERS // size)
    for start in range(0, d, width):
        # NaN stands last, infinity at an end.
        ordered = torch.sort(rows[:, start : start + width], dim=0).values
        # Divided before they are added, in float64, and kept between them: so nothing overflows.
        kept = ordered[trim : size - trim]
        mean = (kept.to(torch.float64) / len(kept)).sum(dim=0)
        mean = mean.clamp(kept[0].to(mean), kept[-1].to(mean)).to(rows.dtype)
        finite = torch.isfinite(ordered[0]) & torch.isfinite(ordered[-1])
        result[start : start + width] = mean.masked_fill_(~finite, torch.nan)
    return result, None
