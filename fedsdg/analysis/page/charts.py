"""The charts of the page: Vega-Lite specifications without data, and the house's looks in them.

The page fills in the rows, whose columns ``colour``, ``dash``, ``shape`` and ``width`` are used as
they are; a colour is one for each ground, of which the browser takes that of the theme.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import MarkerStyle

from fedsdg.analysis.plots.style import Look
from fedsdg.analysis.views.costs import COSTS

#: The name of the rows in every specification; of the gates' two charts each has its own.
ROWS = "rows"
#: The ground of the dark page, as page.css has it.
DARK_GROUND = "#15181c"
#: The contrast that WCAG asks of text (2.2, criterion 1.4.3); of graphics it asks 3.
_CONTRAST = 4.5

_COLOUR = alt.Color("colour:N", scale=None, legend=None)
_DASH = alt.StrokeDash("dash:N", scale=None, legend=None)
_SHAPE = alt.Shape("shape:N", scale=None, legend=None)
_WIDTH = alt.StrokeWidth("width:Q", scale=None, legend=None)
_LOG = alt.Scale(type="log", nice=False, padding=8)


def drawn(look: Look) -> dict[str, Any]:
    """A look of the figures as the page has it.

    Returns:
        ``colour`` on either ground, in CSS; ``dash`` in pixels, ``shape``, and the ``width`` of the
        line.
    """
    lengths = () if isinstance(look.dashes, str) else look.dashes[1]
    return {
        "colour": f"light-dark({look.colour}, {on_dark(look.colour)})",
        "dash": [round(1.4 * length, 1) for length in lengths],
        "shape": _shape(look.marker or "o"),
        "width": round(1.2 * look.width, 1),
    }


def _shape(marker: str) -> str:
    """The outline of a marker of the figures within ±1, as a path of SVG."""
    if marker == "o":
        return "circle"
    style = MarkerStyle(marker)
    (corners,) = style.get_path().transformed(style.get_transform()).to_polygons()
    return f"M{'L'.join(f'{2 * x:.2f},{-2 * y:.2f}' for x, y in np.asarray(corners))}Z"


def on_dark(colour: str) -> str:
    """The colour, mixed with as much white as it takes to be seen on ``DARK_GROUND``."""
    mixed = (1 - (1 - np.array(to_rgb(colour))) * (1 - share) for share in np.linspace(0, 1, 11))
    return next(one for one in map(to_hex, mixed) if contrast(one, DARK_GROUND) >= _CONTRAST)


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05) / (L₂ + 0.05) of the lighter over the darker, L relative luminance (WCAG 2.2).

    Args:
        one: A colour such as "#d55e00".
        other: Another.
    """
    s = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ (0.2126, 0.7152, 0.0722))
    return float((high + 0.05) / (low + 0.05))


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
    said = ((name, *text.partition("|")) for name, text in columns.items())
    return [
        alt.Tooltip(f"{name}:{'Q' if form else 'N'}", title=title, format=form or alt.Undefined)
        for name, title, _, form in said
    ]


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
    ends = "' [' + format(datum.low, '.1f') + ', ' + format(datum.high, '.1f') + ']'"
    said = f"format(datum.mean, '.1f') + (datum.high > datum.low ? {ends} : '')"
    base = _chart(380).transform_calculate(said=said)
    base = base.encode(x=x, color=_COLOUR, detail="method:N")
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
    axis = alt.Axis(format="~s", tickCount=5, grid=False)
    y = alt.Y("share:Q", title=what, scale=_LOG, axis=alt.Axis(format="~g", tickCount=5))
    base = _chart(300).encode(
        x=alt.X(f"{name}:Q", title=title, scale=_LOG, axis=axis),
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
    time = alt.Axis(format="~g", tickCount=5)
    row = alt.Axis(grid=True, labelLimit=130)
    told = _told(rule="rule", code="code", ms="ms|.3~g", times="times ours|.3~g")
    return (
        _chart(240)
        .mark_point(filled=True, size=100, opacity=0.95)
        .encode(
            x=alt.X("ms:Q", title="time of one aggregation (ms)", scale=_LOG, axis=time),
            y=alt.Y("rule:N", sort=None, title=None, axis=row),
            color=_COLOUR,
            shape=_SHAPE,
            tooltip=told,
        )
    )
