"""Aggregation weights of FedSDG round by round: how unequal, how many zero, how many count."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fedsdg.analysis.plots.style import (
    ABSENT,
    INK,
    MANY_CLIENTS,
    MUTED,
    hide_unused,
    looks,
    panels,
    say,
    shared_legend,
    ticks_within,
)
from fedsdg.analysis.summary import Summary

_COLUMNS = ["dataset", "clients", "skew", "method", "seed", "round", "client", "weight"]

_EFFECTIVE = "effective number $e^H$"


def draw(summary: Summary) -> Figure:
    """Weights of all seeds above; effective number of clients e^H and zeros below."""
    method = summary.subject()
    settings, skews, places = summary.grid()
    figure, axes = panels(2 * settings, skews, panel_height=2.4, sharey="row", sharex="col")
    frame = summary.frame("clients", _COLUMNS)
    frame = frame[(frame["method"] == method) & frame["weight"].notna()]
    handles: dict[str, Artist] = {}
    maps: list[QuadMesh] = []
    for block, column, cell in places:
        here = frame[cell.matches(frame)]
        above, below = axes[2 * block][column], axes[2 * block + 1][column]
        above.set_title(summary.cell_title(cell))
        if column == 0:
            above.set_ylabel("weight of a client")
            below.set_ylabel("clients of the cohort\n(mean over seeds)")
        below.set_xlabel("round")
        if method is None or here.empty:
            say(above, "no aggregation\nweights recorded")
            say(below, "no aggregation\nweights recorded")
            continue
        colour = looks([method])[method].colour
        many = cell.setting.clients > MANY_CLIENTS
        if many:
            maps.append(_heat_map(above, here, cell.setting.clients))
            above.set_ylabel("client" if column == 0 else "")
        else:
            _weights(above, here, colour)
        _concentration(below, here, colour)
        for panel in (above, below):
            handles |= {str(artist.get_label()): artist for artist in _labelled(panel)}
            if panel is below or not many:
                ticks_within(panel.xaxis, here["round"].min(), here["round"].max())
    if maps:
        heat_maps = [panel for row in axes[::2] for panel in row]
        bar = figure.colorbar(maps[-1], ax=heat_maps, aspect=18, pad=0.01)
        bar.set_label(f"weight / equal weight, seed {frame['seed'].min()}")
        bar.outline.set_visible(False)  # type: ignore[operator]
    hide_unused(axes)
    if handles:
        shared_legend(figure, list(handles.values()), columns=4, formulas=(_EFFECTIVE,))
    return figure


def _labelled(panel: Axes) -> list[Artist]:
    return list(panel.get_legend_handles_labels()[0])


def entropy(weights: np.ndarray) -> float:
    """H = −Σ w ln w in nats, with 0 ln 0 = 0; e^H is the effective number of clients."""
    positive = weights[weights > 0]
    return float(-(positive * np.log(positive)).sum())


def _heat_map(panel: Axes, runs: pd.DataFrame, clients: int) -> QuadMesh:
    """Client × round of the lowest seed, as multiples of an equal weight; grey: not in the cohort.

    Of many clients each is drawn seldom, and points of all seeds would hide who they are.
    """
    first = runs[runs["seed"] == runs["seed"].min()]
    table = first.pivot(index="client", columns="round", values="weight")
    rounds = np.arange(table.columns.min(), table.columns.max() + 1)
    table = table.reindex(index=range(clients), columns=rounds)
    relative = table.to_numpy(dtype=float) * table.notna().sum(axis=0).to_numpy()
    panel.set_facecolor(ABSENT)
    mesh = panel.pcolormesh(
        np.append(rounds, rounds[-1] + 1) - 0.5,
        np.arange(clients + 1) - 0.5,
        np.ma.masked_invalid(relative),
        cmap="RdBu_r",
        norm=Normalize(0.0, 2.0),
        rasterized=True,
    )
    panel.set_ylim(clients - 0.5, -0.5)
    ticks_within(panel.yaxis, 0, clients - 1)
    panel.grid(False)
    return mesh


def _weights(panel: Axes, runs: pd.DataFrame, colour: str) -> None:
    by_round = runs.groupby("round")["weight"]
    rounds = np.array(list(by_round.groups), dtype=float)
    panel.fill_between(
        rounds, by_round.min(), by_round.max(), color=colour, alpha=0.14, linewidth=0, label="range"
    )
    panel.scatter(
        runs["round"],
        runs["weight"],
        s=3,
        color=colour,
        alpha=0.35,
        linewidth=0,
        label="one client",
    )
    panel.plot(rounds, by_round.median(), color=colour, linewidth=1.8, label="median weight")
    equal = 1.0 / runs.groupby(["seed", "round"])["weight"].size().median()
    panel.axhline(
        equal, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), label="all equal; cohort size"
    )


def _concentration(panel: Axes, runs: pd.DataFrame, colour: str) -> None:
    per_run = runs.groupby(["seed", "round"])["weight"]
    effective = per_run.agg(lambda w: np.exp(entropy(w.to_numpy()))).groupby("round").mean()
    zeros = per_run.agg(lambda w: float((w == 0).sum())).groupby("round").mean()
    size = float(per_run.size().median())
    panel.axhline(size, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    panel.plot(effective.index, effective, color=colour, linewidth=1.8, label=_EFFECTIVE)
    panel.plot(zeros.index, zeros, color=MUTED, linewidth=1.2, label="number with weight zero")
    panel.set_ylim(-0.03 * size, 1.08 * size)
    ticks_within(panel.yaxis, 0, size, about=6)
