"""How close aggregation comes to the speed of the memory, and how far behind other codes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from fedsdg.analysis.formatting import amount
from fedsdg.analysis.names import method_order
from fedsdg.analysis.plots.style import (
    ABSENT,
    INK,
    MUTED,
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

MARKS = {
    "reference": ("o", "#767676"),
    "plain": ("s", "#0072B2"),
    "numpy": ("D", "#009E73"),
    "torch": ("^", "#AA4499"),
    "flower": ("P", "#E69F00"),
    "byzfl": ("X", "#332288"),
}
OURS = "#D55E00"


_SMALL: dict[str, Any] = {"fontsize": 6.5, "color": MUTED}


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
    sizes: list[tuple[int, int] | None] = [*measured.sizes()[-2:], None]
    for panel, size in zip(axes[1], sizes, strict=False):
        rows = [r for r in measured.suite("sizes") if (r["clients"], r["parameters"]) == size]
        _codes(panel, rows, rules)
    axes[1][1].set_yticklabels([])
    shown = [("ours", "o", OURS), ("memory's floor", "|", INK)]
    there = {row["code"] for row in measured.suite("sizes")}
    shown += [(CODES[code], *mark) for code, mark in MARKS.items() if code in there]
    legend = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=5.5)
        for label, marker, colour in shown
    ]
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
    panel.annotate(
        "bare\nread",
        (1.0, 1.0),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        **_SMALL,
    )
    for rule in rules:
        mine = sorted((row for row in rows if row["rule"] == rule), key=lambda row: row[key])
        at, shares = [row[key] for row in mine], [row["floor"] for row in mine]
        style = look[rule].marks() | look[rule].line()
        panel.plot(at, shares, label=rule_title(rule), **style)
    panel.set(xscale="log", yscale="log")
    shares = [row["floor"] for row in rows]
    logarithmic_ticks(panel.yaxis, min(shares), max(1.0, *shares))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    logarithmic_ticks(panel.xaxis, min(row[key] for row in rows), max(row[key] for row in rows))
    clients, numbers = rows[0]["clients"], max(row["clients"] * row["parameters"] for row in rows)
    if key == "clients":
        panel.set_title(f"More clients, {amount(4 * numbers, 1e6)} MB of updates")
        panel.set_xlabel("clients M")
        return
    panel.set_title(f"More parameters, {clients} clients")
    panel.set_xlabel("parameters d")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, 1.0)))
    low, high = panel.get_xlim()
    if (edge := cache / 4 / clients) > low:
        panel.axvspan(low, min(edge, high), color=ABSENT, alpha=0.35, linewidth=0, zorder=0)
        panel.text(0.02, 0.03, "in the cache", transform=panel.transAxes, **_SMALL)
    panel.set_xlim(low, high)


def _codes(panel: Axes, rows: Sequence[Row], rules: Sequence[str]) -> None:
    """A line for each rule: ours, the others, and the floor; hidden if nothing was measured.

    Others are drawn by their ratio, taken in alternation with ours, and so is the floor.
    """
    if not rows:
        panel.set_visible(False)
        return
    for height, rule in enumerate(rules):
        here = [row for row in rows if row["rule"] == rule and row.get("seconds")]
        ours = [row for row in here if row["code"] == "ours"]
        if not ours:
            continue
        own = 1e3 * ours[0]["seconds"]
        others = [row for row in here if row["code"] in CODES]
        slowest = max((row["ratio"] for row in others), default=1.0)
        panel.plot([own, own * slowest], [height, height], color=ABSENT, linewidth=2.2, zorder=1)
        panel.plot([own * ours[0]["floor"]], [height], "|", color=INK, markersize=9, zorder=3)
        for row in others:
            marker, colour = MARKS[row["code"]]
            panel.plot([own * row["ratio"]], [height], marker, color=colour, markersize=4)
        panel.plot([own], [height], "o", color=OURS, markersize=5.5, zorder=4)
        if others:
            text = f"{slowest:.0f}×" if slowest >= 9.95 else f"{slowest:.1f}×"
            at = (own * max(slowest, 1.0), height)
            panel.annotate(
                text, at, xytext=(5, 0), textcoords="offset points", va="center", **_SMALL
            )
    panel.set_xscale("log")
    panel.set_xlabel("time of one aggregation (ms)")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.margins(x=0.12)
    panel.set_yticks(range(len(rules)), [rule_title(rule) for rule in rules])
    panel.set_ylim(len(rules) - 0.4, -0.6)
    panel.grid(False, axis="y")
    panel.set_title(f"{rows[0]['clients']} clients, {rows[0]['parameters']:,} parameters")
