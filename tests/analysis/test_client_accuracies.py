"""The last quarter's accuracy of each client, against what the runs themselves report."""

from pathlib import Path

import numpy as np
import pytest

from fedsdg.analysis.client_accuracies import CLIENT_COLUMNS, client_accuracies
from fedsdg.analysis.summary import Summary

from .conftest import Run

RECORDS = Path(__file__).resolve().parents[2] / "results/reference"


@pytest.mark.parametrize("metric", sorted(CLIENT_COLUMNS))
@pytest.mark.parametrize("arena", ["views", "needs"])
def test_the_mean_over_clients_is_what_the_run_reports(arena, metric) -> None:
    """In a committed record: training took the mean over clients first, then over evaluations."""
    summary = Summary(RECORDS / arena)
    found = client_accuracies(summary, metric)
    compared = 0
    for run in summary.runs:
        expected = run[f"quarter_{metric}"]
        if expected is not None:
            own = found[tuple(run[k] for k in ("dataset", "clients", "skew", "method", "seed"))]
            assert len(own) == run["clients"]
            assert own.mean() == pytest.approx(expected, abs=1e-9)
            compared += 1
    assert compared > 0


def test_only_the_last_quarter_and_only_those_who_train_count(summary_of) -> None:
    """Eight rounds, of which seven and eight are the last quarter; client 1 is held out."""
    rows = [
        {"round": r, "client": k, "participated": True, "expected_accuracy": value}
        | {"held_out": k == 1}
        for r, values in ((6, (0.1, 0.9, 0.1)), (7, (0.2, 0.9, 0.3)), (8, (0.4, 0.9, None)))
        for k, value in enumerate(values)
    ]
    rounds = [{"round": r, "evaluated": True, "expected_accuracy": 0.5} for r in range(1, 9)]
    short = [{"round": 1, "evaluated": True, "expected_accuracy": 0.5}]
    alone = [{"round": 1, "client": 0, "participated": True, "expected_accuracy": 0.7}]
    folder = summary_of([Run("fedsdg", 0, rounds=rounds, rows=rows),
                         Run("krum", 3, rounds=short, rows=alone)])  # fmt: skip
    found = client_accuracies(Summary(folder), "expected_accuracy")
    place = ("digits", 10, "dirichlet~0.3")
    assert found[(*place, "fedsdg", 0)] == pytest.approx([(0.2 + 0.4) / 2, 0.3])
    assert np.array_equal(found[(*place, "krum", 3)], [0.7])
    assert len(found) == 2
