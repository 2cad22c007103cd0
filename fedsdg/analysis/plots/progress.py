"""Personal accuracy against rounds, local steps and bytes: what the same accuracy costs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsdg.analysis.names import (
    PERSONAL,
    dataset_title,
    method_order,
    skew_order,
    skew_title,
)
from fedsdg.analysis.plots.cast import cast
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
from fedsdg.analysis.views.costs import COSTS


def draw(rows: pd.DataFrame) -> Figure:
    """``costs.progress``: a row of three panels for each cell."""
    cells = sorted(
        rows[["dataset", "clients", "skew"]].drop_duplicates().itertuples(index=False, name=None),
        key=lambda cell: (cell[0], cell[1], skew_order(cell[2])),
    )
    figure, axes = panels(max(len(cells), 1), len(COSTS), panel_height=2.2, sharey="row")
    if not cells:
        say(axes[0][0], "no finished run")
        hide_unused(axes)
        return figure
    methods = sorted(rows["method"].unique(), key=method_order)
    ends = rows[rows["round"] == rows.groupby("method")["round"].transform("max")]
    look = cast(methods, ends.groupby("method")["mean"].mean())
    several = len({cell[:2] for cell in cells}) > 1
    for of_cell, (dataset, clients, skew) in zip(axes, cells, strict=True):
        here = rows[
            (rows["dataset"] == dataset) & (rows["clients"] == clients) & (rows["skew"] == skew)
        ]
        for panel, (column, label, unit) in zip(of_cell, COSTS, strict=True):
            for method in methods:
                _curve(panel, here[here["method"] == method], column, unit, look[method])
            panel.set_xlabel(label)
            if column == "round":
                ticks_within(panel.xaxis, here["round"].min(), here["round"].max())
            else:
                panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
                panel.set_xlim(left=-0.02 * panel.get_xlim()[1])
        accuracy_axis(of_cell[0])
        of_cell[0].set_ylabel(f"{PERSONAL.title} (%)")
        place = f"{dataset_title(dataset)}, {clients} clients\n" if several else ""
        of_cell[0].set_title(f"{place}{skew_title(skew)}")
    method_legend(figure, methods, look=look)
    return figure


def _curve(panel: Axes, line: pd.DataFrame, column: str, unit: float, look: Look) -> None:
    line = line.sort_values("round")
    if line.empty:
        return
    at = line[column].to_numpy(dtype=float) / unit
    if not look.small and (line["n"] >= BAND_SEEDS).any():
        panel.fill_between(
            at,
            np.clip(100 * line["low"], 0.0, 100.0),
            np.clip(100 * line["high"], 0.0, 100.0),
            where=(line["n"] >= BAND_SEEDS).tolist(),
            color=look.colour,
            alpha=0.10,
            linewidth=0,
        )
    panel.plot(at, 100 * line["mean"], **look.line() | {"linewidth": min(look.width, 1.8)})
    panel.plot(
        at[-1:], 100 * line["mean"].iloc[-1:], color=look.colour, zorder=look.order, **look.marks()
    )
