"""What the sections of the page show: plain rows of curves, gates, attacks, trials, speeds."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from scipy.special import stdtrit

from fedsdg.analysis.comparisons import Comparison
from fedsdg.analysis.findings import CITED, LEDGER, Finding, Statement
from fedsdg.analysis.formatting import MISSING, points, printed
from fedsdg.analysis.frames import groups, places, records
from fedsdg.analysis.horizon import horizon_label
from fedsdg.analysis.inference import CONFIDENCE, SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.page.charts import drawn
from fedsdg.analysis.plots.roofline import MARKS, OURS
from fedsdg.analysis.plots.style import BAND_SEEDS, Look, looks
from fedsdg.analysis.regret import regret_table
from fedsdg.analysis.speed import CODES, Measurements, rule_title
from fedsdg.analysis.speed import Row as Timing
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry
from fedsdg.analysis.tables.primary import difference_text
from fedsdg.analysis.tables.standing import UNTUNED
from fedsdg.analysis.tables.standing import places as where_it_stands
from fedsdg.analysis.views.attacks import losses
from fedsdg.analysis.views.costs import COSTS
from fedsdg.analysis.views.sweeps import search_curves

_PLACE = ["dataset", "clients", "skew"]
_RUN = [*_PLACE, "method", "seed"]
#: Column of the records → how the page calls it; a number of either is between 0 and 1.
MEASURES = {"gates": "gate m", "private_shares": "private share"}
#: Stands for a client that was never drawn, and so has no number.
_NONE = 255
#: Points at which the colour of a field of a map is full.
_FULL = 20.0
#: The experiments whose records have attacks by their share.
ATTACKED = ("byzantine", "breakdown")
_BOLD, _CODE = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Field:
    """A field of a map: its text, what a pointer is told, how full its colour is (0 to 1)."""

    text: str
    told: str = ""
    full: float = 0.0
    strong: bool = False
    value: float | None = None


@dataclass(frozen=True)
class HeatMap:
    """A table with coloured fields; ``heads`` are (group, heading) of its columns."""

    title: str
    heads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Field, ...]], ...]
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of the columns, and over how many columns each goes."""
        return [(group, len(list(same))) for group, same in groupby(g for g, _ in self.heads)]


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


def regret_map(summaries: Sequence[Summary]) -> HeatMap | None:
    """Methods by cells, points below the best row of each; None where no cell has a headline.

    Args:
        summaries: The runs of each experiment.
    """
    try:
        table = regret_table(summaries)
    except ValueError:
        return None
    (block,) = table.blocks
    # In the table † is an oracle; on the page it is a row that was not steady.
    rows = tuple(
        (row[0].text.replace(" †", " (oracle)"), tuple(_regret(entry) for entry in row[1:]))
        for row in block.rows
    )
    return HeatMap("Regret", block.columns[1:], rows, table.notes)


def _regret(entry: Entry) -> Field:
    """A cell "1.2 [0.3, 2.0]" of the table: the interval is told by the pointer."""
    text, bracket, ends = entry.text.partition(" [")
    value = None if text == MISSING else float(text.replace("−", "-"))
    return Field(text, bracket[1:] + ends, _full(value or 0.0), entry.bold, value)


def attack_maps(summary: Summary) -> list[HeatMap]:
    """For each place of a record of attacks: rules by attack and share, points lost.

    Args:
        summary: The runs of an experiment with attacks.
    """
    unsettled = horizon_label(summary)
    found = []
    for where, here in places(losses(summary)):
        columns = here[["attack", "share"]].drop_duplicates().itertuples(index=False, name=None)
        named = sorted(columns)
        known = {(r["method"], r["attack"], r["share"]): r for r in records(here)}
        methods = sorted(here["method"].unique(), key=method_order)
        rows = tuple(
            (method_title(m), tuple(_loss(known.get((m, *column))) for column in named))
            for m in methods
        )
        seeds = sorted(set(here["n"].tolist()))
        said = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        notes = [f"{said} seeds{'; ' if unsettled else ''}{unsettled}."]
        heads = tuple((attack, f"{100 * share:g} %") for attack, share in named)
        found.append(HeatMap(f"{summary.experiment} ({where})", heads, rows, tuple(notes)))
    return found


def _loss(row: Mapping[str, Any] | None) -> Field:
    if row is None:
        return Field(MISSING)
    told = f"{row['n']} seeds"
    if row["n"] >= SHOWN_FROM:
        told = f"[{points(row['low'])}, {points(row['high'])}], {told}"
    value = 100 * row["mean"]
    return Field(points(row["mean"]), told, _full(-value), value=value)


def _full(value: float) -> float:
    return round(min(max(value, 0.0) / _FULL, 1.0), 2)


def standings(compared: Sequence[Standing]) -> list[dict[str, Any]]:
    """A newcomer in each of its cells: where it stands, and minus each row of the record.

    Args:
        compared: The newcomers of one comparison.

    Returns:
        For each ``title``, ``said`` (sentences), ``metrics`` and ``rows``: a rival's title, and for
        each metric the difference in points or None, its ends, and its verdict, which is empty
        below five seeds.
    """
    found: list[dict[str, Any]] = []
    for one in compared:
        said = where_it_stands(one)
        if not one.tuned:
            said.append(UNTUNED.format(newcomer=method_title(one.newcomer)))
        table = {(c.named.cell, c.named.rivals[0], c.named.metric): c for c in one.comparisons}
        for cell in one.cells:
            rivals = [line.method for line in one.lines(cell) if line.method != one.newcomer]
            rows: list[dict[str, Any]] = [
                {
                    "title": method_title(rival),
                    "of": [_difference(one, table.get((cell, rival, m))) for m in one.metrics],
                }
                for rival in rivals
            ]
            found.append(
                {
                    "newcomer": one.newcomer,
                    "title": f"{method_title(one.newcomer)}, {one.summary.cell_name(cell)}",
                    "said": said,
                    "metrics": [(m.short, m.title) for m in one.metrics],
                    "rows": rows,
                    "judged": any(d["verdict"] for row in rows for d in row["of"]),
                }
            )
            said = []
    return found


def _difference(standing: Standing, one: Comparison | None) -> dict[str, Any]:
    if one is None or one.decisive.judged is None:
        return {"gap": None, "low": None, "high": None, "text": MISSING, "verdict": ""}
    gap = one.decisive.judged
    judged = gap.n >= SHOWN_FROM
    ends = {"low": gap.low, "high": gap.high} if judged else {}
    numbers = {"gap": gap.effect, "low": gap.effect, "high": gap.effect} | ends
    return {
        **{name: printed(100 * (value or 0.0)) for name, value in numbers.items()},
        "text": difference_text(one.decisive),
        "verdict": standing.verdict(one) if judged else "",
    }


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
        kinds = rows.groupby("client")["kind"].last()
        of_b = {int(c): bool(kinds.get(c, False)) for c in range(arena.cell.setting.clients)}
        parted = bool(kinds.notna().any())
        clients = sorted(of_b, key=lambda client: (of_b[client], client))
        rounds = sorted(rows["round"].unique().tolist())
        entry: dict[str, Any] = {
            "method": method,
            "seed": int(seed),
            "rounds": rounds,
            "clients": clients,
            "kinds": ["AB"[of_b[client]] if parted else "" for client in clients],
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
    # Charts are to be read against each other, not against the worst trials of all.
    low = max(100 * min(frame["expected_best"].min(), frame["score"].quantile(0.25)) - 1, 0)
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


def speeds(measured: Measurements) -> dict[str, Any]:
    """The measurements of the aggregation.

    Returns:
        ``where`` it was measured; ``rules`` with their looks; rows of ``clients`` and
        ``parameters`` (the share of the memory's speed, in %); and ``sizes``: for each the
        milliseconds of every code.
    """
    rules = sorted({row["rule"] for row in measured.ours("sizes")}, key=method_order)
    look = looks(rules)
    growth = {suite: _growth(measured.ours(suite), rules) for suite in ("clients", "parameters")}
    grown = {row["method"] for rows in growth.values() for row in rows}
    codes = _looks_of_codes(measured)
    return {
        "where": measured.where,
        "rules": [
            {"label": rule, "title": rule_title(rule), "lead": True} | drawn(look[rule])
            for rule in rules
            if rule in grown
        ],
        **growth,
        "codes": [{"title": title} | shown for title, shown in codes.items()],
        "sizes": [
            {
                "title": f"{clients} clients, {parameters:,} parameters",
                "rows": _codes(measured, clients, parameters, rules),
            }
            for clients, parameters in reversed(measured.sizes())
        ],
    }


def _growth(rows: Sequence[Timing], rules: Sequence[str]) -> list[dict[str, Any]]:
    names = ("clients", "parameters")
    return [
        {"method": row["rule"], "share": printed(round(100 * row["floor"], 3))}
        | {name: row[name] for name in names}
        for row in rows
        if row["rule"] in rules and row["floor"]
    ]


def _looks_of_codes(measured: Measurements) -> dict[str, dict[str, Any]]:
    there = {row["code"] for row in measured.suite("sizes")}
    found = {CODES[code]: Look(c, "-", m) for code, (m, c) in MARKS.items() if code in there}
    return {title: drawn(look) for title, look in {"ours": Look(OURS, "-", "o"), **found}.items()}


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
