"""What the seeds of a method take to a target, those that never get there counted as censored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import bdtr

from fedsdg.analysis.inference import CONFIDENCE
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.costs import SMOOTHED, YARDSTICK, evaluations

_CELL = ["dataset", "clients", "skew"]
_RUN = [*_CELL, "method", "seed"]


@dataclass(frozen=True)
class Reached:
    """Median over seeds of what a target took, with a distribution-free interval.

    ``reached`` of ``seeds`` seeds got there. inf stands for "more than was tried": ``median`` and
    ``high`` (and ``low``) are inf where the seeds that never got there decide them. ``low`` and
    ``high`` are None where so few seeds allow no interval of the confidence.
    """

    seeds: int
    reached: int
    median: float
    low: float | None
    high: float | None


def reached(costs: Sequence[float], confidence: float = CONFIDENCE) -> Reached:
    """The median of ``costs`` [one per seed], NaN for a seed that never reached the target.

    A seed that never got there took more than any that did, for all are stopped after the same
    number of rounds; so order statistics need no more than that (type I censoring). The median is
    the ⌈n/2⌉-th smallest: the least cost at which half of the seeds are there. The interval is
    [x_(k), x_(n+1−k)] with the largest k for which 1 − 2 P(Bin(n, ½) < k) ≥ ``confidence``: exact
    whatever the distribution (Conover 1999, section 3.2); of fewer than six seeds there is none of
    95 %. Raises ``ValueError`` for no seeds.
    """
    x = np.asarray(costs, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"a median needs at least one seed, got shape {x.shape}")
    never = np.isnan(x)
    ordered = np.sort(np.where(never, np.inf, x))
    n = x.size
    outside = [k for k in range(1, n // 2 + 1) if 2 * bdtr(k - 1, n, 0.5) <= 1 - confidence]
    k = max(outside, default=0)
    low, high = (float(ordered[k - 1]), float(ordered[n - k])) if k else (None, None)
    median = float(ordered[(n + 1) // 2 - 1])
    return Reached(n, int(n - never.sum()), median, low, high)


def seeds_to_target(summary: Summary, share: float) -> pd.DataFrame:
    """What each run took to ``share`` of the reported personal accuracy of ``YARDSTICK`` there.

    Columns: dataset, clients, skew, method, seed, target, ``round`` and ``bytes`` (up and down) of
    the first evaluation at which the run's accuracy, smoothed over ``SMOOTHED`` evaluations, is at
    least the target, NaN where it never is; ``last_round`` and ``last_bytes`` of its last
    evaluation. Cells without the yardstick have no rows.
    """
    accuracy = summary.personal.key
    frame = evaluations(summary).reset_index(drop=True)
    runs = frame.groupby(_RUN, sort=False)
    smooth = runs[accuracy].rolling(SMOOTHED, min_periods=1).mean()
    frame["smoothed"] = smooth.reset_index(level=list(range(len(_RUN))), drop=True)
    targets = []
    for cell in summary.cells():
        final = summary.reported_values(cell, accuracy).get(YARDSTICK)
        if final:
            place = (cell.setting.dataset, cell.setting.clients, cell.skew)
            targets.append((*place, share * float(np.mean(list(final.values())))))
    frame = frame.merge(pd.DataFrame(targets, columns=[*_CELL, "target"]), on=_CELL)
    costs = ["round", "bytes"]
    first = frame[frame["smoothed"] >= frame["target"]].drop_duplicates(_RUN)
    ends = frame.drop_duplicates(_RUN, keep="last")[[*_RUN, "target", *costs]]
    ends = ends.rename(columns={name: f"last_{name}" for name in costs})
    return ends.merge(first[[*_RUN, *costs]], on=_RUN, how="left")
