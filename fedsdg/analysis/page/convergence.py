"""Accuracy over a run, against what it costs: rounds, local steps or bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.page.charts import chart, colour, dash, shape
from fedsdg.analysis.plots.style import BAND_SEEDS
from fedsdg.analysis.views.costs import COSTS

_COLUMNS = ("method", "round", "steps", "bytes", "mean", "low", "high")


def curves(arena: Arena, progress: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, list]]:
    """Metric → columns of the arena's rows of ``progress``: accuracies in %, costs in the units of
    ``COSTS``, all to four digits or more; below ``BAND_SEEDS`` seeds both ends of the interval are
    the mean itself. A cost that was not recorded is None."""
    units = {name: unit for name, _, unit in COSTS}
    found = {}
    for metric, frame in progress.items():
        rows = frame[arena.cell.matches(frame)]
        columns: dict[str, list] = {"method": rows["method"].tolist()}
        for name in _COLUMNS[1:4]:
            columns[name] = [
                None if pd.isna(value) else printed(float(value) / units[name])
                for value in rows[name]
            ]
        for name in _COLUMNS[4:]:
            shown = rows[name].where(rows["n"] >= BAND_SEEDS, rows["mean"])
            columns[name] = [round(100 * float(value), 2) for value in shown]
        found[metric] = columns
    return found


def specs() -> dict[str, dict[str, Any]]:
    """A chart for each cost: lines, bands, and the points under the pointer."""
    found = {}
    for name, title, _ in COSTS:
        scale = alt.Scale(zero=False, nice=False, padding=8)
        x = alt.X(f"{name}:Q", title=title, axis=alt.Axis(grid=False), scale=scale)
        y = alt.Y("mean:Q", title="accuracy (%)", scale=alt.Scale(zero=False))
        under = alt.selection_point(
            name="under",
            fields=["method", "round"],
            on="pointerover",
            clear="pointerout",
            empty=False,
        )
        base = chart(380).encode(x=x, color=colour(), detail="method:N")
        band = base.mark_area(opacity=0.1).encode(y=alt.Y("low:Q"), y2="high:Q")
        width = alt.StrokeWidth("width:Q", scale=None, legend=None)
        line = base.mark_line().encode(y=y, strokeDash=dash(), strokeWidth=width)
        told = [
            alt.Tooltip("title:N", title="method"),
            alt.Tooltip("said:N", title="accuracy (%)"),
            alt.Tooltip("round:Q", title="round"),
            alt.Tooltip("steps:Q", title="thousand steps", format=",.1f"),
            alt.Tooltip("bytes:Q", title="MB", format=",.1f"),
        ]
        points = base.mark_point(filled=True, size=70).encode(
            y=y,
            shape=shape(),
            opacity=alt.condition(under, alt.value(1), alt.value(0.3)),
        )
        # Unseen and larger than the points, so that a pointer or a finger finds them.
        places = base.mark_point(filled=True, size=500, opacity=0).encode(y=y, tooltip=told)
        found[f"convergence-{name}"] = (band + line + points + places.add_params(under)).to_dict()
    return found
