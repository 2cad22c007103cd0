"""A newcomer among the rows of a record: what each reached, and the newcomer minus each."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.comparisons import Comparison
from fedsdg.analysis.inference import shown_half_width
from fedsdg.analysis.names import Metric, method_title
from fedsdg.analysis.plots.style import GREY, INK, MUTED, panels
from fedsdg.analysis.standing import Line, Standing

#: The newcomer, and differences in its favour, against it and undecided.
_OWN, _AHEAD, _BEHIND = "#D55E00", "#009E73", "#332288"
_LINE = 0.155


def draw(standing: Standing) -> Figure:
    """A row of panels for each cell, methods from the best to the last."""
    lines = [standing.lines(cell) for cell in standing.cells]
    height = 0.9 + _LINE * max(map(len, lines))
    columns = 1 + len(standing.metrics)
    figure, axes = panels(len(lines), columns, panel_height=height, sharey="row")
    for of_cell, cell, methods in zip(axes, standing.cells, lines, strict=True):
        _accuracies(of_cell[0], standing, methods)
        of_cell[0].set_title(standing.summary.cell_title(cell))
        for panel, metric in zip(of_cell[1:], standing.metrics, strict=True):
            table = {
                one.named.rivals[0]: one
                for one in standing.comparisons
                if one.named.cell == cell and one.named.metric == metric
            }
            _differences(panel, standing, [one.method for one in methods], table)
            panel.set_title(f"minus each, {metric.short}")
    return figure


def _accuracies(panel: Axes, standing: Standing, lines: Sequence[Line]) -> None:
    headline: Metric = standing.metrics[0]
    for height, line in enumerate(lines):
        interval = line.accuracies[headline]
        own = line.method == standing.newcomer
        panel.errorbar(
            100 * interval.mean,
            height,
            xerr=100 * (shown_half_width(interval) or 0.0),
            fmt="D" if own else "o",
            color=_OWN if own else GREY,
            markersize=4.5 if own else 3.4,
            elinewidth=1.0,
        )
    panel.set_yticks(range(len(lines)), [method_title(line.method) for line in lines])
    for label, line in zip(panel.get_yticklabels(), lines, strict=True):
        if line.method == standing.newcomer:
            label.set_fontweight("bold")
            label.set_color(_OWN)
    panel.set_ylim(len(lines) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"{headline.title} (%)")


def _differences(
    panel: Axes, standing: Standing, methods: Sequence[str], table: dict[str, Comparison]
) -> None:
    panel.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
    for height, method in enumerate(methods):
        one = table.get(method)
        if one is None or one.decisive.interval is None:
            continue
        interval = one.decisive.interval
        verdict = standing.verdict(one)
        colour = _AHEAD if "higher" in verdict else _BEHIND if "lower" in verdict else MUTED
        panel.errorbar(
            100 * interval.mean,
            height,
            xerr=100 * (shown_half_width(interval) or 0.0),
            fmt="o",
            color=colour,
            markersize=3.4,
            elinewidth=1.0,
            markerfacecolor=colour if colour != MUTED else "white",
        )
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("points")
