"""Accuracy against rounds: personal above, global below, one column of panels per skew."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.names import GLOBAL, Metric
from fedsdg.analysis.plots.cast import cast, merit_of
from fedsdg.analysis.plots.style import (
    BAND_SEEDS,
    Look,
    accuracy_axis,
    hide_unused,
    method_legend,
    panels,
    say,
    ticks_within,
)
from fedsdg.analysis.summary import Summary

_COLUMNS = ["dataset", "clients", "skew", "method", "seed", "round", "evaluated"]


def draw(summary: Summary) -> Figure:
    """Mean over seeds with its 95 % band; a row's panels share their axis."""
    metrics = (summary.personal, GLOBAL)
    frame = summary.frame("rounds", _COLUMNS, optional=[metric.key for metric in metrics])
    frame = frame[frame["evaluated"].astype(bool)]
    methods = summary.run_methods()
    look = cast(methods, merit_of(summary, metrics[0].key))
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
            else:
                ticks_within(panel.xaxis, here["round"].min(), here["round"].max())
            if i == 0:
                panel.set_title(summary.cell_title(cell))
            if column == 0:
                panel.set_ylabel(f"{metric.title} (%)")
    for first, *_ in axes:
        if first.has_data():
            accuracy_axis(first)
    for panel in axes[-1]:
        panel.set_xlabel("round")
    hide_unused(axes)
    method_legend(figure, methods, look=look)
    return figure


def _curve(panel: Axes, runs: pd.DataFrame, metric: Metric, look: Look, turn: int) -> bool:
    """Draw one method's mean and band; False where it has no values.

    ``turn`` staggers the markers, so that those of close curves do not cover one another. A band
    needs ``BAND_SEEDS`` seeds, ends at 0 and 100 %, and is left to the methods in colour.
    """
    values = runs.dropna(subset=[metric.key])
    if values.empty:
        return False
    by_round = values.groupby("round")[metric.key]
    intervals = [mean_interval(100 * group.to_numpy()) for _, group in by_round]
    rounds = np.array(list(by_round.groups), dtype=float)
    means = np.array([interval.mean for interval in intervals])
    enough = np.array([interval.n >= BAND_SEEDS for interval in intervals])
    half_widths = np.array([interval.half_width or 0.0 for interval in intervals])
    if enough.any() and not look.small:
        panel.fill_between(
            rounds,
            np.clip(means - half_widths, 0.0, 100.0),
            np.clip(means + half_widths, 0.0, 100.0),
            where=enough.tolist(),
            color=look.colour,
            alpha=0.24 if look.order > 2 else 0.10,
            linewidth=0,
            zorder=look.order - 1,
        )
    step = max(len(rounds) // 3, 1)
    panel.plot(rounds, means, markevery=(turn % step, step), **look.marks(), **look.line())
    return True
