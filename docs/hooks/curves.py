"""The curves of a method in the arenas, drawn from the committed records."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from scipy.stats import t

ROOT = Path(__file__).resolve().parents[2]
ARENAS = ("label-skew", "needs", "views")
#: Of the clients that agree and of those that differ, where they do; else of all.
ACCURACIES = {"expected_accuracy_a": "A", "expected_accuracy_b": "B", "expected_accuracy": ""}
#: Okabe and Ito's, those that can be told apart and seen on white and on dark.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


@cache
def _rounds(arena: str) -> pd.DataFrame:
    """Means over seeds and half widths of their intervals: method, line, round, mean, low, high."""
    folder = ROOT / "results/reference" / arena
    frame = pd.read_parquet(folder / "rounds.parquet")
    frame = frame[frame["evaluated"]]
    types = pd.read_parquet(folder / "runs.parquet", columns=["method", "type"])
    found = []
    for (method, skew), part in frame.groupby(["method", "skew"]):
        known = [c for c in ACCURACIES if c in part and part[c].notna().any()]
        for column in known[:2] if len(known) == 3 else known:
            about = part.groupby("round")[column].agg(["mean", "std", "count"]).reset_index()
            half = t.ppf(0.975, about["count"] - 1) * about["std"] / np.sqrt(about["count"])
            about["low"] = (about["mean"] - half).clip(lower=0)
            about["high"] = (about["mean"] + half).clip(upper=1)
            line = " ".join(word for word in (str(skew), ACCURACIES[column]) if word)
            found.append(about.assign(method=method, line=line))
    kinds = types.drop_duplicates("method").set_index("method")["type"]
    joined = pd.concat(found, ignore_index=True)
    return joined.assign(type=joined["method"].map(kinds))


@cache
def curves(name: str) -> str:
    """An SVG for each arena that has the method, or else its variants; empty where none has."""
    drawn = []
    for arena in ARENAS:
        frame = _rounds(arena)
        part = frame[frame["method"] == name]
        if part.empty:
            part = frame[frame["type"] == name]
            part = part.assign(line=part["method"] + ", " + part["line"])
        if not part.empty:
            drawn.append(_svg(arena, part))
    return "".join(drawn)


def _svg(arena: str, part: pd.DataFrame) -> str:
    """One panel, whose texts and lines of axes have the colour of the page's text."""
    base = alt.Chart(part[["round", "line", "mean", "low", "high"]]).encode(
        x=alt.X("round:Q", title="round"),
        color=alt.Color(
            "line:N",
            scale=alt.Scale(range=list(COLOURS)),
            legend=alt.Legend(title=None, orient="bottom", columns=2, labelLimit=260),
        ),
    )
    accuracy = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", title="accuracy", scale=accuracy, axis=alt.Axis(format="%")), y2="high:Q"
    )
    line = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("mean:Q", scale=accuracy), strokeDash=alt.StrokeDash("line:N", legend=None)
    )
    ink = "currentColor"
    chart = (
        (band + line)
        .properties(width=250, height=180, title=arena)
        .configure(background="transparent", font="inherit")
        .configure_axis(labelColor=ink, titleColor=ink, tickColor=ink, domainColor=ink)
        .configure_axis(gridColor=ink, gridOpacity=0.15, labelFontSize=12, titleFontSize=12)
        .configure_legend(labelColor=ink, labelFontSize=12)
        .configure_title(color=ink, fontSize=14)
        .configure_view(stroke=None)
    )
    return vl_convert.vegalite_to_svg(json.loads(chart.to_json()))
