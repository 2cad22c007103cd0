"""Two clients' way through parameter space, round by round, in the plane of most variation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.names import method_order, method_title, natural_order
from fedsdg.analysis.plots.style import INK, flow, say, shared_legend

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def draw(rows: pd.DataFrame) -> Figure:
    """``clients.trajectories``: a panel for each case, axes of equal scale."""
    cases = [
        (where, scenario, method, part)
        for where, here in places(rows)
        for (scenario, method), part in sorted(
            groups(here, "scenario", "method"),
            key=lambda item: (natural_order(item[0][0]), method_order(item[0][1])),
        )
    ]
    figure, axes = flow(len(cases), 2 if len(cases) in (2, 4) else 3, panel_height=3.0)
    if not cases:
        say(axes[0], "no run of this experiment\nkept its way")
        return figure
    methods = {method for *_, method, _ in cases}
    for panel, (where, scenario, method, part) in zip(axes, cases, strict=True):
        _case(panel, part)
        names = (where, scenario, method_title(method) if len(methods) > 1 else "")
        share = f"{100 * part['plane_share'].iloc[0]:.0f} % of the variance"
        panel.set_title(f"{', '.join(name for name in names if name)}\n{share}")
    clients = sorted(rows["client"].dropna().unique())
    handles = [
        Line2D(
            [], [], color=_COLOURS[i % 4], marker="o", markersize=3, label=f"client {client:.0f}"
        )
        for i, client in enumerate(clients)
    ]
    handles += [
        Line2D(
            [],
            [],
            color=INK,
            marker="D",
            markersize=4,
            linestyle=(0, (2, 1.5)),
            linewidth=0.9,
            label="aggregate",
        ),
        Line2D([], [], color=INK, marker="x", linestyle="", label="start"),
    ]
    shared_legend(figure, handles, columns=6)
    return figure


def _case(panel: Axes, part: pd.DataFrame) -> None:
    local, models = part[part["kind"] == "local"], part[part["kind"] == "aggregate"]
    local, first = local.sort_values(["client", "round"]), local["round"].min()
    for i, (_, own) in enumerate(groups(local, "client")):
        colour = _COLOURS[i % len(_COLOURS)]
        for round_, way in groups(own, "round"):
            way = way.sort_values("step")
            panel.plot(way["x"], way["y"], color=colour, linewidth=0.9, alpha=0.8, zorder=2)
            end = way.iloc[-1]
            panel.plot(end["x"], end["y"], marker="o", markersize=2.6, color=colour, zorder=3)
            if round_ == first:
                panel.plot(
                    way["x"].iloc[0],
                    way["y"].iloc[0],
                    marker="x",
                    markersize=6,
                    markeredgewidth=1.5,
                    color=colour,
                    zorder=5,
                )
    models = models.sort_values("round")
    panel.plot(
        models["x"],
        models["y"],
        color=INK,
        marker="D",
        markersize=3.6,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=0.9,
        linestyle=(0, (2, 1.5)),
        zorder=4,
    )
    panel.set_aspect("equal", adjustable="datalim")
    panel.set_xlabel("first principal component")
    panel.set_ylabel("second")
