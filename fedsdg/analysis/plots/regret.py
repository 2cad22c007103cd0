"""Regret as a heat map: methods by cells, points below the best."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fedsdg.analysis.plots.style import INK, WIDTH
from fedsdg.analysis.tables.layout import Table

_HEIGHT = 0.165
#: Points at which the colour is full: what is worse is written, not told apart.
_FULL = 20.0
_COLOURS = LinearSegmentedColormap.from_list("regret", ["#f7fbff", "#fdd0a2", "#d94801"])


def draw(table: Table) -> Figure:
    """A cell of the map for each cell of the table; bold: cannot be told from the best."""
    (block,) = table.blocks
    values = np.array(
        [[_number(entry.text) for entry in row[1:]] for row in block.rows], dtype=float
    )
    height = 1.15 + _HEIGHT * len(block.rows)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    shown = axes.imshow(
        np.ma.masked_invalid(values), cmap=_COLOURS, vmin=0, vmax=_FULL, aspect="auto"
    )
    for i, row in enumerate(block.rows):
        for j, entry in enumerate(row[1:]):
            if np.isfinite(values[i, j]):
                text = f"{values[i, j]:.1f}".replace("-", "−")
                weight = "bold" if entry.bold else "normal"
                axes.text(j, i, text, ha="center", va="center", color=INK, fontsize=6.5,
                          fontweight=weight)  # fmt: skip
    axes.set_xticks(range(values.shape[1]), ["\n".join(filter(None, c)) for c in block.columns[1:]])
    axes.set_yticks(range(len(block.rows)), [row[0].text for row in block.rows])
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(shown, ax=axes, extend="max", shrink=0.5, pad=0.01)
    bar.set_label("points below the best")
    return figure


def _number(text: str) -> float:
    """The mean that stands in a cell of the table; NaN where the row does not stand there."""
    first = text.split(" ")[0].replace("−", "-")
    return float("nan") if first in ("–", "") else float(first)
