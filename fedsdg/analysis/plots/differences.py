"""Forest plot: the subject minus each rival with its 95 % interval, a column for each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.names import (
    AGREEING,
    BETTER_BASELINE,
    DIFFERING,
    EXPECTED,
    EXPECTED_WORST,
    GLOBAL,
    PERSONAL,
    WORST,
    Metric,
    method_order,
    method_title,
    skew_title,
)
from fedsdg.analysis.plots.style import (
    GRID,
    INK,
    INTERVAL_SEEDS,
    MUTED,
    fences,
    hide_unused,
    panels,
    say,
    shared_legend,
    ticks_within,
)
from fedsdg.analysis.summary import Setting, Summary

#: Marker and colour of the places (skews, scenarios) that share a panel, from top to bottom.
_MARKS = (("o", "#D55E00"), ("D", "#332288"), ("s", "#56B4E9"), ("^", "#009E73"))
#: Columns where clients are judged on what each expects; without that, on their own shard.
_EXPECTED = (EXPECTED, AGREEING, DIFFERING, EXPECTED_WORST, GLOBAL)
_OWN = (PERSONAL, WORST, GLOBAL)
#: A point's height in inches, and the part of a rival's height that its points are spread over.
_LINE, _SPREAD = 0.1, 0.6


def draw(summary: Summary) -> Figure:
    """Rivals from top to bottom; points right of zero favour the subject."""
    rows = [row for row in summary.rows("differences") if row["at"] == summary.reported]
    subject = method_title(summary.roles.subject)
    rivals = sorted({row["rival"] for row in rows}, key=method_order)
    metrics = _metrics(rows)
    blocks = [
        (setting, skews[first : first + len(_MARKS)])
        for setting in summary.settings()
        for skews in [summary.skews(setting)]
        for first in range(0, len(skews), len(_MARKS))
    ]
    points = max(3, *(len(skews) for _, skews in blocks))
    height = 0.8 + _LINE * points * max(len(rivals), 4)
    figure, axes = panels(len(blocks), len(metrics), panel_height=height, sharey=True, sharex="col")
    for column, metric in enumerate(metrics if rivals else ()):
        _limits([row[column] for row in axes], [r for r in rows if r["metric"] == metric.key])
    several = len(summary.settings()) > 1
    for (setting, skews), of_block in zip(blocks, axes, strict=True):
        for panel, metric in zip(of_block, metrics, strict=True):
            title = metric.title.capitalize() if len(metrics) <= 3 else _short(metric)
            panel.set_title(f"{setting.title}\n{title}" if several else title)
            if not rivals:
                say(panel, f"no finished run of\n{subject} beside others")
                continue
            _panel(panel, _of(rows, setting, metric), rivals, skews)
            _arrows(panel, _of(rows, setting, metric), rivals, skews)
            panel.set_xlabel(f"{subject} minus other (points)")
        if rivals and len(skews) > 1:
            handles, _ = of_block[0].get_legend_handles_labels()
            if len(blocks) == 1:
                shared_legend(figure, handles, columns=len(handles))
            else:
                of_block[-1].legend(handles=handles, loc="lower left", fontsize=6)
    if rivals:
        axes[0][0].set_yticks(range(len(rivals)), [method_title(rival) for rival in rivals])
        axes[0][0].set_ylim(len(rivals) - 0.5, -0.5)
        if BETTER_BASELINE in rivals:
            for of_block in axes:
                of_block[0].get_yticklabels()[0].set_fontweight("bold")
    hide_unused(axes)
    return figure


def _metrics(rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    known = {row["metric"] for row in rows}
    wanted = _EXPECTED if EXPECTED.key in known else _OWN
    return [metric for metric in wanted if metric.key in known] or [PERSONAL]


def _short(metric: Metric) -> str:
    """What stands above a narrow panel."""
    named = {AGREEING.key: "A (agree)", DIFFERING.key: "B (differ)"}
    return named.get(metric.key, metric.short.capitalize())


def _of(
    rows: Sequence[Mapping[str, Any]], setting: Setting, metric: Metric
) -> dict[tuple[str, str], Mapping[str, Any]]:
    place = (setting.dataset, setting.clients, metric.key)
    return {
        (row["rival"], row["skew"]): row
        for row in rows
        if (row["dataset"], row["clients"], row["metric"]) == place
    }


def _heights(rivals: Sequence[str], skews: Sequence[str]) -> dict[tuple[str, str], float]:
    step = _SPREAD / max(len(skews) - 1, 1)
    middle = (len(skews) - 1) / 2
    return {
        (rival, skew): i + step * (k - middle)
        for i, rival in enumerate(rivals)
        for k, skew in enumerate(skews)
    }


def _panel(
    panel: Axes,
    table: Mapping[tuple[str, str], Mapping[str, Any]],
    rivals: Sequence[str],
    skews: Sequence[str],
) -> None:
    panel.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
    heights = _heights(rivals, skews)
    for (marker, colour), skew in zip(_MARKS, skews, strict=False):
        rows = [(heights[rival, skew], table.get((rival, skew))) for rival in rivals]
        known = [(height, row) for height, row in rows if row and _inside(panel, row)]
        panel.errorbar(
            [100 * row["mean"] for _, row in known],
            [height for height, _ in known],
            xerr=[100 * _half_width(row) for _, row in known],
            fmt=marker,
            color=colour,
            markersize=3.4,
            elinewidth=1.0,
            label=skew_title(skew),
        )
    for i in range(len(rivals) - 1):
        panel.axhline(
            i + 0.5, color=MUTED if rivals[i] == BETTER_BASELINE else GRID, linewidth=0.6, zorder=0
        )
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0)


def _half_width(row: Mapping[str, Any]) -> float:
    """Of fewer seeds than ``INTERVAL_SEEDS`` a point alone is shown."""
    return row["half_width"] or 0.0 if row["n"] >= INTERVAL_SEEDS else 0.0


def _inside(panel: Axes, row: Mapping[str, Any]) -> bool:
    low, high = panel.get_xlim()
    return bool(low <= 100 * row["mean"] <= high)


def _limits(column: Sequence[Axes], rows: Sequence[Mapping[str, Any]]) -> None:
    """One scale for a metric, which a rival far from all others does not stretch."""
    ends = [0.0]
    for row in rows:
        ends += [100 * (row["mean"] + sign * _half_width(row)) for sign in (-1, 0, 1)]
    low, high = fences(ends)
    low, high = min(low, -1.0), max(high, 1.0)
    room = 0.06 * (high - low)
    for panel in column:
        panel.set_xlim(low - room, high + room)
        ticks_within(panel.xaxis, low - room, high + room)


def _arrows(
    panel: Axes,
    table: Mapping[tuple[str, str], Mapping[str, Any]],
    rivals: Sequence[str],
    skews: Sequence[str],
) -> None:
    """An arrow at the edge, with the number, for every mean that lies beyond it."""
    heights = _heights(rivals, skews)
    for (_, colour), skew in zip(_MARKS, skews, strict=False):
        for rival in rivals:
            row = table.get((rival, skew))
            if row is None or _inside(panel, row):
                continue
            right = row["mean"] > 0
            text = f"{100 * row['mean']:+.1f}".replace("-", "−")
            panel.annotate(
                text,
                (1.0 if right else 0.0, heights[rival, skew]),
                (0.86 if right else 0.14, heights[rival, skew]),
                xycoords=panel.get_yaxis_transform(),
                ha="right" if right else "left",
                va="center",
                fontsize=6,
                color=colour,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": colour,
                    "linewidth": 0.9,
                    "shrinkA": 0.0,
                    "shrinkB": 0.0,
                },
            )
