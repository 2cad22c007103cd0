"""What the ledger can ask of a record: one number per seed, for one row in one cell.

Every measure is a function of a record, a cell, a row and its own options; ``MEASURES`` maps names
to them. A record from before a column was written cannot answer, and says so (``LackingError``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.differences import by_seed
from fedsdg.analysis.inference import spearman
from fedsdg.analysis.summary import Summary
from fedsdg.files import read_json


class LackingError(LookupError):
    """The record cannot answer yet: a row, a cell or a column is not there."""


class Record:
    """What measures read of one experiment: its summary, whole tables at a time."""

    def __init__(self, summary: Summary) -> None:
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
        """Seed → row of runs.parquet of the runs that went well; there is at least one."""
        found = {
            int(run["seed"]): run
            for run in self.summary.runs
            if (run["skew"], run["method"], run["status"]) == (case.cell, case.method, "ok")
        }
        if not found:
            raise LackingError(f"the record has no run of {case.method} at {case.cell} yet")
        return found

    def settings(self, case: Case) -> dict[str, Any]:
        """The config of the first of these runs."""
        return dict(json.loads(next(iter(self.runs(case).values()))["config"]))

    def per_seed(self, case: Case, frame: pd.DataFrame, *columns: str) -> dict[int, pd.DataFrame]:
        """Seed → the rows of ``frame`` of these runs; raises where a column has no value there."""
        seeds = self.runs(case)
        here = frame[(frame["skew"] == case.cell) & (frame["method"] == case.method)]
        for name in columns:
            if name not in here or here[name].isna().all():
                raise LackingError(f"the record has no {name} of {case.method} yet")
        return {seed: rows for seed in seeds if len(rows := here[here["seed"] == seed])}


@dataclass(frozen=True)
class Case:
    """Where a measure looks: a cell, a row, and the measure's own options."""

    cell: str
    method: str
    options: Mapping[str, Any]


Values = dict[int, float]


@dataclass(frozen=True)
class Measure:
    """A measure and how its number is read.

    unit: what stands behind the number in print. options: the names it takes, with their choices
    where these are few. exact: the number is counted, so that any number of seeds decides.
    correlation: it is one, in [−1, 1]. bounds: where it can lie (a difference of two has none).
    needs: options that must be given. learned: it depends on how far training has come.
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


def _accuracy(record: Record, case: Case) -> Values:
    metric = case.options["metric"]
    record.runs(case)  # a row that was not run is another matter than a value it has not got
    here = [run for run in record.summary.runs if run["skew"] == case.cell]
    values = by_seed(here, f"{record.summary.reported}_{metric}").get(case.method)
    if not values:
        raise LackingError(f"the record has no {metric} of {case.method} at {case.cell} yet")
    return {seed: 100 * value for seed, value in values.items()}


def _swing(record: Record, case: Case) -> Values:
    """Mean |change| of global accuracy from one evaluation to the next, second half of a run."""
    values = {}
    frames = record.per_seed(case, record.rounds, "global_accuracy")
    for seed, rounds in frames.items():
        late = rounds[rounds["global_accuracy"].notna() & _after(rounds, 1 / 2)]
        if len(late) < 3:
            raise LackingError(f"the runs of {case.method} are evaluated too seldom for it")
        accuracy = late.sort_values("round")["global_accuracy"].to_numpy(float)
        values[seed] = 100 * float(np.abs(np.diff(accuracy)).mean())
    return values


def _penalty(record: Record, case: Case) -> Values:
    name, at = f"{case.options['of']}_penalty", case.options.get("at", "quarter")
    values = {}
    for seed, rounds in record.per_seed(case, record.rounds, name).items():
        rows = rounds[rounds[name].notna()].sort_values("round")[["round", name]]
        late = rows.loc[_after(rows, 3 / 4), name]
        picks = {"first": rows[name].iloc[0], "quarter": late.mean(), "largest": rows[name].max()}
        values[seed] = float(picks[at])
    return values


def _after(rows: pd.DataFrame, share: float) -> pd.Series:
    """Which rows belong to the rounds after this share of the run."""
    return rows["round"] > share * rows["round"].max()


def _late_clients(record: Record, case: Case, *columns: str) -> dict[int, pd.DataFrame]:
    """Seed → clients' rows of the last quarter's evaluations that have these columns.

    ``clients`` picks those whose labels or images differ (``conflict``), or the others (``agree``).
    """
    group = case.options.get("clients", "all")
    needed = columns if group == "all" else (*columns, "conflicts")
    found = {}
    for seed, rows in record.per_seed(case, record.clients, *needed).items():
        late = rows[_after(rows, 3 / 4) & rows["val_accuracy"].notna()]
        late = late.dropna(subset=[name for name in columns if name in late])
        if group != "all":
            late = late[late["conflicts"].astype(bool) == (group == "conflict")]
        if len(late):
            found[seed] = late
    if not found:
        raise LackingError(f"no client of {case.method} at {case.cell} has {', '.join(columns)}")
    return found


def _gates(rows: pd.DataFrame) -> np.ndarray:
    """[rows, blocks] gates."""
    return np.stack([np.asarray(gates, dtype=float) for gates in rows["gates"]])


def _over_clients(rows: pd.DataFrame, values: np.ndarray) -> float:
    """The mean over clients of each client's mean over its rows."""
    by_client = pd.Series(values, index=rows.index).groupby(rows["client"]).mean()
    return float(by_client.mean())


def _gate_share(record: Record, case: Case) -> Values:
    low, high = case.options.get("above", -math.inf), case.options.get("below", math.inf)
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = _gates(rows)
        values[seed] = 100 * _over_clients(rows, ((gates > low) & (gates < high)).mean(axis=1))
    return values


def _gate_extremes(record: Record, case: Case) -> Values:
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = _gates(rows)
        values[seed] = 100 * _over_clients(rows, ((gates < 0.1) | (gates > 0.9)).mean(axis=1))
    return values


def _gate_mean(record: Record, case: Case) -> Values:
    frames = _late_clients(record, case, "gates")
    return {seed: _over_clients(rows, _gates(rows).mean(axis=1)) for seed, rows in frames.items()}


def _within_client(record: Record, case: Case) -> Values:
    """Mean over clients of the largest minus the smallest gate, or private share, of a client."""
    name = case.options.get("of", "gates")
    values = {}
    for seed, rows in _late_clients(record, case, name).items():
        blocks = np.stack([np.asarray(one, dtype=float) for one in rows[name]])
        values[seed] = _over_clients(rows, np.ptp(blocks, axis=1))
    return values


def _private_share(record: Record, case: Case) -> Values:
    values = {}
    for seed, rows in _late_clients(record, case, "private_shares").items():
        shares = np.stack([np.asarray(one, dtype=float) for one in rows["private_shares"]])
        values[seed] = _over_clients(rows, shares.mean(axis=1))
    return values


def _private_ratio(record: Record, case: Case) -> Values:
    frames = _late_clients(record, case, "private_ratio")
    return {
        seed: _over_clients(rows, rows["private_ratio"].to_numpy(float))
        for seed, rows in frames.items()
    }


def _gates_and_steps(record: Record, case: Case) -> Values:
    """Spearman's ρ over clients between the mean gate at the end and the local steps taken."""
    steps_of = record.per_seed(case, record.clients, "local_steps")
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = pd.Series(_gates(rows).mean(axis=1), index=rows.index)
        mean_gate = gates.groupby(rows["client"]).mean()
        steps = steps_of[seed].groupby("client")["local_steps"].sum().reindex(mean_gate.index)
        found = spearman(mean_gate.to_numpy(), steps.to_numpy(float))
        if found is not None:
            values[seed] = found
    if not values:
        raise LackingError(f"gates or steps of {case.method} at {case.cell} do not vary")
    return values


def _relative_weight(record: Record, case: Case) -> Values:
    """Mean weight of these clients over all rounds, in units of an equal share 1/M."""
    group = case.options.get("clients", "all")
    columns = ("weight",) if group == "all" else ("weight", "conflicts")
    values = {}
    for seed, rows in record.per_seed(case, record.clients, *columns).items():
        rows = rows[rows["weight"].notna()]
        relative = rows["weight"] * rows.groupby("round")["weight"].transform("count")
        if group != "all":
            relative = relative[rows["conflicts"].astype(bool) == (group == "conflict")]
        values[seed] = float(relative.mean())
    return values


def _effective_clients(record: Record, case: Case) -> Values:
    """exp(entropy of the weights) / M, mean over the rounds: 100 % for equal weights."""
    cohort = record.settings(case)["federation"]["clients_per_round"]
    frames = record.per_seed(case, record.rounds, "weight_entropy")
    return {
        seed: 100 * float(np.exp(rounds["weight_entropy"].dropna()).mean() / cohort)
        for seed, rounds in frames.items()
    }


def _credit(record: Record, case: Case) -> Values:
    """Spearman's ρ over clients between what a method says of them and a yardstick."""
    said, yardstick = case.options["of"], case.options["against"]
    values = {}
    for seed, rows in record.per_seed(case, record.clients, said, yardstick).items():
        # In units of an equal share: cohorts differ in size where clients leave.
        if said == "weight":
            weighted = rows.groupby("round")["weight"].transform("count")
            rows = rows.assign(weight=rows["weight"] * weighted)
        means = rows.groupby("client")[[said, yardstick]].mean()
        found = spearman(means[said].to_numpy(float), means[yardstick].to_numpy(float))
        if found is not None:
            values[seed] = found
    if not values:
        raise LackingError(f"{said} or {yardstick} does not vary between clients")
    return values


def _bytes(record: Record, case: Case) -> Values:
    return {
        seed: (run["bytes_up"] + run["bytes_down"]) / 1e6 for seed, run in record.runs(case).items()
    }


def _scalars(record: Record, case: Case) -> Values:
    """Bytes sent both ways, over 4 bytes · 2 M d_g · rounds."""
    values = {}
    for seed, run in record.runs(case).items():
        cohort = json.loads(run["config"])["federation"]["clients_per_round"]
        scalars = 2 * cohort * run["communicated_parameters"] * run["rounds"]
        values[seed] = (run["bytes_up"] + run["bytes_down"]) / (4 * scalars)
    return values


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


def _private_size(record: Record, case: Case) -> Values:
    return {
        seed: run["private_parameters"] / run["communicated_parameters"]
        for seed, run in record.runs(case).items()
    }


def _degenerate(record: Record, case: Case) -> Values:
    return {seed: float(run["degenerate_rounds"]) for seed, run in record.runs(case).items()}


def _aggregation_time(record: Record, case: Case) -> Values:
    frames = record.per_seed(case, record.timings, "aggregate_seconds")
    # The first round loads and compiles what the others only use.
    return {
        seed: 1000 * float(rounds.loc[rounds["round"] > 1, "aggregate_seconds"].mean())
        for seed, rounds in frames.items()
    }


def _aggregation_share(record: Record, case: Case) -> Values:
    frames = record.per_seed(case, record.timings, "aggregate_seconds", "train_seconds")
    values = {}
    for seed, rounds in frames.items():
        rounds = rounds[rounds["round"] > 1]
        seconds = rounds[["aggregate_seconds", "train_seconds"]].sum()
        values[seed] = 100 * float(seconds["aggregate_seconds"] / seconds["train_seconds"])
    return values


def _simulated_seconds(record: Record, case: Case) -> Values:
    frames = record.per_seed(case, record.rounds, "simulated_seconds")
    return {seed: float(rounds["simulated_seconds"].max()) for seed, rounds in frames.items()}


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
            "an accuracy as reported: the mean over the last quarter's evaluations",
            {"metric": _ACCURACIES},
            bounds=_PERCENT,
            needs=("metric",),
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
            _gate_share,
            "%",
            "share of a client's gates in a range, mean over clients",
            {"above": None, "below": None, **_CLIENTS},
            bounds=_PERCENT,
        ),
        "gate extremes": Measure(
            _gate_extremes,
            "%",
            "share of a client's gates below 0.1 or above 0.9, mean over clients",
            _CLIENTS,
            bounds=_PERCENT,
        ),
        "gate": Measure(_gate_mean, "", "mean gate of a client, mean over clients", _CLIENTS),
        "spread over blocks": Measure(
            _within_client,
            "",
            "largest minus smallest gate, or private share, of a client's blocks, mean over "
            "clients",
            {"of": ("gates", "private_shares"), **_CLIENTS},
        ),
        "private share": Measure(
            _private_share,
            "",
            "‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), mean over blocks and clients",
            _CLIENTS,
        ),
        "private ratio": Measure(
            _private_ratio, "", "‖θ_p‖ / ‖θ_g‖ of the adapters, mean over clients", _CLIENTS
        ),
        "gates and steps": Measure(
            _gates_and_steps,
            "",
            "Spearman's ρ over clients between mean gate and local steps taken",
            _CLIENTS,
            correlation=True,
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
            "exp(entropy of the weights) / M, mean over rounds",
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
        "bytes": Measure(_bytes, "MB", "all bytes sent, both ways", exact=True, learned=False),
        "scalars": Measure(
            _scalars,
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
            _private_size,
            "",
            "parameters kept by a client over parameters sent",
            exact=True,
            learned=False,
        ),
        "degenerate rounds": Measure(
            _degenerate,
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
