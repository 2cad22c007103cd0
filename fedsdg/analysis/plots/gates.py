"""Gates of FedSDG and its variants: the last value of every client, and their way there."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsdg.analysis.names import method_order, method_title, skew_title
from fedsdg.analysis.plots.style import (
    ABSENT,
    INK,
    KIND_A,
    KIND_B,
    MANY_CLIENTS,
    flow,
    hide_unused,
    looks,
    panels,
    say,
    shared_legend,
    ticks_within,
)
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.files.places import split_setting

_COLUMNS = ["dataset", "clients", "skew", "method", "seed", "round", "client", "gates"]
#: Quantiles from, to, opacity, name.
_BANDS = (
    (0.0, 1.0, 0.14, "all gates of all clients"),
    (0.1, 0.9, 0.26, "middle 80 %"),
    (0.25, 0.75, 0.42, "middle 50 %"),
)
_TAG = {"facecolor": "white", "linewidth": 0, "pad": 0.8, "alpha": 0.85}
#: A gate is a share: closed at 0, open at 1, and begins in the middle.
_SCALE, _COLOURS = Normalize(0.0, 1.0), "RdBu_r"


@dataclass(frozen=True)
class _Last:
    """The last gates of one run: NaN for a client that was never drawn; B's rows stand below."""

    gates: np.ndarray  # [K, gates]
    clients: np.ndarray  # [K] the client in each row
    agreeing: int | None  # so many rows of A above; None where clients are of one kind


def draw(summary: Summary) -> Figure:
    """Draw one method's clients and rounds; for several methods a strip of clients each."""
    frame = summary.frame("clients", _COLUMNS, optional=["conflicts"])
    kinds = _kinds(frame)
    frame = frame[frame["gates"].notna()]
    methods = sorted(frame["method"].unique(), key=method_order)
    if not methods:
        _, columns, _ = summary.grid()
        figure, axes = panels(1, columns, panel_height=2.6)
        for panel in axes[0]:
            say(panel, "no method of this\nexperiment has gates")
        return figure
    if len(methods) == 1:
        return _one(summary, frame, kinds, methods[0])
    return _several(summary, frame, kinds, methods)


def _kinds(frame: pd.DataFrame) -> pd.Series:
    """(data set, K, skew, seed, client) → whether the client is of B, where that is recorded."""
    known = frame[frame["conflicts"].notna()]
    by = ["dataset", "clients", "skew", "seed", "client"]
    return known.groupby(by)["conflicts"].last().astype(bool)


def _one(summary: Summary, frame: pd.DataFrame, kinds: pd.Series, method: str) -> Figure:
    """Heat maps client × gate of the first seed above, quantile bands over all seeds below."""
    settings, skews, places = summary.grid()
    figure, axes = panels(2 * settings, skews, panel_height=2.6, sharey="row")
    colour = looks([method])[method].colour
    parted = not kinds.empty
    for block, column, cell in places:
        here = frame[cell.matches(frame)]
        above, below = axes[2 * block][column], axes[2 * block + 1][column]
        above.set_title(summary.cell_title(cell))
        if here.empty:
            say(above, "no finished run")
            say(below, "no finished run")
            continue
        last = _last(here, kinds, cell)
        _strips(above, [last])
        ticks_within(above.xaxis, 0, last.gates.shape[1] - 1, about=8)
        above.set_xlabel(_unit(summary, method))
        if last.agreeing is None:
            _name_rows(above, last)
            ticks_within(above.yaxis, 0, len(last.gates) - 1)
        else:  # Rows are in the order of the groups: numbers would name no client.
            above.set_yticks([])
        if parted:
            of_b = _of_b(here, kinds)
            _bands(below, here[~of_b], KIND_A, _BANDS[1:2])
            _bands(below, here[of_b], KIND_B, _BANDS[1:2])
        else:
            _bands(below, here, colour, _BANDS)
        below.set_xlabel("round")
        if column == 0:
            above.set_ylabel("clients, A above B" if last.agreeing is not None else "client")
            below.set_ylabel("gate m, all seeds")
    _colour_bar(figure, [panel for row in axes[::2] for panel in row], _seeds(frame))
    hide_unused(axes)
    shared_legend(figure, _legend(colour, parted), columns=4)
    return figure


def _several(
    summary: Summary, frame: pd.DataFrame, kinds: pd.Series, methods: Sequence[str]
) -> Figure:
    """A panel for every setting and method: the clients' gates, the skews side by side."""
    shown = [
        (setting, method)
        for setting in summary.settings()
        for method in methods
        if len(_at(frame, setting.dataset, setting.clients, method))
    ]
    columns = 3 if len(summary.cells()) > 4 or len(shown) < 4 else 4
    figure, axes = flow(len(shown), columns, panel_height=1.75)
    several = len(summary.settings()) > 1
    for i, (panel, (setting, method)) in enumerate(zip(axes, shown, strict=True)):
        own = _at(frame, setting.dataset, setting.clients, method)
        cells = [Cell(setting, skew) for skew in summary.skews(setting)]
        strips = [
            (cell, _last(own[cell.matches(own)], kinds, cell))
            for cell in cells
            if cell.matches(own).any()
        ]
        middles = _strips(panel, [last for _, last in strips], width=1.0)
        panel.set_xticks(middles, [_short(cell.skew) for cell, _ in strips])
        panel.tick_params(axis="x", length=0, labelsize=6.0)
        title = textwrap.fill(method_title(method), 72 // columns)
        panel.set_title(f"{setting.title}\n{title}" if several else title)
        panel.set_yticks([])
        if i % columns == 0:
            parted = any(last.agreeing is not None for _, last in strips)
            panel.set_ylabel("clients, A above B" if parted else "clients")
    _colour_bar(figure, axes, _seeds(frame))
    return figure


def _short(skew: str) -> str:
    """Return the title of a strip: the scenario alone if there is one."""
    return split_setting(skew)[1] or skew_title(skew, short=True)


def _at(frame: pd.DataFrame, dataset: str, clients: int, method: str) -> pd.DataFrame:
    return frame[
        (frame["dataset"] == dataset) & (frame["clients"] == clients) & (frame["method"] == method)
    ]


def _seeds(frame: pd.DataFrame) -> str:
    return f"seed {frame['seed'].min()}"


def _colour_bar(figure: Figure, axes: Sequence[Axes], seed: str) -> None:
    tall = figure.get_figheight() > 6
    bar = figure.colorbar(
        ScalarMappable(_SCALE, _COLOURS),
        ax=list(axes),
        aspect=60 if tall else 20,
        pad=0.01,
        shrink=0.6 if tall else 1.0,
    )
    bar.set_label(f"last gate m, {seed}")
    bar.outline.set_visible(False)  # type: ignore[operator]


def _legend(colour: str, parted: bool) -> list[Artist]:
    if parted:
        kinds = ((KIND_A, "A, clients that agree"), (KIND_B, "B, clients that differ"))
        return [
            *(Line2D([], [], color=c, linewidth=1.8, label=f"{name}: median") for c, name in kinds),
            *(Patch(color=c, alpha=0.26, linewidth=0, label="middle 80 %") for c, _ in kinds),
        ]
    bands = [Patch(color=colour, alpha=a, linewidth=0, label=name) for *_, a, name in _BANDS]
    return [*bands, Line2D([], [], color=colour, linewidth=1.8, label="median")]


def _unit(summary: Summary, method: str) -> str:
    """Return the unit that a gate belongs to by the runs' config: block, layer or client."""
    for run in summary.runs:
        if run["method"] == method and run["config"]:
            return str(json.loads(run["config"]).get("parameters", {}).get("gate", "block"))
    return "block"


def _of_b(rows: pd.DataFrame, kinds: pd.Series) -> pd.Series:
    """Mask of the rows whose client is of B."""
    keys = pd.MultiIndex.from_frame(rows[["dataset", "clients", "skew", "seed", "client"]])
    found = kinds.reindex(keys).to_numpy()
    return pd.Series([value is True or value == 1 for value in found], index=rows.index)


def _last(runs: pd.DataFrame, kinds: pd.Series, cell: Cell) -> _Last:
    """The last gates of the first seed's clients."""
    seed, total = runs["seed"].min(), cell.setting.clients
    last = runs[runs["seed"] == seed].sort_values("round").groupby("client")["gates"].last()
    gates = np.full((total, len(last.iloc[0])), np.nan)
    for client, row in last.items():
        gates[int(str(client))] = row
    clients = np.arange(total)
    place = (cell.setting.dataset, total, cell.skew, seed)
    of_b = [bool(kinds.get((*place, client), False)) for client in clients]
    if not any(of_b):
        return _Last(gates, clients, None)
    order = np.argsort(of_b, kind="stable")
    return _Last(gates[order], clients[order], total - sum(of_b))


def _strips(panel: Axes, runs: Sequence[_Last], width: float | None = None) -> list[float]:
    """Draw runs side by side and return their middles.

    A strip is as wide as ``width``, or as it has gates, and there is a gap to the next.
    """
    middles, at = [], -0.5
    panel.set_facecolor(ABSENT)  # shows through where a client was never drawn
    rows = max(len(last.gates) for last in runs)
    roomy = rows <= MANY_CLIENTS and width is None
    for last in runs:
        clients, gates = last.gates.shape
        end = at + (gates if width is None else width)
        middles.append((at + end) / 2)
        panel.pcolormesh(
            np.linspace(at, end, gates + 1),
            np.arange(clients + 1) - 0.5,
            np.ma.masked_invalid(last.gates),
            cmap=_COLOURS,
            norm=_SCALE,
            edgecolors="white" if roomy else "none",
            linewidth=0.3 if roomy else 0.0,
            rasterized=not roomy,
        )
        if last.agreeing is not None:
            panel.hlines(last.agreeing - 0.5, at, end, color=INK, linewidth=1.2)
            for kind, row in (("A", last.agreeing - 1), ("B", clients - 1)):
                if row >= 0 and (kind == "B" or last.agreeing):
                    place = at + 0.03 * (end - at)
                    panel.text(place, row, kind, fontsize=5.5, va="center", ha="left", bbox=_TAG)
        if last is not runs[-1]:
            gap = 0.12 * (end - at)
            panel.axvspan(end, end + gap, color="white", linewidth=0)
            end += gap
        at = end
    panel.set_xlim(-0.5, at)
    panel.set_ylim(rows - 0.5, -0.5)
    panel.grid(False)
    return middles


def _name_rows(panel: Axes, last: _Last) -> None:
    """Say of a client that was never drawn that it was not, where there is room for words."""
    if len(last.gates) > MANY_CLIENTS:
        return
    for row in np.flatnonzero(np.isnan(last.gates).all(axis=1)):
        middle = (last.gates.shape[1] - 1) / 2
        panel.text(
            middle, float(row), "never drawn", ha="center", va="center", fontsize=5.5, color=INK
        )


def _bands(
    panel: Axes, runs: pd.DataFrame, colour: str, bands: Sequence[tuple[float, float, float, str]]
) -> None:
    """Quantiles over the gates of the clients recorded in each round."""
    if runs.empty:
        return
    by_round = runs.groupby("round")["gates"]
    rounds = np.array(list(by_round.groups), dtype=float)
    values = [np.concatenate(group.to_list()) for _, group in by_round]
    for low, high, strength, _ in bands:
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
    ticks_within(panel.xaxis, rounds.min(), rounds.max())
