"""What the sections of the page show: findings, and plain rows for the charts."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from scipy.special import stdtrit

from fedsdg.analysis.findings import CITED, LEDGER, Finding, Statement
from fedsdg.analysis.formatting import printed
from fedsdg.analysis.frames import groups, records
from fedsdg.analysis.inference import CONFIDENCE, SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.page.charts import drawn
from fedsdg.analysis.plots.roofline import MARKS, TITLES
from fedsdg.analysis.plots.style import BAND_SEEDS, looks
from fedsdg.analysis.speed import Measurements, rule_title
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.analysis.tables.standing import UNTUNED
from fedsdg.analysis.tables.standing import places as where_it_stands
from fedsdg.analysis.views.costs import COSTS
from fedsdg.analysis.views.sweeps import search_curves

_PLACE = ["dataset", "clients", "skew"]
_RUN = [*_PLACE, "method", "seed"]
#: Column of the records → how the page calls it; a number of either is between 0 and 1.
MEASURES = {"gates": "gate m", "private_shares": "private share"}
#: Stands for a client that was never drawn, and so has no number.
_NONE = 255
_BOLD, _CODE = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"`([^`]+)`")


def findings(
    listed: Sequence[Finding], known: Mapping[str, Statement]
) -> list[tuple[Markup, bool]]:
    """Every finding as safe HTML with its numbers, and whether it is one of the readme's.

    Args:
        listed: The findings of claims.yaml.
        known: The statements by id; a finding that cites an unknown one is left out.
    """

    def cited(match: re.Match[str]) -> Markup:
        one, (verdict, *notes) = known[match[1]], known[match[1]].said
        if one.file == LEDGER:
            verdict = Markup('<a href="#claim-{}">{}</a>').format(match[1], verdict)
        more = "".join(f"; {text}" for text in notes)
        return Markup('{} <span class="note">({}{})</span>').format(one.text, verdict, more)

    found = []
    for one in listed:
        if not all(name in known for name in one.cited):
            continue
        # The marks of Markdown, of which claims.yaml uses these two, become elements.
        html = str(escape(one.text))
        html = _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", html))
        html = CITED.sub(lambda match: str(cited(match)), html)
        found.append((Markup(html), "readme" in one.blocks))
    return found


def gaps(standing: Standing, cell: Cell) -> dict[str, Any]:
    """A newcomer minus each row of the record, as the chart has it.

    Args:
        standing: The newcomer.
        cell: One of its cells.

    Returns:
        ``title``, the ``newcomer``, and for each metric its title and rows: the rival's, the
        difference in points and its ends, which are the difference below five seeds.
    """
    charts: dict[str, list[dict[str, Any]]] = {metric.title: [] for metric in standing.metrics}
    place = {line.method: i for i, line in enumerate(standing.lines(cell))}
    here = [one for one in standing.comparisons if one.named.cell == cell]
    for one in sorted(here, key=lambda one: place.get(one.decisive.rival, len(place))):
        gap = one.decisive.judged
        if gap is not None and one.decisive.rival in place:
            ends = (gap.low, gap.high) if gap.n >= SHOWN_FROM else (gap.effect, gap.effect)
            numbers = zip(("gap", "low", "high"), (gap.effect, *ends), strict=True)
            row: dict[str, Any] = {name: printed(100 * (x or 0.0)) for name, x in numbers}
            rows = charts[one.named.metric.title]
            rows.append({"row": method_title(one.decisive.rival), **row})
    title = f"{method_title(standing.newcomer)}, {standing.summary.cell_name(cell)}"
    return {"title": title, "newcomer": standing.newcomer, "charts": [*charts.items()]}


def said_of(standing: Standing) -> list[str]:
    """Sentences: where a newcomer stands in each of its cells, and whether it was tuned."""
    untuned = UNTUNED.format(newcomer=method_title(standing.newcomer))
    return [*where_it_stands(standing), *([] if standing.tuned else [untuned])]


def constants(most: int) -> dict[str, Any]:
    """What an interval of up to ``most`` seeds takes in the browser.

    Returns:
        ``quantiles``: t of n − 1 degrees of freedom for each n; ``shown_from``: the number of seeds
        from which on an interval is shown.
    """
    half = 0.5 + CONFIDENCE / 2
    quantiles = {n: printed(float(stdtrit(n - 1, half))) for n in range(2, most + 1)}
    return {"quantiles": quantiles, "shown_from": SHOWN_FROM}


def curves(arena: Arena, progress: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, list]]:
    """Accuracies over a run, as columns.

    Args:
        arena: The cell.
        progress: Metric → ``views.costs.progress``.

    Returns:
        Metric → ``method``, ``round``, ``steps``, ``bytes`` (in the units of ``COSTS``; None where
        a cost was not recorded), ``mean``, ``low``, ``high`` (%; both ends are the mean below
        ``BAND_SEEDS`` seeds).
    """
    units = {name: unit for name, _, unit in COSTS}
    found = {}
    for metric, frame in progress.items():
        rows = frame[arena.cell.matches(frame)]
        columns: dict[str, list] = {"method": rows["method"].tolist()}
        for name, unit in units.items():
            costs = rows[name].astype(float) / unit
            columns[name] = [None if pd.isna(cost) else printed(cost) for cost in costs]
        for name in ("mean", "low", "high"):
            shown = rows[name].where(rows["n"] >= BAND_SEEDS, rows["mean"])
            columns[name] = [round(100 * float(value), 2) for value in shown]
        found[metric] = columns
    return found


def gated(summary: Summary) -> pd.DataFrame:
    """The rows of clients at evaluations, of the methods whose clients have gates."""
    rounds = summary.frame("rounds", [*_RUN, "round", "evaluated"])
    evaluated = rounds.loc[rounds["evaluated"].eq(True), [*_RUN, "round"]]
    frame = summary.frame(
        "clients", [*_RUN, "round", "client", "gates"], ["private_shares", "conflicts"]
    )
    kinds = frame[frame["conflicts"].notna()].groupby([*_PLACE, "seed", "client"])["conflicts"]
    frame = frame[frame["gates"].notna()].merge(evaluated, on=[*_RUN, "round"])
    known = kinds.last().rename("kind").reset_index()
    return frame.drop(columns="conflicts").merge(known, on=[*_PLACE, "seed", "client"], how="left")


def gate_maps(arena: Arena, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One entry for each run of the arena that has gates.

    Args:
        arena: The cell.
        frame: ``gated`` of its summary.

    Returns:
        ``rounds`` are those evaluated, ``clients`` their numbers in the order of the rows (A above
        B), ``kinds`` "A", "B", or "" where clients are of one kind. Each measure is a base64 text
        of bytes, hundredths of the numbers [rounds, clients, blocks]; 255 stands for none.
    """
    found = []
    here = frame[arena.cell.matches(frame)]
    for (method, seed), rows in groups(here, "method", "seed"):
        kinds = rows.groupby("client")["kind"].last().reindex(range(arena.cell.setting.clients))
        parted, of_b = bool(kinds.notna().any()), kinds.eq(True)
        clients = [*of_b.sort_values(kind="stable").index]
        rounds = sorted(rows["round"].unique().tolist())
        entry: dict[str, Any] = {
            "method": method,
            "seed": int(seed),
            "rounds": rounds,
            "clients": clients,
            "kinds": ["AB"[int(of_b[client])] if parted else "" for client in clients],
            "blocks": len(rows["gates"].iloc[0]),
        }
        for column in MEASURES:
            known = rows[rows[column].notna()]
            if len(known):
                entry[column] = _packed(known, column, rounds, clients)
        found.append(entry)
    return sorted(found, key=lambda entry: (method_order(entry["method"]), entry["seed"]))


def _packed(rows: pd.DataFrame, column: str, rounds: list[int], clients: list[int]) -> str:
    values = np.stack([np.asarray(one, dtype=float) for one in rows[column]])
    cube = np.full((len(rounds), len(clients), values.shape[1]), _NONE, dtype=np.uint8)
    at = [rounds.index(number) for number in rows["round"]]
    who = [clients.index(client) for client in rows["client"]]
    cube[at, who] = np.rint(100 * np.clip(values, 0, 1)).astype(np.uint8)
    return base64.b64encode(cube.tobytes()).decode()


def tuned(summary: Summary) -> list[dict[str, Any]]:
    """The trials of the search: for each method and trial its accuracy and the expected best.

    Returns:
        A row for each method and trial in the order of drawing (%). A trial far below all lines has
        no accuracy here, and the method's title counts those. Empty where no search was made.
    """
    frame = search_curves(summary)
    if frame.empty:
        return []
    frame = frame.assign(
        score=(100 * frame["score"]).round(2), best=(100 * frame["expected_best"]).round(2)
    )
    # Charts are to be read against each other, not against the worst trials of all.
    low = max(min(frame["best"].min(), frame["score"].quantile(0.25)) - 1, 0)
    methods = sorted(frame["method"].unique(), key=method_order)
    look, rows = looks(methods), []
    for order, method in enumerate(methods):
        part = frame[frame["method"] == method]
        below = int((part["score"] < low).sum())
        title = method_title(method) + (f" ({below} ↓)" if below else "")
        part = part.assign(score=part["score"].where(part["score"] >= low))
        shared = {"order": order, "title": title, "colour": drawn(look[method])["colour"]}
        rows += [row | shared for row in records(part.drop(columns="expected_best"))]
    return rows


def speeds(measured: Measurements) -> dict[str, Any]:
    """The measurements of the aggregation.

    Returns:
        ``where`` it was measured; ``rules`` with their looks; rows of ``clients`` and
        ``parameters`` (the share of the memory's speed, in %); ``codes`` with their looks; and
        ``sizes``: for each the milliseconds of every code.
    """
    rules = sorted({row["rule"] for row in measured.ours("sizes")}, key=method_order)
    look, growth = looks(rules), {}
    for suite in ("clients", "parameters"):
        growth[suite] = [
            {"method": row["rule"], "share": printed(round(100 * row["floor"], 3))}
            | {name: row[name] for name in ("clients", "parameters")}
            for row in measured.ours(suite)
            if row["rule"] in rules and row["floor"]
        ]
    grown = {row["method"] for rows in growth.values() for row in rows}
    there = {row["code"] for row in measured.suite("sizes")}
    codes = {code: drawn(mark) for code, mark in MARKS.items() if code in there}
    return {
        "where": measured.where,
        "rules": [
            {"label": rule, "title": rule_title(rule), "lead": True, "look": drawn(look[rule])}
            for rule in rules
            if rule in grown
        ],
        **growth,
        "codes": [{"title": TITLES[code], "look": mark} for code, mark in codes.items()],
        "sizes": [
            {
                "title": f"{clients} clients, {parameters:,} parameters",
                "rows": [
                    {"rule": rule_title(rule), "code": TITLES[code], **codes[code]}
                    | {"ms": float(f"{ms:.4g}"), "times": float(f"{times:.3g}")}
                    for rule in rules
                    for code, ms, times in measured.times(rule, clients, parameters)
                    if code in codes
                ],
            }
            for clients, parameters in reversed(measured.sizes())
        ],
    }
