"""What the search of hyper-parameters found: equal trials of every method."""

from __future__ import annotations

from typing import Any

import altair as alt

from fedsdg.analysis.frames import groups
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.page.charts import ROWS, colour, drawn
from fedsdg.analysis.plots.style import looks
from fedsdg.analysis.plots.tuning import limits
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.sweeps import search_curves


def tuned(summary: Summary) -> list[dict[str, Any]]:
    """A row for each method and trial in the order of drawing: the trial's validation accuracy and
    the expected best of so many trials, in %. A trial far below all lines has no accuracy here, and
    the method's title counts those. Empty where no search was made."""
    frame = search_curves(summary)
    if frame.empty:
        return []
    low, _ = limits(frame)
    methods = sorted(frame["method"].unique(), key=method_order)
    look, rows = looks(methods), []
    for method, part in sorted(groups(frame, "method"), key=lambda pair: method_order(pair[0])):
        below = int((100 * part["score"] < low).sum())
        title = method_title(method) + (f" ({below} ↓)" if below else "")
        for row in part.to_dict("records"):
            score = round(100 * row["score"], 2)
            rows.append(
                {
                    "order": methods.index(method),
                    "method": method,
                    "title": title,
                    "trials": row["trials"],
                    "score": score if score >= low else None,
                    "best": round(100 * row["expected_best"], 2),
                    **{key: drawn(look[method])[key] for key in ("light", "dark")},
                }
            )
    return rows


def specs() -> dict[str, dict[str, Any]]:
    """``tuning``: a small chart for each method; dots are trials, the line the expected best."""
    x = alt.X("trials:Q", title=None, axis=alt.Axis(tickCount=4, tickMinStep=1, format="d"))
    told = [
        alt.Tooltip("title:N", title="method"),
        alt.Tooltip("trials:Q", title="trials"),
        alt.Tooltip("score:Q", title="this trial (%)", format=".1f"),
        alt.Tooltip("best:Q", title="expected best (%)", format=".1f"),
    ]
    # Without data of its own, for a panel shows its part of the whole.
    base = alt.Chart(height=110).encode(x=x, tooltip=told)
    y = alt.Y("score:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    dots = base.mark_point(filled=True, size=24, color="#8a8a8a", opacity=0.9).encode(y=y)
    line = base.mark_line(strokeWidth=2.4).encode(y=alt.Y("best:Q", title=None), color=colour())
    header = alt.Header(title=None, labelFontWeight="bold", labelLimit=170)
    order = alt.EncodingSortField("order", op="min")
    facet = alt.Facet("title:N", sort=order, header=header, title=None)
    spec = (dots + line).facet(facet=facet, columns=4, data=alt.NamedData(ROWS))
    return {"tuning": spec.to_dict()}
