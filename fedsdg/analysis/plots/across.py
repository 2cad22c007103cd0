"""Methods over several arenas: interquartile means, and performance profiles over clients."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsdg.analysis.names import Metric, method_title
from fedsdg.analysis.overall import Overall, shown
from fedsdg.analysis.plots.cast import cast
from fedsdg.analysis.plots.style import BAND_SEEDS, GREY, Look, method_legend, panels, roles, say


def draw(found: Sequence[Overall], metric: Metric) -> Figure:
    """Two panels side by side, the best interquartile mean on top of the left one."""
    order = sorted(found, key=lambda one: one.mean.value)
    look = cast([one.method for one in found], {one.method: one.mean.value for one in found})
    height = max(2.4, 0.9 + 0.19 * len(order))
    figure, ((left, right),) = panels(1, 2, panel_height=height)
    _means(left, order, look)
    left.set_xlabel(f"{metric.title} (%), interquartile mean")
    if any(one.profile for one in found):
        for one in order:
            _profile(right, one, look[one.method])
        right.set_xlim(*_reach(found))
        right.set_ylim(-2, 102)
        right.set_xlabel(f"τ: {metric.title} of a client (%)")
        right.set_ylabel("clients above τ (%)")
        method_legend(figure, [one.method for one in found], look=look)
    else:
        say(right, f"a client alone has\nno {metric.title}")
    return figure


def _means(panel: Axes, order: Sequence[Overall], look: dict[str, Look]) -> None:
    for place, one in enumerate(order):
        own = look[one.method]
        if shown(one.mean) and one.mean.low is not None and one.mean.high is not None:
            ends = 100 * one.mean.low, 100 * one.mean.high
            panel.hlines(place, *ends, color=own.colour, linewidth=2.2, alpha=0.45)
        panel.plot(100 * one.mean.value, place, color=own.colour, **own.marks())
    panel.set_yticks(range(len(order)), [method_title(one.method) for one in order])
    for text, one in zip(panel.get_yticklabels(), order, strict=True):
        text.set_fontweight("bold" if one.method == roles().subject else "normal")
    panel.set_ylim(-0.7, len(order) - 0.3)
    panel.tick_params(axis="y", length=0)


def _profile(panel: Axes, one: Overall, look: Look) -> None:
    profile = one.profile
    if profile is None:
        return
    tau = 100 * profile.thresholds
    panel.plot(tau, 100 * profile.share, **look.line())
    banded = one.mean.seeds >= BAND_SEEDS and look.colour != GREY
    if banded and profile.low is not None and profile.high is not None:
        panel.fill_between(
            tau,
            100 * profile.low,
            100 * profile.high,
            color=look.colour,
            alpha=0.15,
            linewidth=0,
        )


def _reach(found: Sequence[Overall]) -> tuple[float, float]:
    """From where the first profile leaves 100 %: before that all are flat."""
    lows = [
        float(one.profile.thresholds[one.profile.share >= 1].max(initial=0))
        for one in found
        if one.profile is not None
    ]
    return 100 * max(min(lows) - 0.02, 0), 100.5
