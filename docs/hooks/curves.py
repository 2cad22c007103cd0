"""The curves of a method in the arenas, drawn from the committed records."""

from __future__ import annotations

import json
from functools import cache

import altair as alt
import pandas as pd
import vl_convert

from fedsdg.analysis.inference import mean_interval
from fedsdg.files.places import ARENAS, RECORDS, root

#: Of the clients that agree and of those that differ, where they do; else of all.
ACCURACIES = {"expected_accuracy_a": "A", "expected_accuracy_b": "B", "expected_accuracy": ""}
#: After Okabe and Ito, those that can be told apart and seen on white and on dark.
COLOURS = ("#2a8fd0", "#d55e00", "#009e73", "#cc79a7")
DASHES = [[1, 0], [6, 2], [2, 2], [8, 2, 2, 2]]


@cache
def _rounds(arena: str) -> pd.DataFrame:
    """Means over seeds and the ends of their intervals by method, line and round."""
    folder = root() / RECORDS / arena
    frame = pd.read_parquet(folder / "rounds.parquet")
    columns = [column for column in ACCURACIES if column in frame]
    values = frame[frame["evaluated"]].melt(["method", "skew", "round"], columns, "column")
    values = values.dropna(subset="value")
    # Of clients that agree and clients that differ where there are both, and then not of all.
    kinds = values.groupby(["method", "skew"])["column"].transform("nunique")
    values = values[(kinds < 3) | (values["column"] != "expected_accuracy")]
    line = (values["skew"] + " " + values["column"].map(ACCURACIES)).str.strip()
    groups = values.assign(line=line).groupby(["method", "line", "round"])["value"]
    types = pd.read_parquet(folder / "runs.parquet", columns=["method", "type"])
    means = groups.apply(_interval).unstack().reset_index()
    return means.merge(types.drop_duplicates("method"), on="method")


def _interval(values: pd.Series) -> pd.Series:
    """The mean and the ends of its interval, within 0 and 1."""
    one = mean_interval(values)
    half = one.half_width or 0.0
    ends = {"low": max(one.mean - half, 0.0), "high": min(one.mean + half, 1.0)}
    return pd.Series({"mean": one.mean, **ends})


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
