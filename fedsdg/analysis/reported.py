"""Which value of a run is reported, and which of its accuracies is the personal one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedsdg.analysis.differences import by_seed
from fedsdg.analysis.names import EXPECTED, EXPECTED_WORST, PERSONAL, Metric

#: Expected accuracy over two kinds of clients, as figures name it.
EXPECTED_A = Metric("expected_accuracy_a", "accuracy of A (agree)", "A")
EXPECTED_B = Metric("expected_accuracy_b", "accuracy of B (differ)", "B")
__all__ = ["EXPECTED", "EXPECTED_A", "EXPECTED_B", "EXPECTED_WORST", "personal_metric", "reported"]

#: What ends a run, from the best to the oldest: the mean of the last quarter's evaluations, or the
#: last round in records from before that was kept.
ENDS = ("quarter", "last")


def reported(runs: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[int, float]]:
    """Method → seed → the value of metric ``key`` that is reported, as a share.

    It is the mean over the last quarter's evaluations, or that of the last round where no run
    has such a mean; never a mixture of both. Runs without a value are left out.
    """
    for at in ENDS:
        known = [run for run in runs if run.get(f"{at}_{key}") is not None]
        if values := by_seed(known, f"{at}_{key}"):
            return values
    return {}


def personal_metric(columns: Iterable[str]) -> Metric:
    """Expected accuracy where a record has it, otherwise the accuracy on a client's own shard."""
    return EXPECTED if any(name.endswith(EXPECTED.key) for name in columns) else PERSONAL
