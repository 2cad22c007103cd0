"""What the figure of drift draws, from the columns that a run records."""

import numpy as np
import pytest

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.trajectories import COLUMNS, trajectories

from .conftest import Run


def case(scenario, seed, shift):
    rows = [
        {
            "round": round_,
            "client": client,
            "participated": True,
            "path_x": [shift + round_ + 0.1 * step for step in range(3)],
            "path_y": [client - 0.1 * step for step in range(3)],
        }
        for round_ in (1, 2)
        for client in (0, 1)
    ]
    rounds = [
        {"round": r, "evaluated": True, "model_x": shift + r, "model_y": 0.5, "plane_share": 0.9}
        for r in (1, 2)
    ]
    return Run("fedavg", seed, scenario, clients=2, rows=rows, rounds=rounds)


def test_rows_are_points_in_order(summary_of) -> None:
    summary = summary_of([case("equal", 0, 0.0), case("equal", 1, 50.0), case("other", 0, 9.0)])
    rows = trajectories(Summary(summary))
    assert list(rows.columns) == COLUMNS
    assert set(rows["seed"]) == {0}, "a case is one run"
    own = rows[(rows["scenario"] == "other") & (rows["kind"] == "local")]
    assert len(own) == 2 * 2 * 3
    way = own[(own["round"] == 2) & (own["client"] == 1)]
    assert way["step"].tolist() == [0, 1, 2]
    assert way["x"].to_numpy() == pytest.approx([11.0, 11.1, 11.2])
    assert way["y"].to_numpy() == pytest.approx([1.0, 0.9, 0.8])
    models = rows[(rows["scenario"] == "equal") & (rows["kind"] == "aggregate")]
    assert models["x"].tolist() == [1.0, 2.0] and models["client"].isna().all()
    assert np.all(rows["plane_share"] == 0.9)


def test_runs_that_kept_no_way_have_no_rows(summary_dir) -> None:
    assert trajectories(Summary(summary_dir)).empty
