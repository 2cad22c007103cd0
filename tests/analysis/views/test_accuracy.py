"""Personal and global accuracy by method: means and intervals, for the figure's two panels."""

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.accuracy import headlines


def test_rows_are_means_and_intervals_over_seeds(written, summary_dir) -> None:
    rows = headlines(Summary(summary_dir))
    table = rows.set_index(["skew", "method", "metric"])
    cells = len(written.plan.skews) * len(written.plan.methods)
    # Local only has no global accuracy.
    assert len(rows) == 3 * cells - len(written.plan.skews)
    for skew in written.plan.skews:
        for method in written.plan.methods:
            for metric in ("personal_accuracy", "personal_worst_decile", "global_accuracy"):
                values = written.values(skew, method, metric, "selected")
                if np.isnan(values).all():
                    assert (skew, method, metric) not in table.index
                    continue
                row = table.loc[(skew, method, metric)]
                assert (row["n"], row["mean"]) == (len(values), pytest.approx(values.mean()))
                half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
                assert row["high"] - row["mean"] == pytest.approx(half)
                assert row["mean"] - row["low"] == pytest.approx(half)
