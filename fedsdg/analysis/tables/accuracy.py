"""Accuracy by method and skew: the README's table, groups, single metrics, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, difference, percent
from fedsdg.analysis.frames import CASE
from fedsdg.analysis.hyperparameters import ranges
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import (
    AGREEING,
    BETTER_BASELINE,
    DIFFERING,
    GLOBAL,
    NEW,
    NOT_RUN,
    OWN,
    OWN_WORST,
    Metric,
    method_title,
    skew_title,
)
from fedsdg.analysis.summary import Setting, Summary
from fedsdg.analysis.tables.layout import (
    Column,
    Row,
    Table,
    interval_notes,
    pivot,
    ranked,
    table_of_views,
)
from fedsdg.analysis.views.accuracy import accuracy

_INTERVAL = (
    "mean ± half-width of the 95 % Student-t interval over seeds; bold: highest mean of a column"
)
_GROUPS = (
    "Personal accuracy (%) of the clients that agree with the common labels and images (A), of "
    "those that differ (B), and of clients that never trained, each on the whole global test set "
    "as it sees it"
)
_DIFFERENCES = (
    " each other method in percentage points: mean of the paired differences over "
    "seeds [95 % Student-t interval]. These differences are described, not tested: verdicts are "
    "for the primary comparisons that were named beforehand"
)
_BETTER_NOTE = (
    f"{method_title(BETTER_BASELINE)}: whichever weighting of FedAvg has the higher mean there; "
    "it is chosen after the fact, in the rival's favour, and is no further test."
)
#: Reported rounds and numbers of a view -> their names in the columns of the raw numbers.
_REPORTED = {"quarter": "last quarter", "selected": "selected round", "last": "last round"}
_NUMBERS = {
    "mean": "mean",
    "half": "half-width of 95 % interval",
    "std": "standard deviation",
}


def personal_accuracy(summary: Summary) -> Table:
    """Mean over clients of the accuracy of their own models; on their own shards as well."""
    return _by_skew(summary, "personal_accuracy", [summary.personal, OWN])


def worst_decile(summary: Summary) -> Table:
    """Mean accuracy of the tenth of the clients with the worst; on their own shards as well."""
    return _by_skew(summary, "worst_decile", [summary.worst, OWN_WORST])


def global_accuracy(summary: Summary) -> Table:
    """Accuracy of the shared parameters alone on the global test set."""
    return _by_skew(summary, "global_accuracy", [GLOBAL])


def main(summary: Summary) -> Table:
    """Personal, worst-decile and global accuracy at every skew, one row per method."""
    what = "Personal, worst-decile and global accuracy (%), "
    caption = f"{what}{summary.rounds[summary.reported]}: {_INTERVAL}"
    metrics = summary.headlines
    return _table(summary, "main", caption, metrics, [("", summary.reported, metrics)])


def groups(summary: Summary) -> Table:
    """Clients that agree (A), clients that differ (B) and new clients, where there are such."""
    metrics = [m for m in (AGREEING, DIFFERING, NEW) if m in summary.metrics]
    caption = f"{_GROUPS}; {summary.rounds[summary.reported]}: {_INTERVAL}"
    if not metrics:
        note = "No client of this experiment differs from the others, and none is held out."
        return table_of_views(summary, "groups", caption, (), pd.DataFrame(), without=note)
    return _table(summary, "groups", caption, metrics, [("", summary.reported, metrics)])


def _by_skew(summary: Summary, name: str, wanted: Sequence[Metric]) -> Table:
    """A block for each metric of the record and each reported round, one column per skew."""
    metrics = [metric for metric in wanted if metric in summary.metrics]
    parts = [
        (f"{metric.title}, {title}" if len(metrics) > 1 else title, at, [metric])
        for metric, (at, title) in product(metrics, summary.rounds.items())
    ]
    caption = f"{'. '.join(metric.definition for metric in metrics)}; {_INTERVAL}"
    return _table(summary, name, caption, metrics, parts)


def _table(
    summary: Summary,
    name: str,
    caption: str,
    metrics: Sequence[Metric],
    parts: Sequence[tuple[str, str, Sequence[Metric]]],
) -> Table:
    """A block for each setting and part: its name, what is reported, and the metrics in it.

    A part without a name has its metrics beside one another below each skew.
    """
    view = accuracy(summary, metrics, [*summary.rounds])
    blocks = []
    for setting, (named, at, shown) in product(summary.settings(), parts):
        columns = [
            Column(
                skew_title(skew) if named else metric.short,
                _accuracy,
                _raw_name(at, "mean"),
                {"skew": skew, "metric": metric.key},
                "" if named else skew_title(skew),
            )
            for skew in summary.skews(setting)
            for metric in shown
        ]
        rows = _of(view, setting)
        # The raw numbers have columns, and not rows, for what is reported.
        rows = rows[rows["at"] == at].drop(columns="at")
        title = ", ".join(filter(None, (setting.title, named)))
        blocks.append(pivot(title, rows, {"method": "Method"}, columns, ranked(summary)))
    notes = _missing(summary, metrics)
    notes += interval_notes(summary, view.drop_duplicates(CASE)["ok"], blocks)
    return table_of_views(summary, name, caption, blocks, _raw(summary, view), notes)


def _raw(summary: Summary, view: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and metric, with all that is reported of it."""
    raw = view[view["at"] == summary.reported][[*CASE, "metric", "runs", "ok"]]
    raw = raw.rename(columns={"ok": "runs ok"}).reset_index(drop=True)
    for at in summary.rounds:
        rows = view[view["at"] == at].reset_index(drop=True)
        rows["half"] = rows["half"].where(rows["n"] >= SHOWN_FROM)
        raw = raw.assign(**{_raw_name(at, number): 100 * rows[number] for number in _NUMBERS})
    return raw


def _of(view: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    return view[(view["dataset"] == setting.dataset) & (view["clients"] == setting.clients)]


def _accuracy(row: Row) -> str:
    """The mean with its interval; "(4/5 ok)" where runs are missing."""
    if not row["started"]:
        return f"{MISSING} ({NOT_RUN})"
    tally = f" ({row['ok']}/{row['runs']} ok)" if row["ok"] < row["runs"] else ""
    if not row["n"]:
        return MISSING + tally
    return percent(row["mean"], row["half"] if row["n"] >= SHOWN_FROM else None) + tally


def _raw_name(at: str, number: str) -> str:
    return f"{_REPORTED[at]} {_NUMBERS[number]} (%)"


def _missing(summary: Summary, metrics: Sequence[Metric]) -> list[str]:
    """Why numbers are missing, of which methods and in which cells."""
    cells: dict[tuple[str, str], list[str]] = {}
    for cell in summary.cells():
        for method in summary.methods(cell.setting):
            runs = [run for run in summary.at(cell) if run["method"] == method]
            for reason in reasons(runs, metrics, summary.reported):
                cells.setdefault((method, reason), []).append(summary.cell_name(cell))
    methods: dict[str, list[str]] = {}
    for (method, reason), where in cells.items():
        everywhere = len(where) == len(summary.cells())
        note = reason + ("" if everywhere else f" ({'; '.join(where)})")
        methods.setdefault(note, []).append(method_title(method))
    everyone = len(summary.methods())
    return [
        f"{'All methods' if len(names) == everyone > 1 else ', '.join(names)}: {note}."
        for note, names in methods.items()
    ]


def reasons(
    runs: Sequence[Mapping[str, Any]], metrics: Sequence[Metric], reported: str
) -> list[str]:
    """Why numbers of a method are missing, or rest on fewer runs than were asked for.

    Args:
        runs: The method's rows of runs.parquet in one cell.
        metrics: The metrics that are shown.
        reported: Which of ``Summary.rounds`` is shown.
    """
    if all(run["status"] == NOT_RUN for run in runs):
        return []  # the cell itself says so
    failed = [run for run in runs if run["status"] not in ("ok", NOT_RUN)]
    reasons = [f"seed {run['seed']} failed with “{_first_line(run['error'])}”" for run in failed]
    if left := [run["seed"] for run in runs if run["status"] == NOT_RUN]:
        reasons.append(f"{NOT_RUN}: seed{'s' * (len(left) > 1)} {ranges(left)}")
    ok = [run for run in runs if run["status"] == "ok"]
    for metric in metrics:
        if ok and all(run.get(f"{reported}_{metric.key}") is None for run in ok):
            private = metric == GLOBAL and all(run["communicated_parameters"] == 0 for run in ok)
            why = (
                "every parameter is private, so there is no global model"
                if private
                else "the runs did not evaluate it"
            )
            reasons.append(f"{MISSING} no {metric.title}: {why}")
    return reasons


def _first_line(error: str | None, length: int = 160) -> str:
    """Enough of an error to recognise it; result.json has the rest."""
    line = (error or "no error was recorded").strip().partition("\n")[0]
    return line if len(line) <= length else f"{line[: length - 1]}…"


def differences(summary: Summary) -> Table:
    """Blocks by metric; the CSV has the validation-selected round as well, and no test."""
    view = summary.frame("differences").drop(columns=["experiment", "p", "p_holm"])
    subject = summary.roles.subject
    minus = f"{method_title(subject)} minus"
    rows = view[view["at"] == summary.reported]
    blocks = []
    for setting in summary.settings():
        columns = [
            Column(skew_title(skew), _difference, "mean (percentage points)", {"skew": skew})
            for skew in summary.skews(setting)
        ]
        here = _of(rows, setting)
        for metric in summary.metrics:
            title = f"{setting.title}, {metric.title}, {summary.rounds[summary.reported]}"
            part = here[here["metric"] == metric.key]
            blocks.append(pivot(title, part, {"rival": minus}, columns))
    notes = [_BETTER_NOTE] if (rows["rival"] == BETTER_BASELINE).any() else []
    if view.empty:
        notes.append(f"No rows: the experiment has no finished run of '{subject}' beside others.")
    notes += interval_notes(summary, rows["n"], ())
    shares = ["subject_mean", "rival_mean", "mean", "half_width", "low", "high"]
    raw = view.assign(**{name: 100 * view[name] for name in shares})
    raw = raw.rename(columns={name: f"{name} (percentage points)" for name in shares})
    return table_of_views(summary, "differences", f"{minus}{_DIFFERENCES}", blocks, raw, notes)


def _difference(row: Row) -> str:
    text = difference(row["n"], row["mean"], row["low"], row["high"])
    return text if "[" in text else f"{text} (n = {row['n']})"
