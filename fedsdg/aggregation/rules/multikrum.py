"""Multi-Krum: the mean of the updates that Krum scores best."""

from __future__ import annotations

from fedsdg.aggregation.rules.krum import Krum
from fedsdg.parts import Count


class MultiKrum(Krum):
    """step = the unweighted mean of the m updates with the best of Krum's scores.

    ValueError unless n >= 2f + 3 and m <= n - f. Diagnostics as of Krum.
    Source: Blanchard et al. 2017, section 4.
    """

    m: Count | None = None
    "m, how many updates are averaged; null: all but f"

    def chosen(self, n: int) -> int:
        """Return how many of n updates are averaged."""
        return n - self.f if self.m is None else self.m

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        super().require(cohort, clients)
        if self.chosen(cohort) > cohort - self.f:
            raise ValueError(f"m={self.m} must be at most n - f = {cohort - self.f}; lower m or f")
