"""How close aggregation comes to the speed of the memory, and how far behind other codes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.names import method_order
from fedsdg.analysis.page.charts import chart, colour, dash, drawn, shape
from fedsdg.analysis.plots.roofline import MARKS, OURS
from fedsdg.analysis.plots.style import Look, looks
from fedsdg.analysis.speed import CODES, Measurements, Row, rule_title


def speeds(measured: Measurements) -> dict[str, Any]:
    """``where`` it was measured; ``rules`` with their looks; rows of ``clients`` and
    ``parameters`` (the share of the memory's speed, in %); and ``sizes``: for each the
    milliseconds of every code."""
    rules = sorted({row["rule"] for row in measured.ours("sizes")}, key=method_order)
    look = looks(rules)
    growth = {suite: _growth(measured.ours(suite), rules) for suite in ("clients", "parameters")}
    grown = {row["method"] for rows in growth.values() for row in rows}
    return {
        "where": measured.where,
        "rules": [
            {"label": rule, "title": rule_title(rule), "lead": True} | drawn(look[rule])
            for rule in rules
            if rule in grown
        ],
        **growth,
        "codes": [
            {
                "title": title,
                "shape": shown["shape"],
                "light": shown["light"],
                "dark": shown["dark"],
            }
            for title, shown in _looks_of_codes(measured).items()
        ],
        "sizes": [
            {
                "title": f"{clients} clients, {parameters:,} parameters",
                "rows": _codes(measured, clients, parameters, rules),
            }
            for clients, parameters in reversed(measured.sizes())
        ],
    }


def _growth(rows: Sequence[Row], rules: Sequence[str]) -> list[dict[str, Any]]:
    names = ("clients", "parameters")
    return [
        {"method": row["rule"], "share": printed(round(100 * row["floor"], 3))}
        | {name: row[name] for name in names}
        for row in rows
        if row["rule"] in rules and row["floor"]
    ]


def _looks_of_codes(measured: Measurements) -> dict[str, dict[str, Any]]:
    there = {row["code"] for row in measured.suite("sizes")}
    others = {
        CODES[code]: drawn(Look(c, "-", m)) for code, (m, c) in MARKS.items() if code in there
    }
    return {"ours": drawn(Look(OURS, "-", "o")), **others}


def _codes(
    measured: Measurements, clients: int, parameters: int, rules: Sequence[str]
) -> list[dict[str, Any]]:
    """Others stand at ours times their ratio, which was taken in alternation."""
    shown, found = _looks_of_codes(measured), []
    timed = [r for r in measured.suite("sizes") if r.get("seconds") and r["rule"] in rules]
    here = [r for r in timed if (r["clients"], r["parameters"]) == (clients, parameters)]
    own = {row["rule"]: 1e3 * row["seconds"] for row in here if row["code"] == "ours"}
    for row in sorted(here, key=lambda row: rules.index(row["rule"])):
        if row["rule"] not in own or (row["code"] != "ours" and row["code"] not in CODES):
            continue
        code = "ours" if row["code"] == "ours" else CODES[row["code"]]
        times = 1.0 if code == "ours" else row["ratio"]
        found.append(
            {
                "rule": rule_title(row["rule"]),
                "code": code,
                "ms": float(f"{times * own[row['rule']]:.4g}"),
                "times": float(f"{times:.3g}"),
                **{key: shown[code][key] for key in ("shape", "light", "dark")},
            }
        )
    return found


def specs() -> dict[str, dict[str, Any]]:
    """``speed-clients``, ``speed-parameters``: shares of the memory's speed; ``codes``: times."""
    log = alt.Scale(type="log", nice=False, padding=8)
    found = {}
    for name, title in (("clients", "clients M"), ("parameters", "parameters d")):
        axis = alt.Axis(format="~s", tickCount=5, grid=False)
        base = chart(300).encode(
            x=alt.X(f"{name}:Q", title=title, scale=log, axis=axis),
            y=alt.Y(
                "share:Q",
                title="share of the memory's speed (%)",
                scale=log,
                axis=alt.Axis(format="~g", tickCount=5),
            ),
            color=colour(),
            detail="method:N",
        )
        told = [
            alt.Tooltip("title:N", title="rule"),
            alt.Tooltip("share:Q", title="of the memory's speed (%)", format=".3~g"),
            alt.Tooltip("clients:Q", title="clients", format=","),
            alt.Tooltip("parameters:Q", title="parameters", format=","),
        ]
        bare = alt.Chart(alt.InlineData([{"at": 100}])).mark_rule(color="#888888", strokeWidth=2)
        lines = base.mark_line().encode(
            strokeDash=dash(), strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None)
        )
        points = base.mark_point(filled=True, size=70).encode(shape=shape(), tooltip=told)
        found[f"speed-{name}"] = (bare.encode(y="at:Q") + lines + points).to_dict()
    found["codes"] = (
        chart(240)
        .mark_point(filled=True, size=100, opacity=0.95)
        .encode(
            x=alt.X(
                "ms:Q",
                title="time of one aggregation (ms)",
                scale=log,
                axis=alt.Axis(format="~g", tickCount=5),
            ),
            y=alt.Y("rule:N", sort=None, title=None, axis=alt.Axis(grid=True, labelLimit=130)),
            color=colour(),
            shape=shape(),
            tooltip=[
                alt.Tooltip("rule:N", title="rule"),
                alt.Tooltip("code:N", title="code"),
                alt.Tooltip("ms:Q", title="ms", format=".3~g"),
                alt.Tooltip("times:Q", title="times ours", format=".3~g"),
            ],
        )
        .to_dict()
    )
    return found
