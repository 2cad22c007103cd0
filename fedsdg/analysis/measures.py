"""The measures of the ledger: one number per seed, for one row in one cell of a record.

Every measure is a function of a record and a case (cell, row, options); ``MEASURES`` maps names to
them. A record from before a column was written cannot answer, and says so (``LackingError``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.horizon import reported_values
from fedsdg.analysis.inference import spearman
from fedsdg.analysis.names import method_order
from fedsdg.analysis.summary import Cell, Setting, Summary
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
        self.folder = summary.folder
        self.summary = summary

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """All rounds of all runs."""
        return self.summary.frame("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """All rows of clients of all runs."""
        return self.summary.frame("clients")

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Seconds of all rounds of all runs."""
        return self.summary.frame("timings")

    def runs(self, case: Case) -> dict[int, dict[str, Any]]:
        """Return the row of runs.parquet of every seed whose run went well, at least one.

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
        return {int(run["seed"]): run for run in runs}

    def place(self, case: Case) -> Cell:
        """The cell of the summary in which a case lies."""
        run = next(iter(self.runs(case).values()))
        return Cell(Setting(run["dataset"], run["clients"]), run["skew"])

    def settings(self, case: Case) -> dict[str, Any]:
        """The config of the first of these runs."""
        return dict(json.loads(next(iter(self.runs(case).values()))["config"]))

    def per_seed(self, case: Case, frame: pd.DataFrame, *columns: str) -> dict[int, pd.DataFrame]:
        """Seed → the rows of ``frame`` of these runs; each of ``columns`` has a value in some.

        Args:
            case: The cell and the row whose finished runs are meant.
            frame: ``rounds``, ``clients`` or ``timings`` of this record.
            *columns: Columns that the measure needs.

        Returns:
            A frame per seed; seeds without a row in ``frame`` are left out.

        Raises:
            LackingError: A column has no value in any of them.
        """
        here = frame[self.place(case).matches(frame) & (frame["method"] == case.method)]
        for name in columns:
            if name not in here or here[name].isna().all():
                raise LackingError(f"the record has no {name} of {case.method} yet")
        by_seed = dict(iter(here.groupby("seed")))
        return {seed: by_seed[seed] for seed in self.runs(case) if seed in by_seed}


def after(rows: pd.DataFrame, share: float) -> pd.Series:
    """Which rows belong to the rounds after this share of the run.

    Args:
        rows: Rows of one run with its column ``round``; the largest round is the run's length.
        share: Of that length, between 0 and 1.

    Returns:
        A boolean mask of ``rows``.
    """
    return rows["round"] > share * rows["round"].max()


# --- Accuracy -------------------------------------------------------------------------------------


def _accuracy(record: Record, case: Case) -> Values:
    """An accuracy [%] of the row in the cell, as reported."""
    metric, at = case.options["metric"], case.at or record.summary.reported
    cell = record.place(case)
    values = reported_values(record.summary, cell, metric, at).get(case.method, {})
    if not values:
        raise LackingError(f"the record has no {metric} of {case} yet")
    return {seed: 100 * value for seed, value in values.items()}


def _regret(record: Record, case: Case) -> Values:
    """The points by which the row is below the best row of the cell."""
    metric, at = case.options["metric"], case.at or record.summary.reported
    gaps = shortfalls(record.summary, record.place(case), metric, at).get(case.method, {})
    if not gaps:
        raise LackingError(f"the record has no {metric} of {case} beside that of the best row yet")
    return {seed: 100 * gap for seed, gap in gaps.items()}


def other_rows(record: Record, case: Case) -> list[str]:
    """The rows of the case's cell but its own and oracles, which are outside of every rank.

    Args:
        record: Of one experiment.
        case: A row in a cell.
    """
    cell = record.place(case)
    here = {run["method"] for run in record.summary.at(cell) if run["status"] == "ok"}
    return sorted(here - oracles(record.summary, cell) - {case.method}, key=method_order)


def answers_by_image(record: Record, case: Case, seeds: Sequence[int]) -> np.ndarray | None:
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
    group = {"expected_accuracy": None, "expected_accuracy_a": False, "expected_accuracy_b": True}
    metric = case.options["metric"]
    if metric not in group or split_setting(case.cell)[0] != "iid":
        return None
    if "answers" not in record.clients or record.clients["answers"].isna().all():
        return None
    here = record.clients[record.place(case).matches(record.clients)]
    here = here[(here["method"] == case.method) & here["answers"].notna()]
    if group[metric] is not None:
        here = here[here["conflicts"].eq(True) == group[metric]]
    shares = []
    for seed in seeds:
        packed = here.loc[here["seed"] == seed, "answers"]
        if packed.empty:
            return None
        bits = np.stack([np.unpackbits(np.frombuffer(one, np.uint8)) for one in packed])
        shares.append(bits.mean(axis=0))
    images = np.stack(shares)
    # What is left of the last byte is zero for everybody.
    unused = next((k for k in range(8) if images[:, images.shape[1] - 1 - k].any()), 0)
    return images[:, : images.shape[1] - unused]


def _swing(record: Record, case: Case) -> Values:
    values = {}
    for seed, rounds in record.per_seed(case, record.rounds, "global_accuracy").items():
        late = rounds[rounds["global_accuracy"].notna() & after(rounds, 1 / 2)]
        if len(late) < 3:
            raise LackingError(f"the runs of {case.method} are evaluated too seldom for it")
        accuracy = late.sort_values("round")["global_accuracy"].to_numpy(float)
        values[seed] = 100 * float(np.abs(np.diff(accuracy)).mean())
    return values


# --- Gates and private parts ----------------------------------------------------------------------


def _penalty(record: Record, case: Case) -> Values:
    name, at = f"{case.options['of']}_penalty", case.options.get("at", "quarter")
    values = {}
    for seed, rounds in record.per_seed(case, record.rounds, name).items():
        rows = rounds.dropna(subset=[name]).sort_values("round")[["round", name]]
        if rows.empty:
            continue
        late = rows.loc[after(rows, 3 / 4), name]
        picks = {"first": rows[name].iloc[0], "quarter": late.mean(), "largest": rows[name].max()}
        values[seed] = float(picks[at])
    return values


def _of_clients(
    column: str, number: Callable[[np.ndarray, Mapping[str, Any]], np.ndarray]
) -> Callable[[Record, Case], Values]:
    """A measure of clients in the last quarter's evaluations: the mean over clients of their means.

    ``number`` makes a number of each row from the column's values [rows, blocks] (or [rows, 1])
    and the options; the option ``of`` names another column.
    """

    def measure(record: Record, case: Case) -> Values:
        values = {}
        for seed, rows in _late_clients(record, case, case.options.get("of", column)).items():
            stacked = np.stack([np.atleast_1d(np.asarray(v, dtype=float)) for v in rows["value"]])
            by_row = pd.Series(number(stacked, case.options), index=rows.index)
            values[seed] = float(by_row.groupby(rows["client"]).mean().mean())
        return values

    return measure


def _late_clients(record: Record, case: Case, column: str) -> dict[int, pd.DataFrame]:
    """Seed → clients' rows of the last quarter's evaluations, the column as ``value``.

    The option ``clients`` picks those whose labels or images differ (``conflict``), or the others
    (``agree``).
    """
    group = case.options.get("clients", "all")
    needed = (column,) if group == "all" else (column, "conflicts")
    late = {}
    for seed, rows in record.per_seed(case, record.clients, *needed).items():
        rows = rows[after(rows, 3 / 4) & rows["val_accuracy"].notna()]
        rows = rows.dropna(subset=[column]).assign(value=lambda frame: frame[column])
        if group != "all":
            rows = rows[rows["conflicts"].astype(bool) == (group == "conflict")]
        if len(rows):
            late[seed] = rows
    if not late:
        raise LackingError(f"no client of {case} has {column}")
    return late


def _share_between(gates: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    low, high = options.get("above", -math.inf), options.get("below", math.inf)
    return 100 * np.mean((gates > low) & (gates < high), axis=1)


def _share_of_extremes(gates: np.ndarray, _: Mapping[str, Any]) -> np.ndarray:
    return 100 * np.mean((gates < 0.1) | (gates > 0.9), axis=1)


def _mean(values: np.ndarray, _: Mapping[str, Any]) -> np.ndarray:
    return np.mean(values, axis=1)


def _spread(values: np.ndarray, _: Mapping[str, Any]) -> np.ndarray:
    return np.ptp(values, axis=1)


def _gates_and_steps(record: Record, case: Case) -> Values:
    steps_of = record.per_seed(case, record.clients, "local_steps")
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = rows["value"].map(np.mean).astype(float).groupby(rows["client"]).mean()
        steps = steps_of[seed].groupby("client")["local_steps"].sum().reindex(gates.index)
        rho = spearman(gates.to_numpy(), steps.to_numpy(float))
        if rho is not None:
            values[seed] = rho
    if not values:
        raise LackingError(f"gates or steps of {case} do not vary")
    return values


# --- Weights and credit ---------------------------------------------------------------------------


def _relative_weight(record: Record, case: Case) -> Values:
    group = case.options.get("clients", "all")
    columns = ("weight",) if group == "all" else ("weight", "conflicts")
    values = {}
    for seed, rows in record.per_seed(case, record.clients, *columns).items():
        rows = rows.dropna(subset=["weight"])
        relative = rows["weight"] * rows.groupby("round")["weight"].transform("count")
        if group != "all":
            relative = relative[rows["conflicts"].astype(bool) == (group == "conflict")]
        values[seed] = float(relative.mean())
    return values


def _effective_clients(record: Record, case: Case) -> Values:
    """exp(entropy of the weights) over the clients weighted in that round, mean over rounds."""
    weighted = record.per_seed(case, record.clients, "weight")
    values = {}
    for seed, rounds in record.per_seed(case, record.rounds, "weight_entropy").items():
        cohort = weighted[seed].groupby("round")["weight"].count()
        entropy = rounds.set_index("round")["weight_entropy"].dropna().astype(float)
        values[seed] = 100 * float((np.exp(entropy) / cohort.reindex(entropy.index)).mean())
    return values


def _credit(record: Record, case: Case) -> Values:
    credit, yardstick = case.options["of"], case.options["against"]
    values = {}
    for seed, rows in record.per_seed(case, record.clients, credit, yardstick).items():
        # In units of an equal share: cohorts differ in size where clients leave.
        if credit == "weight":
            weighted = rows.groupby("round")["weight"].transform("count")
            rows = rows.assign(weight=rows["weight"] * weighted)
        means = rows.groupby("client")[[credit, yardstick]].mean()
        rho = spearman(means[credit].to_numpy(float), means[yardstick].to_numpy(float))
        if rho is not None:
            values[seed] = rho
    if not values:
        raise LackingError(f"{credit} or {yardstick} does not vary between clients")
    return values


# --- Costs ----------------------------------------------------------------------------------------


def _of_runs(number: Callable[[dict[str, Any]], float]) -> Callable[[Record, Case], Values]:
    """A measure that needs no more than the row of runs.parquet."""
    return lambda record, case: {
        seed: float(number(run)) for seed, run in record.runs(case).items()
    }


def _bytes(run: dict[str, Any]) -> float:
    return float(run["bytes_up"] + run["bytes_down"])


def _scalars(run: dict[str, Any]) -> float:
    cohort = json.loads(run["config"])["federation"]["clients_per_round"]
    return _bytes(run) / (4 * 2 * cohort * run["communicated_parameters"] * run["rounds"])


def _share_of_model(record: Record, case: Case) -> Values:
    """d_g over the weight matrices of the backbone's blocks, depth · (4 + 2 · mlp_ratio) · dim².

    The backbone has more than these (biases, embeddings), so that the true share is smaller.
    """
    values = {}
    for seed, run in record.runs(case).items():
        name = json.loads(run["config"]).get("backbone")
        file = record.folder / "backbones" / f"{name}.json"
        if not file.is_file():
            raise LackingError(f"the record has no facts of the backbone {name}")
        plan = read_json(file)["architecture"]
        weights = plan["depth"] * (4 + 2 * plan["mlp_ratio"]) * plan["dim"] ** 2
        values[seed] = 100 * run["communicated_parameters"] / weights
    return values


def _seconds(record: Record, case: Case, *columns: str) -> dict[int, pd.DataFrame]:
    """Seed → seconds of all rounds but the first, which loads and compiles what others only use."""
    frames = record.per_seed(case, record.timings, *columns)
    return {seed: rounds[rounds["round"] > 1] for seed, rounds in frames.items()}


def _aggregation_time(record: Record, case: Case) -> Values:
    frames = _seconds(record, case, "aggregate_seconds")
    return {seed: 1000 * float(rows["aggregate_seconds"].mean()) for seed, rows in frames.items()}


def _aggregation_share(record: Record, case: Case) -> Values:
    names = ["aggregate_seconds", "train_seconds"]
    values = {}
    for seed, rows in _seconds(record, case, *names).items():
        aggregate, train = rows[names].sum()
        values[seed] = 100 * float(aggregate / train)
    return values


def _simulated_seconds(record: Record, case: Case) -> Values:
    frames = record.per_seed(case, record.rounds, "simulated_seconds")
    return {seed: float(rounds["simulated_seconds"].max()) for seed, rounds in frames.items()}


# --- The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A measure and how its number is read.

    ``unit`` stands behind the number in print. ``options`` are the names it takes, with their
    choices where these are few; ``needs`` those that must be given. ``exact``: the number is
    counted, so that any number of seeds decides. ``correlation``: it is one, in [−1, 1].
    ``bounds``: where it can lie (a difference of two has none). ``learned``: it depends on how far
    training has come. ``rounds``: it can be read at each reported round. ``gates``: it says
    something of gates, which a row whose gates cannot have moved does not. ``level``: it is an
    accuracy itself, so that it has an interval over seeds and images.
    """

    function: Callable[[Record, Case], Values]
    unit: str
    meaning: str
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

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "accuracy": Measure(
            _accuracy,
            "%",
            "an accuracy in the round selected on validation data; the mean over the last "
            "quarter's evaluations stands beside it",
            {"metric": _ACCURACIES},
            bounds=_PERCENT,
            needs=("metric",),
            rounds=True,
            level=True,
        ),
        "regret": Measure(
            _regret,
            "points",
            "points below the best row of the cell, which is chosen on half of the seeds and "
            "measured on the other; others none: it is claimed of no other row",
            {"metric": _ACCURACIES, "others": ("none",)},
            needs=("metric",),
            rounds=True,
        ),
        "swing": Measure(
            _swing,
            "points",
            "mean change, without its sign, of global accuracy between evaluations in the second "
            "half of a run",
        ),
        "penalty": Measure(
            _penalty,
            "",
            "Σ of the gates, or Σ of squares of the private parameters, mean over a cohort: after "
            "the first round, in the last quarter of the rounds, or the largest of all rounds",
            {"of": ("gate", "private"), "at": ("first", "quarter", "largest")},
            needs=("of",),
        ),
        "gate share": Measure(
            _of_clients("gates", _share_between),
            "%",
            "share of a client's gates in a range, mean over clients",
            {"above": None, "below": None, **_CLIENTS},
            bounds=_PERCENT,
            gates=True,
        ),
        "gate extremes": Measure(
            _of_clients("gates", _share_of_extremes),
            "%",
            "share of a client's gates below 0.1 or above 0.9, mean over clients",
            _CLIENTS,
            bounds=_PERCENT,
            gates=True,
        ),
        "gate": Measure(
            _of_clients("gates", _mean),
            "",
            "mean gate of a client, mean over clients",
            _CLIENTS,
            gates=True,
        ),
        "spread over blocks": Measure(
            _of_clients("gates", _spread),
            "",
            "largest minus smallest gate, or private share, of a client's blocks, mean over "
            "clients",
            {"of": ("gates", "private_shares"), **_CLIENTS},
            gates=True,
        ),
        "private share": Measure(
            _of_clients("private_shares", _mean),
            "",
            "‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), mean over blocks and clients",
            _CLIENTS,
        ),
        "private ratio": Measure(
            _of_clients("private_ratio", _mean),
            "",
            "‖θ_p‖ / ‖θ_g‖ of the adapters, mean over clients",
            _CLIENTS,
        ),
        "gates and steps": Measure(
            _gates_and_steps,
            "",
            "Spearman's ρ over clients between mean gate and local steps taken",
            _CLIENTS,
            correlation=True,
            gates=True,
        ),
        "relative weight": Measure(
            _relative_weight,
            "",
            "mean weight of these clients in units of an equal share 1/M",
            _CLIENTS,
        ),
        "effective clients": Measure(
            _effective_clients,
            "%",
            "exp(entropy of the weights) / M, M the clients weighted in a round, mean over rounds",
            bounds=_PERCENT,
        ),
        "credit": Measure(
            _credit,
            "",
            "Spearman's ρ over clients between what a method says of them and a yardstick",
            {"of": _CREDITS, "against": ("noise_rate", "shapley")},
            correlation=True,
            needs=("of", "against"),
        ),
        "bytes": Measure(
            _of_runs(lambda run: _bytes(run) / 1e6),
            "MB",
            "all bytes sent, both ways",
            exact=True,
            learned=False,
        ),
        "scalars": Measure(
            _of_runs(_scalars),
            "",
            "bytes sent both ways over 4 bytes · 2 M d_g · rounds",
            exact=True,
            learned=False,
        ),
        "share of the model": Measure(
            _share_of_model,
            "%",
            "parameters sent over the weights of the backbone's blocks",
            exact=True,
            learned=False,
        ),
        "private size": Measure(
            _of_runs(lambda run: run["private_parameters"] / run["communicated_parameters"]),
            "",
            "parameters kept by a client over parameters sent",
            exact=True,
            learned=False,
        ),
        "degenerate rounds": Measure(
            _of_runs(lambda run: run["degenerate_rounds"]),
            "rounds",
            "rounds in which all alignments were zero",
            exact=True,
            learned=False,
        ),
        "aggregation time": Measure(
            _aggregation_time,
            "ms",
            "an aggregation on the machine of the record, mean over rounds",
            learned=False,
        ),
        "aggregation share": Measure(
            _aggregation_share,
            "%",
            "seconds of aggregation over seconds of training on the machine of the record",
            learned=False,
        ),
        "simulated time": Measure(
            _simulated_seconds, "s", "the simulated clock at the end of a run", learned=False
        ),
    }
)
