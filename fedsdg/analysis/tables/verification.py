"""The specification's checks while FedSDG runs, and after: expected and measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING
from fedsdg.analysis.judge import LEAST_SEEDS, Judgement, Threshold, judge
from fedsdg.analysis.measures import MEASURES, Case, LackingError, Record, Values
from fedsdg.analysis.names import method_title, skew_title
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table, block, table_of_views

_CAPTION = (
    "The specification's run-time checks of FedSDG. Measured: mean over seeds with the 95 % "
    "Student-t interval, cut at 0 and 100 %; gates and norms are means over clients and over the "
    "evaluations in the last quarter of the rounds. As expected: the whole interval is on the "
    "expected side; contradicted: on the other; undecided: neither, or fewer than five seeds"
)
_VERDICTS = {"supported": "as expected", "refuted": "contradicted", "undecided": "undecided"}
_GROUPS = {"all": "", "agree": ", clients that agree", "conflict": ", clients in conflict"}
_PLACE = ("dataset", "num_clients")
COLUMNS = [
    *("skew", "method", "check", "clients", "expected"),
    *("n", "mean", "low", "high", "verdict"),
]


@dataclass(frozen=True)
class _Check:
    """A measure with its options, what is expected of it, and whether groups are told apart."""

    title: str
    measure: str
    options: dict[str, Any]
    threshold: Threshold
    expected: str
    grouped: bool = False
    decimals: int = 2


def _checks(gates: int, first: float) -> list[_Check]:
    """The checks of a model with so many gates, which began at the value ``first``."""
    start = gates * first
    near = Threshold(start - 0.1 * start, start + 0.1 * start)
    falls, small = Threshold(None, 0.0), Threshold(None, 0.1)
    most, few = Threshold(50.0, 80.0), Threshold(0.0, 20.0)
    gate, private = {"of": "gate"}, {"of": "private"}
    rows: list[tuple[str, str, dict[str, Any], Threshold, str, bool, int]] = [
        ("Σ of the gates after the first round",
         "penalty", gate | {"at": "first"}, near, f"{start:.2f} ± 10 %", False, 2),
        ("Σ of the gates, last quarter minus first round",
         "penalty", gate | {"at": "change"}, falls, "< 0", False, 2),
        ("‖θ_p‖² after the first round",
         "penalty", private | {"at": "first"}, small, "< 0.1", False, 3),
        ("‖θ_p‖² at its largest",
         "penalty", private | {"at": "largest"}, small, "< 0.1", False, 3),
        ("‖θ_p‖ / ‖θ_g‖",
         "private ratio", {}, Threshold(0.05, 0.2), "0.1, from 0.05 to 0.2", True, 2),
        ("Gates below 0.1 (%)", "gate share", {"below": 0.1}, most, "50 to 80", True, 1),
        ("Gates above 0.9 (%)", "gate share", {"above": 0.9}, few, "at most 20", True, 1),
        ("Gates from 0.4 to 0.6 (%)",
         "gate share", {"above": 0.4, "below": 0.6}, few, "at most 20", True, 1),
        ("ρ over clients between mean gate and local steps",
         "gates and steps", {}, Threshold(-0.3, 0.3), "from −0.3 to 0.3", False, 2),
    ]  # fmt: skip
    return [_Check(*row) for row in rows]


def verification(summary: Summary) -> Table:
    """A block for each cell and row with gates: check, expected, measured, verdict."""
    record = Record(summary)
    rows: list[dict[str, Any]] = []
    blocks: list[Block] = []
    several = len(summary.settings()) > 1
    columns = [*(_PLACE if several else ()), *COLUMNS]
    for cell in summary.cells():
        setting = cell.setting
        place = {"dataset": setting.dataset, "num_clients": setting.clients} if several else {}
        for method in summary.methods(setting):
            lines = list(_lines(record, cell, method, place))
            if lines:
                where = f"{setting.title}, " if several else ""
                title = f"{where}{skew_title(cell.skew)}, {method_title(method)}"
                heads = ["Check", "Expected", "Measured", "Verdict"]
                blocks.append(block(title, heads, [shown for _, shown in lines]))
                rows += [row for row, _ in lines]
    notes: list[str] = []
    if any(row["n"] < LEAST_SEEDS for row in rows):
        notes = [f"Fewer than {LEAST_SEEDS} seeds: means only, and nothing is decided."]
    raw, none = pd.DataFrame(rows, columns=columns), "No row of this experiment has learned gates."
    return table_of_views(summary, "verification", _CAPTION, blocks, raw, notes, none)


def _lines(
    record: Record, cell: Cell, method: str, place: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], list[str | Entry]]]:
    """(raw row, cells) of every check that the record can answer; every raw row has the place."""
    skew, setting = cell.skew, cell.setting
    case = Case(skew, method, {}, setting.dataset, setting.clients)
    try:
        parameters = record.settings(case).get("parameters", {})
        gates = [run.rows("clients", "gates")["gates"] for run in record.runs(case).values()]
    except LackingError:
        return
    count = max(len(values) for one in gates for values in one.dropna())
    first = 1 / (1 + math.exp(-float(parameters.get("gate_init", 0.0))))
    for check in _checks(count, first):
        for clients, words in _GROUPS.items():
            if clients != "all" and not check.grouped:
                continue
            options = check.options if clients == "all" else check.options | {"clients": clients}
            try:
                values = _values(record, replace(case, options=options), check)
            except LackingError:
                continue
            measure = MEASURES[check.measure]
            judged = judge(
                list(values.values()),
                check.threshold,
                correlation=measure.correlation,
                bounds=measure.bounds,
            )
            verdict = _VERDICTS[judged.verdict]
            row: dict[str, Any] = {
                **place,
                "skew": skew,
                "method": method,
                "check": check.title,
                "clients": clients,
            }
            measured = Entry(_measured(judged, check)).of("mean", dict(row))
            row |= {"expected": check.expected, "n": judged.n, "mean": judged.effect}
            row |= {"low": judged.low, "high": judged.high, "verdict": verdict}
            yield row, [check.title + words, check.expected, measured, verdict]


def _values(record: Record, case: Case, check: _Check) -> Values:
    """The check's numbers; a change is the last quarter's less the first round's."""
    function = MEASURES[check.measure].function
    if case.options.get("at") != "change":
        return function(record, case)
    ends = [
        function(record, replace(case, options={**case.options, "at": at}))
        for at in ("quarter", "first")
    ]
    return {seed: ends[0][seed] - ends[1][seed] for seed in ends[0]}


def _measured(judged: Judgement, check: _Check) -> str:
    if not math.isfinite(judged.effect):
        return MISSING
    digits = check.decimals
    text = f"{judged.effect:.{digits}f}"
    if judged.low is not None and judged.high is not None:
        text += f" [{judged.low:.{digits}f}, {judged.high:.{digits}f}]"
    return text.replace("-", "−")
