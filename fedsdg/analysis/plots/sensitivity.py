"""Small multiples: accuracy against the values of each setting that an experiment sweeps."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.frames import groups
from fedsdg.analysis.hyperparameters import symbol
from fedsdg.analysis.names import GLOBAL, headline, method_order, method_title
from fedsdg.analysis.plots.style import (
    INTERVAL_SEEDS,
    accuracy_axis,
    hide_unused,
    looks,
    method_legend,
    panels,
    say,
)
from fedsdg.analysis.views.sweeps import panels as sweep_panels

_COLUMNS = 4

#: Points of accuracy above and below the means: the interval of two seeds may need far more, and
#: would flatten the lines.
_ROOM = 5.0


def draw(rows: pd.DataFrame) -> Figure:
    """``sweeps.sweeps``: a panel for each setting, personal accuracy above and global below.

    A setting of one method alone (a parameter) has its title; settings of the federation are
    shared by methods, each of which is a line.
    """
    parts = list(sweep_panels(rows))
    columns = min(_COLUMNS, max(len(parts), 1))
    blocks = -(-max(len(parts), 1) // columns)
    figure, axes = panels(2 * blocks, columns, panel_height=2.0)
    if not parts:
        say(axes[0][0], "no setting varies\nin this experiment")
        hide_unused(axes)
        return figure
    several = len({where for where, *_ in parts}) > 1
    for i, (where, key, part) in enumerate(parts):
        block, column = divmod(i, columns)
        for k, metric in enumerate((headline(rows["metric"]), GLOBAL)):
            panel = axes[2 * block + k][column]
            _lines(panel, part[part["metric"] == metric.key], list(dict.fromkeys(part["value"])))
            if column == 0:
                panel.set_ylabel(f"{metric.title} (%)")
            if k == 0:
                kinds = part["type"].unique()
                title = method_title(kinds[0]) if len(kinds) == 1 else "several methods"
                panel.set_title(f"{where}\n{title}" if several else title)
            else:
                panel.set_xlabel(re.sub(r"_(\w)$", r"$_\1$", symbol(key)), parse_math=True)
    hide_unused(axes)
    method_legend(figure, sorted(rows["type"].unique(), key=method_order))
    return figure


def _bars(line: pd.DataFrame) -> np.ndarray:
    """Lengths below and above, cut at 0 and 100 %; none of fewer than ``INTERVAL_SEEDS`` seeds."""
    low, high = np.clip(line["low"], 0.0, 1.0), np.clip(line["high"], 0.0, 1.0)
    lengths = 100 * np.array([line["mean"] - low, high - line["mean"]])
    return np.where(line["n"] >= INTERVAL_SEEDS, lengths, 0.0)


def _lines(panel: Axes, part: pd.DataFrame, values: list[str]) -> None:
    """Values stand in order at equal distances, whatever they are."""
    place = {value: i for i, value in enumerate(values)}
    look = looks(sorted(part["type"].unique(), key=method_order))
    for kind, own in groups(part, "type"):
        lines = [line for _, line in groups(own, "others")]
        for line in lines if len(lines) > 1 else []:
            panel.plot(
                [place[value] for value in line["value"]],
                100 * line["mean"],
                color=look[kind].colour,
                linewidth=0.6,
                alpha=0.45,
            )
        complete = [line for line in lines if len(line) == own["value"].nunique()]
        if len(lines) > 1 and complete:
            at = [place[value] for value in complete[0]["value"]]
            means = np.mean([line["mean"] for line in complete], axis=0)
            panel.plot(
                at, 100 * means, **look[kind].line() | {"linewidth": 2.0}, **look[kind].marks()
            )
        elif len(lines) == 1:
            line = lines[0]
            panel.errorbar(
                [place[value] for value in line["value"]],
                100 * line["mean"],
                yerr=_bars(line),
                elinewidth=0.8,
                **look[kind].line() | {"linewidth": 1.4},
                **look[kind].marks(),
            )
    panel.set_xticks(range(len(values)), values)
    panel.set_xlim(-0.4, len(values) - 0.6)
    panel.grid(False, axis="x")
    if part.empty:
        say(panel, "not recorded")
        return
    panel.set_ylim(100 * part["mean"].min() - _ROOM, 100 * part["mean"].max() + _ROOM)
    accuracy_axis(panel)
