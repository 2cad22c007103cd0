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
from fedsdg.analysis.tables.layout import Entry, Table, block

_CAPTION = (
    "Change from the quarter of the rounds before the last to the last one, means of their "
    "evaluations and over seeds: personal validation accuracy, the shared parameters alone on the "
    "pooled validation data (percentage points, both without sign), and mean |change| of the gates "
    f"over clients. Settled: below {100 * ACCURACY:.0f} point and below {GATES}; with fewer than "
    f"{EVALUATIONS} evaluations in a quarter it cannot be judged"
)
#: Columns of the raw numbers.
_NAMES = ("personal validation accuracy", "shared validation accuracy")
_GATES = "mean change of gates"
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


def _line(one: Horizon) -> list[str | Entry]:
    accuracies = (one.val_accuracy, one.global_val_accuracy)
    texts = [MISSING if change is None else f"{100 * change:.2f}" for change in accuracies]
    place = _place(one)
    changes = [
        Entry(text).of(name, place) for text, name in zip(texts, map(_change, _NAMES), strict=True)
    ]
    gates = Entry(MISSING if one.gates is None else f"{one.gates:.3f}").of(_GATES, place)
    counts = [str(one.rounds), str(one.evaluations)]
    return [method_title(one.method), *counts, *changes, gates, verdict_text(one)]


def verdict_text(one: Horizon) -> str:
    """The verdict as the table has it: "settled", or "before convergence, round 60"."""
    return {SETTLED: SETTLED, BEFORE: one.phrase, UNJUDGED: UNJUDGED}[one.verdict]


def _place(one: Horizon) -> dict[str, object]:
    """What tells a row of the raw numbers."""
    return {
        "dataset": one.cell.setting.dataset,
        "clients": one.cell.setting.clients,
        "skew": one.cell.skew,
        "method": one.method,
    }


def _change(name: str) -> str:
    return f"change of {name} (percentage points)"


def _raw(one: Horizon) -> dict[str, object]:
    accuracies = dict(zip(_NAMES, (one.val_accuracy, one.global_val_accuracy), strict=True))
    return {
        **_place(one),
        "rounds": one.rounds,
        "seeds": one.seeds,
        "evaluations": one.evaluations,
        **{
            _change(name): None if value is None else 100 * value
            for name, value in accuracies.items()
        },
        _GATES: one.gates,
        "verdict": one.verdict,
    }
