"""Accuracy against rounds: personal above, global below, one column of panels per skew."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsdg.analysis.names import GLOBAL, PERSONAL, Metric
from fedsdg.analysis.plots.style import Look, hide_unused, looks, method_legend, panels, say
from fedsdg.analysis.statistics import mean_interval
from fedsdg.analysis.summary import Summary

_COLUMNS = ["dataset", "clients", "skew", "method", "seed", "round", "evaluated"]


def draw(summary: Summary) -> Figure:
    """Mean over seeds with its 95 % band; a row's panels share their axis."""
    metrics = (PERSONAL, GLOBAL)
    frame = summary.frame("rounds", [*_COLUMNS, *(metric.key for metric in metrics)])
    frame = frame[frame["evaluated"].astype(bool)]
    methods = summary.run_methods()
    look = looks(methods)
    settings, skews, places = summary.grid()
    figure, axes = panels(
        len(metrics) * settings, skews, panel_height=2.6, sharey="row", sharex="col"
    )
    for block, column, cell in places:
        here = frame[cell.matches(frame)]
        for i, metric in enumerate(metrics):
            panel = axes[len(metrics) * block + i][column]
            curves = [
                _curve(panel, here[here["method"] == method], metric, look[method], turn)
                for turn, method in enumerate(methods)
            ]
            if not any(curves):
                say(panel, f"no {metric.title} recorded")
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if i == 0:
                panel.set_title(summary.cell_title(cell))
            if column == 0:
                panel.set_ylabel(f"{metric.title} (%)")
    for first, *_ in axes:  # rows share their axis; a band of few seeds knows no bounds
        low, high = first.get_ylim()
        first.set_ylim(max(low, -2.0), min(high, 102.0))
    for panel in axes[-1]:
        panel.set_xlabel("round")
    hide_unused(axes)
    method_legend(figure, methods)
    return figure


def _curve(panel: Axes, runs: pd.DataFrame, metric: Metric, look: Look, turn: int) -> bool:
    """Draw one method's mean and band; False where it has no values.

    ``turn`` staggers the markers, so that those of close curves do not cover one another.
    """
    values = runs.dropna(subset=[metric.key])
    if values.empty:
        return False
    by_round = values.groupby("round")[metric.key]
    intervals = [mean_interval(100 * group.to_numpy()) for _, group in by_round]
    rounds = np.array(list(by_round.groups), dtype=float)
    means = np.array([interval.mean for interval in intervals])
    half_widths = np.array([interval.half_width or 0.0 for interval in intervals])
    panel.fill_between(
        rounds,
        means - half_widths,
        means + half_widths,
        color=look.colour,
        alpha=0.28 if look.order > 2 else 0.09,
        linewidth=0,
        zorder=look.order - 1,
    )
    step = max(len(rounds) // 3, 1)
    panel.plot(rounds, means, markevery=(turn % step, step), **look.marks(), **look.line())
    return True
