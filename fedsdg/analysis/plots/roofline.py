"""How close aggregation comes to the speed of the memory, and how far behind other codes are."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterSciNotation, NullLocator

from fedsdg.analysis.formatting import amount
from fedsdg.analysis.names import method_order
from fedsdg.analysis.plots.style import ABSENT, INK, MUTED, looks, panels, say, shared_legend
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


def draw(measured: Measurements) -> Figure:
    """Two curves above, the two largest sizes against other codes below."""
    rules = sorted({row["rule"] for row in measured.ours("sizes")}, key=method_order)
    figure, axes = panels(2, 2, panel_height=max(2.9, 0.9 + 0.22 * len(rules)))
    for panel, suite, key in zip(axes[0], ("clients", "parameters"), _LABELS, strict=True):
        _growth(panel, measured.ours(suite), key, measured.machine["last_level_cache_bytes"])
    axes[0][1].sharey(axes[0][0])
    axes[0][0].set_ylabel("share of the memory's speed")
    handles, _ = axes[0][0].get_legend_handles_labels()
    axes[0][1].legend(handles=handles, loc="lower right", fontsize=6.5, ncols=1)
    sizes = measured.sizes()[-2:]
    for panel, size in zip(axes[1], sizes, strict=False):
        rows = [r for r in measured.suite("sizes") if (r["clients"], r["parameters"]) == size]
        _codes(panel, rows, rules)
    axes[1][1].set_yticklabels([])
    for panel in axes[1][len(sizes) :]:
        say(panel, "one size measured")
    _codes_legend(figure, measured.suite("sizes"))
    return figure


_LABELS = ("clients", "parameters")
_AXES = {"clients": "clients M", "parameters": "parameters d"}


def _growth(panel: Axes, rows: Sequence[Row], key: str, cache: int) -> None:
    """One line a rule; the memory's speed as a roof."""
    if not rows:
        say(panel, "not measured")
        return
    other = "parameters" if key == "clients" else "clients"
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
        fontsize=6.5,
        color=INK,
    )
    for rule in rules:
        mine = sorted((row for row in rows if row["rule"] == rule), key=lambda row: row[key])
        panel.plot(
            [row[key] for row in mine],
            [row["floor"] for row in mine],
            label=rule_title(rule),
            **look[rule].marks(),
            **look[rule].line(),
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(FixedLocator([0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    panel.set_xlabel(_AXES[key])
    if key == "clients":
        numbers = max(row["clients"] * row["parameters"] for row in rows)
        panel.set_title(f"More clients, {amount(4 * numbers, 1e6)} MB of updates")
        ticks = sorted({row["clients"] for row in rows})
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        return
    clients = rows[0][other]
    panel.set_title(f"More parameters, {clients} clients")
    panel.xaxis.set_major_formatter(LogFormatterSciNotation())
    low, high = panel.get_xlim()
    if (edge := cache / 4 / clients) > low:
        panel.axvspan(low, min(edge, high), color=ABSENT, alpha=0.35, linewidth=0, zorder=0)
        panel.text(
            0.02,
            0.03,
            "updates fit\ninto the cache",
            transform=panel.transAxes,
            fontsize=6.5,
            color=MUTED,
        )
    panel.set_xlim(low, high)


def _codes(panel: Axes, rows: Sequence[Row], rules: Sequence[str]) -> None:
    """One line a rule: ours, the others, and the floor, on a logarithmic axis of time."""
    heights = {rule: -i for i, rule in enumerate(rules)}
    for rule in rules:
        here = [row for row in rows if row["rule"] == rule and row.get("seconds")]
        ours = next((row for row in here if row["code"] == "ours"), None)
        if ours is None:
            continue
        height = heights[rule]
        # Others are drawn by their ratio, taken in alternation, and so is the floor.
        own = 1e3 * ours["seconds"]
        others = [row for row in here if row["code"] in CODES]
        slowest = max((row["ratio"] for row in others), default=1.0)
        panel.plot([own, own * slowest], [height, height], color=ABSENT, linewidth=2.2, zorder=1)
        panel.plot([own * ours["floor"]], [height], "|", color=INK, markersize=9, zorder=3)
        for row in others:
            marker, colour = MARKS[row["code"]]
            panel.plot(
                [own * row["ratio"]],
                [height],
                marker,
                color=colour,
                markersize=4,
                markeredgecolor="white",
                markeredgewidth=0.4,
                zorder=3,
            )
        panel.plot([own], [height], "o", color=OURS, markersize=5.5, zorder=4)
        if others:
            panel.annotate(
                f"{slowest:.0f}×" if slowest >= 9.95 else f"{slowest:.1f}×",
                (own * max(slowest, 1.0), height),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                color=MUTED,
            )
    panel.set_xscale("log")
    panel.set_xlabel("time of one aggregation (ms)")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.margins(x=0.12)
    panel.set_yticks(list(heights.values()), [rule_title(rule) for rule in rules])
    panel.grid(False, axis="y")
    if rows:
        clients, parameters = rows[0]["clients"], rows[0]["parameters"]
        panel.set_title(f"{clients} clients, {parameters:,} parameters")


def _codes_legend(figure: Figure, rows: Sequence[Row]) -> None:
    shown = [("ours", "o", OURS), ("memory's floor", "|", INK)]
    shown += [
        (CODES[code], *mark)
        for code, mark in MARKS.items()
        if any(row["code"] == code for row in rows)
    ]
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=label, markersize=5.5)
        for label, marker, colour in shown
    ]
    shared_legend(figure, handles, columns=4)
