"""Gain from more trials of a method's hyper-parameters: a panel for each method."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsdg.analysis.frames import groups
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.plots.style import ABSENT, MUTED, Look, flow, looks, roles, say

_COLUMNS = 4
#: Panels are to be read against each other, not against the worst trial of all.
_LOW_SHARE = 0.25


def draw(rows: pd.DataFrame) -> Figure:
    """``sweeps.search_curves``: dots are trials, the line the expected best; grey: the others."""
    methods = sorted(rows["method"].unique(), key=method_order)
    figure, axes = flow(len(methods), _COLUMNS, panel_height=1.65)
    if not methods:
        say(axes[0], "no search was made\nof this experiment's hyper-parameters")
        return figure
    look = looks(methods)
    parts = dict(groups(rows, "method"))
    low, high = limits(rows)
    for number, (panel, method) in enumerate(zip(axes, methods, strict=True)):
        for other in methods:
            if other != method:
                part = parts[other]
                best = 100 * part["expected_best"]
                panel.plot(part["trials"], best, color=ABSENT, linewidth=0.8, zorder=1)
        _method(panel, parts[method], look[method], low)
        weight = "bold" if method == roles().subject else "normal"
        panel.set_title(method_title(method), fontweight=weight)
        panel.set_ylim(low, high)
        panel.set_xlim(0.4, rows["trials"].max() + 0.6)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if number % _COLUMNS == 0:
            panel.set_ylabel("validation (%)")
        if number + _COLUMNS >= len(methods):
            panel.set_xlabel("trials")
    return figure


def _method(panel: Axes, part: pd.DataFrame, look: Look, low: float) -> None:
    scores = 100 * part["score"]
    shown = scores >= low
    panel.plot(
        part["trials"][shown],
        scores[shown],
        "o",
        color=MUTED,
        markersize=2.6,
        linewidth=0,
        zorder=2,
    )
    panel.plot(part["trials"], 100 * part["expected_best"], **look.line() | {"linewidth": 1.8})
    if below := int((~shown).sum()):
        text = f"{below} below"
        panel.text(
            0.97, 0.04, text, transform=panel.transAxes, ha="right", color=MUTED, fontsize=6.5
        )


def limits(rows: pd.DataFrame) -> tuple[float, float]:
    """All lines, and all trials but the worst quarter where that lies far below; in percent."""
    values = [rows["expected_best"].min(), rows["score"].quantile(_LOW_SHARE)]
    low, high = 100 * min(values), 100 * max(rows["expected_best"].max(), rows["score"].max())
    room = 0.05 * max(high - low, 1.0)
    return max(low - room, 0.0), min(high + room, 100.0 + room)
