"""The charts of the page: Vega-Lite specifications without data, and the house's looks in them.

The page fills in the rows, whose columns ``colour``, ``dash``, ``shape`` and ``width`` are used as
they are.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from fedsdg.analysis.plots.style import Look
from fedsdg.analysis.views.costs import COSTS

#: The name of the rows in every specification; of the gates' two charts each has its own.
ROWS = "rows"
#: The ground of the dark page, as page.css has it.
DARK_GROUND = "#15181c"
#: The contrast that WCAG asks of text (2.2, criterion 1.4.3); of graphics it asks 3.
_CONTRAST = 4.5

#: Marker of the figures → a shape that Vega knows, or its outline within ±1.
_SHAPES = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "d": "diamond",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "P": "cross",
    "X": "M-1,-.55L-.55,-1L0,-.45L.55,-1L1,-.55L.45,0L1,.55L.55,1L0,.45L-.55,1L-1,.55L-.45,0Z",
    "h": "M0,-1L.87,-.5V.5L0,1L-.87,.5V-.5Z",
    "p": "M0,-1L.95,-.31L.59,.81H-.59L-.95,-.31Z",
    "*": "M0,-1L.25,-.35L.95,-.31L.4,.13L.59,.81L0,.43L-.59,.81L-.4,.13L-.95,-.31L-.25,-.35Z",
    "": "circle",
}

_COLOUR = alt.Color("colour:N", scale=None, legend=None)
_DASH = alt.StrokeDash("dash:N", scale=None, legend=None)
_SHAPE = alt.Shape("shape:N", scale=None, legend=None)
_WIDTH = alt.StrokeWidth("width:Q", scale=None, legend=None)


def drawn(look: Look) -> dict[str, Any]:
    """A look of the figures as the page has it.

    Returns:
        ``light`` and ``dark``: its colour on either ground; ``dash`` in pixels, ``shape``, and the
        ``width`` of its line.
    """
    lengths = () if isinstance(look.dashes, str) else look.dashes[1]
    return {
        "light": look.colour,
        "dark": on_dark(look.colour),
        "dash": [round(1.4 * length, 1) for length in lengths],
        "shape": _SHAPES[look.marker],
        "width": round(1.2 * look.width, 1),
    }


def on_dark(colour: str) -> str:
    """The colour, mixed with as much white as it takes to be seen on ``DARK_GROUND``."""
    for tenths in range(11):
        mixed = [round(c + (255 - c) * tenths / 10) for c in _channels(colour)]
        found = "#" + "".join(f"{channel:02x}" for channel in mixed)
        if contrast(found, DARK_GROUND) >= _CONTRAST:
            return found
    raise AssertionError("white is seen on dark ground")


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05) / (L₂ + 0.05) of the lighter over the darker, L relative luminance (WCAG 2.2).

    Args:
        one: A colour such as "#d55e00".
        other: Another.
    """
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(colour: str) -> float:
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def specifications() -> dict[str, dict[str, Any]]:
    """All charts by name: pairs, gaps, curves-round …, gates, tuning, speed-clients …, codes."""
    found = {"pairs": _pairs(), "gaps": _gaps(), "gates": _gates(), "tuning": _tuning()}
    found |= {f"curves-{name}": _curves(name, title) for name, title, _ in COSTS}
    speed = "share of the memory's speed (%)"
    for name, title in (("clients", "clients M"), ("parameters", "parameters d")):
        found[f"speed-{name}"] = _growth(name, title, speed)
    found["codes"] = _codes()
    return {name: chart.to_dict() for name, chart in found.items()}


def _chart(height: int) -> alt.Chart:
    """A chart of the page's rows, as wide as its place."""
    return alt.Chart(alt.NamedData(ROWS), width="container", height=height)


def _told(**columns: str) -> list[alt.Tooltip]:
    """What the pointer is told: column → "title" of a text, or "title|format" of a number."""
    told = []
    for name, said in columns.items():
        title, _, form = said.partition("|")
        if form:
            told.append(alt.Tooltip(f"{name}:Q", title=title, format=form))
        else:
            told.append(alt.Tooltip(f"{name}:N", title=title))
    return told


def _pairs() -> alt.LayerChart:
    """A line for each seed from one method to the other."""
    x = alt.X("title:N", sort=None, title=None, axis=alt.Axis(labelAngle=0, labelLimit=150))
    y = alt.Y("value:Q", title="accuracy (%)", scale=alt.Scale(zero=False))
    base = _chart(280).encode(x=x, y=y)
    lines = base.mark_line(color="#999999", strokeWidth=1).encode(detail="seed:N")
    points = base.mark_point(filled=True, size=90, opacity=0.95)
    told = _told(title="method", seed="seed", value="accuracy (%)|.2f")
    return lines + points.encode(color=_COLOUR, shape=_SHAPE, tooltip=told)


def _gaps() -> alt.LayerChart:
    """Differences with their intervals, a row for each."""
    row = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(labelLimit=200))
    x = alt.X("gap:Q", title="difference (points)", scale=alt.Scale(nice=False, padding=10))
    base = _chart(280)
    zero = alt.Chart(alt.InlineData([{"at": 0}])).mark_rule(color="#999999").encode(x="at:Q")
    ends = base.mark_rule(strokeWidth=3).encode(y=row, x="low:Q", x2="high:Q", color=_COLOUR)
    dots = base.mark_point(filled=True, size=90, opacity=0.95)
    told = _told(row="of", gap="difference (points)|+.2f")
    return zero + ends + dots.encode(y=row, x=x, color=_COLOUR, shape=_SHAPE, tooltip=told)


def _curves(name: str, title: str) -> alt.LayerChart:
    """Accuracy against a cost: lines, bands, and the points under the pointer."""
    scale = alt.Scale(zero=False, nice=False, padding=8)
    x = alt.X(f"{name}:Q", title=title, axis=alt.Axis(grid=False), scale=scale)
    y = alt.Y("mean:Q", title="accuracy (%)", scale=alt.Scale(zero=False))
    under = alt.selection_point(
        name="under", fields=["method", "round"], on="pointerover", clear="pointerout", empty=False
    )
    base = _chart(380).encode(x=x, color=_COLOUR, detail="method:N")
    band = base.mark_area(opacity=0.1).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line().encode(y=y, strokeDash=_DASH, strokeWidth=_WIDTH)
    told = _told(
        title="method",
        said="accuracy (%)",
        round="round",
        steps="thousand steps|,.1f",
        bytes="MB|,.1f",
    )
    seen = alt.condition(under, alt.value(1), alt.value(0.3))
    points = base.mark_point(filled=True, size=70).encode(y=y, shape=_SHAPE, opacity=seen)
    # Unseen and larger than the points, so that a pointer or a finger finds them.
    places = base.mark_point(filled=True, size=500, opacity=0).encode(y=y, tooltip=told)
    return band + line + points + places.add_params(under)


def _gates() -> alt.HConcatChart:
    """Clients by blocks in one round, and clients by rounds: on one scale from 0 to 1.

    The page gives them widths, and a height for as many clients as there are.
    """
    scale = alt.Scale(scheme="blues", domain=[0, 1])
    gaps = alt.Scale(paddingInner=0.06, paddingOuter=0.03)
    charts = []
    for data, column, title in (("blocks", "block", "block"), ("ways", "round", "round")):
        axis = alt.Axis(labelAngle=0, labelOverlap=True)
        one = alt.Chart(alt.NamedData(data)).mark_rect(stroke=None)
        charts.append(
            one.encode(
                x=alt.X(f"{column}:O", title=title, axis=axis, scale=gaps),
                y=alt.Y("client:N", sort=None, title=None, scale=gaps),
                color=alt.Color("value:Q", scale=scale, title=None),
                tooltip=_told(client="client", **{column: title}, value="value|.2f"),
            )
        )
    return alt.hconcat(*charts).resolve_scale(color="shared")


def _tuning() -> alt.FacetChart:
    """A small chart for each method; dots are trials, the line the expected best."""
    x = alt.X("trials:Q", title=None, axis=alt.Axis(tickCount=4, tickMinStep=1, format="d"))
    told = _told(
        title="method", trials="trials", score="this trial (%)|.1f", best="expected best (%)|.1f"
    )
    # Without data of its own, for a panel shows its part of the whole.
    base = alt.Chart(height=110).encode(x=x, tooltip=told)
    y = alt.Y("score:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    dots = base.mark_point(filled=True, size=24, color="#8a8a8a", opacity=0.9).encode(y=y)
    line = base.mark_line(strokeWidth=2.4).encode(y=alt.Y("best:Q", title=None), color=_COLOUR)
    header = alt.Header(title=None, labelFontWeight="bold", labelLimit=170)
    order = alt.EncodingSortField("order", op="min")
    facet = alt.Facet("title:N", sort=order, header=header, title=None)
    return (dots + line).facet(facet=facet, columns=4, data=alt.NamedData(ROWS))


def _growth(name: str, title: str, what: str) -> alt.LayerChart:
    """A share of a limit against a size, both logarithmic; 100 % is a rule."""
    log = alt.Scale(type="log", nice=False, padding=8)
    axis = alt.Axis(format="~s", tickCount=5, grid=False)
    y = alt.Y("share:Q", title=what, scale=log, axis=alt.Axis(format="~g", tickCount=5))
    base = _chart(300).encode(
        x=alt.X(f"{name}:Q", title=title, scale=log, axis=axis),
        y=y,
        color=_COLOUR,
        detail="method:N",
    )
    told = _told(title="rule", share=f"{what}|.3~g", clients="clients|,", parameters="parameters|,")
    bare = alt.Chart(alt.InlineData([{"at": 100}])).mark_rule(color="#888888", strokeWidth=2)
    lines = base.mark_line().encode(strokeDash=_DASH, strokeWidth=_WIDTH)
    points = base.mark_point(filled=True, size=70).encode(shape=_SHAPE, tooltip=told)
    return bare.encode(y="at:Q") + lines + points


def _codes() -> alt.Chart:
    """The time of every code, a row for each rule."""
    log = alt.Scale(type="log", nice=False, padding=8)
    time = alt.Axis(format="~g", tickCount=5)
    row = alt.Axis(grid=True, labelLimit=130)
    told = _told(rule="rule", code="code", ms="ms|.3~g", times="times ours|.3~g")
    return (
        _chart(240)
        .mark_point(filled=True, size=100, opacity=0.95)
        .encode(
            x=alt.X("ms:Q", title="time of one aggregation (ms)", scale=log, axis=time),
            y=alt.Y("rule:N", sort=None, title=None, axis=row),
            color=_COLOUR,
            shape=_SHAPE,
            tooltip=told,
        )
    )
