"""Accuracy of the clients that agree against that of the clients that do not, method by method."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import AGREEING, DIFFERING, method_title, natural_order
from fedsdg.analysis.plots.style import (
    GREY,
    INTERVAL_SEEDS,
    KIND_A,
    KIND_B,
    flow,
    roles,
    say,
    shared_legend,
)

_KINDS = ((AGREEING.key, KIND_A, "o"), (DIFFERING.key, KIND_B, "D"))
_COLUMNS = 3


def draw(rows: pd.DataFrame) -> Figure:
    """``accuracy.group_accuracy``: a panel for each place, methods on one scale of names."""
    shown = [
        (where, scenario, part)
        for where, here in places(rows)
        for scenario, part in sorted(
            groups(here, "scenario"), key=lambda item: natural_order(item[0])
        )
    ]
    order = _order(rows)
    height = 0.7 + 0.19 * max(len(order), 6)
    figure, axes = flow(len(shown), _COLUMNS, panel_height=height)
    if not shown:
        say(axes[0], "the clients of this experiment\nare all of one kind")
        return figure
    low = 100 * float(rows["mean"].min())
    for i, (panel, (where, scenario, part)) in enumerate(zip(axes, shown, strict=True)):
        _dumbbells(panel, part, order)
        panel.set_title("\n".join(text for text in (where, scenario) if text))
        names = [method_title(method) for method in order]
        panel.set_yticks(range(len(order)), names if i % _COLUMNS == 0 else [""] * len(order))
        for text, method in zip(panel.get_yticklabels(), order, strict=True):
            text.set_fontweight("bold" if method == roles().subject else "normal")
        panel.set_xlim(max(low - 4, -2), 101)
        panel.set_xlabel("personal accuracy (%)")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=label)
        for (_, colour, marker), label in zip(
            _KINDS, ("A: clients that agree", "B: clients that differ"), strict=True
        )
    ]
    shared_legend(figure, handles, columns=2)
    return figure


def _order(rows: pd.DataFrame) -> list[str]:
    """Methods from the lowest accuracy of B, averaged over places, up; then by that of A."""
    means = rows.pivot_table(index="method", columns="metric", values="mean", sort=False)
    known = [key for key in (DIFFERING.key, AGREEING.key) if key in means]
    if not known:
        return []
    return [str(name) for name in means.sort_values(known, kind="stable").index]


def _dumbbells(panel: Axes, part: pd.DataFrame, order: Sequence[str]) -> None:
    height = {method: i for i, method in enumerate(order)}
    for method, own in groups(part, "method"):
        means = own.set_index("metric")["mean"]
        if len(means) == 2:
            panel.hlines(
                height[method], 100 * means.min(), 100 * means.max(), color=GREY, linewidth=1.0
            )
    for key, colour, marker in _KINDS:
        for row in part[part["metric"] == key].to_dict("records"):
            at = height[row["method"]]
            if row["n"] >= INTERVAL_SEEDS:
                ends = max(100 * row["low"], 0.0), min(100 * row["high"], 100.0)
                panel.hlines(at, *ends, color=colour, linewidth=2.2, alpha=0.45)
            panel.plot(100 * row["mean"], at, marker=marker, color=colour, markersize=4.2)
    panel.set_ylim(-0.7, len(order) - 0.3)
    panel.tick_params(axis="y", length=0)
