"""Personal accuracy by method as a dot plot, and against global accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import (
    CEILING,
    GLOBAL,
    PERSONAL,
    WORST,
    is_ceiling,
    method_order,
    method_title,
)
from fedsdg.analysis.plots.style import MUTED, Look, hide_unused, looks, panels, say


def draw(rows: pd.DataFrame) -> Figure:
    """``personal_and_global.personal_and_global``: one row of two panels for each place."""
    shown = [
        (where, scenario, part)
        for where, here in places(rows)
        for scenario, part in groups(here, "scenario")
    ]
    methods = sorted(rows["method"].unique(), key=method_order)
    height = 1.0 + 0.2 * max(len(methods), 8)
    figure, axes = panels(max(len(shown), 1), 2, panel_height=height)
    if not shown:
        say(axes[0][0], "no finished run")
        hide_unused(axes)
        return figure
    look = looks(methods)
    for (left, right), (where, scenario, part) in zip(axes, shown, strict=True):
        _dots(left, part, look)
        _against_global(right, part, look)
        ceiling = part[part["method"].map(is_ceiling)].set_index("metric")["mean"]
        for panel, metric in ((left, PERSONAL), (right, GLOBAL)):
            if metric.key in ceiling.index:
                _ceiling(panel, 100 * float(ceiling[metric.key]))
        left.set_title(", ".join(text for text in (where, scenario) if text))
        right.set_title("personal against global")
    return figure


def _dots(panel: Axes, part: pd.DataFrame, look: Mapping[str, Look]) -> None:
    """Methods from the best mean down; filled: mean over clients, open: worst decile."""
    part = part[~part["method"].map(is_ceiling)]
    means = part[part["metric"] == PERSONAL.key].set_index("method")["mean"]
    order = means.sort_values(kind="stable").index.tolist()
    height = {method: i for i, method in enumerate(order)}
    for metric, filled, offset in ((WORST, False, -0.14), (PERSONAL, True, 0.14)):
        rows = part[(part["metric"] == metric.key) & part["method"].isin(order)]
        for method, mean, low, high in rows[["method", "mean", "low", "high"]].to_numpy():
            colour = look[method].colour
            panel.errorbar(
                100 * mean,
                height[method] + offset,
                xerr=[[100 * (mean - low)], [100 * (high - mean)]],
                fmt=look[method].marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=4.4,
                elinewidth=0.8,
            )
    panel.set_yticks(range(len(order)), [method_title(method) for method in order])
    panel.set_ylim(-0.6, len(order) - 0.4)
    shown = part[part["metric"].isin([PERSONAL.key, WORST.key])]
    low, high = 100 * shown["mean"].min(), 100 * shown["mean"].max()
    # Intervals of two seeds are longer than the page: the points say where to look.
    room = 0.15 * (high - low + 1)
    panel.set_xlim(max(low - room, -2), min(high + room, 101))
    panel.set_xlabel("accuracy on own test data (%)")


def _ceiling(panel: Axes, at: float) -> None:
    """What pooled data would give, as a line; a panel that ends before it grows to hold it."""
    low, high = panel.get_xlim()
    panel.set_xlim(min(low, at - 1), max(high, at + 1))
    panel.axvline(at, **looks([CEILING])[CEILING].line())
    panel.annotate(
        method_title(CEILING),
        (at, 0.02),
        xycoords=("data", "axes fraction"),
        rotation=90,
        ha="right",
        va="bottom",
        fontsize=7,
    )


def _against_global(panel: Axes, part: pd.DataFrame, look: Mapping[str, Look]) -> None:
    part = part[~part["method"].map(is_ceiling)]
    wide = part.pivot(index="method", columns="metric", values=["mean", "low", "high"])
    if GLOBAL.key not in wide["mean"] or PERSONAL.key not in wide["mean"]:
        say(panel, "no global accuracy")
        return
    wide = wide.dropna(subset=[("mean", GLOBAL.key), ("mean", PERSONAL.key)])
    for method in sorted(wide.index, key=method_order):
        at = wide.loc[method]
        panel.plot(
            100 * at["mean", GLOBAL.key],
            100 * at["mean", PERSONAL.key],
            linestyle="",
            color=look[method].colour,
            zorder=look[method].order,
            **look[method].marks() | {"markersize": 6.5},
        )
    x, y = 100 * wide["mean", GLOBAL.key], 100 * wide["mean", PERSONAL.key]
    panel.set_xlim(x.min() - 3, x.max() + 3)
    panel.set_ylim(y.min() - 3, y.max() + 3)
    panel.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    panel.set_xlabel("global accuracy (%)")
    panel.set_ylabel("personal accuracy (%)")
