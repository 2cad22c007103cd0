"""One look for all figures: fonts, sizes, and a fixed colour, line and marker for every method."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatter, MaxNLocator, NullLocator

from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.summary import Roles, usual_roles
from fedsdg.files.declarations import families

#: Width of a figure in inches: a page's text block; heights follow from the panels.
WIDTH = 7.2

#: Inks besides the methods' own.
INK, MUTED, GRID, ABSENT = "#222222", "#767676", "#e6e6e6", "#d9d9d9"
#: Methods in the background, and the two kinds of clients: those that agree (A) and the rest (B).
GREY, KIND_A, KIND_B = "#a6a6a6", "#0072B2", "#D55E00"

#: Fewest seeds for a band around a curve, and for an interval around a point.
BAND_SEEDS, INTERVAL_SEEDS = 3, 5
#: More clients than this are shown as a heat map.
MANY_CLIENTS = 30

#: Ticks are apart by these times a power of ten.
_STEPS = (1, 2, 5, 10)

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same glyphs everywhere
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.0,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # titles come from configs and plugins: a $ is a dollar sign
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.0,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: text stays text
    "svg.fonttype": "path",
    "svg.hashsalt": "fedsdg",  # fixed, so that the ids are the same in every rendering
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn. Dashes and markers tell methods of one colour family apart."""

    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    marker: str = "o"
    width: float = 1.1
    order: int = 2
    small: bool = False

    def line(self) -> dict[str, Any]:
        """Keywords of ``Axes.plot``."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "zorder": self.order,
        }

    def marks(self) -> dict[str, Any]:
        """Keywords of ``Axes.plot`` for its markers, with a thin rim that keeps them apart."""
        wide = self.width > 2
        return {
            "marker": self.marker,
            "markersize": 6.0
            if wide
            else 3.8
            if self.small
            else 5.5
            if self.marker == "*"
            else 4.2,
            "markeredgecolor": "white",
            "markeredgewidth": 0.2 if self.small else 0.5,
        }


_DASHED, _DOTTED, _DASHDOT = (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4))

# Families share a hue: FedAvg and its kin blue, personal rivals purple to grey, robust rules
# green to ochre, clusters magenta, rivals within LoRA teal, weighting by credit rose, what is no
# federation black. The hues are of Okabe-Ito's and Tol's sets, which are safe for colour blindness.
# A method that is not listed gets a look in the hues of its family: see _known.
_LOOKS = {
    "fedsdg": Look("#D55E00", "-", "o"),
    "fedavg": Look("#0072B2", "-", "s"),
    "fedavg-uniform": Look("#0072B2", _DASHED, "D"),
    "fedavg-sgd": Look("#56B4E9", "-", "s"),
    "fedprox": Look("#332288", _DASHDOT, "v"),
    "scaffold": Look("#56B4E9", _DASHED, "^"),
    "fine-tune": Look("#AA4499", "-", "P"),
    "local-only": Look("#222222", _DOTTED, "X", width=1.4),
    "krum": Look("#117733", "-", "<"),
    "multikrum": Look("#117733", _DASHED, ">"),
    "geometric-median": Look("#999933", "-", "h"),
    "coordinate-median": Look("#999933", _DASHED, "p"),
    "trimmed-mean": Look("#999933", _DOTTED, "d"),
    "cgsv": Look("#CC6677", _DASHDOT, "*"),
    "cgsv-xu": Look("#CC6677", _DASHED, "X"),
    "focus": Look("#CC6677", "-", "o"),
    "fedsdg-official": Look("#D55E00", _DASHED, "s"),
    "fedsdg-official-aligned": Look("#D55E00", _DOTTED, "D"),
    "fedsdg-heldout": Look("#D55E00", _DASHDOT, "^"),
    "fedsdg+geometric-median": Look("#F0A35E", "-", "h"),
    "fedsdg+multikrum": Look("#F0A35E", _DASHED, ">"),
    "fedsdg+screened": Look("#F0A35E", _DOTTED, "o"),
    "fedsdg+head": Look("#F0A35E", _DASHDOT, "s"),
    "fedsgd": Look("#56B4E9", _DOTTED, "o"),
    "fedprox-inexact": Look("#332288", _DASHED, "^"),
    "fedcurv": Look("#332288", "-", "D"),
    "screened": Look("#117733", _DOTTED, "o"),
    "ditto": Look("#AA4499", _DASHED, "s"),
    "fedrep": Look("#AA4499", _DOTTED, "^"),
    "interpolate": Look("#AA4499", _DASHDOT, "v"),
    "fedper": Look("#6F4C9B", "-", "o"),
    "apfl": Look("#6F4C9B", _DASHED, "s"),
    "fed-rod": Look("#6F4C9B", _DOTTED, "^"),
    "gated-head": Look("#B08BD9", "-", "P"),
    "gated-head-train": Look("#B08BD9", _DASHED, "X"),
    "ffa-lora": Look("#008B8B", "-", "o"),
    "fedsa-lora": Look("#008B8B", _DASHED, "s"),
    "rolora": Look("#008B8B", _DOTTED, "^"),
    "feddpa": Look("#008B8B", _DASHDOT, "D"),
    "pens": Look("#EE3377", "-", "P"),
    "clustered": Look("#EE3377", _DASHED, "s"),
    "clustered-known": Look("#EE3377", _DASHDOT, "^"),
    "semi-global": Look("#EE3377", _DOTTED, "D"),
    "data-sharing": Look("#222222", _DASHDOT, "d"),
    "centralised": Look("#222222", _DASHED, "s"),
}

#: The ceiling, whoever it is: a line to measure by, without marks.
YARDSTICK = Look("#222222", _DASHED, "", width=1.4)
#: The subject stands out, in its own colour: its line is so wide, and in front.
_WIDE, _FRONT = 2.4, 5

#: For labels that no known method has, such as the variants of an ablation, in their order.
#: None of these is a known method's colour, so that a variant is not taken for a rival.
_OTHERS = ("#009E73", "#882255", "#E69F00", "#44AA99", "#661100", "#CC79A7", "#777777", "#6699CC")


_DASHES = ("-", _DASHED, _DASHDOT, _DOTTED)
_MARKERS = "osDv^P<>"


@cache
def _known() -> Mapping[str, Look]:
    """A look for each method of the package: its own, or one that its family's hues have left."""
    found, kin = dict(_LOOKS), families()
    for method, family in kin.items():
        if method not in found:
            hues = [look.colour for name, look in found.items() if kin.get(name) == family]
            free = _free(hues, found.values())
            found |= {method: free[0]} if free else {}
    return found


def _free(hues: Iterable[str], taken: Collection[Look]) -> list[Look]:
    """Looks in these hues whose line nobody has, nor their marker in that hue."""
    lines = {(look.colour, look.dashes) for look in taken}
    marks = {(look.colour, look.marker) for look in taken}
    return [
        Look(hue, dashes, marker)
        for hue in dict.fromkeys(hues)
        for dashes in _DASHES
        for marker in _MARKERS
        if (hue, dashes) not in lines and (hue, marker) not in marks
    ]


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each label: known methods always the same, others in a fixed sequence.

    The subject's line is the widest, the ceiling's has no marks: see ``roles``.
    """
    known, who = _known(), roles()
    others = sorted((m for m in methods if m not in known), key=method_order)
    found = {m: known[m] for m in methods if m in known}
    for i, method in enumerate(others):
        turn = i // len(_OTHERS)
        colour = _OTHERS[i % len(_OTHERS)]
        found[method] = Look(colour, _DASHES[turn % len(_DASHES)], _MARKERS[i % len(_MARKERS)])
    if who.subject in found:
        found[who.subject] = replace(found[who.subject], width=_WIDE, order=_FRONT)
    if who.ceiling in found:
        found[who.ceiling] = YARDSTICK
    return found


_ROLES: ContextVar[Roles | None] = ContextVar("roles", default=None)


def roles() -> Roles:
    """Who is who in what is being drawn; the usual ones outside of ``styled``."""
    return _ROLES.get() or usual_roles()


@contextmanager
def styled(who: Roles | None = None) -> Iterator[None]:
    """Draw and save inside this context, whatever the user's own matplotlibrc says.

    ``who``: the roles of the experiment that is drawn.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in _SETTINGS.items():
            matplotlib.rcParams[name] = value
        before = _ROLES.set(who)
        try:
            yield
        finally:
            _ROLES.reset(before)


def panels(
    rows: int, columns: int, *, panel_height: float, **keywords: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows × columns axes laid out without overlap; heights in inches."""
    width = max(WIDTH, 2.1 * columns)
    figure = Figure(figsize=(width, rows * panel_height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **keywords)
    return figure, [list(row) for row in axes]


def flow(count: int, columns: int, *, panel_height: float) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels, row after row, at least one; what is left over is hidden."""
    columns = min(columns, max(count, 1))
    rows = -(-max(count, 1) // columns)
    figure, axes = panels(rows, columns, panel_height=panel_height)
    listed = [panel for row in axes for panel in row]
    for panel in listed[max(count, 1) :]:
        panel.set_visible(False)
    return figure, listed[: max(count, 1)]


def method_legend(
    figure: Figure,
    methods: Sequence[str],
    *,
    columns: int = 4,
    look: Mapping[str, Look] | None = None,
) -> None:
    """The shared legend below all panels, the subject in bold; methods drawn in grey come last."""
    look = looks(methods) if look is None else look
    methods = sorted(methods, key=lambda method: look[method].colour == GREY)
    handles = [
        Line2D([], [], label=method_title(method), **look[method].marks(), **look[method].line())
        for method in methods
    ]
    legend = shared_legend(figure, handles, columns=columns)
    for text, method in zip(legend.get_texts(), methods, strict=True):
        if method == roles().subject:
            text.set_fontweight("bold")
        if look[method].colour == GREY:
            text.set_color(MUTED)


def shared_legend(
    figure: Figure, handles: Sequence[Artist], *, columns: int, formulas: Collection[str] = ()
) -> Legend:
    """A legend below all panels, where it covers nothing; from its fourth row on they make room.

    It has ``columns`` columns, or as many as fit the figure's width. ``formulas``: the labels that
    hold formulas between dollar signs.
    """
    for count in range(max(1, min(columns, len(handles))), 0, -1):
        legend = figure.legend(
            handles=list(handles),
            loc="outside lower center",
            ncols=count,
            handlelength=2.8,
            columnspacing=1.6,
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    rows = -(-len(handles) // count)
    # Else a legend of many methods leaves the panels no height.
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 3))
    for text in legend.get_texts():
        text.set_parse_math(text.get_text() in formulas)
    return legend


def format_powers(figure: Figure) -> None:
    """Let matplotlib's own labels of logarithmic axes, powers of ten, be formulas."""
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            ticks = []
            if isinstance(axis.get_major_formatter(), LogFormatter):
                ticks += axis.get_major_ticks()
            if isinstance(axis.get_minor_formatter(), LogFormatter):
                ticks += axis.get_minor_ticks()
            for tick in ticks:
                tick.label1.set_parse_math(True)
                tick.label2.set_parse_math(True)


def ticks_within(axis: Axis, low: float, high: float, *, about: int = 5) -> None:
    """Round whole ticks between ``low`` and ``high`` alone, however far the axis itself goes."""
    found = MaxNLocator(about, integer=True, steps=_STEPS).tick_values(low, high)
    axis.set_major_locator(FixedLocator([tick for tick in found if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())


def logarithmic_ticks(axis: Axis, low: float, high: float, zero: bool = False) -> None:
    """1, 2, 5, 10, …: of few decades all, of more the powers of ten alone."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if high / low < 60 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    shown = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
    axis.set_major_locator(FixedLocator([0.0, *shown] if zero else shown))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def accuracy_axis(panel: Axes) -> None:
    """End an axis of accuracies (%) where they end: at 0 and at 100, with room for a line there."""
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -2.0), min(high, 102.0))
    found = MaxNLocator(6, steps=_STEPS).tick_values(*panel.get_ylim())
    low, high = max(panel.get_ylim()[0], 0.0), min(panel.get_ylim()[1], 100.0)
    panel.yaxis.set_major_locator(FixedLocator([tick for tick in found if low <= tick <= high]))


def fences(values: Sequence[float] | np.ndarray, reach: float = 3.0) -> tuple[float, float]:
    """Where an axis may end so that a few far values do not stretch it: Tukey's outer fences.

    The smallest and largest values within [Q1 − reach·IQR, Q3 + reach·IQR]; all values where
    that would not even save a third of the axis.
    """
    x = np.asarray(values, dtype=float)
    first, third = np.quantile(x, [0.25, 0.75])
    room = reach * (third - first)
    inside = x[(x >= first - room) & (x <= third + room)]
    spared = np.ptp(inside) < 2 / 3 * np.ptp(x)
    shown = inside if spared else x
    return float(shown.min()), float(shown.max())


def put_above(figure: Figure, text: str) -> None:
    """A line above all panels, wrapped to the figure's width."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 14))
    figure.suptitle("\n".join(lines), fontsize=8.0, style="italic", color=INK)


def hide_unused(axes: Sequence[Sequence[Axes]]) -> None:
    """Take away panels nothing was put into: settings may differ in their number of skews."""
    for panel in (panel for row in axes for panel in row):
        if not panel.has_data() and not panel.texts:
            panel.set_visible(False)


def note(axes: Axes, text: str) -> None:
    """Write into an empty panel whose axes it shares with others, which keep their ticks."""
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, wrap=True
    )


def say(axes: Axes, text: str) -> None:
    """Fill a panel that has nothing to show with the reason."""
    note(axes, text)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
