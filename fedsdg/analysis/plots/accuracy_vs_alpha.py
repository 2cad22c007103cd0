"""Accuracy in the last round against the Dirichlet α: how a method fares as clients differ more."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fedsdg.analysis.names import GLOBAL, PERSONAL, Metric, dirichlet_alpha
from fedsdg.analysis.plots.style import GRID, looks, method_legend, panels, say
from fedsdg.analysis.statistics import mean_interval
from fedsdg.analysis.summary import Cell, Setting, Summary

#: Methods of one α are spread over this share of the gap to the next α, this far apart at most.
_SPREAD, _STEP = 0.55, 0.045


def draw(summary: Summary) -> Figure:
    """Personal accuracy left, global right; one row per data set; 95 % intervals as bars."""
    settings, methods = summary.settings(), summary.run_methods()
    figure, axes = panels(len(settings), 2, panel_height=3.7)
    for row, setting in enumerate(settings):
        for column, metric in enumerate((PERSONAL, GLOBAL)):
            panel = axes[row][column]
            _panel(panel, summary, setting, metric)
            panel.set_ylabel(f"{metric.title} (%)")
            title = metric.title.capitalize()
            panel.set_title(title if len(settings) == 1 else f"{setting.title}: {title}")
    method_legend(figure, methods)
    return figure


def _panel(panel: Axes, summary: Summary, setting: Setting, metric: Metric) -> None:
    skews = {
        skew: alpha
        for skew in summary.skews(setting)
        if (alpha := dirichlet_alpha(skew)) is not None
    }
    if not skews:
        say(panel, "no Dirichlet skew in this experiment")
        return
    methods = summary.methods(setting)
    look = looks(summary.methods())
    alphas = sorted(skews.values())
    gap = min((b / a for a, b in pairwise(alphas)), default=3.0)
    step = min(_SPREAD / max(len(methods) - 1, 1), _STEP)
    for i, method in enumerate(methods):
        dodge = gap ** (step * (i - (len(methods) - 1) / 2))
        where, means, bars = [], [], []
        for skew, alpha in skews.items():
            values = summary.values(Cell(setting, skew), f"last_{metric.key}").get(method)
            if values:
                interval = mean_interval([100 * value for value in values.values()])
                where.append(alpha * dodge)
                means.append(interval.mean)
                bars.append(interval.half_width or 0.0)
        if where:
            line = look[method].line()
            panel.plot(where, means, **(line | {"linewidth": 0.5 * line["linewidth"]}), alpha=0.6)
            panel.errorbar(
                where,
                means,
                yerr=bars,
                linestyle="",
                color=look[method].colour,
                elinewidth=0.8,
                zorder=look[method].order,
                **look[method].marks(),
            )
    panel.set_xscale("log")
    panel.set_xlim(alphas[0] / gap**0.5, alphas[-1] * gap**0.5)
    panel.xaxis.set_major_locator(FixedLocator(alphas))
    panel.xaxis.set_minor_locator(NullLocator())
    texts = {alpha: skew.partition("~")[2] for skew, alpha in skews.items()}
    panel.set_xticklabels([texts[alpha] for alpha in alphas])
    panel.set_xlabel("Dirichlet α (log scale; smaller = clients differ more)")
    panel.grid(False, axis="x")
    for a, b in pairwise(alphas):
        panel.axvline((a * b) ** 0.5, color=GRID, linewidth=0.6, zorder=0)
