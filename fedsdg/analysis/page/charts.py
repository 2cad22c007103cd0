"""What all charts of the page share: Vega-Lite specifications without data, and the house's looks.

The page fills in the rows, whose columns ``colour``, ``dash`` and ``shape`` are used as they are.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from fedsdg.analysis.plots.style import Look

#: The name of the rows in every specification.
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


def chart(height: int) -> alt.Chart:
    """A chart of the page's rows, as wide as its place."""
    return alt.Chart(alt.NamedData(ROWS), width="container", height=height)


def colour() -> alt.Color:
    """The colour that stands in a row."""
    return alt.Color("colour:N", scale=None, legend=None)


def dash() -> alt.StrokeDash:
    """The dashes that stand in a row."""
    return alt.StrokeDash("dash:N", scale=None, legend=None)


def shape() -> alt.Shape:
    """The shape that stands in a row."""
    return alt.Shape("shape:N", scale=None, legend=None)


def drawn(look: Look) -> dict[str, Any]:
    """A look of the figures as the page has it: its colour on light and on dark ground, the dashes
    in pixels, the shape and the width of its line."""
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
    """(L₁ + 0.05) / (L₂ + 0.05) of the lighter over the darker, L relative luminance (WCAG 2.2)."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(colour: str) -> float:
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
