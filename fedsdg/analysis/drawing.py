"""Five ways to draw a tidy frame: dots, shades, numbers in shades, curves, scatter plot.

Each takes a frame with one number per row and a ``View``, which says which columns stand where;
rows, lines and panels keep the frame's order. Colours and markers of methods are declared once, in
``LOOKS``. The bytes of a figure depend on its frame and view alone: see ``styled`` and ``save``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.style import context
from matplotlib.ticker import MaxNLocator

from fedsdg.analysis.metrics import METRICS
from fedsdg.analysis.names import cell_title, method_title
from fedsdg.files import atomic_path

#: Colours of text, of the background, of clients that agree (A) and that differ (B).
INK, GREY, GROUP_A, GROUP_B = "#222222", "#b0b0b0", "#0072b2", "#d55e00"
#: Method → colour, marker and dashes in every figure. Of many lines the first of these are named.
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "fedsdg": ("#000000", "o", "-"),
    "fedavg-uniform": ("#56b4e9", "s", "-"),
    "fedrep": ("#009e73", "D", "-"),
    "ditto": ("#cc79a7", "^", "-"),
    "gated-head": ("#e69f00", "v", "-"),
    "local-only": ("#8c510a", "X", ":"),
    "centralised": ("#7f5539", "*", "--"),
    "fedper": ("#999933", "p", "-"),
    "fine-tune": ("#6a51a3", "P", "-"),
    "apfl": ("#332288", "h", "-"),
    "clustered-known": ("#882255", "<", "-"),
    "fedavg": ("#3182bd", "d", "--"),
    "scaffold": ("#117733", ">", "--"),
}
#: Colours of other lines that are named, in their order, and their markers.
_COLOURS = ("#5e3c99", "#1b7837", "#d6604d", "#bf812d", "#2c7fb8", "#737373", "#c994c7", "#a6611a")
_MARKERS = "sD^vPX<>"
#: Group of clients → look and title; the empty one is all of them.
_GROUPS = {"": (INK, "o", "-"), "A": (GROUP_A, "o", "-"), "B": (GROUP_B, "D", "-")}
_TITLES = {"": "all clients", "A": "A: clients that agree", "B": "B: clients that differ"}
#: Column → how its values are printed.
_PRINTED: Mapping[str, Callable[[Any], str]] = {
    **{"method": method_title, "rival": method_title, "cell": cell_title},
    **{"metric": lambda name: METRICS[name].title, "group": _TITLES.__getitem__},
}
#: Column → the label of its axis, where that is not its name.
_AXES = {
    "alpha": "Dirichlet α (smaller: clients differ more)",
    "mean": "accuracy (%)",
    "trials": "trials of the search",
    "noise_rate": "share of wrong labels",
    "weight": "weight (1: equal)",
}
#: Width of a figure in inches; panels side by side at most; lines that are named of many.
WIDTH, ABREAST, NAMED = 7.2, 4, 6
_STYLE: Any = {
    **{"font.family": "DejaVu Sans", "font.size": 8, "text.color": INK, "text.parse_math": False},
    **{"axes.titlesize": 8.5, "axes.titleweight": "bold", "axes.labelcolor": INK},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6},
    **{"xtick.labelsize": 7, "ytick.labelsize": 7, "legend.frameon": False, "legend.fontsize": 7.5},
    **{"lines.markersize": 4, "savefig.dpi": 200, "pdf.fonttype": 42, "svg.hashsalt": "fedsdg"},
}


@dataclass(frozen=True)
class View:
    """What of a frame stands where in a figure."""

    x: str = "mean"
    """The column along the x axis."""
    y: str = "mean"
    """The column along the y axis."""
    value: str = "mean"
    """The column of a heat map's numbers."""
    line: str = ""
    """The column of the lines of curves."""
    by: Sequence[str] | None = None
    """The columns whose values have panels; by default those of method, metric and cell that are
    neither along an axis nor lines."""
    xlabel: str = ""
    """The label of the x axis; by default that of the column."""
    ylabel: str = ""
    """The label of the y axis; by default that of the column."""
    base: float = np.nan
    """A number to measure by: a line; dots whose interval includes it are open."""
    log: bool = False
    """Whether the x axis is logarithmic."""

    def panels(self, frame: pd.DataFrame) -> list[str]:
        """Return the columns that panels are titled by: of several values, and curves' metric.

        The one with the most values is last.
        """
        usual = [c for c in ("method", "metric", "cell") if c not in (self.x, self.y, self.line)]
        wanted = usual if self.by is None else self.by
        counts = {column: frame[column].nunique() for column in wanted if column in frame}
        shown = [c for c in counts if counts[c] > 1 or (c == "metric" and self.line)]
        return sorted(shown, key=counts.__getitem__)


def styled() -> AbstractContextManager[None]:
    """Draw and save in the style of all figures, whatever a user's matplotlibrc says."""
    return context(_STYLE, after_reset=True)


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write a figure as PDF, SVG and PNG and return the files; call it inside ``styled``.

    Args:
        figure: The figure.
        stem: The path of the files without their suffix.
    """
    files = [Path(f"{stem}.{suffix}") for suffix in ("pdf", "svg", "png")]
    for file, date in zip(files, ("CreationDate", "Date", "Software"), strict=True):
        with atomic_path(file) as temporary:
            figure.savefig(temporary, format=file.suffix[1:], metadata={date: None})
    return files


def colour(label: str) -> str:
    """Return the colour of a method in every figure; ``GREY`` for one without a colour."""
    return LOOKS[label][0] if label in LOOKS else GREY


def _style(colour: str, marker: str, dashes: str) -> dict[str, Any]:
    return {"color": colour, "marker": marker, "linestyle": dashes}


def styles(values: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return matplotlib's style of every line that is named; the others are grey.

    Args:
        values: Methods, groups or other values in order. Of more than eight, ``NAMED`` are named.
    """
    known = [value for value in (*LOOKS, *_GROUPS) if value in values]
    named = [*known, *(value for value in values if value not in known)]
    others = zip(_COLOURS, _MARKERS, ["-"] * len(_MARKERS), strict=True)
    found: dict[str, dict[str, Any]] = {}
    for value in named if len(values) <= len(_COLOURS) else named[:NAMED]:
        look = LOOKS.get(value) or _GROUPS.get(value) or next(others)
        lead = value == "fedsdg"
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.4, "markevery": 0.15}
        width = {"linewidth": 2.0 if lead else 1.2, "zorder": 4 if lead else 3}
        found[value] = _style(*look) | edge | width
    return found


def title_of(column: str, value: Any) -> str:
    """Return how a value of a column is printed in a figure.

    Args:
        column: ``method``, ``cell``, ``metric``, or any other column.
        value: One of its values.
    """
    return _PRINTED.get(column, str)(value)


def panels(
    frame: pd.DataFrame, view: View, height: float = 2.6, abreast: int = ABREAST, **shared: Any
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure with a titled and labelled panel for every combination of values.

    Args:
        frame: The rows.
        view: Which columns have panels, and the labels.
        height: Height of a panel in inches.
        abreast: Panels side by side at most.
        shared: ``sharex`` and ``sharey`` of matplotlib.

    Returns:
        The figure, and every panel with its rows.
    """
    shown = view.panels(frame)
    keys = [*product(*(frame[column].unique() for column in shown))]
    wanted = frame[shown[-1]].nunique() if shown else 1
    columns = wanted if wanted <= abreast else min(abreast, 4 if wanted % 4 == 0 else 3)
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(WIDTH, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared).flat
    found = []
    for panel, key in zip_longest(axes, keys):
        part = frame[(frame[shown] == [*key]).all(axis=1)] if key is not None else frame.iloc[:0]
        titles = [title_of(*pair) for pair in zip(shown, key or [], strict=False)]
        ylabel = view.ylabel or _AXES.get(view.y, view.y)
        panel.set(
            title="\n".join(textwrap.fill(title, int(11 * WIDTH / columns)) for title in titles),
            xlabel=textwrap.fill(view.xlabel or _AXES.get(view.x, view.x), int(94 / columns)),
            ylabel=ylabel if panel.get_subplotspec().is_first_col() else "",
            visible=len(part) > 0,
        )
        panel.tick_params(labelbottom=True)
        found.append((panel, part))
    return figure, [pair for pair in found if len(pair[1])]


def legend(figure: Figure, lines: Mapping[str, Mapping[str, Any]]) -> None:
    """Put a legend below all panels, with as many columns as fit.

    Args:
        figure: The figure.
        lines: Name → keywords of ``Line2D``.
    """
    columns = min(len(lines), max(1, int(110 / (max(map(len, lines)) + 9))))
    handles = [Line2D([], [], **look) for look in lines.values()]
    figure.legend(handles, [*lines], loc="outside lower center", ncols=columns, handlelength=2.6)


def dots(frame: pd.DataFrame, view: View) -> Figure:
    """Draw means as dots with their intervals, a row per value of ``y``, the best on top.

    Metrics that have no panels share the rows, which are sorted by the last of them, as the mean
    over panels; else by the first panel's.

    Args:
        frame: The rows; their columns are those that ``view`` names, and those of the panels.
        view: Which column stands where, and the labels.
    """
    metrics = [*frame["metric"].unique()]
    shared = len(metrics) > 1 and "metric" not in view.panels(frame)
    by_metric = frame.pivot_table("mean", view.y, "metric", sort=False)
    rows = [*by_metric.sort_values(metrics[-1 if shared else 0], na_position="first").index]
    figure, found = panels(frame, view, 0.95 + 0.15 * max(len(rows), 3), sharey=True)
    looks = {name: _GROUPS.get(name.rpartition("_")[2].upper(), _GROUPS[""]) for name in metrics}
    for panel, part in found:
        for metric, own in part.groupby("metric", sort=False):
            look, marker, _ = looks[metric]
            places = own[view.y].map(rows.index)
            panel.hlines(places, own["low"], own["high"], color=look, linewidth=1.1, alpha=0.8)
            unclear = (own["low"] <= view.base) & (own["high"] >= view.base)
            style: Any = {"c": np.where(unclear, "white", look), "edgecolors": look, "s": 13}
            panel.scatter(own["mean"], places, marker=marker, linewidths=0.8, zorder=3, **style)
        panel.axvline(view.base, color=INK, linewidth=0.9, zorder=1)
        panel.set_yticks(range(len(rows)), [title_of(view.y, name) for name in rows])
        panel.tick_params(axis="y", length=0)
        panel.set(ylim=(-0.7, len(rows) - 0.3), ylabel="")
    if shared:
        legend(figure, {METRICS[name].title: _style(*looks[name][:2], "") for name in metrics})
    return figure


def heat_map(frame: pd.DataFrame, view: View) -> Figure:
    """Draw numbers as shades, on one scale for all panels; rows of a ``group`` stand together.

    Both axes are of whole numbers; where there are groups, the y axis names them.

    Args:
        frame: The rows; their columns are those that ``view`` names, and those of the panels.
        view: Which column stands where, and the labels.
    """
    figure, found = panels(frame, view, 2.2)
    norm = mpl.colors.Normalize(frame[view.value].min(), frame[view.value].max())
    for panel, part in found:
        table = part.pivot(index=view.y, columns=view.x, values=view.value).astype(float)
        table = table.loc[part[view.y].unique()]
        ends = (part[view.x].min() - 0.5, part[view.x].max() + 0.5, len(table) - 0.5, -0.5)
        shades: Any = {"aspect": "auto", "interpolation": "nearest", "extent": ends}
        image = panel.imshow(np.ma.masked_invalid(table), "OrRd", norm, **shades)
        panel.tick_params(length=0, grid_alpha=0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if "group" in part:
            sizes = part.drop_duplicates(view.y)["group"].value_counts(sort=False)
            stops = sizes.cumsum()
            panel.set_yticks(stops - sizes / 2 - 0.5, sizes.index)
            panel.hlines(stops.iloc[:-1] - 0.5, *ends[:2], color=INK, linewidth=1.2)
    figure.colorbar(image, ax=[panel for panel, _ in found], label=view.value, pad=0.02)
    return figure


def number_map(frame: pd.DataFrame, view: View) -> Figure:
    """Draw numbers in fields of a shade, which begins at 0; all rows and columns are named.

    Numbers that are ``tied`` are bold; rows that are an ``oracle`` stand below a line.

    Args:
        frame: The rows; their columns are those that ``view`` names, and those of the panels.
        view: Which column stands where, and the labels.
    """
    figure, found = panels(frame, view, 0.95 + 0.165 * frame[view.y].nunique(), 1)
    most = max(float(frame[view.value].max()), 1e-9)
    for panel, part in found:
        part = part.assign(tied=part.get("tied", False), oracle=part.get("oracle", False))
        columns, rows = [*part[view.x].unique()], [*part[view.y].unique()]
        table = part.pivot(index=view.y, columns=view.x, values=view.value).loc[rows, columns]
        shades: Any = {"aspect": "auto", "interpolation": "nearest", "vmin": 0, "vmax": most}
        panel.imshow(np.ma.masked_invalid(table.astype(float)), "OrRd", **shades)
        for x, y, number, tied in part[[view.x, view.y, view.value, "tied"]].to_numpy():
            style: Any = {"ha": "center", "va": "center", "weight": "bold" if tied else "normal"}
            style |= {"color": "white" if number > 0.65 * most else INK, "fontsize": 6.5}
            panel.text(columns.index(x), rows.index(y), f"{number:z.1f}".replace("-", "−"), **style)
        line = len(rows) - 0.5 - part.drop_duplicates(view.y)["oracle"].sum()
        panel.axhline(line, color=INK, linewidth=1.2)
        slant: Any = {"rotation": 30, "ha": "left", "rotation_mode": "anchor"}
        heads = [title_of(view.x, name) for name in columns]
        panel.set_xticks(range(len(heads)), heads, **(slant if len(heads) > NAMED else {}))
        panel.set_yticks(range(len(rows)), [title_of(view.y, name) for name in rows])
        panel.tick_params(labeltop=True, labelbottom=False, length=0, grid_alpha=0)
        panel.set_ylabel("")
    return figure


def curves(frame: pd.DataFrame, view: View) -> Figure:
    """Draw means against a quantity, a line per value of ``line``.

    One or two panels have names at the ends of lines, more have a legend. Bands are intervals: of
    all lines where there are three at most, else of FedSDG alone, for many make mud. Axes show the
    named lines in full, whatever the grey ones do.

    Args:
        frame: The rows; their columns are those that ``view`` names, and those of the panels.
        view: Which column stands where, and the labels.
    """
    figure, found = panels(frame, view, sharey=view.panels(frame)[-1:] != ["metric"] and "row")
    looks = styles([*frame[view.line].unique()])
    banded = [name for name in looks if len(looks) <= 3 or name == "fedsdg"]
    lines: Any = [(panel, *line) for panel, part in found for line in part.groupby(view.line)]
    lines.sort(key=lambda line: line[1] not in looks)
    for panel, name, own in lines:
        if name not in looks:
            panel.set_ylim(panel.get_ylim())
            panel.plot(own[view.x], own["mean"], color=GREY, linewidth=0.7, zorder=2)
            continue
        style: Any = looks[name]
        panel.plot(own[view.x], own["mean"], **style, label=title_of(view.line, name))
        if name in banded and "low" in own:
            band: Any = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
            panel.fill_between(own[view.x], own["low"], own["high"], **band)
    for panel, part in found:
        panel.axhline(view.base, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        if view.log:
            panel.set_xscale("log")
            panel.xaxis.set(major_formatter="{x:g}", minor_formatter="")
        if part[view.x].nunique() <= NAMED:
            panel.set_xticks(part[view.x].unique())
        if len(found) <= 2:
            _name_ends(panel)
    if len(found) > 2:
        rest = {"other methods": {"color": GREY}} if len(looks) < frame[view.line].nunique() else {}
        legend(figure, {title_of(view.line, name): look for name, look in looks.items()} | rest)
    return figure


def _name_ends(panel: Axes) -> None:
    """Write the name of every line that has one beside its end, from the top down."""
    lines = [line for line in panel.get_lines() if not str(line.get_label()).startswith("_")]
    ends = {line: np.asarray(line.get_xydata())[-1] for line in lines}
    low, high = panel.get_ylim()
    place = 2.0
    for line in sorted(lines, key=lambda line: -ends[line][1]):
        place = min((ends[line][1] - low) / (high - low), place - 0.07)
        style: Any = {"color": line.get_color(), "fontsize": 7, "va": "center"}
        style["weight"] = "bold" if line.get_linewidth() > 1.5 else "normal"
        arrow: Any = {"arrowstyle": "-", "linestyle": ":", "color": line.get_color()}
        arrow |= {"linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        beside: Any = {"xytext": (1.03, place), "textcoords": "axes fraction", "arrowprops": arrow}
        panel.annotate(str(line.get_label()), ends[line], **beside, **style)


def scatter(frame: pd.DataFrame, view: View) -> Figure:
    """Draw a point per row, in the colour of its method.

    Args:
        frame: The rows; their columns are those that ``view`` names, and those of the panels.
        view: Which column stands where, and the labels.
    """
    figure, found = panels(frame, view, sharex=True, sharey=True)
    for panel, part in found:
        panel.scatter(
            *(part[view.x], part[view.y], 14, part["method"].map(colour).replace(GREY, INK)),
            linewidths=0,
        )
    return figure
