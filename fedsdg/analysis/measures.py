"""The measures of the ledger: one number per seed, for one row in one cell of a record.

Most measures are a number of one run; every one is entered in ``MEASURES`` by its name where it is
defined. A record from before a column was written cannot answer, and says so (``LackingError``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.horizon import reported_values
from fedsdg.analysis.inference import spearman
from fedsdg.analysis.names import method_order
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.analysis.views.regret import oracles, shortfalls
from fedsdg.files import read_json
from fedsdg.files.places import split_setting

#: Seed → number.
Values = dict[int, float]


class LackingError(LookupError):
    """The record cannot answer yet: a row, a cell or a column is not there."""


@dataclass(frozen=True)
class Case:
    """The place of a measurement: a cell, a row, and the options of the measure.

    A record of several data sets, or numbers of clients, needs their names as well. ``at`` is a
    reported round of the summary, or the quarter before the last; "": the first reported one.
    """

    cell: str
    method: str
    options: Mapping[str, Any]
    dataset: str | None = None
    clients: int | None = None
    at: str = ""

    def __str__(self) -> str:
        """Name the row and the cell."""
        return f"{self.method} at {self.cell}"


class Record:
    """The record of one experiment as measures read it: whole tables, read once."""

    def __init__(self, summary: Summary) -> None:
        """Read nothing yet; tables are read when asked for, and kept."""
        self.summary = summary
        self._tables: dict[str, tuple[pd.DataFrame, Mapping[Any, Any]]] = {}

    def runs(self, case: Case) -> dict[int, Run]:
        """Return the run of every seed whose run went well, at least one.

        Raises:
            LackingError: There is none, or seeds are those of several data sets or federations.
        """
        runs = [
            run
            for run in self.summary.runs
            if (run["skew"], run["method"], run["status"]) == (case.cell, case.method, "ok")
            and case.dataset in (None, run["dataset"])
            and case.clients in (None, run["clients"])
        ]
        if not runs:
            on = f" on {case.dataset}" if case.dataset else ""
            raise LackingError(f"the record has no run of {case}{on} yet")
        if len(datasets := {run["dataset"] for run in runs}) > 1:
            raise LackingError(
                f"{case} has runs on {', '.join(sorted(datasets))}: name one with 'dataset'"
            )
        if len(sizes := {run["clients"] for run in runs}) > 1:
            raise LackingError(
                f"{case} has runs of {', '.join(map(str, sorted(sizes)))} clients, which a claim "
                f"cannot tell apart: record them as two experiments"
            )
        return {int(run["seed"]): Run(self, run) for run in runs}

    def place(self, case: Case) -> Cell:
        """The cell of the summary in which a case lies."""
        return Cell.of(next(iter(self.runs(case).values())).row)

    def settings(self, case: Case) -> dict[str, Any]:
        """The config of the first of these runs."""
        return next(iter(self.runs(case).values())).config

    def rows(self, table: str, run: Mapping[str, Any]) -> pd.DataFrame:
        """The rows of a table that belong to a run.

        Args:
            table: ``rounds``, ``clients`` or ``timings``.
            run: A row of runs.parquet.
        """
        if table not in self._tables:
            frame = self.summary.frame(table)
            self._tables[table] = frame, frame.groupby(_RUN).indices
        frame, places = self._tables[table]
        return frame.iloc[places.get(tuple(run[name] for name in _RUN), [])]


_RUN = ["dataset", "clients", "skew", "method", "seed"]


@dataclass(frozen=True)
class Run:
    """A run of a record: its row of runs.parquet, and its rows of the other tables."""

    record: Record
    row: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The config that it was made with."""
        return dict(json.loads(self.row["config"]))

    def rows(self, table: str, *columns: str) -> pd.DataFrame:
        """Its rows of a table; each of ``columns`` has a value in some.

        Args:
            table: ``rounds``, ``clients`` or ``timings``.
            *columns: Columns that the measure needs.

        Raises:
            LackingError: A column has no value in any of them.
        """
        rows = self.record.rows(table, self.row)
        for name in columns:
            if name not in rows or rows[name].isna().all():
                raise LackingError(f"the record has no {name} of {self.row['method']} yet")
        return rows

    def late_clients(self, column: str, group: str = "all") -> pd.DataFrame:
        """Clients' rows of the last quarter's evaluations that have a value in a column.

        Args:
            column: The column, which the result has as ``value``, too.
            group: "all"; "conflict", those whose labels or images differ; or "agree", the others.

        Raises:
            LackingError: There is no such row.
        """
        rows = self.rows("clients", column)
        rows = rows[after(rows, 3 / 4) & rows["val_accuracy"].notna()].dropna(subset=[column])
        rows = self.of_group(rows.assign(value=rows[column]), group)
        if rows.empty:
            raise LackingError(f"no client of {self.row['method']} has {column}")
        return rows

    def of_group(self, rows: pd.DataFrame, group: str) -> pd.DataFrame:
        """Those of a run's rows that belong to a group of clients.

        Args:
            rows: Rows of clients, with a column ``conflicts`` where the group is not "all".
            group: "all", "agree" or "conflict".
        """
        if group == "all":
            return rows
        self.rows("clients", "conflicts")
        return rows[rows["conflicts"].astype(bool) == (group == "conflict")]


def after(rows: pd.DataFrame, share: float) -> pd.Series:
    """Which rows belong to the rounds after this share of the run.

    Args:
        rows: Rows of one run with its column ``round``; the largest round is the run's length.
        share: Of that length, between 0 and 1.

    Returns:
        A boolean mask of ``rows``.
    """
    return rows["round"] > share * rows["round"].max()


Options = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A measure and how its number is read.

    ``unit`` stands behind the number in print. ``options`` are the names it takes, with their
    choices where these are few; ``needs`` those that must be given. ``exact``: the number is
    counted, so that any number of seeds decides, and training has no part in it.
    ``correlation``: it is one, in [−1, 1]. ``bounds``: where it can lie (a difference of two has
    none). ``learned``: it depends on how far training has come. ``rounds``: it can be read at each
    reported round. ``gates``: it says something of gates, which a row whose gates cannot have moved
    does not. ``level``: it is an accuracy itself, so that it has an interval over seeds and images.
    """

    function: Callable[[Record, Case], Values]
    unit: str = ""
    options: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    exact: bool = False
    correlation: bool = False
    bounds: tuple[float, float] | None = None
    needs: tuple[str, ...] = ()
    learned: bool = True
    rounds: bool = False
    gates: bool = False
    level: bool = False


_PERCENT = (0.0, 100.0)
_CLIENTS = MappingProxyType({"clients": ("all", "agree", "conflict")})
_ACCURACIES = (
    "personal_accuracy",
    "personal_worst_decile",
    "personal_accuracy_weighted",
    "val_accuracy",
    "expected_accuracy",
    "expected_worst_decile",
    "expected_accuracy_a",
    "expected_accuracy_b",
    "expected_accuracy_new",
    "global_accuracy",
    "global_val_accuracy",
)
_CREDITS = ("weight", "alignment", "credibility", "contribution", "shapley_estimate")

#: Name → measure; the docstring of its function says what it is.
MEASURES: dict[str, Measure] = {}


def _measure(
    name: str, unit: str = "", **facts: Any
) -> Callable[[Callable[[Run, Options], float | None]], Callable[[Run, Options], float | None]]:
    """Enter a measure that makes a number of each run; seeds that have none are left out."""

    def enter(
        number: Callable[[Run, Options], float | None],
    ) -> Callable[[Run, Options], float | None]:
        def by_seed(record: Record, case: Case) -> Values:
            values, why = {}, f"what it compares does not vary in {case}"
            for seed, run in record.runs(case).items():
                try:
                    value = number(run, case.options)
                except LackingError as error:
                    why = str(error.args[0])
                else:
                    if value is not None:
                        values[seed] = float(value)
            if not values:
                raise LackingError(why)
            return values

        MEASURES[name] = Measure(by_seed, unit, **facts)
        return number

    return enter


# --- Accuracy -------------------------------------------------------------------------------------


def _accuracy(record: Record, case: Case) -> Values:
    """An accuracy in the round selected on validation data, or in another reported round."""
    metric, at = case.options["metric"], case.at or record.summary.reported
    cell = record.place(case)
    values = reported_values(record.summary, cell, metric, at).get(case.method, {})
    if not values:
        raise LackingError(f"the record has no {metric} of {case} yet")
    return {seed: 100 * value for seed, value in values.items()}


def _regret(record: Record, case: Case) -> Values:
    """Points below the best row of the cell, chosen on half of the seeds, measured on the other."""
    metric, at = case.options["metric"], case.at or record.summary.reported
    gaps = shortfalls(record.summary, record.place(case), metric, at).get(case.method, {})
    if not gaps:
        raise LackingError(f"the record has no {metric} of {case} beside that of the best row yet")
    return {seed: 100 * gap for seed, gap in gaps.items()}


_METRIC = {"metric": _ACCURACIES}
MEASURES["accuracy"] = Measure(
    _accuracy, "%", _METRIC, bounds=_PERCENT, needs=("metric",), rounds=True, level=True
)
# Others none: the threshold is claimed of no other row.
MEASURES["regret"] = Measure(
    _regret, "points", _METRIC | {"others": ("none",)}, needs=("metric",), rounds=True
)


def other_rows(record: Record, case: Case) -> list[str]:
    """The rows of the case's cell but its own and oracles, which are outside of every rank.

    Args:
        record: Of one experiment.
        case: A row in a cell.
    """
    cell = record.place(case)
    here = {run["method"] for run in record.summary.at(cell) if run["status"] == "ok"}
    return sorted(here - oracles(record.summary, cell) - {case.method}, key=method_order)


def answers_by_image(record: Record, case: Case, seeds: Iterable[int]) -> np.ndarray | None:
    """The share of clients that are right about each test image, in the selected round.

    Args:
        record: Of one experiment.
        case: A row; the option ``metric`` says which clients count: all, those that agree or those
            that differ.
        seeds: The seeds that are wanted.

    Returns:
        [S, I] shares of 1. None where the record has no answers per image, where the metric is no
        mean over clients, and under label skew, where clients are not asked about every image.
    """
    groups = {
        "expected_accuracy": "all",
        "expected_accuracy_a": "agree",
        "expected_accuracy_b": "conflict",
    }
    group = groups.get(case.options["metric"])
    if group is None or split_setting(case.cell)[0] != "iid":
        return None
    runs, shares = record.runs(case), []
    for seed in seeds:
        rows = record.rows("clients", runs[seed].row)
        if "answers" not in rows or rows["answers"].isna().all():
            return None
        rows = runs[seed].of_group(rows[rows["answers"].notna()], group)
        if rows.empty:
            return None
        bits = [np.unpackbits(np.frombuffer(one, np.uint8)) for one in rows["answers"]]
        shares.append(np.stack(bits).mean(axis=0))
    images = np.stack(shares)
    # What is left of the last byte is zero for everybody.
    unused = next((k for k in range(8) if images[:, images.shape[1] - 1 - k].any()), 0)
    return images[:, : images.shape[1] - unused]


@_measure("swing", "points")
def _swing(run: Run, _: Options) -> float:
    """Mean change, without its sign, of global accuracy between evaluations of the second half."""
    rounds = run.rows("rounds", "global_accuracy")
    late = rounds[rounds["global_accuracy"].notna() & after(rounds, 1 / 2)]
    if len(late) < 3:
        raise LackingError(f"the runs of {run.row['method']} are evaluated too seldom for it")
    accuracy = late.sort_values("round")["global_accuracy"].to_numpy(float)
    return 100 * float(np.abs(np.diff(accuracy)).mean())


# --- Gates and private parts ----------------------------------------------------------------------


@_measure(
    "penalty",
    options={"of": ("gate", "private"), "at": ("first", "quarter", "largest")},
    needs=("of",),
)
def _penalty(run: Run, options: Options) -> float:
    """Σ of the gates, or Σ of squares of the private parameters, mean over a cohort.

    After the first round, in the last quarter of the rounds, or the largest of all rounds.
    """
    name = f"{options['of']}_penalty"
    rounds = run.rows("rounds", name)
    rows = rounds.dropna(subset=[name]).sort_values("round")[["round", name]]
    late = rows.loc[after(rows, 3 / 4), name]
    picks = {"first": rows[name].iloc[0], "quarter": late.mean(), "largest": rows[name].max()}
    return float(picks[options.get("at", "quarter")])


def _over_clients(
    run: Run, options: Options, column: str, number: Callable[[np.ndarray], np.ndarray]
) -> float:
    """Mean over clients of their means in the last quarter's evaluations.

    ``number`` makes a number of each row of the column's values [rows, blocks] (or [rows, 1]).
    """
    rows = run.late_clients(column, options.get("clients", "all"))
    stacked = np.stack([np.atleast_1d(np.asarray(v, dtype=float)) for v in rows["value"]])
    by_row = pd.Series(number(stacked), index=rows.index)
    return float(by_row.groupby(rows["client"]).mean().mean())


def _mean(values: np.ndarray) -> np.ndarray:
    return np.mean(values, axis=1)


@_measure(
    "gate share",
    "%",
    options={"above": None, "below": None, **_CLIENTS},
    bounds=_PERCENT,
    gates=True,
)
def _gate_share(run: Run, options: Options) -> float:
    """Share of a client's gates in a range, mean over clients."""
    low, high = options.get("above", -math.inf), options.get("below", math.inf)
    return 100 * _over_clients(run, options, "gates", lambda m: _mean((m > low) & (m < high)))


@_measure("gate extremes", "%", options=_CLIENTS, bounds=_PERCENT, gates=True)
def _gate_extremes(run: Run, options: Options) -> float:
    """Share of a client's gates below 0.1 or above 0.9, mean over clients."""
    return 100 * _over_clients(run, options, "gates", lambda m: _mean((m < 0.1) | (m > 0.9)))


@_measure("gate", options=_CLIENTS, gates=True)
def _gate(run: Run, options: Options) -> float:
    """Mean gate of a client, mean over clients."""
    return _over_clients(run, options, "gates", _mean)


@_measure("spread over blocks", options={"of": ("gates", "private_shares"), **_CLIENTS}, gates=True)
def _spread(run: Run, options: Options) -> float:
    """Largest minus smallest gate, or private share, of a client's blocks, mean over clients."""
    return _over_clients(run, options, options.get("of", "gates"), lambda m: np.ptp(m, axis=1))


@_measure("private share", options=_CLIENTS)
def _private_share(run: Run, options: Options) -> float:
    """‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), mean over blocks and clients."""
    return _over_clients(run, options, "private_shares", _mean)


@_measure("private ratio", options=_CLIENTS)
def _private_ratio(run: Run, options: Options) -> float:
    """‖θ_p‖ / ‖θ_g‖ of the adapters, mean over clients."""
    return _over_clients(run, options, "private_ratio", _mean)


@_measure("gates and steps", options=_CLIENTS, correlation=True, gates=True)
def _gates_and_steps(run: Run, options: Options) -> float | None:
    """Spearman's ρ over clients between mean gate and local steps taken."""
    rows = run.late_clients("gates", options.get("clients", "all"))
    gates = rows["value"].map(np.mean).astype(float).groupby(rows["client"]).mean()
    steps = run.rows("clients", "local_steps").groupby("client")["local_steps"].sum()
    return spearman(gates.to_numpy(), steps.reindex(gates.index).to_numpy(float))


# --- Weights and credit ---------------------------------------------------------------------------


def _shares(rows: pd.DataFrame) -> pd.Series:
    """Weights in units of an equal share: cohorts differ in size where clients leave."""
    return rows["weight"] * rows.groupby("round")["weight"].transform("count")


@_measure("relative weight", options={"quarter": ("first", "last"), **_CLIENTS})
def _relative_weight(run: Run, options: Options) -> float:
    """Mean weight of these clients in units of an equal share 1/M, in all rounds or a quarter."""
    rows = run.rows("clients", "weight").dropna(subset=["weight"])
    weights = rows.assign(value=_shares(rows))
    quarters = {"first": ~after(rows, 1 / 4), "last": after(rows, 3 / 4)}
    if "quarter" in options:
        weights = weights[quarters[options["quarter"]]]
    return float(run.of_group(weights, options.get("clients", "all"))["value"].mean())


@_measure("effective clients", "%", bounds=_PERCENT)
def _effective_clients(run: Run, _: Options) -> float:
    """exp(entropy of the weights) / M, M the clients weighted in a round, mean over rounds."""
    cohort = run.rows("clients", "weight").groupby("round")["weight"].count()
    rounds = run.rows("rounds", "weight_entropy").set_index("round")
    entropy = rounds["weight_entropy"].dropna().astype(float)
    return 100 * float((np.exp(entropy) / cohort.reindex(entropy.index)).mean())


@_measure(
    "credit",
    options={"of": _CREDITS, "against": ("noise_rate", "shapley")},
    needs=("of", "against"),
    correlation=True,
)
def _credit(run: Run, options: Options) -> float | None:
    """Spearman's ρ over clients between what a method says of them and a yardstick."""
    credit, yardstick = options["of"], options["against"]
    rows = run.rows("clients", credit, yardstick)
    if credit == "weight":
        rows = rows.assign(weight=_shares(rows))
    means = rows.groupby("client")[[credit, yardstick]].mean()
    return spearman(means[credit].to_numpy(float), means[yardstick].to_numpy(float))


# --- Costs ----------------------------------------------------------------------------------------


@_measure("bytes", "MB", exact=True)
def _megabytes(run: Run, _: Options) -> float:
    """All bytes sent, both ways."""
    return float(run.row["bytes_up"] + run.row["bytes_down"]) / 1e6


@_measure("scalars", exact=True)
def _scalars(run: Run, options: Options) -> float:
    """Bytes sent both ways over 4 bytes · 2 M d_g · rounds."""
    cohort = run.config["federation"]["clients_per_round"]
    sent = run.row["bytes_up"] + run.row["bytes_down"]
    return sent / (4 * 2 * cohort * run.row["communicated_parameters"] * run.row["rounds"])


@_measure("share of the model", "%", exact=True)
def _share_of_model(run: Run, _: Options) -> float:
    """Parameters sent over the weight matrices of the backbone's blocks.

    These have depth · (4 + 2 · mlp_ratio) · dim² entries. The backbone has more than these (biases,
    embeddings), so that the true share is smaller.
    """
    name = run.config.get("backbone")
    file = run.record.summary.folder / "backbones" / f"{name}.json"
    if not file.is_file():
        raise LackingError(f"the record has no facts of the backbone {name}")
    plan = read_json(file)["architecture"]
    weights = plan["depth"] * (4 + 2 * plan["mlp_ratio"]) * plan["dim"] ** 2
    return float(100 * run.row["communicated_parameters"] / weights)


@_measure("private size", exact=True)
def _private_size(run: Run, _: Options) -> float:
    """Parameters kept by a client over parameters sent."""
    return float(run.row["private_parameters"] / run.row["communicated_parameters"])


@_measure("degenerate rounds", "rounds", exact=True)
def _degenerate_rounds(run: Run, _: Options) -> float:
    """Rounds in which all alignments were zero."""
    return float(run.row["degenerate_rounds"])


def _seconds(run: Run, *columns: str) -> pd.DataFrame:
    """Seconds of all rounds but the first, which loads and compiles what others only use."""
    rows = run.rows("timings", *columns)
    return rows.loc[rows["round"] > 1, [*columns]]


@_measure("aggregation time", "ms", learned=False)
def _aggregation_time(run: Run, _: Options) -> float:
    """An aggregation on the machine of the record, mean over rounds."""
    return 1000 * float(_seconds(run, "aggregate_seconds").mean().iloc[0])


@_measure("aggregation share", "%", learned=False)
def _aggregation_share(run: Run, _: Options) -> float:
    """Seconds of aggregation over seconds of training on the machine of the record."""
    aggregate, train = _seconds(run, "aggregate_seconds", "train_seconds").sum()
    return 100 * float(aggregate / train)


@_measure("simulated time", "s", learned=False)
def _simulated_time(run: Run, _: Options) -> float:
    """The simulated clock at the end of a run."""
    return float(run.rows("rounds", "simulated_seconds")["simulated_seconds"].max())
