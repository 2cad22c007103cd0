"""Gates over the rounds, for clients that agree and clients that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.frames import groups
from fedsdg.analysis.inference import Interval, mean_interval
from fedsdg.analysis.names import dataset_title, skew_order, skew_title
from fedsdg.analysis.plots.style import (
    BAND_SEEDS,
    INK,
    KIND_A,
    KIND_B,
    MUTED,
    hide_unused,
    logarithmic_ticks,
    panels,
    say,
    shared_legend,
    ticks_within,
)
from fedsdg.analysis.views.clients import CORRELATION, GATE_MEASURES

_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)))
#: Panels from top to bottom: label, measures (a dash each), logarithmic, limits.
_ROWS: tuple[tuple[str, tuple[str, ...], bool, tuple[float, float] | None], ...] = (
    ("mean gate m", ("gate",), False, (0.0, 1.0)),
    ("private share", ("private_share",), False, (0.0, 1.0)),
    ("‖θ$_p$‖ / ‖θ$_g$‖", ("private_ratio",), True, None),
    ("penalties", ("gate_penalty", "private_penalty"), True, None),
    ("share of a client's\ngates", ("closed", "middle", "open"), False, (-0.02, 1.02)),
    ("ρ (gate, local steps)", (CORRELATION,), False, (-1.0, 1.0)),
)
_COLOURS = {"": INK, "A": KIND_A, "B": KIND_B}
_NAMES = {"": "all clients", "A": "A: clients that agree", "B": "B: clients that differ"}


def draw(rows: pd.DataFrame) -> Figure:
    """``clients.gate_dynamics``: a column for each cell, a row for each measure there is."""
    cells = sorted(
        rows[["dataset", "clients", "skew"]].drop_duplicates().itertuples(index=False, name=None),
        key=lambda cell: (cell[0], cell[1], skew_order(cell[2])),
    )
    known = set(rows["measure"])
    shown = [row for row in _ROWS if known & set(row[1])]
    figure, axes = panels(
        max(len(shown), 1), max(len(cells), 1), panel_height=1.45, sharey="row", sharex="col"
    )
    if not cells:
        say(axes[0][0], "no method of this\nexperiment has gates")
        hide_unused(axes)
        return figure
    several = len({cell[:2] for cell in cells}) > 1
    for column, (dataset, clients, skew) in enumerate(cells):
        here = rows[
            (rows["dataset"] == dataset) & (rows["clients"] == clients) & (rows["skew"] == skew)
        ]
        for i, (label, measures, logarithmic, limits) in enumerate(shown):
            panel = axes[i][column]
            _measures(panel, here, measures)
            positive = _positive(rows, measures)
            if logarithmic and len(positive):
                panel.set_yscale("log")
                panel.set_ylim(positive.min() / 1.2, positive.max() * 1.2)
                logarithmic_ticks(panel.yaxis, positive.min(), positive.max())
            if limits:
                panel.set_ylim(*limits)
            if CORRELATION in measures:
                panel.axhline(0.0, color=INK, linewidth=0.6)
            if column == 0:
                panel.set_ylabel(label, parse_math=True)
            ticks_within(panel.xaxis, here["round"].min(), here["round"].max())
        place = f"{dataset_title(dataset)}, {clients} clients\n" if several else ""
        axes[0][column].set_title(f"{place}{skew_title(skew)}")
        axes[-1][column].set_xlabel("round")
    _legend(figure, rows, [measures for _, measures, _, _ in shown])
    return figure


def _positive(rows: pd.DataFrame, measures: Sequence[str]) -> pd.Series:
    values = rows.loc[rows["measure"].isin(measures), "value"]
    return values[values > 0]


def _measures(panel: Axes, rows: pd.DataFrame, measures: Sequence[str]) -> None:
    """Mean over seeds with its 95 % band of enough seeds; below that a thin line for each seed."""
    for dashes, measure in zip(_DASHES, measures, strict=False):
        for group, own in groups(rows[rows["measure"] == measure], "group"):
            colour = _COLOURS[group]
            by_round = own.groupby("round")["value"]
            rounds = np.array(list(by_round.groups), dtype=float)
            intervals = [mean_interval(values.to_numpy()) for _, values in by_round]
            means = [interval.mean for interval in intervals]
            panel.plot(rounds, means, color=colour, linewidth=1.5, linestyle=dashes)
            if all(interval.n >= BAND_SEEDS for interval in intervals):
                low, high = own["value"].min(), own["value"].max()
                # Beyond the values themselves a band would leave what the measure can be.
                panel.fill_between(
                    rounds,
                    [max(_end(interval.low, interval), low) for interval in intervals],
                    [min(_end(interval.high, interval), high) for interval in intervals],
                    color=colour,
                    alpha=0.16,
                    linewidth=0,
                )
            else:
                for _, run in groups(own, "seed"):
                    panel.plot(run["round"], run["value"], color=colour, linewidth=0.5, alpha=0.6)


def _end(end: float | None, interval: Interval) -> float:
    return interval.mean if end is None else end


def _legend(figure: Figure, rows: pd.DataFrame, shown: Sequence[Sequence[str]]) -> None:
    present = [group for group in _NAMES if (rows["group"] == group).any()]
    handles = [Line2D([], [], color=_COLOURS[g], linewidth=1.5, label=_NAMES[g]) for g in present]
    for dash, dashes in enumerate(_DASHES):
        named = [GATE_MEASURES[m[dash]] for m in shown if len(m) > max(dash, 1)]
        if named:
            handles.append(Line2D([], [], color=MUTED, linestyle=dashes, label="; ".join(named)))
    shared_legend(figure, handles, columns=4)
