"""Measured speed of aggregation: a table per size and the roofline figure."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fedsdg.next_analysis.figures import Plot, look
from fedsdg.next_analysis.names import method_order, method_title
from fedsdg.next_analysis.tables import MISSING, Table

CODES = {
    "reference": "torch reference",
    "plain": "plain formulas",
    "numpy": "numpy",
    "torch": "torch",
    "flower": "Flower",
    "byzfl": "byzfl",
}


def timings(file: str | Path) -> pd.DataFrame:
    """Return the timings of ``make bench``."""
    return pd.DataFrame(json.loads(Path(file).read_text())["timings"])


def kernels(file: str | Path) -> Table:
    """Return time, rate and share of the memory's speed of every rule and size, and others' time."""
    rows = timings(file)
    rows = rows[(rows["suite"] == "sizes") & rows["seconds"].notna()]
    size = ["clients", "parameters", "rule"]
    ours = rows[rows["code"] == "ours"].set_index(size)
    others = rows[rows["code"] != "ours"].pivot_table(index=size, columns="code", values="ratio")
    numbers = (
        pd.DataFrame(
            {
                "ms": 1e3 * ours["seconds"],
                "GB/s": ours["least_bytes"] / ours["seconds"] / 1e9,
                "of a bare read": ours["floor"],
            }
        )
        .join(others.reindex(columns=[c for c in CODES if c in others]).rename(columns=CODES))
        .reset_index()
    )
    numbers = numbers.sort_values(
        ["clients", "parameters", "rule"],
        key=lambda c: c.map(method_order) if c.name == "rule" else c,
    )
    text = numbers.assign(rule=numbers["rule"].map(method_title)).map(
        lambda v: (
            MISSING
            if v != v
            else f"{v:,.3g}"
            if isinstance(v, float)
            else f"{v:,}"
            if isinstance(v, int)
            else v
        )
    )
    return Table("kernels", "Aggregation: best time; other codes in times ours", numbers, text)


def _roofline(rows: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(7, 2.8))
    for panel, key in zip(
        figure.subplots(1, 2, sharey=True), ("clients", "parameters"), strict=True
    ):
        own = rows[rows["suite"] == key]
        styles = look(own.groupby("rule")["floor"].mean())
        for rule, line in own.sort_values(key).groupby("rule"):
            panel.plot(
                line[key], 100 * line["floor"], **styles[rule], ms=3, lw=1, label=method_title(rule)
            )
        panel.axhline(100, color="black", lw=1)
        panel.set(xscale="log", yscale="log", xlabel=key)
    figure.axes[0].set_ylabel("% of a bare read's speed")
    figure.axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def roofline(file: str | Path) -> Plot:
    """Return the figure: share of the memory's speed by clients and parameters."""
    rows = timings(file)
    return Plot(
        lambda _: rows[(rows["code"] == "ours")],
        _roofline,
        "Speed of aggregation against a bare read",
    )
