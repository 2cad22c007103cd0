"""The trade-off of robust means: distance to the honest mean, accuracy and time by rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.frames import places
from fedsdg.analysis.names import method_order
from fedsdg.analysis.plots.cast import cast
from fedsdg.analysis.plots.style import (
    Look,
    hide_unused,
    logarithmic_ticks,
    method_legend,
    panels,
    say,
)
from fedsdg.analysis.views.attacks import over_attacks

_DISTANCE, _TIME = "distance to the honest mean", "milliseconds of an aggregation"


def draw(rows: pd.DataFrame) -> Figure:
    """``attacks.trade_off``: two rows of three panels for each place."""
    shown = list(places(over_attacks(rows)))
    figure, axes = panels(2 * max(len(shown), 1), 3, panel_height=2.5)
    if not shown:
        say(axes[0][1], "no run of this experiment\nwas attacked")
        hide_unused(axes)
        return figure
    methods = sorted(rows["method"].unique(), key=method_order)
    look = cast(methods, rows.groupby("method")["accuracy"].mean())
    for i, (where, part) in enumerate(shown):
        above, below = axes[2 * i], axes[2 * i + 1]
        prefix = f"{where}: " if len(shown) > 1 else ""
        columns = ("distance", _DISTANCE, True), ("accuracy", "global accuracy (%)", False)
        for column, (name, title, logarithmic) in enumerate(columns):
            for panel, which in ((above[column], "median"), (below[column], "worst")):
                _lines(panel, part, f"{name}_{which}", methods, look, logarithmic)
                panel.set_ylabel(title)
                attack = "attack in the middle" if which == "median" else "worst attack"
                panel.set_title(f"{prefix if column == 0 else ''}{attack}")
        _lines(above[2], part, "seconds", methods, look, True)
        above[2].set_ylabel(_TIME)
        above[2].set_title("time")
        attacked = part.loc[part["share"] > 0, "share"]
        fewest = attacked.min() if len(attacked) else part["share"].max()
        _price(below[2], part[part["share"] == fewest], methods, look)
    hide_unused(axes)
    method_legend(figure, methods, look=look)
    return figure


def _lines(
    panel: Axes,
    part: pd.DataFrame,
    name: str,
    methods: list[str],
    look: Mapping[str, Look],
    logarithmic: bool,
) -> None:
    scale = {"distance": 1, "accuracy": 100, "seconds": 1000}[name.partition("_")[0]]
    if part[name].isna().all():
        say(panel, "not recorded")
        return
    for method in methods:
        line = part[part["method"] == method].sort_values("share").dropna(subset=[name])
        panel.plot(
            100 * line["share"], scale * line[name], **look[method].line(), **look[method].marks()
        )
    panel.set_xticks(sorted(100 * part["share"].unique()))
    panel.set_xlim(-4, 100 * part["share"].max() + 4)
    panel.set_xlabel("attackers (% of clients)")
    if logarithmic:
        _logarithmic(panel, scale * part[name].to_numpy())
    else:
        panel.set_ylim(0, 100)


def _logarithmic(panel: Axes, values: np.ndarray) -> None:
    """A logarithmic axis that ends in 0: without attackers a mean is the honest mean itself.

    What is ten thousand times smaller than the value in the middle is rounding, and drawn as 0.
    """
    known = values[np.isfinite(values)]
    positive = known[known > 0]
    if not len(positive):
        return
    real = positive[positive > 1e-4 * np.median(positive)]
    low, high = float(real.min()), float(real.max())
    if len(real) == len(known):
        panel.set_yscale("log")
        panel.set_ylim(low / 1.3, high * 1.3)
        logarithmic_ticks(panel.yaxis, low, high)
        return
    panel.set_yscale("symlog", linthresh=low / 2, linscale=0.4)
    panel.set_ylim(-0.08 * low, high * 1.3)
    logarithmic_ticks(panel.yaxis, low, high, zero=True)


def _price(panel: Axes, part: pd.DataFrame, methods: list[str], look: Mapping[str, Look]) -> None:
    """Accuracy under the worst attack against the seconds, at the smallest share of attackers."""
    if part[["seconds", "accuracy_worst"]].dropna().empty:
        say(panel, "no times recorded")
        return
    for method in methods:
        own = part[part["method"] == method]
        panel.plot(
            1000 * own["seconds"],
            100 * own["accuracy_worst"],
            linestyle="",
            color=look[method].colour,
            zorder=look[method].order,
            **look[method].marks() | {"markersize": 6.5},
        )
    panel.set_xscale("log")
    low, high = 1000 * part["seconds"].min(), 1000 * part["seconds"].max()
    panel.set_xlim(low / 1.4, high * 1.4)
    logarithmic_ticks(panel.xaxis, low, high)
    panel.set_ylim(0, 100)
    panel.set_xlabel(_TIME)
    panel.set_ylabel("global accuracy (%)")
    panel.set_title(f"worst attack, {100 * part['share'].max():.0f} % attackers")
