"""Forest plot: FedSDG minus each rival with its 95 % interval, one column of panels per skew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.names import (
    BETTER_BASELINE,
    GLOBAL,
    PERSONAL,
    WORST,
    Metric,
    method_order,
    method_title,
)
from fedsdg.analysis.plots.style import GRID, INK, MUTED, hide_unused, panels, say, shared_legend
from fedsdg.analysis.summary import Cell, Summary

#: Metric → marker, colour and offset within a rival's row.
_MARKS: tuple[tuple[Metric, str, str, float], ...] = (
    (PERSONAL, "o", "#D55E00", -0.24),
    (WORST, "D", "#332288", 0.0),
    (GLOBAL, "s", "#56B4E9", 0.24),
)


def draw(summary: Summary) -> Figure:
    """Rivals from top to bottom, the better FedAvg first; points right of zero favour FedSDG."""
    last = [entry for entry in summary.rows("differences") if entry["at"] == "last"]
    rivals = sorted({entry["rival"] for entry in last}, key=method_order)
    settings, skews, places = summary.grid()
    height = 0.9 + 0.36 * max(len(rivals), 4)
    figure, axes = panels(settings, skews, panel_height=height, sharey=True, sharex="row")
    for row, column, cell in places:
        panel = axes[row][column]
        panel.set_title(summary.cell_title(cell))
        if not rivals:
            say(panel, "no finished run of\nFedSDG beside others")
            continue
        _panel(panel, _of(last, cell), rivals)
        panel.set_xlabel("FedSDG minus other (points)")
    if rivals:
        axes[0][0].set_yticks(range(len(rivals)), [method_title(rival) for rival in rivals])
        axes[0][0].set_ylim(len(rivals) - 0.5, -0.5)
        if BETTER_BASELINE in rivals:
            for panels_of_row in axes:
                panels_of_row[0].get_yticklabels()[0].set_fontweight("bold")
        handles, _ = axes[0][0].get_legend_handles_labels()
        shared_legend(figure, handles, columns=3)
    hide_unused(axes)
    return figure


def _of(rows: Sequence[Mapping[str, Any]], cell: Cell) -> dict[tuple[str, str], Mapping[str, Any]]:
    place = (cell.setting.dataset, cell.setting.clients, cell.skew)
    return {
        (row["rival"], row["metric"]): row
        for row in rows
        if (row["dataset"], row["clients"], row["skew"]) == place
    }


def _panel(
    panel: Axes, table: Mapping[tuple[str, str], Mapping[str, Any]], rivals: Sequence[str]
) -> None:
    panel.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
    for metric, marker, colour, offset in _MARKS:
        found = [(i, table.get((rival, metric.key))) for i, rival in enumerate(rivals)]
        rows = [(i + offset, row) for i, row in found if row is not None]
        panel.errorbar(
            [100 * row["mean"] for _, row in rows],
            [height for height, _ in rows],
            xerr=[100 * (row["half_width"] or 0.0) for _, row in rows],
            fmt=marker,
            color=colour,
            markersize=3.6,
            elinewidth=1.1,
            label=metric.title,
        )
    for i in range(len(rivals) - 1):
        panel.axhline(
            i + 0.5, color=MUTED if rivals[i] == BETTER_BASELINE else GRID, linewidth=0.6, zorder=0
        )
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0)
