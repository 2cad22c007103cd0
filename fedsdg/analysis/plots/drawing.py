"""Five ways to draw a tidy frame: curves, dots, a heat map, a scatter plot, and paths.

Each function takes a view of fedsdg.analysis.views and the names of its columns: those along the
axes, that of the lines, and those whose values have a panel each. Titles, order, colours and
markers of values are declared for the columns in ``style``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import groups, places, records
from fedsdg.analysis.plots.style import (
    ABSENT,
    BAND_SEEDS,
    GREY,
    INK,
    INTERVAL_SEEDS,
    LOGARITHMIC,
    MUTED,
    ORDERS,
    PLAIN,
    SCALES,
    Look,
    accuracy_axis,
    cast,
    fences,
    logarithmic_ticks,
    look_of,
    panels,
    roles,
    shared_legend,
    ticks_within,
    title_of,
    wrapped,
)
from fedsdg.files.places import joined_setting

#: Rows, panels, and panels side by side in a grid at most: the first are shown, others counted.
MOST_ROWS, MOST_PANELS, MOST_COLUMNS = 60, 36, 12
#: Heights in inches: of a line of dots or of a heat map, and of what is around the lines.
_LINE, _AROUND = 0.15, 0.75
#: From nothing to much; no colour of a method, for it stands for a quantity.
_SHADES = LinearSegmentedColormap.from_list("shades", ["#f7fbff", "#fdd0a2", "#d94801"])

#: A panel and the rows that are drawn in it.
Panel = tuple[Axes, pd.DataFrame]


def located(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with ``cell``, the title of each row's place, in the fixed order of places.

    The data set stands in the title where there are several. A frame that has cells keeps them.
    """
    if "cell" in frame or "skew" not in frame:
        return frame
    frame = frame.reset_index(drop=True)
    scenario = frame["scenario"] if "scenario" in frame else pd.Series("", frame.index)
    skews = [joined_setting(*pair) for pair in zip(frame["skew"], scenario, strict=True)]
    cells = {i: title for title, rows in places(frame.assign(skew=skews)) for i in rows.index}
    found = [cells[i] for i in frame.index]
    return frame.assign(cell=pd.Categorical(found, [*dict.fromkeys(cells.values())]))


def values_of(frame: pd.DataFrame, column: str) -> list[Any]:
    """The values of a column in the order in which they are shown.

    Args:
        frame: The rows.
        column: A column whose order is declared, or that is in order of appearance.
    """
    if isinstance(frame[column].dtype, pd.CategoricalDtype):
        present = set(frame[column])
        return [value for value in frame[column].cat.categories if value in present]
    values = [*frame[column].unique()]
    return sorted(values, key=ORDERS[column]) if column in ORDERS else values


def facets(
    frame: pd.DataFrame,
    *,
    across: Sequence[str] = ("cell",),
    down: str | None = None,
    height: float,
    wrap: int = 3,
    labels: tuple[str | None, str] = ("", ""),
    untitled: Sequence[str] = (),
    **shared: Any,
) -> tuple[Figure, list[Panel]]:
    """A panel for each combination of values, with its title and the labels of its axes.

    Args:
        frame: The rows; their cells are known.
        across: The columns whose values stand side by side, wrapped if ``down`` has none.
        down: The column whose values stand below each other; beside each other where there is
            nothing else to put there.
        height: Height of a panel in inches.
        wrap: Most panels side by side.
        labels: The labels of the axes; None: the panels have their own.
        untitled: Columns whose values do not stand in the titles.
        shared: ``sharex`` and ``sharey`` of matplotlib.

    Returns:
        The figure, and the panels that have rows.
    """
    if down is not None and len(frame[[*across]].drop_duplicates()) == 1:
        across, down, shared = [*across[1:], down], None, {}
    present = {*frame[[*across]].itertuples(index=False, name=None)}
    ordered = product(*(values_of(frame, column) for column in across))
    keys = [key for key in ordered if key in present or not across]
    rows = [None] if down is None else values_of(frame, down)
    every = len(rows) * len(keys)
    keys = keys[: MOST_COLUMNS if down else MOST_PANELS]
    rows = rows[: max(1, MOST_PANELS // len(keys))]
    columns = len(keys)
    if down is None and columns > wrap:
        columns = 2 if columns == 4 and wrap == 3 else wrap
    count = -(-len(keys) // columns) if down is None else len(rows)
    figure, axes = panels(count, columns, panel_height=height, **shared)
    found: list[Panel] = []
    wanted = [(row, key) for row in rows for key in keys]
    flat = [*chain(*axes)]
    for panel in flat[len(wanted) :]:
        panel.set_visible(False)
    for number, (panel, (row, key)) in enumerate(zip(flat, wanted, strict=False)):
        part = frame[(frame[[*across]] == list(key)).all(axis=1)] if across else frame
        part = part if down is None else part[part[down] == row]
        if part.empty:
            panel.set_visible(False)
            continue
        pairs = [pair for pair in zip(across, key, strict=True) if pair[0] not in untitled]
        named = [title_of(*pair) for pair in pairs if frame[pair[0]].nunique() > 1]
        named = named or [title_of(*pair) for pair in pairs[:1]]
        named += [str(part["note"].iloc[0])] if "note" in part else []
        below, beside = divmod(number, columns)
        if down is None or below == 0:
            panel.set_title("\n".join(wrapped(text, figure, columns) for text in named if text))
        if beside == 0:
            what = "" if down is None else title_of(down, row)
            panel.set_ylabel(f"{what} ({labels[1]})" if what and labels[1] else what or labels[1])
        if labels[0] is not None and (down is None or below == len(rows) - 1):
            panel.set_xlabel(labels[0])
        found.append((panel, part))
    _count(figure, every - len(wanted))
    return figure, found


def _count(figure: Figure, left_out: int) -> None:
    """Say below the panels how many rows or panels were left out."""
    if left_out:
        figure.supxlabel(f"{left_out} more are not shown", fontsize=7, color=MUTED)


def curves(
    frame: pd.DataFrame,
    *,
    x: str = "round",
    line: str = "method",
    shape: str = "curve",
    named: bool = False,
    base: float | None = None,
    **panels: Any,
) -> Figure:
    """Means against a quantity, a line for each value of a column, with intervals over seeds.

    Means are accuracies, whose axis ends at 0 and 100, unless they are of a ``measure``.

    Args:
        frame: ``x``, ``line``, the columns of the panels, and ``mean``; ``n``, ``low``, ``high``
            where seeds were averaged.
        x: The column of the quantity.
        line: The column of the lines.
        shape: "curve", with bands; "steps": a mean holds until the next; "categories": the
            quantity has few values, at equal distances, with bars.
        named: Whether lines are named at their ends, and not in a legend.
        base: A mean to measure by: a dashed line.
        panels: Arguments of ``facets``.
    """
    frame = located(frame)
    lines, look = values_of(frame, line), _looks(frame, line, None if named else x)
    few = values_of(frame.sort_values(x), x) if shape == "categories" else []
    frame = _scaled(frame, base is None).assign(at=frame[x].map(few.index) if few else frame[x])
    panels = {"labels": ("round", "accuracy (%)"), "height": 2.5, **panels}
    figure, found = facets(
        frame, wrap=2 if named else 3, sharey="row" if "down" in panels else not few, **panels
    )
    banded = _banded(lines, look, len(lines) if few else 3)
    for panel, part in found:
        for turn, value in enumerate(lines):
            own = part[part[line] == value].sort_values("at")
            if value in banded and "low" in own:
                _intervals(panel, own, look[value].colour, bool(few))
            if len(own):
                _curve(panel, own, look[value], turn, shape)
        _ticks(panel, part, x, few, shape)
        if base is not None:
            panel.axhline(base, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    # Panels may share their axes, so axes end where all of them are drawn.
    for panel, part in found:
        if part["accuracy"].all():
            accuracy_axis(panel)
        elif "measure" in part and part["measure"].isin(LOGARITHMIC).all():
            _logarithmic(panel)
    if named:
        _name_ends(found, look, line, panels["height"])
    else:
        _legend(figure, lines, look, line)
    return figure


def _banded(lines: Sequence[Any], look: Mapping[Any, Look], most: int) -> list[Any]:
    """The lines that have an interval: those in colour; of many the subject, or the first.

    Bands of many colours make mud.
    """
    coloured = [value for value in lines if look[value].colour != GREY]
    if len(coloured) <= most:
        return coloured
    return [roles().subject] if roles().subject in coloured else coloured[:1]


def _scaled(frame: pd.DataFrame, cut: bool) -> pd.DataFrame:
    """The frame in the units of its axes, and whether they are those of an accuracy.

    ``cut``: whether intervals of an accuracy are cut at 0 and 100 %.
    """
    factor = pd.Series(100.0, frame.index)
    if "measure" in frame:
        factor = frame["measure"].map(SCALES).fillna(1.0)
    percent = (factor == 100.0) & cut
    scaled = {name: factor * frame[name] for name in ("mean", "low", "high") if name in frame}
    cropped = {name: x.clip(0.0, 100.0).where(percent, x) for name, x in scaled.items()}
    return frame.assign(accuracy=percent, **cropped)


def _intervals(panel: Axes, own: pd.DataFrame, colour: str, bars: bool) -> None:
    """Bars or a band, where there are enough seeds."""
    own = own[own["n"] >= (INTERVAL_SEEDS if bars else BAND_SEEDS)]
    if bars:
        panel.vlines(own["at"], own["low"], own["high"], color=colour, linewidth=0.8)
    elif len(own):
        panel.fill_between(
            own["at"], own["low"], own["high"], color=colour, alpha=0.15, linewidth=0
        )


def _curve(panel: Axes, own: pd.DataFrame, look: Look, turn: int, shape: str) -> None:
    """Draw a line; ``turn`` staggers the markers, so that those of close lines do not overlap.

    Steps have a marker at their end alone.
    """
    step = max(len(own) // 3, 1)
    every = [len(own) - 1] if shape == "steps" else (turn % step, step)
    drawn = "steps-post" if shape == "steps" else "default"
    panel.plot(own["at"], own["mean"], drawstyle=drawn, markevery=every, **look.line())


def _logarithmic(panel: Axes) -> None:
    """A logarithmic axis; values ten thousand times below the median are rounding errors of 0."""
    values = np.concatenate([np.asarray(one.get_ydata(), dtype=float) for one in panel.lines])
    positive = values[values > 0]
    if not len(positive):
        return
    real = positive[positive > 1e-4 * np.median(positive)]
    panel.set_yscale("log")
    panel.set_ylim(real.min() / 1.3, real.max() * 1.3)
    logarithmic_ticks(panel.yaxis, float(real.min()), float(real.max()))


def _ticks(panel: Axes, part: pd.DataFrame, x: str, few: Sequence[Any], shape: str) -> None:
    """The ticks of the quantity: all of its few values, or round ones within the data."""
    if few:
        panel.set_xticks(range(len(few)), [title_of(x, value) for value in few])
        panel.set_xlim(-0.3, len(few) - 0.7)
    elif shape == "curve":
        ticks_within(panel.xaxis, part[x].min(), part[x].max())


def _name_ends(found: Sequence[Panel], look: Mapping[Any, Look], line: str, height: float) -> None:
    """Names beside the ends of lines, moved apart where they would overlap."""
    for panel, part in found:
        low, high = panel.get_ylim()
        gap, at = 0.15 * (high - low) / height, -np.inf
        ends = part.sort_values("at").groupby(line)["mean"].last()
        for value, end in ends.sort_values(kind="stable").items():
            at = max(float(end), at + gap)
            panel.annotate(
                title_of(line, value),
                (1.0, at),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                color=look[value].colour,
                fontweight="bold" if value == roles().subject else "normal",
                annotation_clip=False,
            )


def dots(
    frame: pd.DataFrame,
    *,
    y: str = "method",
    mark: str | None = None,
    by: Any = None,
    against_zero: bool = False,
    **panels: Any,
) -> Figure:
    """Means as dots with their intervals, a row for each value of a column.

    Values far beyond all others are arrows at the edge, with the number.

    Args:
        frame: ``y``, ``mark``, the columns of the panels, and ``mean``, a share of 1; ``n``,
            ``low``, ``high`` where seeds were averaged.
        y: The column of the rows.
        mark: The column whose values share a row, each in its colour.
        by: The value of ``mark`` by whose mean rows are sorted, the highest on top; empty: its
            first value; None: rows are in their fixed order.
        against_zero: Whether means are differences: 0 is marked, and a dot whose interval
            includes it is open.
        panels: Arguments of ``facets``.
    """
    frame = located(frame)
    names = values_of(frame, y)
    marks = [None] if mark is None else values_of(frame, mark)
    if by is not None:
        means = frame[frame[mark] == (by or marks[0])].groupby(y)["mean"].mean()
        names.sort(key=lambda name: -float(means.get(name, -np.inf)))
    left_out = len(names[MOST_ROWS:])
    names = names[:MOST_ROWS]
    frame = frame[frame[y].isin(names)]
    look = {None: PLAIN} if mark is None else _looks(frame, mark, None)
    height = 0.3 + _AROUND + _LINE * max(len(names), 5)
    figure, found = facets(frame, height=height, **panels)
    for panel, part in found:
        _range(panel, part, against_zero)
        if against_zero:
            panel.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
        for turn, value in enumerate(marks):
            own = part if value is None else part[part[mark] == value]
            apart = turn - (len(marks) - 1) / 2
            offset = 0.2 * apart if len(marks) > 2 else 0.0
            for row in records(own):
                at = names.index(row[y])
                if _is_beyond(panel, row):  # Numbers stand one above the other.
                    _arrow(panel, row, at + 0.5 * apart, look[value], against_zero)
                else:
                    _dot(panel, row, at + offset, look[value], against_zero)
        panel.set_yticks(range(len(names)), [title_of(y, name) for name in names])
        for text, name in zip(panel.get_yticklabels(), names, strict=True):
            text.set_fontweight("bold" if name == roles().subject else "normal")
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0, labelleft=_is_first(panel))
    if mark is not None:
        _legend(figure, marks, look, mark, linestyle="")
    _count(figure, left_out)
    return figure


def _is_first(panel: Axes) -> bool:
    """Whether a panel is the first of its row."""
    place = panel.get_subplotspec()
    return place is not None and place.is_first_col()


def _range(panel: Axes, part: pd.DataFrame, against_zero: bool) -> None:
    """An axis that a few far values do not stretch."""
    ends = 100 * np.concatenate([part["mean"], *_ends(part)])
    low, high = fences([*ends, 0.0] if against_zero else ends)
    if against_zero:
        low, high = min(low, -1.0), max(high, 1.0)
    else:
        low, high = max(low, 0.0), min(high, 100.0)
    room = 0.06 * (high - low or 1.0)
    panel.set_xlim(low - room, high + room)
    ticks_within(panel.xaxis, low - room, high + room, about=4)


def _ends(part: pd.DataFrame) -> list[pd.Series]:
    """The ends of the intervals that are drawn."""
    if "n" not in part:
        return []
    known = part[part["n"] >= INTERVAL_SEEDS]
    return [known["low"], known["high"]]


def _is_beyond(panel: Axes, row: Mapping[str, Any]) -> bool:
    left, right = panel.get_xlim()
    return not left <= 100 * row["mean"] <= right


def _arrow(
    panel: Axes, row: Mapping[str, Any], height: float, look: Look, against_zero: bool
) -> None:
    mean = 100 * row["mean"]
    is_high = mean > panel.get_xlim()[1]
    inside, edge = (0.86, 1.0) if is_high else (0.14, 0.0)
    panel.annotate(
        f"{mean:+.1f}".replace("-", "−") if against_zero else f"{mean:.0f}",
        (edge, height),
        (inside, height),
        xycoords=panel.get_yaxis_transform(),
        ha="right" if is_high else "left",
        va="center",
        fontsize=6,
        color=look.colour,
        arrowprops={"arrowstyle": "-|>", "color": look.colour, "linewidth": 0.9}
        | {"shrinkA": 0.0, "shrinkB": 0.0},
    )


def _dot(
    panel: Axes, row: Mapping[str, Any], height: float, look: Look, against_zero: bool
) -> None:
    mean, is_open = 100 * row["mean"], False
    if row.get("n", 0) >= INTERVAL_SEEDS:
        low, high = 100 * row["low"], 100 * row["high"]
        is_open = against_zero and low <= 0.0 <= high
        ends = (low, high) if against_zero else (max(low, 0.0), min(high, 100.0))
        panel.hlines(height, *ends, color=look.colour, linewidth=1.0, alpha=0.8)
    face = "white" if is_open else look.colour
    marks = {"markersize": 3.8, "markeredgewidth": 0.8, "markerfacecolor": face}
    panel.plot(mean, height, **look.line() | marks | {"markeredgecolor": look.colour})


def heat_map(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    bar: str,
    scale: float = 1.0,
    full: float | None = None,
    written: bool = False,
    height: float | None = None,
    **panels: Any,
) -> Figure:
    """A quantity over two columns in shades, on one scale for all panels; grey where there is none.

    The scale is the range of the quantity; where it is written, from 0 on, and no field is grey.

    Args:
        frame: ``x``, ``y``, the columns of the panels and ``value``; ``group`` if the rows of A
            stand above those of B, and ``bold`` for numbers that are written so.
        x: The column of the columns.
        y: The column of the rows.
        value: The column of the quantity.
        bar: Label of the colour bar.
        scale: A factor of the quantity.
        full: Where the shades end; the largest value without one.
        written: Whether the quantity is written into its field, and fields are named.
        height: Height of a panel in inches; without one as rows need.
        panels: Arguments of ``facets``.
    """
    frame = located(frame)
    rows = values_of(frame, y)
    left_out = len(rows[MOST_ROWS:]) if written else 0
    frame = frame[frame[y].isin(rows[:MOST_ROWS])] if left_out else frame
    height = height or 0.5 * _AROUND + 1.1 * _LINE * min(len(rows), MOST_ROWS)
    height += 0.6 if written else 0.0
    figure, found = facets(frame, **{"wrap": 4, "height": height, **panels})
    known = (scale * frame[value].astype(float)).dropna()
    most = full or max(float(known.max()) if len(known) else 0.0, 1e-9)
    norm = Normalize(0.0 if written else min(float(known.min()), 0.99 * most), most)
    for panel, part in found:
        names = values_of(part, x), values_of(part, y)
        table = part.pivot(index=y, columns=x, values=value).reindex(names[1], columns=names[0])
        shown = scale * table.to_numpy(dtype=float)
        panel.set_facecolor("white" if written else ABSENT)
        panel.pcolormesh(
            np.arange(len(names[0]) + 1) - 0.5,
            np.arange(len(names[1]) + 1) - 0.5,
            np.ma.masked_invalid(shown),
            cmap=_SHADES,
            norm=norm,
            edgecolors="white" if len(shown) <= MOST_ROWS // 2 else "none",
            rasterized=len(shown) > MOST_ROWS // 2,
            linewidth=0.4,
        )
        panel.set_ylim(len(names[1]) - 0.5, -0.5)
        panel.grid(False)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(True)
        if written:
            _write(panel, part, shown, (x, y), names)
        else:
            _mark_groups(panel, part, y, names)
    tall = figure.get_figheight() > 6
    bars = figure.colorbar(
        ScalarMappable(norm, _SHADES),
        ax=[panel for panel, _ in found],
        aspect=50 if tall else 20,
        pad=0.01,
        shrink=0.6 if tall else 0.9,
        extend="max" if (known > most).any() else "neither",
    )
    bars.set_label(bar)
    bars.outline.set_visible(False)  # type: ignore[operator]
    _count(figure, left_out)
    return figure


def _write(
    panel: Axes,
    part: pd.DataFrame,
    shown: np.ndarray,
    columns: tuple[str, str],
    names: tuple[Sequence[Any], Sequence[Any]],
) -> None:
    """Write the numbers into their fields, and name columns above and rows at the side."""
    bold = set()
    if "bold" in part:
        bold = set(part.loc[part["bold"], [*columns]].itertuples(index=False, name=None))
    for i, j in np.argwhere(np.isfinite(shown)):
        panel.text(
            j,
            i,
            f"{shown[i, j] + 0.0:.1f}".replace("-", "−").replace("−0.0", "0.0"),
            ha="center",
            va="center",
            fontsize=6.0,
            fontweight="bold" if (names[0][j], names[1][i]) in bold else "normal",
        )
    first = _is_first(panel)
    panel.set_xticks(range(len(names[0])), [title_of(columns[0], n) for n in names[0]])
    panel.set_yticks(range(len(names[1])), [title_of(columns[1], n) for n in names[1]])
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, labelleft=first)
    longest = max(len(line) for n in names[0] for line in title_of(columns[0], n).split("\n"))
    if longest > 70 / len(names[0]):
        panel.tick_params(axis="x", labelrotation=35)
        for text in panel.get_xticklabels():
            text.set_horizontalalignment("left")
            text.set_rotation_mode("anchor")


def _mark_groups(
    panel: Axes, part: pd.DataFrame, y: str, names: tuple[Sequence[Any], Sequence[Any]]
) -> None:
    """Number the fields, or say where the rows of A end and those of B begin."""
    ticks_within(panel.xaxis, min(names[0]), max(names[0]), about=8)
    panel.set_xticks(
        [names[0].index(n) for n in panel.get_xticks() if n in names[0]],
        [f"{n:g}" for n in panel.get_xticks() if n in names[0]],
    )
    kinds = part.drop_duplicates(y)["group"] if "group" in part else pd.Series(dtype=str)
    if not kinds.isin(["A", "B"]).any():
        ticks_within(panel.yaxis, 0, len(names[1]) - 1)
        return
    counts = {kind: int((kinds == kind).sum()) for kind in "AB" if (kinds == kind).any()}
    ends = np.cumsum([0, *counts.values()])
    panel.set_yticks([(a + b - 1) / 2 for a, b in pairwise(ends)], [*counts])
    for end in ends[1:-1]:
        panel.axhline(end - 0.5, color=INK, linewidth=1.2)


def scatter(frame: pd.DataFrame, *, named: tuple[str, str], **panels: Any) -> Figure:
    """Points by ``x`` and ``y``, a panel for each combination of values.

    Args:
        frame: ``x``, ``y``, ``method``, and the columns of the panels.
        named: The columns of the panels whose values are the labels of the axes.
        panels: Arguments of ``facets``.
    """
    frame = located(frame)
    figure, found = facets(frame, height=1.7, wrap=4, labels=(None, ""), untitled=named, **panels)
    look = _looks(frame, "method", None)
    for panel, part in found:
        colour = look[part["method"].iloc[0]].colour
        panel.scatter(part["x"], part["y"], s=14, color=colour, alpha=0.8, linewidth=0)
        texts = [title_of(column, part[column].iloc[0]) for column in named]
        panel.set(xlabel=texts[0], ylabel=texts[1])
        panel.margins(0.12)
    return figure


def paths(frame: pd.DataFrame, **panels: Any) -> Figure:
    """Paths through a plane, on one scale for all panels: clients and aggregates, round by round.

    Args:
        frame: The rows of ``views.clients.trajectories``.
        panels: Arguments of ``facets``.
    """
    frame = located(frame)
    labels = ("first principal component", "second")
    figure, found = facets(frame, height=2.8, wrap=4, labels=labels, **panels)
    clients = sorted(frame["client"].dropna().unique())
    look = _looks(frame.dropna(subset=["client"]), "client", None)
    ends = [(part[c].min(), part[c].max()) for _, part in found for c in ("x", "y")]
    reach = 0.55 * max(high - low for low, high in ends)
    aggregate = Look(INK, (0, (2, 1.5)), "D", width=0.9, order=4)
    dashed: dict[str, Any] = aggregate.line() | {"markersize": 3.6}
    for panel, part in found:
        for client, own in groups(part[part["kind"] == "local"], "client"):
            colour = look[client].colour
            for round_, way in groups(own, "round"):
                way = way.sort_values("step")
                panel.plot(way["x"], way["y"], color=colour, linewidth=0.9, alpha=0.8, zorder=2)
                panel.plot(*way[["x", "y"]].iloc[-1], "o", color=colour, markersize=2.6, zorder=3)
                if round_ == own["round"].min():
                    start = way[["x", "y"]].iloc[0]
                    panel.plot(*start, "x", color=colour, markersize=6, markeredgewidth=1.5)
        models = part[part["kind"] == "aggregate"].sort_values("round")
        panel.plot(models["x"], models["y"], **dashed)
        for axis in ("x", "y"):
            middle = (part[axis].min() + part[axis].max()) / 2
            panel.set(**{f"{axis}lim": (middle - reach, middle + reach)})
        panel.set_aspect("equal")
        share = f"{100 * part['plane_share'].iloc[0]:.0f} % of the variance"
        panel.set_title(f"{panel.get_title()}\n{share}")
    handles = [
        Line2D([], [], color=look[c].colour, marker="o", markersize=3, label=f"client {c:.0f}")
        for c in clients
    ]
    handles += [
        Line2D([], [], label="aggregate", **dashed),
        Line2D([], [], color=INK, marker="x", linestyle="", label="start"),
    ]
    shared_legend(figure, handles, columns=6)
    return figure


def _looks(frame: pd.DataFrame, column: str, x: str | None) -> dict[Any, Look]:
    """The look of every value of a column; of many methods the best are in colour.

    ``x``: the column along which a method's last mean tells how good it is.
    """
    values = values_of(frame, column)
    if column != "method" or x is None:
        return look_of(column, values)
    first = [c for c in ("metric", "measure") if c in frame]
    rows = frame[(frame[first] == frame[first].iloc[0]).all(axis=1)] if first else frame
    last = rows.sort_values(x, kind="stable").groupby(["cell", "method"], observed=True)["mean"]
    return cast(values, last.last().groupby("method").mean())


def _legend(
    figure: Figure, values: Sequence[Any], look: Mapping[Any, Look], column: str, **line: Any
) -> None:
    """The legend below all panels, the subject in bold; methods in grey are counted."""
    named = [value for value in values if look[value].colour != GREY]
    handles = [
        Line2D([], [], label=title_of(column, value), **look[value].line() | line)
        for value in named
    ]
    if others := len(values) - len(named):
        handles.append(Line2D([], [], color=GREY, linewidth=0.8, label=f"others ({others})"))
    if len(handles) < 2:
        return
    legend = shared_legend(figure, handles, columns=5)
    for text, value in zip(legend.get_texts(), [*named, None][: len(handles)], strict=True):
        text.set_fontweight("bold" if value == roles().subject else "normal")
