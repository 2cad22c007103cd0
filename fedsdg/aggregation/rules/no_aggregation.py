"""No aggregation: the server's model stays as it is (local-only training)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload


@dataclass(frozen=True)
class NoAggregation(StatelessRule):
    """step = 0, no weights. `update` may be [M, 0], or absent where nothing is communicated."""

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        if "update" not in uploads:
            return Aggregate(torch.zeros(1, 0), None, dict(state), {})
        updates = checked_upload(uploads, context)
        return Aggregate(updates.new_zeros(1, updates.shape[1]), None, dict(state), {})
