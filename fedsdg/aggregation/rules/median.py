"""The coordinate-wise median of the updates (Yin et al. 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsdg.aggregation.backends import use_kernels
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload

BLOCK_NUMBERS = 1 << 18


@dataclass(frozen=True)
class CoordinateMedian(StatelessRule):
    """step_j = median_k Delta_kj; of an even number of clients the mean of the two middle values.

    Clients have no weights. (torch.median returns the lower middle value: not the median.)
    """

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context, finite=False)
        size, d = updates.shape
        step = torch.empty(1, d, dtype=updates.dtype, device=updates.device)
        if use_kernels(updates):
            from fedsdg.aggregation.kernels import medians
            from fedsdg.aggregation.kernels.columns import as_rows

            if size <= medians.MOST_ROWS and medians.medians(as_rows(updates), step[0].numpy()):
                return Aggregate(step, None, dict(state), {})
        checked_upload(uploads, context)
        width = max(256, BLOCK_NUMBERS // size)
        for start in range(0, d, width):
            ordered = torch.sort(updates[:, start : start + width], dim=0).values
            low, high = ordered[(size - 1) // 2], ordered[size // 2]
            # Halved before they are added, in float64: the sum must not overflow.
            middle = low.to(torch.float64) / 2 + high.to(torch.float64) / 2
            step[0, start : start + width] = middle.to(updates.dtype)
        return Aggregate(step, None, dict(state), {})
