"""Measures of accuracy: as reported, and how far it swings."""

from __future__ import annotations

import numpy as np

from fedsdg.analysis.differences import by_seed
from fedsdg.analysis.measures.records import Case, LackingError, Record, Values, after


def accuracy(record: Record, case: Case) -> Values:
    """An accuracy [%] of the row in the cell, as reported."""
    metric = case.options["metric"]
    runs = list(record.runs(case).values())
    values = by_seed(runs, f"{record.summary.reported}_{metric}").get(case.method)
    if not values:
        raise LackingError(f"the record has no {metric} of {case.method} at {case.cell} yet")
    return {seed: 100 * value for seed, value in values.items()}


def swing(record: Record, case: Case) -> Values:
    """Mean |change| of global accuracy from one evaluation to the next, second half of a run."""
    values = {}
    frames = record.per_seed(case, record.rounds, "global_accuracy")
    for seed, rounds in frames.items():
        late = rounds[rounds["global_accuracy"].notna() & after(rounds, 1 / 2)]
        if len(late) < 3:
            raise LackingError(f"the runs of {case.method} are evaluated too seldom for it")
        accuracy = late.sort_values("round")["global_accuracy"].to_numpy(float)
        values[seed] = 100 * float(np.abs(np.diff(accuracy)).mean())
    return values
