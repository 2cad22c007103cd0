"""The curves of a method in the arenas, drawn from the committed records."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from fedsdg.analysis.inference import mean_interval

ROOT = Path(__file__).resolve().parents[2]
ARENAS = ("label-skew", "needs", "views")
#: Of the clients that agree and of those that differ, where they do; else of all.
ACCURACIES = {"expected_accuracy_a": "A", "expected_accuracy_b": "B", "expected_accuracy": ""}
#: After Okabe and Ito, those that can be told apart and seen on white and on dark.
COLOURS = ("#2a8fd0", "#d55e00", "#009e73", "#cc79a7")
DASHES = [[1, 0], [6, 2], [2, 2], [8, 2, 2, 2]]


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
        # Of clients that agree and clients that differ where there are both, and then not of all.
        for column in known[:2] if len(known) == 3 else known:
            about = _means(part, column)
            line = " ".join(word for word in (str(skew), ACCURACIES[column]) if word)
            found.append(about.assign(method=method, line=line))
    kinds = types.drop_duplicates("method").set_index("method")["type"]
    joined = pd.concat(found, ignore_index=True)
    return joined.assign(type=joined["method"].map(kinds))


def _means(part: pd.DataFrame, column: str) -> pd.DataFrame:
    """By round the mean over seeds and the ends of its interval, within 0 and 1."""
    found = []
    for number, values in part.groupby("round")[column]:
        one = mean_interval(values.dropna())
        half = one.half_width or 0.0
        found.append((number, one.mean, max(one.mean - half, 0.0), min(one.mean + half, 1.0)))
    return pd.DataFrame(found, columns=["round", "mean", "low", "high"])


@cache
def curves(name: str) -> str:
    """An SVG for each arena that has the method, or else its variants; empty where none has."""
    drawn = []
    for arena in ARENAS:
        frame = _rounds(arena)
        part = frame[frame["method"] == name]
        if part.empty:
            part = frame[frame["type"] == name]
        variants = part["method"].unique()
        if len(variants) > 1:
            part = part.assign(line=part["method"] + ", " + part["line"])
        if len(variants):
            other = len(variants) == 1 and variants[0] != name
            drawn.append(_svg(f"{arena}: {variants[0]}" if other else arena, part))
    return "".join(drawn)


def _svg(title: str, part: pd.DataFrame) -> str:
    """One panel, whose texts and lines of axes have the colour of the page's text."""
    ink = "currentColor"
    colour, dash = alt.Scale(range=list(COLOURS)), alt.Scale(range=DASHES)
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=260, symbolStrokeWidth=4)
    base = alt.Chart(part[["round", "line", "mean", "low", "high"]]).encode(
        x=alt.X("round:Q", title="round")
    )
    accuracy = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", title="accuracy", scale=accuracy, axis=alt.Axis(format="%")),
        y2="high:Q",
        color=alt.Color("line:N", scale=colour, legend=None),
    )
    line = base.mark_line(strokeWidth=2.5).encode(
        y=alt.Y("mean:Q", scale=accuracy),
        color=alt.Color("line:N", scale=colour, legend=legend),
        strokeDash=alt.StrokeDash("line:N", scale=dash, legend=None),
    )
    chart = (
        alt.layer(band, line)
        .resolve_scale(color="independent")
        .properties(width=250, height=180, title=title)
        .configure(background="transparent", font="inherit")
        .configure_axis(
            labelColor=ink, titleColor=ink, tickColor=ink, domainColor=ink, gridColor=ink,
            gridOpacity=0.15, labelFontSize=12, titleFontSize=12,
        )
        .configure_legend(labelColor=ink, labelFontSize=12)
        .configure_title(color=ink, fontSize=14)
        .configure_view(stroke=None)
    )  # fmt: skip
    return vl_convert.vegalite_to_svg(json.loads(chart.to_json()))
