"""Gates of FedSDG: the last value of every client and block, and their spread over the rounds."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsdg.analysis.plots.style import (
    ABSENT,
    INK,
    hide_unused,
    looks,
    panels,
    say,
    shared_legend,
)
from fedsdg.analysis.summary import Summary

_COLUMNS = ["dataset", "clients", "skew", "method", "seed", "round", "client", "gates"]
#: Quantiles from, to, opacity, name.
_BANDS = (
    (0.0, 1.0, 0.14, "all clients, gates and seeds"),
    (0.1, 0.9, 0.26, "middle 80 %"),
    (0.25, 0.75, 0.42, "middle 50 %"),
)


#: Clients up to which a row has room for a white line around it and for words.
_ROOMY = 50


def draw(summary: Summary) -> Figure:
    """Heat maps client × gate of the first seed above, quantile bands over all seeds below."""
    method = summary.subject()
    settings, skews, places = summary.grid()
    figure, axes = panels(2 * settings, skews, panel_height=2.6, sharey="row")
    frame = summary.frame("clients", _COLUMNS)
    frame = frame[(frame["method"] == method) & frame["gates"].notna()]
    if method is None or frame.empty:
        for panel in (panel for row in axes for panel in row):
            say(panel, "no method of this\nexperiment has gates")
        return figure
    values = np.concatenate(frame["gates"].to_list())
    colours = Normalize(float(values.min()), float(values.max()))
    colour = looks([method])[method].colour
    unit = _unit(summary, method)
    for block, column, cell in places:
        here = frame[cell.matches(frame)]
        above, below = axes[2 * block][column], axes[2 * block + 1][column]
        above.set_title(summary.cell_title(cell))
        if here.empty:
            say(above, "no finished run")
            say(below, "no finished run")
            continue
        first_seed = here[here["seed"] == here["seed"].min()]
        _heat_map(above, first_seed, cell.setting.clients, colours)
        above.set_xlabel(unit)
        _bands(below, here, colour)
        below.set_xlabel("round")
        if column == 0:
            above.set_ylabel("client")
            below.set_ylabel("gate m")
    heat_maps = [panel for row in axes[::2] for panel in row]
    bar = figure.colorbar(ScalarMappable(colours, "cividis"), ax=heat_maps, aspect=18, pad=0.01)
    bar.set_label("last gate value m")
    bar.outline.set_visible(False)  # type: ignore[operator]
    hide_unused(axes)
    shared_legend(figure, _legend(colour), columns=4)
    return figure


def _legend(colour: str) -> list[Artist]:
    bands = [Patch(color=colour, alpha=a, linewidth=0, label=name) for *_, a, name in _BANDS]
    return [*bands, Line2D([], [], color=colour, linewidth=1.8, label="median")]


def _unit(summary: Summary, method: str) -> str:
    """What a gate belongs to, as the runs' config says: block, layer or client."""
    for run in summary.runs:
        if run["method"] == method and run["config"]:
            return str(json.loads(run["config"]).get("parameters", {}).get("gate", "block"))
    return "block"


def _heat_map(panel: Axes, runs: pd.DataFrame, clients: int, colours: Normalize) -> None:
    last = runs.sort_values("round").groupby("client")["gates"].last()
    gates = np.full((clients, len(last.iloc[0])), np.nan)
    for client, row in last.items():
        gates[int(str(client))] = row
    roomy = clients <= _ROOMY
    panel.set_facecolor(ABSENT)  # shows through where a client was never drawn
    panel.pcolormesh(
        np.arange(gates.shape[1] + 1) - 0.5,
        np.arange(clients + 1) - 0.5,
        np.ma.masked_invalid(gates),
        cmap="cividis",
        norm=colours,
        edgecolors="white" if roomy else "none",
        linewidth=0.3 if roomy else 0.0,
        rasterized=not roomy,
    )
    for client in sorted(set(range(clients)) - set(last.index)) if roomy else ():
        panel.text(
            (gates.shape[1] - 1) / 2,
            client,
            "never drawn",
            ha="center",
            va="center",
            fontsize=5.5,
            color=INK,
        )
    panel.set_ylim(clients - 0.5, -0.5)
    panel.grid(False)
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _bands(panel: Axes, runs: pd.DataFrame, colour: str) -> None:
    """Quantiles over the gates of the clients recorded in each round."""
    by_round = runs.groupby("round")["gates"]
    rounds = np.array(list(by_round.groups), dtype=float)
    values = [np.concatenate(group.to_list()) for _, group in by_round]
    for low, high, strength, _ in _BANDS:
        panel.fill_between(
            rounds,
            [float(np.quantile(row, low)) for row in values],
            [float(np.quantile(row, high)) for row in values],
            color=colour,
            alpha=strength,
            linewidth=0,
        )
    panel.plot(rounds, [float(np.median(row)) for row in values], color=colour, linewidth=1.8)
    panel.set_ylim(0, 1)
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
