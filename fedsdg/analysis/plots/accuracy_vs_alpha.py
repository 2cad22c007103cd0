"""Reported accuracy under each Dirichlet α: how a method fares as clients differ more."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.names import GLOBAL, Metric, dirichlet_alpha, method_title
from fedsdg.analysis.plots.cast import cast, merit_of
from fedsdg.analysis.plots.style import (
    GRID,
    INTERVAL_SEEDS,
    MUTED,
    Look,
    accuracy_axis,
    fences,
    method_legend,
    panels,
    say,
)
from fedsdg.analysis.summary import Cell, Setting, Summary

#: The methods of one α share this part of its place.
_SPREAD = 0.76


def draw(summary: Summary) -> Figure:
    """Personal accuracy left, global right; one row per data set; 95 % intervals as bars."""
    settings, methods = summary.settings(), summary.run_methods()
    figure, axes = panels(len(settings), 2, panel_height=3.7)
    look = cast(methods, merit_of(summary, summary.personal.key))
    for row, setting in enumerate(settings):
        for column, metric in enumerate((summary.personal, GLOBAL)):
            panel = axes[row][column]
            _panel(panel, summary, setting, metric, look)
            panel.set_ylabel(f"{metric.title} (%)")
            title = metric.title.capitalize()
            panel.set_title(title if len(settings) == 1 else f"{setting.title}: {title}")
    method_legend(figure, methods, look=look)
    return figure


def _panel(
    panel: Axes, summary: Summary, setting: Setting, metric: Metric, look: Mapping[str, Look]
) -> None:
    """α are categories at equal distances: nothing is said of what lies between them.

    A mean far below all others is an arrow with its number, so that the axis serves the others.
    """
    skews = [skew for skew in summary.skews(setting) if dirichlet_alpha(skew) is not None]
    if not skews:
        say(panel, "no Dirichlet skew in this experiment")
        return
    found = [summary.reported_values(Cell(setting, skew), metric.key) for skew in skews]
    methods = [method for method in look if any(method in here for here in found)]
    means = [float(np.mean(list(v.values()))) for here in found for v in here.values()]
    lowest = 100 * fences(means)[0] if means else 0.0
    dodges = np.linspace(-_SPREAD / 2, _SPREAD / 2, max(len(methods), 2))
    below: list[tuple[float, float, str]] = []
    for dodge, method in zip(dodges, methods, strict=False):
        for place, here in enumerate(found):
            if method not in here:
                continue
            interval = mean_interval([100 * value for value in here[method].values()])
            if interval.mean < lowest:
                below.append((place + dodge, interval.mean, method))
                continue
            panel.plot(
                place + dodge,
                interval.mean,
                linestyle="",
                color=look[method].colour,
                zorder=look[method].order,
                **look[method].marks(),
            )
            if interval.n >= INTERVAL_SEEDS and interval.low is not None:
                ends = np.clip([interval.low, interval.high], 0.0, 100.0)
                panel.vlines(
                    place + dodge, *ends, color=look[method].colour, linewidth=0.8, zorder=1
                )
    panel.set_xlim(-0.5, len(skews) - 0.5)
    panel.set_xticks(range(len(skews)), [skew.partition("~")[2] for skew in skews])
    panel.set_xlabel("Dirichlet α (smaller: clients differ more)")
    panel.grid(False, axis="x")
    for place in range(1, len(skews)):
        panel.axvline(place - 0.5, color=GRID, linewidth=0.8, zorder=0)
    if panel.has_data():
        accuracy_axis(panel)
        low, high = panel.get_ylim()
        panel.set_ylim(low - 0.16 * (high - low) * bool(below), high)
    for where, mean, method in below:
        panel.annotate(
            f"{method_title(method)}\n{mean:.0f}",
            (where, 0.0),
            (where, 0.09),
            xycoords=panel.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=6.5,
            color=MUTED,
            arrowprops={"arrowstyle": "-|>", "color": look[method].colour, "linewidth": 0.9},
        )
