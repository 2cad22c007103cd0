"""State of training at its end: steady, rising, past its best, or impossible to tell.

The last quarter of the rounds (round > 3R/4) is compared with the quarter before it
(R/2 < round ≤ 3R/4), each by the mean of its evaluations, paired by seed, for every metric that is
reported: the headline, and the clients that agree (A) and that differ (B) apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from fedsdg.analysis.inference import Interval, mean_interval
from fedsdg.analysis.names import AGREEING, DIFFERING, method_title
from fedsdg.analysis.summary import Cell, Summary

#: Evaluations that either quarter must hold.
EVALUATIONS = 3
#: A change whose whole interval lies within ± this share of 1 is none.
MARGIN = 0.01

STEADY, RISING, PAST, CANNOT_TELL = "steady", "rising", "past its best", "cannot tell"
#: The phrase of titles and captions about a row; empty where the row is steady.
PHRASES = {
    STEADY: "",
    RISING: "still rising at round {}",
    PAST: "past its best at round {}",
    CANNOT_TELL: "not known to be steady at round {}",
}
#: Below this, η_m × the local steps of a median client, gates cannot have moved: Adam moves a logit
#: by about η_m a step.
GATES_MOVE = 3.0
#: The note on a row whose gates cannot have moved.
FIXED_BY_TUNING = "gates fixed by tuning"
#: The quarter before the last, as a reported value beside those of runs.parquet.
BEFORE = "before"

RUN = ["dataset", "clients", "skew", "method", "seed"]
_ROW = RUN[:-1]
_NAMED = 3  # methods that a label names; of more it says how many there are


def word(change: Interval | None) -> str:
    """The horizon word of a change over seeds [shares of 1]; None where there is no change.

    Steady is tested first: an interval within ±1 point. Otherwise its sign is shown, if it has one.
    """
    if change is None or change.low is None or change.high is None:
        return CANNOT_TELL
    if change.low > -MARGIN and change.high < MARGIN:
        return STEADY
    if change.low > 0:
        return RISING
    return PAST if change.high < 0 else CANNOT_TELL


@lru_cache(maxsize=16)
def quarters(summary: Summary, metric: str) -> pd.DataFrame:
    """The means of a metric in the last quarter of each run and in the quarter before.

    Args:
        summary: The runs.
        metric: A column of the records of rounds.

    Returns:
        A row per finished run: the columns of ``RUN``, ``rounds`` (the run's length), ``before``
        and ``last`` (shares of 1, NaN without an evaluation there), and ``evaluations``, the
        smaller number of the two quarters.
    """
    columns = ["round", "evaluated"]
    frame = summary.frame("rounds", [*RUN, *columns], [metric], pc.field("evaluated"))
    lengths = pd.DataFrame(
        [
            [*(run[name] for name in RUN), run["rounds"]]
            for run in summary.runs
            if run["status"] == "ok" and run["rounds"]
        ],
        columns=[*RUN, "rounds"],
    )
    frame = frame.merge(lengths, on=RUN)
    last = 4 * frame["round"] > 3 * frame["rounds"]
    before = ~last & (2 * frame["round"] > frame["rounds"])
    values = frame[metric].astype(float)
    parts = frame.assign(
        last=values.where(last), before=values.where(before), lasts=last, befores=before
    ).groupby(RUN, sort=False)
    means = parts[["before", "last"]].mean()
    counts = parts[["lasts", "befores"]].sum().min(axis=1)
    return means.assign(evaluations=counts, rounds=parts["rounds"].first()).reset_index()


@lru_cache(maxsize=8)
def horizons(summary: Summary) -> pd.DataFrame:
    """The horizon of every row, in the headline and, where clients differ, in A and B.

    Returns:
        Columns dataset, clients, skew, method, metric, ``rounds``, ``evaluations``, ``seeds``,
        ``change``, ``low``, ``high`` (last quarter minus the one before, shares of 1; NaN where
        there is none) and ``word``. Rows stand in the summary's order, of methods with a finished
        run.
    """
    metrics = [summary.personal, *(m for m in (AGREEING, DIFFERING) if m in summary.metrics)]
    rows = []
    for metric in metrics:
        for key, runs in quarters(summary, metric.key).groupby(_ROW, sort=False):
            changes = (runs["last"] - runs["before"]).dropna().to_numpy()
            evaluations = int(runs["evaluations"].min())
            enough = len(changes) and evaluations >= EVALUATIONS
            change = mean_interval(changes) if len(changes) else None
            rows.append(
                {
                    **dict(zip(_ROW, key, strict=True)),
                    "metric": metric.key,
                    "rounds": int(runs["rounds"].max()),
                    "evaluations": evaluations,
                    "seeds": len(runs),
                    "change": np.nan if change is None else change.mean,
                    "low": np.nan if change is None else change.low,
                    "high": np.nan if change is None else change.high,
                    "word": word(change if enough else None),
                }
            )
    order: dict[tuple[Any, ...], int] = {
        (*cell.place.values(), method): number
        for number, (cell, method) in enumerate(
            (cell, method) for cell in summary.cells() for method in summary.methods(cell.setting)
        )
    }
    rows.sort(key=lambda row: order[tuple(row[name] for name in _ROW)])
    names = [*_ROW, "metric", "rounds", "evaluations", "seeds", "change", "low", "high", "word"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.astype(dict.fromkeys(("change", "low", "high"), float))


def horizon_of(summary: Summary, cell: Cell, method: str, metric: str | None = None) -> str:
    """The word of one row in one metric, the headline by default; "" where nothing was run.

    Args:
        summary: The runs.
        cell: One of its cells.
        method: The label of the row.
        metric: The key of the headline, or of the accuracy of the clients that agree or that
            differ; None: the headline.

    Returns:
        A key of ``PHRASES``, or "" where ``horizons`` has no such row.
    """
    frame = horizons(summary)
    here = frame[cell.matches(frame) & (frame["method"] == method)]
    words = here.loc[here["metric"] == (metric or summary.personal.key), "word"]
    return str(words.iloc[0]) if len(words) else ""


def phrase(row: Mapping[str, object]) -> str:
    """Return a title's phrase for a row of ``horizons``: "still rising at round 60", or ""."""
    return PHRASES[str(row["word"])].format(row["rounds"])


def horizon_label(
    summary: Summary, cell: Cell | None = None, methods: Iterable[str] | None = None
) -> str:
    """Return the horizon that a title must state; empty where all rows shown are steady.

    "still rising at round 20" where that holds for all methods shown, in a cell or in all cells;
    otherwise those for which it holds are named, or counted where there are many: "past its best
    at round 60: Krum, FedSGD".

    Args:
        summary: The runs; only their headline counts.
        cell: The cell that is shown; None: all cells.
        methods: The labels of the rows that are shown; None: all rows.
    """
    frame = horizons(summary)
    frame = frame[frame["metric"] == summary.personal.key]
    if cell is not None:
        frame = frame[cell.matches(frame)]
    if methods is not None:
        frame = frame[frame["method"].isin(set(methods))]
    parts = []
    for text, rows in _by_phrase(frame):
        if len(rows) == len(frame):
            return text
        names = list(dict.fromkeys(rows["method"]))
        if len(names) <= _NAMED:
            parts.append(f"{text}: {', '.join(map(method_title, names))}")
        else:
            parts.append(f"{text}: {len(names)} of {frame['method'].nunique()} methods")
    return "; ".join(parts)


def horizon_notes(summary: Summary) -> tuple[str, ...]:
    """The notes of a table: which methods were not steady when training ended, and where."""
    frame = horizons(summary)
    frame = frame[frame["metric"] == summary.personal.key]
    notes = []
    for text, rows in _by_phrase(frame):
        sentence = text[0].upper() + text[1:]
        if len(rows) == len(frame):
            notes.append(f"{sentence}: all methods.")
            continue
        alike: dict[str, list[str]] = {}
        for method, own in rows.groupby("method", sort=False):
            cells = [cell for cell in summary.cells() if cell.matches(own).any()]
            everywhere = len(own) == int((frame["method"] == method).sum())
            where = "" if everywhere else f" ({'; '.join(map(summary.cell_name, cells))})"
            alike.setdefault(where, []).append(method_title(str(method)))
        listed = "; ".join(f"{', '.join(names)}{where}" for where, names in alike.items())
        notes.append(f"{sentence}: {listed}.")
    return tuple(notes)


def _by_phrase(frame: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """(phrase, rows) of what is not steady, as the phrases first appear."""
    phrases = frame.apply(phrase, axis=1) if len(frame) else pd.Series(dtype=str)
    return ((text, frame[phrases == text]) for text in dict.fromkeys(phrases) if text)


def reported_values(
    summary: Summary, cell: Cell, metric: str, at: str
) -> dict[str, dict[int, float]]:
    """Method → seed → a metric as reported [shares of 1].

    Args:
        summary: The runs.
        cell: Where.
        metric: The key of a metric.
        at: A reported round of ``summary.rounds``, or ``BEFORE``: the mean of the quarter before
            the last.

    Returns:
        The values of runs that are ok and have one.
    """
    if at != BEFORE:
        return summary.reported_values(cell, metric, at)
    frame = quarters(summary, metric)
    here = frame[cell.matches(frame)].dropna(subset=["before"])
    return {
        str(method): dict(zip(own["seed"].tolist(), own["before"].tolist(), strict=True))
        for method, own in here.groupby("method", sort=False)
    }


@lru_cache(maxsize=8)
def gate_moves(summary: Summary) -> pd.DataFrame:
    """Measure how far gates can have moved and where they ended, for every row that learns them.

    Returns:
        Columns dataset, clients, skew, method, ``travel`` (η_m × the local steps of a median
        client), ``gates_a`` and ``gates_b`` (means over the clients that agree, all where none
        differs, and over those that differ, in the last evaluation); means over seeds, NaN where
        there is no value. Records that lack these columns of runs.parquet are read client by
        client.
    """
    runs = [run for run in summary.runs if run["status"] == "ok"]
    names = ("travel", "gates_a", "gates_b")
    if any(run.get("gate_travel") is not None for run in runs):
        values = [[run.get(f"gate_{n}" if n == "travel" else n) for n in names] for run in runs]
        identities = [[run[name] for name in RUN] for run in runs]
        frame = pd.DataFrame(
            [[*one, *own] for one, own in zip(identities, values, strict=True)],
            columns=[*RUN, *names],
        ).astype(dict.fromkeys(names, float))
        frame = frame.dropna(subset=["travel"])
    else:
        frame = _gate_moves_of_clients(summary, runs)
    return frame.groupby(_ROW, sort=False)[list(names)].mean().reset_index()


def _gate_moves_of_clients(summary: Summary, runs: list[dict[str, Any]]) -> pd.DataFrame:
    columns = [*RUN, "round", "client", "local_steps", "gates", "val_accuracy"]
    clients = summary.frame("clients", columns, ["conflicts"])
    facts = pd.DataFrame(
        [[*(run[name] for name in RUN), _gate_rate(run)] for run in runs if run["config"]],
        columns=[*RUN, "rate"],
    )
    steps = clients.groupby([*RUN, "client"], sort=False)["local_steps"].sum()
    travel = steps.groupby(RUN, sort=False).median().rename("steps").reset_index()
    evaluated = clients[clients["val_accuracy"].notna()]
    last = evaluated.groupby(RUN, sort=False)["round"].max().rename("round").reset_index()
    late = evaluated.dropna(subset=["gates"]).merge(last, on=[*RUN, "round"])
    late = late.merge(facts, on=RUN).dropna(subset=["rate"])
    late = late.assign(gate=[float(np.mean(gates)) for gates in late["gates"]])
    by_client = late.groupby([*RUN, "rate", "client", late["conflicts"].eq(True)], sort=False)
    means = by_client["gate"].mean().groupby([*RUN, "rate", "conflicts"], sort=False).mean()
    table = means.unstack("conflicts").rename(columns={False: "gates_a", True: "gates_b"})
    table = table.reindex(columns=["gates_a", "gates_b"]).reset_index().merge(travel, on=RUN)
    return table.assign(travel=table["rate"] * table["steps"])


def _gate_rate(run: Mapping[str, Any]) -> float | None:
    """η_m of a run; None where its gates are fixed."""
    config = json.loads(run["config"])
    if config.get("parameters", {}).get("gate_fixed") is not None:
        return None
    rate = config.get("training", {}).get("eta_m")
    return None if rate is None else float(rate)
