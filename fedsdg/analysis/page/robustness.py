"""Rules under attack: global accuracy against the share of the clients that attack."""

from __future__ import annotations

from typing import Any

import altair as alt

from fedsdg.analysis.frames import groups, places
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.page.charts import chart, colour, dash, drawn, shape
from fedsdg.analysis.plots.cast import leads
from fedsdg.analysis.plots.style import looks
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.attacks import accuracy_by_share

#: The experiments whose records have attacks by their share.
EXPERIMENTS = ("byzantine", "breakdown")


def attacks(summary: Summary) -> list[dict[str, Any]]:
    """An entry for each place and attack: its rows (shares and accuracies in %), its methods, and
    what has to be said of them: how many seeds, and whether training had settled."""
    frame = accuracy_by_share(summary)
    unsettled = horizon_label(summary)
    found = []
    for where, here in places(frame):
        merit = here.groupby("method")["mean"].mean()
        methods = sorted(merit.index, key=method_order)
        look, shown = looks(methods), leads(methods, merit)
        for attack, part in groups(here, "attack"):
            seeds = sorted(set(part["n"].tolist()))
            said = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
            found.append(
                {
                    "experiment": summary.experiment,
                    "title": f"{summary.experiment}: {attack} ({where})",
                    "pilot": f"{unsettled}; {said} seeds" if unsettled else "",
                    "methods": [
                        {"label": m, "title": method_title(m), "lead": m in shown} | drawn(look[m])
                        for m in methods
                    ],
                    "rows": [
                        {
                            "method": row["method"],
                            "share": round(100 * row["share"], 1),
                            "n": row["n"],
                            "mean": round(100 * row["mean"], 2),
                            **_ends(row),
                        }
                        for row in part.to_dict("records")
                    ],
                }
            )
    return found


def _ends(row: dict[Any, Any]) -> dict[str, float]:
    """The interval, cut at 0 and 100 %; below ``SHOWN_FROM`` seeds both ends are the mean."""
    low, high = row["low"], row["high"]
    if row["n"] < SHOWN_FROM:
        low = high = row["mean"]
    return {"low": round(100 * max(low, 0.0), 2), "high": round(100 * min(high, 1.0), 2)}


def specs() -> dict[str, dict[str, Any]]:
    """``attack``: a line for each rule, with intervals where there are seeds enough."""
    base = chart(340).encode(
        x=alt.X(
            "share:Q",
            title="clients that attack (%)",
            axis=alt.Axis(tickCount=5, grid=False),
            scale=alt.Scale(nice=False, padding=8),
        ),
        color=colour(),
        detail="method:N",
    )
    y = alt.Y("mean:Q", title="global accuracy (%)", scale=alt.Scale(domain=[0, 100]))
    width = alt.StrokeWidth("width:Q", scale=None, legend=None)
    told = [
        alt.Tooltip("title:N", title="rule"),
        alt.Tooltip("share:Q", title="attackers (%)"),
        alt.Tooltip("said:N", title="global accuracy (%)"),
        alt.Tooltip("n:Q", title="seeds"),
    ]
    lines = base.mark_line().encode(y=y, strokeDash=dash(), strokeWidth=width)
    ends = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q")
    points = base.mark_point(filled=True, size=80).encode(y=y, shape=shape(), tooltip=told)
    return {"attack": (lines + ends + points).to_dict()}
