"""Accuracy against simulated seconds: a column for each method, a line for each scenario."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import places
from fedsdg.analysis.names import GLOBAL, headline, method_order, method_title, natural_order
from fedsdg.analysis.plots.style import Look, hide_unused, note, panels, say, shared_legend

#: Scenarios are no methods: each has a colour, a line and a marker by its place in the order.
_COLOURS = ("#222222", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(rows: pd.DataFrame) -> Figure:
    """``costs.accuracy_over_time``: global above, personal below, one scale for all."""
    shown = list(places(rows))
    methods = sorted(rows["method"].unique(), key=method_order)
    figure, axes = panels(
        2 * max(len(shown), 1),
        max(len(methods), 1),
        panel_height=2.2,
        sharey="row",
        sharex=bool(shown),
    )
    if not shown:
        say(axes[0][0], "no run of this experiment\nkept simulated time")
        hide_unused(axes)
        return figure
    scenarios = sorted(rows["scenario"].unique(), key=natural_order)
    look = _looks(scenarios)
    for i, (where, part) in enumerate(shown):
        for k, metric in enumerate((GLOBAL, headline(rows["metric"]))):
            for panel, method in zip(axes[2 * i + k], methods, strict=True):
                own = part[(part["method"] == method) & (part["metric"] == metric.key)]
                for scenario in scenarios:
                    line = own[own["scenario"] == scenario]
                    panel.plot(
                        line["seconds"],
                        100 * line["mean"],
                        drawstyle="steps-post",
                        **look[scenario].line(),
                    )
                    panel.plot(
                        line["seconds"].iloc[-1:],
                        100 * line["mean"].iloc[-1:],
                        color=look[scenario].colour,
                        **look[scenario].marks(),
                    )
                if own.empty:
                    note(panel, f"no {metric.title}\nin simulated time")
                if k == 0:
                    title = method_title(method)
                    panel.set_title(f"{where}\n{title}" if len(shown) > 1 else title)
            axes[2 * i + k][0].set_ylabel(f"{metric.title} (%)")
    for panel in axes[-1]:
        panel.set_xlabel("simulated seconds")
    handles = [
        Line2D([], [], label=s or "no scenario", **look[s].line(), **look[s].marks())
        for s in scenarios
    ]
    shared_legend(figure, handles, columns=4)
    return figure


def _looks(scenarios: list[str]) -> dict[str, Look]:
    dashes = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)))
    return {
        scenario: Look(_COLOURS[i % len(_COLOURS)], dashes[i % 3], "osDv^P<"[i % 7], width=1.4)
        for i, scenario in enumerate(scenarios)
    }
