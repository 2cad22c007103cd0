"""One look for all figures: fonts, sizes, and a title, an order and a look for every value."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedsdg.analysis.names import (
    AGREEING,
    DIFFERING,
    EXPECTED,
    EXPECTED_WORST,
    GLOBAL,
    PERSONAL,
    WORST,
    method_order,
    method_title,
    metric_named,
    natural_order,
    skew_title,
)
from fedsdg.analysis.summary import REFERENCES, Roles, usual_roles
from fedsdg.analysis.views.clients import CREDITS, GATE_MEASURES, YARDSTICKS

#: Width of a figure in inches: a page's text block; heights follow from the panels.
WIDTH = 7.2

#: Colours of text, lines and grounds.
INK, MUTED, GRID, ABSENT = "#222222", "#767676", "#e6e6e6", "#d9d9d9"
#: Methods in the background, and the two kinds of clients: those that agree (A) and the rest (B).
GREY, KIND_A, KIND_B = "#a6a6a6", "#0072B2", "#D55E00"

#: Fewest seeds for a band around a curve, and for an interval around a point.
BAND_SEEDS, INTERVAL_SEEDS = 3, 5
#: Ticks are apart by these times a power of ten.
_STEPS = (1, 2, 5, 10)

#: Groups of matplotlib's settings.
_TICKS = {
    "color": MUTED,
    "labelcolor": INK,
    "labelsize": 7.0,
    "major.size": 2.5,
    "major.width": 0.6,
}
_SETTINGS: dict[Any, dict[str, Any]] = {
    # Shipped with matplotlib: the same glyphs everywhere.
    "font": {"family": "DejaVu Sans", "size": 8.0},
    "axes": {
        "titlesize": 8.5,
        "titleweight": "bold",
        "labelsize": 8.0,
        "labelcolor": INK,
        "edgecolor": MUTED,
        "linewidth": 0.6,
        "grid": True,
        "axisbelow": True,
        "spines.top": False,
        "spines.right": False,
    },
    "grid": {"color": GRID, "linewidth": 0.6},
    # Titles come from configs and plugins: a $ is a dollar sign.
    "text": {"color": INK, "parse_math": False},
    "xtick": _TICKS,
    "ytick": _TICKS,
    "legend": {"fontsize": 7.5, "frameon": False},
    "lines": {"linewidth": 1.1, "markersize": 4.0},
    "figure": {"facecolor": "white"},
    "savefig": {"dpi": 200},
    "pdf": {"fonttype": 42},  # TrueType: text stays text
    # Fixed, so that the ids are the same in every rendering.
    "svg": {"fonttype": "path", "hashsalt": "fedsdg"},
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn. Dashes and markers tell methods of one colour family apart."""

    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    marker: str = "o"
    width: float = 1.1
    order: int = 2

    def line(self) -> dict[str, Any]:
        """Keywords of ``Axes.plot``; a thin rim keeps markers apart."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "zorder": self.order,
            "marker": self.marker,
            "markersize": 6.0 if self.width > 2 else 5.5 if self.marker == "*" else 4.2,
            "markeredgecolor": "white",
            "markeredgewidth": 0.5,
        }


_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
_SOLID, _DASHED, _DOTTED, _DASHDOT = _DASHES

#: Hue → the markers of the methods drawn in it, and these methods: solid, dashed, dotted and
#: dash-dotted. Kin share a hue of Okabe-Ito's and Tol's sets, which are safe for colour blindness:
#: FedAvg and its kin blue, personal rivals purple to grey, robust rules green to ochre, clusters
#: magenta, rivals within LoRA teal, weighting by credit rose, what is no federation black.
_HUES = {
    "#D55E00": ("osD^", "fedsdg", "fedsdg-official", "fedsdg-official-aligned", "fedsdg-heldout"),
    "#F0A35E": (
        "h>os",
        "fedsdg+geometric-median",
        "fedsdg+multikrum",
        "fedsdg+screened",
        "fedsdg+head",
    ),
    "#0072B2": ("sD", "fedavg", "fedavg-uniform"),
    "#56B4E9": ("s^o", "fedavg-sgd", "scaffold", "fedsgd"),
    "#332288": ("D^ v", "fedcurv", "fedprox-inexact", "", "fedprox"),
    "#AA4499": ("Ps^v", "fine-tune", "ditto", "fedrep", "interpolate"),
    "#6F4C9B": ("os^D", "fedper", "apfl", "fed-rod", "fedbabu"),
    "#B08BD9": ("PX", "gated-head", "gated-head-train"),
    "#117733": ("<>o", "krum", "multikrum", "screened"),
    "#999933": ("hpd", "geometric-median", "coordinate-median", "trimmed-mean"),
    "#CC6677": ("oX *", "focus", "cgsv-xu", "", "cgsv"),
    "#008B8B": ("os^D", "ffa-lora", "fedsa-lora", "rolora", "feddpa"),
    "#EE3377": ("PsD^", "pens", "clustered", "semi-global", "clustered-known"),
    "#222222": (" sXd", "", "centralised", "local-only", "data-sharing"),
}
_LOOKS = {
    method: Look(hue, dashes, marker)
    for hue, (markers, *methods) in _HUES.items()
    for method, dashes, marker in zip(methods, _DASHES, markers, strict=False)
}
_LOOKS["local-only"] = replace(_LOOKS["local-only"], width=1.4)

#: The ceiling, whoever it is: a line to measure by, without marks.
YARDSTICK = Look("#222222", _DASHED, "", width=1.4)
#: The subject stands out, in its own colour: its line is so wide, and in front.
_WIDE, _FRONT = 2.4, 5

#: A method in the background, and dots that nothing tells apart.
BACKGROUND, PLAIN = Look(GREY, marker="", width=0.8, order=1), Look("#D55E00")

#: For labels that no known method has, such as the variants of an ablation, in their order.
#: None of these is a known method's colour, so that a variant is not taken for a rival.
_OTHERS = ("#009E73", "#882255", "#E69F00", "#44AA99", "#661100", "#CC79A7", "#777777", "#6699CC")

#: How values that are no known methods follow one another.
_TURNS, _MARKERS = (_SOLID, _DASHED, _DASHDOT, _DOTTED), "osDv^P<>"


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each label: known methods always the same, others in a fixed sequence.

    The subject's line is the widest, the ceiling's has no marks: see ``roles``.
    """
    who = roles()
    others = sorted((m for m in methods if m not in _LOOKS), key=method_order)
    found = {m: _LOOKS[m] for m in methods if m in _LOOKS}
    for i, method in enumerate(others):
        dashes, colour = _TURNS[i // len(_OTHERS) % len(_TURNS)], _OTHERS[i % len(_OTHERS)]
        found[method] = Look(colour, dashes, _MARKERS[i % len(_MARKERS)])
    if who.subject in found:
        found[who.subject] = replace(found[who.subject], width=_WIDE, order=_FRONT)
    if who.ceiling in found:
        found[who.ceiling] = YARDSTICK
    return found


_AGREE, _DIFFER = "A: clients that agree", "B: clients that differ"
#: Titles of the values of a column, as a mapping or a function.
_TITLES: Mapping[str, Mapping[Any, str] | Callable[[Any], str]] = {
    **dict.fromkeys(("method", "rival"), method_title),
    "skew": skew_title,
    "metric": {AGREEING.key: _AGREE, DIFFERING.key: _DIFFER},
    "group": {"": "all clients", "A": _AGREE, "B": _DIFFER}
    | {name: f"{name} weight" for name in ("lowest", "median", "highest")},
    "scenario": {"": "no scenario"},
    "share": lambda share: f"{100 * share:g} % attackers" if share else "no attackers",
    "alpha": lambda alpha: f"{alpha:g}",
    "credit": CREDITS,
    "yardstick": {**YARDSTICKS, "shapley": f"{YARDSTICKS['shapley']} (points)"},
    "measure": {
        **GATE_MEASURES,
        "gate": "mean gate m",
        "correlation": "ρ (gate, local steps)",
        "accuracy_median": "accuracy (%), median attack",
        "accuracy_worst": "accuracy (%), worst attack",
        "distance_median": "distance, median attack",
        "distance_worst": "distance, worst attack",
        "seconds": "time of one aggregation (ms)",
    },
}
#: Measure → a factor of its values, 1 without one; 100 is an accuracy. Some have logarithmic axes.
SCALES = {"accuracy_median": 100.0, "accuracy_worst": 100.0, "seconds": 1000.0}
LOGARITHMIC = ("distance_median", "distance_worst", "seconds")
#: How the values of a column are ordered; those of others stand in order of appearance.
ORDERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("method", "rival"), method_order),
    "scenario": natural_order,
    **dict.fromkeys(("share", "alpha"), float),
    "budget": ("4 trials", "12 trials", "all trials").index,
    "group": ("", "A", "B", "lowest", "median", "highest").index,
}
#: The look of values that have a colour of their own; see ``look_of`` for all others.
_SETTLED: Mapping[str, Mapping[Any, Look]] = {
    "group": {"": Look(INK), "A": Look(KIND_A, width=1.5), "B": Look(KIND_B, marker="D", width=1.5)}
    | {"lowest": Look("#56B4E9"), "median": Look(INK), "highest": Look("#0072B2")},
    "metric": {
        AGREEING.key: Look(KIND_A),
        DIFFERING.key: Look(KIND_B, marker="D"),
        **dict.fromkeys((EXPECTED.key, PERSONAL.key), Look("#D55E00")),
        **dict.fromkeys((EXPECTED_WORST.key, WORST.key), Look("#56B4E9", marker="D")),
        GLOBAL.key: Look("#332288", marker="s"),
    },
}
#: Colours of values that are no methods, by their place in the order.
_SEQUENCE = ("#D55E00", "#0072B2", "#222222", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: Longest title in letters.
_LETTERS = 44


def title_of(column: str, value: Any) -> str:
    """Return the title of a value in a figure; a long title is cut.

    Args:
        column: A column of a view.
        value: One of its values.
    """
    if column == "metric" and value not in (AGREEING.key, DIFFERING.key):
        text = metric_named(value, (PERSONAL, WORST)).title.capitalize()
    else:
        titles = _TITLES.get(column, str)
        text = titles.get(value, str(value)) if isinstance(titles, Mapping) else titles(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def look_of(column: str, values: Sequence[Any]) -> dict[Any, Look]:
    """A look for every value of a column: its own, or one by its place in the order.

    Args:
        column: A column of a view.
        values: Its values, in order.
    """
    if column == "method":
        return dict(looks(values))
    found, settled = {}, _SETTLED.get(column, {})
    for i, value in enumerate(values):
        dashes, marker = _TURNS[i // 2 % len(_TURNS)], _MARKERS[i % len(_MARKERS)]
        found[value] = settled.get(value) or Look(
            _SEQUENCE[i % len(_SEQUENCE)], dashes, marker, width=1.4
        )
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
        for group, values in _SETTINGS.items():
            matplotlib.rc(group, **values)
        before = _ROLES.set(who)
        try:
            yield
        finally:
            _ROLES.reset(before)


def panels(
    rows: int, columns: int, *, panel_height: float, **keywords: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows × columns axes laid out without overlap.

    Args:
        rows: Panels below each other.
        columns: Panels side by side; of many the figure is wider.
        panel_height: In inches.
        keywords: Keywords of ``Figure.subplots``.
    """
    width = max(WIDTH, 2.1 * columns)
    figure = Figure(figsize=(width, rows * panel_height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **keywords)
    return figure, [list(row) for row in axes]


def shared_legend(figure: Figure, handles: Sequence[Artist], *, columns: int) -> Legend:
    """A legend below all panels, where it covers nothing; from its fourth row on they make room.

    Args:
        figure: The figure, with all of its panels.
        handles: The entries of the legend.
        columns: Entries side by side, or as many as fit the figure's width.
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
    return legend


def wrapped(text: str, figure: Figure, columns: int) -> str:
    """A title in as many lines as it needs above one of so many panels side by side.

    Args:
        text: The title.
        figure: The figure.
        columns: The number of panels side by side.
    """
    return textwrap.fill(text, max(12, int(11.5 * figure.get_figwidth() / columns)))


def ticks_within(axis: Axis, low: float, high: float, *, about: int = 5) -> None:
    """Put round ticks between ``low`` and ``high`` alone, however far the axis itself goes.

    Args:
        axis: The axis.
        low: The lowest value shown.
        high: The highest value shown.
        about: About so many ticks.
    """
    found = MaxNLocator(about, integer=True, steps=_STEPS).tick_values(low, high)
    axis.set_major_locator(FixedLocator([tick for tick in found if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())


def logarithmic_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks at 1-2-5 per decade; powers of ten only when the range exceeds 60×.

    Args:
        axis: A logarithmic axis.
        low: The lowest value shown.
        high: The highest value shown.
    """
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if high / low < 60 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    shown = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
    axis.set_major_locator(FixedLocator(shown))
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

    Args:
        values: All values, at least one.
        reach: How many interquartile ranges beyond the quartiles are shown.

    Returns:
        The smallest and the largest value within the fences; of all values where that would not
        even save a third of the axis.
    """
    x = np.asarray(values, dtype=float)
    first, third = np.quantile(x, [0.25, 0.75])
    room = reach * (third - first)
    inside = x[(x >= first - room) & (x <= third + room)]
    spared = np.ptp(inside) < 2 / 3 * np.ptp(x)
    shown = inside if spared else x
    return float(shown.min()), float(shown.max())


def put_above(figure: Figure, text: str) -> None:
    """Write a line above all panels, wrapped to the figure's width.

    Args:
        figure: The figure.
        text: The line.
    """
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 14))
    figure.suptitle("\n".join(lines), fontsize=8.0, style="italic", color=INK)


def sentence(text: str) -> Figure:
    """A small figure that says why there is nothing to draw."""
    figure = Figure(figsize=(WIDTH, 0.6))
    figure.text(0.5, 0.5, text, ha="center", va="center", color=INK)
    return figure


# --- Who is in colour where lines overlap: a fixed few, and the best of the others

#: The baseline in colour, where it is one; else it is the first of them.
_BASELINE = "fedavg-uniform"
_IN_A_SENTENCE = {"fine-tune": "fine-tuning", "local-only": "local only"}
#: Most methods in colour.
IN_COLOUR = 5


def always(who: Roles | None = None) -> tuple[str, ...]:
    """The methods in colour wherever they were run: the subject, a baseline, and the references.

    Args:
        who: The roles of the experiment; without them those of the figure that is being drawn.
    """
    who = who or roles()
    baseline = _BASELINE if _BASELINE in who.baselines else who.baselines[0]
    return tuple(dict.fromkeys([who.subject, baseline, *REFERENCES]))


def coloured(who: Roles) -> str:
    """The methods of ``always`` in a sentence."""
    return ", ".join(_IN_A_SENTENCE.get(method) or method_title(method) for method in always(who))


def cast(methods: Sequence[str], merit: Mapping[str, float] | pd.Series) -> dict[str, Look]:
    """The look of every method: its own for ``leads`` and the ceiling, a thin grey for others.

    Args:
        methods: The labels of the methods.
        merit: Method → how good it is.
    """
    leading, is_ceiling = leads(methods, merit), roles().is_ceiling
    found = looks([method for method in methods if method in leading or is_ceiling(method)])
    return {method: found.get(method, BACKGROUND) for method in methods}


def leads(
    methods: Sequence[str],
    merit: Mapping[str, float] | pd.Series,
    who: Roles | None = None,
    count: int = IN_COLOUR,
) -> list[str]:
    """The methods in colour: ``always``, and the others of highest merit.

    The line of pooled training is a yardstick and takes no method's place.

    Args:
        methods: The labels of the methods.
        merit: Method → how good it is.
        who: The roles of the experiment; without them those of the figure that is being drawn.
        count: Most methods in colour.
    """
    who = who or roles()
    running = [method for method in methods if not who.is_ceiling(method)]
    fixed = [method for method in always(who) if method in running]
    rest = [method for method in running if method not in fixed]
    rest.sort(key=lambda method: (-float(merit.get(method, -np.inf)), method_order(method)))
    return sorted([*fixed, *rest[: count - len(fixed)]], key=method_order)
