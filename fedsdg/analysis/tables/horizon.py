"""Whether training had settled, method by method: what makes a comparison a result."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.formatting import MISSING
from fedsdg.analysis.horizon import (
    ACCURACY,
    BEFORE,
    EVALUATIONS,
    GATES,
    SETTLED,
    UNJUDGED,
    Horizon,
    horizons,
)
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Table, block

_CAPTION = (
    "Change from the quarter of the rounds before the last to the last one, means of their "
    "evaluations and over seeds: personal validation accuracy, the shared parameters alone on the "
    "pooled validation data (percentage points, both without sign), and mean |change| of the gates "
    f"over clients. Settled: below {100 * ACCURACY:.0f} point and below {GATES}; with fewer than "
    f"{EVALUATIONS} evaluations in a quarter it cannot be judged"
)
_HEADS = ["Method", "rounds", "evaluations", "personal", "shared", "gates", "verdict"]


def horizon(summary: Summary) -> Table:
    """A block for each cell: a row for each method."""
    found = horizons(summary)
    blocks = []
    for cell in summary.cells():
        lines = [_line(one) for one in found if one.cell == cell]
        if lines:
            title = summary.cell_title(cell).replace("\n", ", ")
            blocks.append(block(title, _HEADS, lines))
    notes = () if blocks else ("No finished run of this experiment was evaluated.",)
    caption = f"{_CAPTION}. {hyperparameters(summary.runs)}"
    raw = pd.DataFrame([_raw(one) for one in found])
    return Table("horizon", caption, tuple(blocks) or (block("", _HEADS, []),), notes, raw)


def _line(one: Horizon) -> list[str]:
    accuracies = (one.val_accuracy, one.global_val_accuracy)
    changes = [MISSING if change is None else f"{100 * change:.2f}" for change in accuracies]
    gates = MISSING if one.gates is None else f"{one.gates:.3f}"
    counts = [str(one.rounds), str(one.evaluations)]
    return [method_title(one.method), *counts, *changes, gates, verdict_text(one)]


def verdict_text(one: Horizon) -> str:
    """The verdict as the table has it: "settled", or "before convergence, round 60"."""
    return {SETTLED: SETTLED, BEFORE: one.phrase, UNJUDGED: UNJUDGED}[one.verdict]


def _raw(one: Horizon) -> dict[str, object]:
    accuracies = {
        "personal validation accuracy": one.val_accuracy,
        "shared validation accuracy": one.global_val_accuracy,
    }
    return {
        "dataset": one.cell.setting.dataset,
        "clients": one.cell.setting.clients,
        "skew": one.cell.skew,
        "method": one.method,
        "rounds": one.rounds,
        "seeds": one.seeds,
        "evaluations": one.evaluations,
        **{
            f"change of {name} (percentage points)": None if value is None else 100 * value
            for name, value in accuracies.items()
        },
        "mean change of gates": one.gates,
        "verdict": one.verdict,
    }
