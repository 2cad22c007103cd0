"""Accuracy against the share of attackers: a panel for each attack, a line for each rule."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import method_order
from fedsdg.analysis.plots.cast import cast
from fedsdg.analysis.plots.style import flow, method_legend, say

_COLUMNS = 4


def draw(rows: pd.DataFrame) -> Figure:
    """``attacks.accuracy_by_share``, four panels to a row on one scale."""
    parts = [
        (where, attack, part)
        for where, here in places(rows)
        for attack, part in groups(here, "attack")
    ]
    figure, axes = flow(len(parts), _COLUMNS, panel_height=2.1)
    if not parts:
        say(axes[0], "no run of this experiment\nwas attacked")
        return figure
    methods = sorted(rows["method"].unique(), key=method_order)
    look = cast(methods, rows.groupby("method")["mean"].mean())
    several = len({where for where, *_ in parts}) > 1
    for panel, (where, attack, part) in zip(axes, parts, strict=True):
        for method in methods:
            line = part[part["method"] == method].sort_values("share")
            panel.plot(
                100 * line["share"],
                100 * line["mean"],
                **look[method].line(),
                **look[method].marks(),
            )
        title = attack.replace(", ", "\n", 1)
        panel.set_title(f"{where}\n{title}" if several else title)
        panel.set_ylim(0, 100)
        panel.set_xticks(sorted(100 * part["share"].unique()))
        panel.set_xlabel("attackers (% of clients)")
    for panel in axes[::_COLUMNS]:
        panel.set_ylabel("global accuracy (%)")
    method_legend(figure, methods, look=look)
    return figure
