"""Two methods against each other, seed by seed: the page pairs what it holds of each run.

The difference of two methods at one seed rests on the same partition, cohorts and initial values.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from scipy.special import stdtrit

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.inference import CONFIDENCE, SHOWN_FROM
from fedsdg.analysis.page.charts import chart, colour, shape


def constants(most: int) -> dict[str, Any]:
    """What an interval of up to ``most`` seeds takes: t of n − 1 degrees of freedom for each n,
    and the number of seeds from which on it is shown."""
    half = 0.5 + CONFIDENCE / 2
    quantiles = {n: printed(float(stdtrit(n - 1, half))) for n in range(2, most + 1)}
    return {"quantiles": quantiles, "shown_from": SHOWN_FROM}


def specs() -> dict[str, dict[str, Any]]:
    """``pairs``: a line for each seed from one method to the other; ``gaps``: the mean of
    their differences with its interval, and below it each of them."""
    x = alt.X("title:N", sort=None, title=None, axis=alt.Axis(labelAngle=0, labelLimit=150))
    y = alt.Y("value:Q", title="accuracy (%)", scale=alt.Scale(zero=False))
    told = [
        alt.Tooltip("title:N", title="method"),
        alt.Tooltip("seed:N", title="seed"),
        alt.Tooltip("value:Q", title="accuracy (%)", format=".2f"),
    ]
    base = chart(280).encode(x=x, y=y)
    lines = base.mark_line(color="#999999", strokeWidth=1).encode(detail="seed:N")
    points = base.mark_point(filled=True, size=90, opacity=0.95)
    pairs = lines + points.encode(color=colour(), shape=shape(), tooltip=told)
    row = alt.Y("row:N", sort=None, title=None)
    gap = alt.X("gap:Q", title="difference (points)", scale=alt.Scale(nice=False, padding=10))
    told = [
        alt.Tooltip("row:N", title="of"),
        alt.Tooltip("gap:Q", title="difference (points)", format="+.2f"),
    ]
    wide = chart(280)
    zero = alt.Chart(alt.InlineData([{"at": 0}])).mark_rule(color="#999999").encode(x="at:Q")
    ends = wide.mark_rule(strokeWidth=3).encode(y=row, x="low:Q", x2="high:Q", color=colour())
    dots = wide.mark_point(filled=True, size=90, opacity=0.95)
    gaps = zero + ends + dots.encode(y=row, x=gap, color=colour(), shape=shape(), tooltip=told)
    return {"pairs": pairs.to_dict(), "gaps": gaps.to_dict()}
