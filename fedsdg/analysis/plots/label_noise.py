"""Weights and other credits of clients against their label noise and their Shapley values."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.plots.style import GRID, INK, hide_unused, looks, panels, say
from fedsdg.analysis.views.clients import CREDITS, YARDSTICKS, correlations

#: Rows of the figure from top to bottom: what is drawn up, and against what.
_ROWS = (
    ("weight", "noise_rate"),
    ("credit", "noise_rate"),
    ("weight", "shapley"),
    ("credit", "shapley"),
)


def draw(clients: pd.DataFrame) -> Figure:
    """``clients.credits``: a column for each place, scenario and method."""
    columns = [
        (where, scenario, method, own)
        for where, here in places(clients)
        for scenario, part in groups(here, "scenario")
        for method, own in sorted(groups(part, "method"), key=lambda item: method_order(item[0]))
    ]
    rows = [row for row in _ROWS if row[1] == "noise_rate" or clients["shapley"].notna().any()]
    figure, axes = panels(len(rows), max(len(columns), 1), panel_height=2.1)
    if not columns:
        say(axes[0][0], "no client of this experiment\nhas label noise")
        hide_unused(axes)
        return figure
    low, high = clients["weight"].min(), max(clients["weight"].max(), 1.0)
    reach = {name: _reach(clients[name]) for name in YARDSTICKS}
    several = len({(where, scenario) for where, scenario, *_ in columns}) > 1
    for column, (where, scenario, method, own) in enumerate(columns):
        found = correlations(own)
        for row, (name, yardstick) in enumerate(rows):
            panel = axes[row][column]
            measure = _credit(own) if name == "credit" else name
            _scatter(panel, own, measure, yardstick, looks([method])[method].colour, found)
            if panel.collections:
                panel.set_xlim(*reach[yardstick])
            if measure == "weight":
                panel.set_ylim(min(0.0, 1.05 * low), 1.05 * high)
            if column == 0 or measure != "weight":
                panel.set_ylabel(CREDITS[measure] if measure else "")
            if row == 0:
                place = ", ".join(text for text in (where, scenario) if text)
                title = method_title(method)
                # The last line is left to the correlation, on the right.
                panel.set_title(f"{place}\n{title}\n" if several else f"{title}\n", loc="left")
    return figure


def _reach(values: pd.Series) -> tuple[float, float]:
    """The range of all clients, with room at its ends: one scale for all panels of a row."""
    room = 0.06 * float(values.max() - values.min()) or 0.5
    return float(values.min()) - room, float(values.max()) + room


def _credit(own: pd.DataFrame) -> str | None:
    """Return the measure of a client that a method gives beside its weight, or None."""
    other = [
        name for name in ("contribution", "credibility", "alignment") if own[name].notna().any()
    ]
    return other[0] if other else None


def _scatter(
    panel: Axes,
    own: pd.DataFrame,
    measure: str | None,
    yardstick: str,
    colour: str,
    found: pd.DataFrame,
) -> None:
    known = own if measure is None else own.dropna(subset=[measure, yardstick])
    if measure is None or known.empty:
        say(panel, "it gives clients\nno other credit" if measure is None else "not recorded")
        return
    panel.scatter(known[yardstick], known[measure], s=11, color=colour, alpha=0.6, linewidth=0)
    panel.set_xlabel(YARDSTICKS[yardstick] + (" (points)" if yardstick == "shapley" else ""))
    if measure == "weight":
        panel.axhline(1.0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
    if yardstick == "shapley":
        panel.axvline(0.0, color=GRID, linewidth=0.9, zorder=0)
    here = found[(found["measure"] == measure) & (found["yardstick"] == yardstick)]
    text = f"ρ = {here['spearman'].iloc[0]:+.2f}".replace("-", "−") if len(here) else "no ρ"
    panel.set_title(text, loc="right", fontsize=7.5, fontweight="normal")
