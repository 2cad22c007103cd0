"""How close aggregation comes to the speed of the memory, and how far behind other codes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsdg.analysis.formatting import amount
from fedsdg.analysis.names import method_order
from fedsdg.analysis.plots.style import (
    ABSENT,
    INK,
    MUTED,
    Look,
    logarithmic_ticks,
    looks,
    panels,
    shared_legend,
)
from fedsdg.analysis.speed import CODES, Measurements, Row, rule_title

CAPTION = (
    "Top: the share of the memory's speed at which each rule aggregates. At 100 % it takes as long "
    "as a bare read, at the same time, of the bytes that it has to move. Left: more clients, all "
    "updates together of one size; rules that compare every pair of clients become bound by "
    "arithmetic. Right: more parameters; a flat line is a cost linear in d. Grey: the updates fit "
    "into the cache. Bottom: time of one aggregation by ours and by other codes; the bar is the "
    "memory's floor, the number how many times as long as ours the slowest took."
)

#: The look of every code, and of the memory's floor.
MARKS = {
    "ours": Look("#D55E00"),
    "floor": Look(INK, marker="|"),
    "reference": Look("#767676"),
    "plain": Look("#0072B2", marker="s"),
    "numpy": Look("#009E73", marker="D"),
    "torch": Look("#AA4499", marker="^"),
    "flower": Look("#E69F00", marker="P"),
    "byzfl": Look("#332288", marker="X"),
}
TITLES = {**CODES, "ours": "ours", "floor": "memory's floor"}
_SMALL: dict[str, Any] = {"fontsize": 6.5, "color": MUTED}
#: Some points to the right of a place.
_BESIDE: dict[str, Any] = {"va": "center", "textcoords": "offset points", **_SMALL}


def draw(measured: Measurements) -> Figure:
    """Two curves above, the two largest sizes against other codes below; what was measured."""
    rules = sorted({row["rule"] for row in measured.ours("sizes")}, key=method_order)
    figure, axes = panels(2, 2, panel_height=max(2.9, 0.9 + 0.22 * len(rules)))
    for panel, key in zip(axes[0], ("clients", "parameters"), strict=True):
        _growth(panel, measured.ours(key), key, measured.machine["last_level_cache_bytes"])
    axes[0][0].set_ylabel("share of the memory's speed")
    handles, _ = axes[0][0].get_legend_handles_labels()
    if handles:
        axes[0][1].legend(handles=handles, loc="lower right", fontsize=6.5)
    for panel, size in zip(axes[1], [*measured.sizes()[-2:], None], strict=False):
        _codes(panel, measured, size, rules)
    axes[1][1].set_yticklabels([])
    there = {"ours", "floor", *(row["code"] for row in measured.suite("sizes"))}
    legend = [
        Line2D([], [], linestyle="", marker=mark.marker, color=mark.colour, label=TITLES[code])
        for code, mark in MARKS.items()
        if code in there
    ]
    for handle in legend:
        handle.set_markersize(5.5)
    shared_legend(figure, legend, columns=4)
    return figure


def _growth(panel: Axes, rows: Sequence[Row], key: str, cache: int) -> None:
    """A line for each rule, and the memory's speed as a roof; hidden if nothing was measured."""
    if not rows:
        panel.set_visible(False)
        return
    rules = sorted({row["rule"] for row in rows}, key=method_order)
    look = looks(rules)
    panel.axhline(1.0, color=INK, linewidth=1.2, zorder=1)
    place = ("axes fraction", "data")
    panel.annotate("bare\nread", (1.0, 1.0), (3, 0), xycoords=place, **_BESIDE)
    for rule in rules:
        mine = sorted((row for row in rows if row["rule"] == rule), key=lambda row: row[key])
        at, shares = [row[key] for row in mine], [row["floor"] for row in mine]
        panel.plot(at, shares, label=rule_title(rule), **look[rule].line())
    panel.set(xscale="log", yscale="log")
    shares = [row["floor"] for row in rows]
    logarithmic_ticks(panel.yaxis, min(shares), max(1.0, *shares))
    panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    logarithmic_ticks(panel.xaxis, min(row[key] for row in rows), max(row[key] for row in rows))
    clients, numbers = rows[0]["clients"], max(row["clients"] * row["parameters"] for row in rows)
    if key == "clients":
        panel.set_title(f"More clients, {amount(4 * numbers, 1e6)} MB of updates")
        panel.set_xlabel("clients M")
        return
    panel.set_title(f"More parameters, {clients} clients")
    panel.set_xlabel("parameters d")
    panel.xaxis.set_major_formatter(lambda value, _: amount(value, 1.0))
    low, high = panel.get_xlim()
    if (edge := cache / 4 / clients) > low:
        panel.axvspan(low, min(edge, high), color=ABSENT, alpha=0.35, linewidth=0, zorder=0)
        panel.text(0.02, 0.03, "in the cache", transform=panel.transAxes, **_SMALL)
    panel.set_xlim(low, high)


def _codes(
    panel: Axes, measured: Measurements, size: tuple[int, int] | None, rules: Sequence[str]
) -> None:
    """A line for each rule: ours, the others, and the floor; hidden if nothing was measured."""
    if size is None:
        panel.set_visible(False)
        return
    for height, rule in enumerate(rules):
        times = measured.times(rule, *size)
        for code, ms, _ in times:
            order, length = {"ours": (4, 5.5), "floor": (3, 9)}.get(code, (2, 4))
            mark = MARKS[code]
            panel.plot(ms, height, mark.marker, color=mark.colour, markersize=length, zorder=order)
        if others := [(factor, ms) for code, ms, factor in times if code in CODES]:
            own, (factor, slowest) = times[0][1], max(others)
            panel.plot([own, slowest], [height] * 2, color=ABSENT, linewidth=2.2, zorder=1)
            text = f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
            panel.annotate(text, (max(own, slowest), height), (5, 0), **_BESIDE)
    panel.set_xscale("log")
    panel.set_xlabel("time of one aggregation (ms)")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.margins(x=0.12)
    panel.set_yticks(range(len(rules)), [rule_title(rule) for rule in rules])
    panel.set_ylim(len(rules) - 0.4, -0.6)
    panel.grid(False, axis="y")
    panel.set_title(f"{size[0]} clients, {size[1]:,} parameters")
