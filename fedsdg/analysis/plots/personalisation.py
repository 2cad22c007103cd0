"""Personal accuracy by method as a dot plot, and against global accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import (
    EXPECTED,
    EXPECTED_WORST,
    GLOBAL,
    PERSONAL,
    WORST,
    method_order,
    method_title,
)
from fedsdg.analysis.plots.style import (
    INTERVAL_SEEDS,
    MUTED,
    WIDTH,
    YARDSTICK,
    Look,
    fences,
    hide_unused,
    looks,
    roles,
    say,
    shared_legend,
)

#: Places side by side at most; more stand in further bands of the figure.
_COLUMNS = 4
#: Heights in inches: of a method's line, and of the lower panels.
_LINE, _BELOW = 0.165, 2.1


def draw(rows: pd.DataFrame) -> Figure:
    """``accuracy.headlines``: a column for each place, on one page.

    Above, methods on one scale of names, the best mean over all places first; below, personal
    against global accuracy. One legend serves both.
    """
    shown = [
        (where, scenario, part)
        for where, here in places(rows)
        for scenario, part in groups(here, "scenario")
    ]
    methods = sorted(rows["method"].unique(), key=method_order)
    order = _order(rows)
    columns = min(max(len(shown), 1), _COLUMNS)
    bands = -(-max(len(shown), 1) // columns)
    above = 0.6 + _LINE * max(len(order), 8)
    legend = 0.3 + 0.17 * -(-(len(methods) + 2) // 4)
    figure = Figure(figsize=(WIDTH, bands * (above + _BELOW) + legend), layout="constrained")
    axes = figure.subplots(
        2 * bands,
        columns,
        squeeze=False,
        gridspec_kw={"height_ratios": [above, _BELOW] * bands},
    )
    listed = [list(row) for row in axes]
    if not shown:
        say(axes[0][0], "no finished run")
        hide_unused(listed)
        return figure
    look = looks(methods)
    for i, (where, scenario, part) in enumerate(shown):
        band, column = divmod(i, columns)
        upper, lower = axes[2 * band][column], axes[2 * band + 1][column]
        _dots(upper, part, look, order)
        _against_global(lower, part, look)
        ceiling = part[part["method"].map(roles().is_ceiling)].set_index("metric")["mean"]
        for panel, keys in ((upper, (EXPECTED.key, PERSONAL.key)), (lower, (GLOBAL.key,))):
            for key in keys:
                if key in ceiling.index and panel.has_data():
                    _ceiling(panel, 100 * float(ceiling[key]))
        upper.set_title(", ".join(text for text in (where, scenario) if text))
        if column == 0:
            upper.set_yticks(range(len(order)), [method_title(method) for method in order])
            lower.set_ylabel("personal accuracy (%)")
        else:
            upper.set_yticks(range(len(order)), [""] * len(order))
    hide_unused(listed)
    _legend(figure, methods, look)
    return figure


def _order(rows: pd.DataFrame) -> list[str]:
    """Methods from the lowest mean over all places up; the ceiling is a line, not a method."""
    own = rows[rows["metric"].isin([EXPECTED.key, PERSONAL.key])]
    own = own[~own["method"].map(roles().is_ceiling).astype(bool)]
    means = own.groupby("method", sort=False)["mean"].mean()
    return [str(method) for method in means.sort_values(kind="stable").index]


def _dots(panel: Axes, part: pd.DataFrame, look: Mapping[str, Look], order: Sequence[str]) -> None:
    """Filled: mean over clients; open: worst decile. Intervals end at 0 and 100 %."""
    height = {method: i for i, method in enumerate(order)}
    kinds = (
        ((WORST.key, EXPECTED_WORST.key), False, -0.13),
        ((PERSONAL.key, EXPECTED.key), True, 0.13),
    )
    for keys, filled, offset in kinds:
        rows = part[part["metric"].isin(keys) & part["method"].isin(order)]
        for row in rows.to_dict("records"):
            colour = look[row["method"]].colour
            if row["n"] >= INTERVAL_SEEDS:
                panel.hlines(
                    height[row["method"]] + offset,
                    max(100 * row["low"], 0.0),
                    min(100 * row["high"], 100.0),
                    color=colour,
                    linewidth=0.8,
                )
            panel.plot(
                100 * row["mean"],
                height[row["method"]] + offset,
                linestyle="",
                marker=look[row["method"]].marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=3.8,
                markeredgewidth=0.8,
            )
    panel.set_ylim(-0.6, len(order) - 0.4)
    panel.tick_params(axis="y", length=0, labelsize=6.5)
    known = part[part["metric"].isin([key for keys, *_ in kinds for key in keys])]
    if len(known):
        low, high = 100 * known["mean"].min(), 100 * known["mean"].max()
        room = 0.15 * (high - low + 1)
        panel.set_xlim(max(low - room, -2), min(high + room, 101))
    panel.set_xlabel("own accuracy (%)")


def _ceiling(panel: Axes, at: float) -> None:
    """Draw the accuracy of pooled data as a line and extend the axis to hold it."""
    low, high = panel.get_xlim()
    panel.set_xlim(min(low, at - 1), max(high, at + 1))
    panel.axvline(at, **YARDSTICK.line())


def _against_global(panel: Axes, part: pd.DataFrame, look: Mapping[str, Look]) -> None:
    """Points of both; a method far from all others is named at the edge instead."""
    part = part[~part["method"].map(roles().is_ceiling)]
    wide = part.pivot(index="method", columns="metric", values="mean")
    own = EXPECTED.key if EXPECTED.key in wide else PERSONAL.key
    if GLOBAL.key not in wide or own not in wide or wide[[GLOBAL.key, own]].dropna().empty:
        say(panel, "no global accuracy")
        return
    wide = 100 * wide[[GLOBAL.key, own]].dropna()
    for method in sorted(wide.index, key=method_order):
        panel.plot(
            wide[GLOBAL.key][method],
            wide[own][method],
            linestyle="",
            color=look[method].colour,
            zorder=look[method].order,
            **look[method].marks() | {"markersize": 5.0},
        )
    (left, right), (low, high) = (fences(wide[key].to_numpy()) for key in (GLOBAL.key, own))
    panel.set_xlim(left - 2, min(right + 2, 101))
    panel.set_ylim(low - 2, min(high + 2, 101))
    outside = wide[(wide[GLOBAL.key] < left) | (wide[own] < low)]
    for i, (method, row) in enumerate(outside.iterrows()):
        panel.text(
            0.03,
            0.96 - 0.08 * i,
            f"{method_title(str(method))}: {row[GLOBAL.key]:.0f}, {row[own]:.0f}",
            transform=panel.transAxes,
            fontsize=5.5,
            color=look[str(method)].colour,
            va="top",
        )
    panel.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    panel.set_xlabel("global accuracy (%)")


def _legend(figure: Figure, methods: Sequence[str], look: Mapping[str, Look]) -> None:
    handles = [
        Line2D(
            [],
            [],
            label=method_title(method),
            **look[method].marks(),
            **look[method].line() | ({} if roles().is_ceiling(method) else {"linestyle": ""}),
        )
        for method in methods
    ]
    circle: dict[str, Any] = {"marker": "o", "linestyle": "", "color": MUTED, "markersize": 4}
    handles += [
        Line2D([], [], label="mean over clients", **circle),
        Line2D([], [], label="worst decile", **circle, markerfacecolor="white"),
    ]
    legend = shared_legend(figure, handles, columns=4)
    for text, method in zip(legend.get_texts(), [*methods, "", ""], strict=True):
        text.set_fontsize(6.5)
        if method == roles().subject:
            text.set_fontweight("bold")
