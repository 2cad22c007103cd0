"""Metrics: numbers of a run, each declared once with its title and unit.

Stored metrics are columns of runs.parquet; the others are functions of a run's rows of a table.
``_a`` and ``_b`` restrict a metric to the clients that agree with the majority and to those that
differ from it, in their labels or their images. A metric that is entered here is known to tables,
figures, claims and ``fedsdg trace``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedsdg.analysis.names import is_oracle
from fedsdg.analysis.records import RUN, Record
from fedsdg.analysis.statistics import regret as shortfall
from fedsdg.errors import require_one_of

#: Readings of a stored metric.
READINGS = {
    "selected": "round selected on validation data",
    "end": "mean of the evaluations in the last quarter of the rounds",
}
GROUPS = {"": "", "_a": ", clients that agree (A)", "_b": ", clients that differ (B)"}

#: Rows of a run → its number, NaN where it has none.
Number = Callable[[pd.DataFrame], float]


@dataclass(frozen=True)
class Metric:
    """A number of a run."""

    title: str
    unit: str = ""
    number: Number | None = None
    """What makes it of rows of ``table``; None: it is stored, once for each reading."""
    table: str = "runs"
    columns: tuple[str, ...] = ()
    exact: bool = False
    """Whether it is counted, so that a single seed decides about it."""

    @property
    def readings(self) -> tuple[str, ...]:
        """The readings it has: those of ``READINGS`` if it is stored, else one."""
        return tuple(READINGS) if self.number is None else ("selected",)


OWN: frozenset[str] = frozenset()
#: Name → metric.
METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", "%"),
    "accuracy_a": Metric(f"accuracy{GROUPS['_a']}", "%"),
    "accuracy_b": Metric(f"accuracy{GROUPS['_b']}", "%"),
    "accuracy_new": Metric("accuracy, new clients", "%"),
    "worst_decile": Metric("worst-decile accuracy", "%"),
    "accuracy_own_test": Metric("accuracy on the own test set", "%"),
    "worst_decile_own_test": Metric("worst-decile accuracy on the own test set", "%"),
    "accuracy_shared": Metric("accuracy of the shared model", "%"),
    "val_accuracy": Metric("validation accuracy", "%"),
    "regret": Metric("points below the best row", "points"),
}


def values(
    record: Record, name: str, runs: pd.DataFrame | None = None, at: str = "selected"
) -> pd.DataFrame:
    """Return a metric of every run that succeeded and has it.

    Args:
        record: The experiment.
        name: A key of ``METRICS``.
        runs: Rows of ``record.runs`` that are wanted; all by default.
        at: A reading of a stored metric.

    Returns:
        ``RUN``, ``metric``, ``value`` in the metric's unit.

    Raises:
        ValueError: There is no such metric or reading.
    """
    require_one_of(METRICS, name, "there is no metric")
    require_one_of(READINGS, at, "there is no reading")
    runs = record.finished if runs is None else runs[runs["status"] == "ok"]
    found = _numbers(record, name, runs, at).reindex(runs.index).astype(float)
    tidy = runs[RUN].assign(metric=name, value=found)
    return tidy.dropna(subset=["value"]).reset_index(drop=True)


def _numbers(record: Record, name: str, runs: pd.DataFrame, at: str) -> pd.Series:
    """Return the numbers of runs by their index."""
    metric = METRICS[name]
    if name == "regret":
        return _regrets(record, at)
    if metric.number is None:
        # New clients are evaluated in the last quarter of the rounds alone.
        at = "end" if name == "accuracy_new" else at
        return 100 * runs.get(f"{at}_{name}", pd.Series(dtype=float)).astype(float)
    rows = _rows_by_run(record, metric.table, metric.columns)
    try:
        numbers = {run: float(metric.number(rows[run])) for run in runs.index if run in rows}
    except Exception as error:  # It may be a user's.
        raise ValueError(
            f"the metric {name!r} fails: {error!r}; let its function return a number, and name in "
            "'reads' each column that it looks at"
        ) from error
    return pd.Series(numbers, dtype=float)


@lru_cache(maxsize=8)
def _rows_by_run(record: Record, table: str, columns: tuple[str, ...]) -> dict[int, pd.DataFrame]:
    """Return the rows of each run that has all columns, without those that have none of them."""
    if table == "runs":
        rows = record.finished.reindex(columns=[*columns]).assign(run=record.finished.index)
    else:
        rows = record.rows(table, columns)[["run", *columns]]
    there = rows[[name for name in columns if name not in _PLACES]].notna()
    complete = there.groupby(rows["run"]).transform("any").all(axis=1)
    runs = rows[complete & (there.any(axis=1) | there.columns.empty)].groupby("run")
    return {int(own["run"].to_numpy()[0]): own for _, own in runs}


@cache
def _regrets(record: Record, at: str) -> pd.Series:
    """Return the regret of every run, each measured within its cell."""
    frame = values(record, "accuracy", at=at)
    oracles = [method for method in record.methods if is_oracle(method)]
    parts = [
        shortfall(own, oracles).assign(experiment=record.name, cell=cell)
        for cell, own in frame.groupby("cell")
    ]
    if not parts:
        return pd.Series(dtype=float)
    places = record.runs[RUN].reset_index(names="run")
    return places.merge(pd.concat(parts), on=RUN).set_index("run")["value"]


#: Columns that say where a row stands and what its client is.
_PLACES = ("round", "client", "participated", "conflicts", "attacker")


def metric(
    title: str,
    unit: str = "",
    *,
    table: str = "clients",
    reads: str = "",
    exact: bool = False,
    groups: bool = False,
    name: str = "",
) -> Callable[[Number], Number]:
    """Enter a function of a run's rows as a metric.

    Args:
        title: Its name in print.
        unit: Its unit in print, "%" or "points" for shares of 100.
        table: Whose rows it takes: ``rounds``, ``clients``, ``timings``, or ``runs`` (one row).
        reads: Columns it needs beside ``round``, with blanks between. Rows in which all of them
            are null are left out, and runs that lack one.
        exact: Whether it is counted, so that a single seed decides about it.
        groups: Enter it over groups of clients as well, as ``{name}_a`` and ``{name}_b``.
        name: Its name; that of the function by default.

    Returns:
        A decorator that leaves the function as it is.

    Raises:
        ValueError: A metric of this package has the name, or ``reads`` is no text.

    Example:
        In a file that a config names under ``plugins``; ``largest_update`` may then stand under
        ``tables`` and ``figures``::

            from fedsdg.analysis import metric

            @metric("largest update", table="rounds", reads="update_norm_max")
            def largest_update(rows):
                return rows["update_norm_max"].max()
    """
    if not isinstance(reads, str):
        raise ValueError(f"reads is {reads!r}; write columns with blanks between: reads='a b'")
    require_one_of(
        ("rounds", "clients", "timings", "runs"), table, f"the metric {title!r} has table"
    )
    columns = ("round", *reads.split(), *(["conflicts"] if groups else []))

    def enter(number: Number) -> Number:
        called = name or number.__name__
        if called in OWN:
            raise ValueError(f"there is a metric {called!r} already; give yours another name")
        for group, tail in (GROUPS if groups else {"": ""}).items():
            of_group = partial(_of_group, number, group) if group else number
            METRICS[called + group] = Metric(title + tail, unit, of_group, table, columns, exact)
        return number

    return enter


def _of_group(number: Number, group: str, rows: pd.DataFrame) -> float:
    members = rows[rows["conflicts"].eq(group == "_b")]
    return number(members) if len(members) else np.nan


def _after(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """Return the rows of the rounds after this share of a run."""
    return rows[rows["round"] > share * rows["round"].max()]


# --- training ------------------------------------------------------------------------------------


@metric("change when the rounds double", "points", table="rounds", reads="accuracy")
def doubled(rows: pd.DataFrame) -> float:
    """Return mean accuracy of the last quarter minus that of the last quarter of the first half."""
    first = rows[rows["round"] <= rows["round"].max() / 2]
    gain = _after(rows, 3 / 4)["accuracy"].mean() - _after(first, 3 / 4)["accuracy"].mean()
    return 100 * float(gain)


# --- gates and private parts ---------------------------------------------------------------------


def _over_clients(
    rows: pd.DataFrame, column: str, number: Callable[[np.ndarray], np.ndarray]
) -> float:
    """Return the mean of ``number`` over evaluations of the last quarter, then over clients.

    ``number`` takes the column's values [rows, blocks] and returns [rows].
    """
    late = rows["round"] > 3 / 4 * rows["round"].max()
    rows = rows[late & rows["val_accuracy"].notna() & rows[column].notna()]
    if rows.empty:
        return np.nan
    numbers = number(np.stack([np.atleast_1d(value) for value in rows[column]]))
    _, of_client = np.unique(rows["client"], return_inverse=True)
    return float((np.bincount(of_client, numbers) / np.bincount(of_client)).mean())


def _mean(blocks: np.ndarray) -> np.ndarray:
    return blocks.mean(axis=1)


def _spread(blocks: np.ndarray) -> np.ndarray:
    return np.ptp(blocks, axis=1)


def _within(gates: np.ndarray, low: float, high: float) -> np.ndarray:
    return 100 * ((gates > low) & (gates < high)).mean(axis=1)


for _name, _column, _of_blocks, _title, _unit in (
    ("gate", "gates", _mean, "mean gate", ""),
    ("gate_spread", "gates", _spread, "spread of gates over blocks", ""),
    ("gates_closed", "gates", partial(_within, low=-1, high=0.1), "gates below 0.1", "%"),
    ("gates_middle", "gates", partial(_within, low=0.4, high=0.6), "gates in [0.4, 0.6]", "%"),
    ("gates_open", "gates", partial(_within, low=0.9, high=2), "gates above 0.9", "%"),
    ("private_share", "private_shares", _mean, "private share", ""),
    ("private_ratio", "private_ratio", _mean, "‖θ_p‖ / ‖θ_g‖", ""),
):
    metric(_title, _unit, reads=f"client val_accuracy {_column}", groups=True, name=_name)(
        partial(_over_clients, column=_column, number=_of_blocks)
    )


def _reduced(rows: pd.DataFrame, column: str, how: str, after: float = 0) -> float:
    """Return sum, mean or max of a column over the rounds after this share of a run."""
    return float(_after(rows, after)[column].agg(how))


for _name, _how, _column, _title in (
    ("gate_penalty_late", "mean", "gate_penalty", "Σ m, last quarter"),
    ("private_penalty_late", "mean", "private_penalty", "‖θ_p‖², last quarter"),
    ("private_penalty_largest", "max", "private_penalty", "‖θ_p‖², largest"),
):
    metric(_title, table="rounds", reads=_column, name=_name)(
        partial(_reduced, column=_column, how=_how, after=3 / 4 if _how == "mean" else 0)
    )


# --- weights and credit --------------------------------------------------------------------------


def _rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Return Spearman's ρ over pairs without gaps; NaN below three, or where one is constant."""
    pairs = pd.DataFrame({"x": x, "y": y}, dtype=float).dropna()
    if len(pairs) < 3 or (pairs.nunique() < 2).any():
        return np.nan
    ranks = rankdata(pairs.to_numpy(), axis=0)
    return float(np.corrcoef(ranks, rowvar=False)[0, 1])


def relative_weights(rows: pd.DataFrame) -> pd.Series:
    """Return the weights of a run's clients in units of an equal share; cohorts differ in size."""
    cohorts = np.bincount(rows["round"], weights=rows["weight"].notna())
    return rows["weight"] * cohorts[rows["round"]]


@metric("weight of clients that differ (1: equal)", reads="weight conflicts")
def weight_b(rows: pd.DataFrame) -> float:
    """Return the mean relative weight of the clients that differ."""
    return float(relative_weights(rows)[rows["conflicts"].eq(True)].mean())


@metric("effective clients", "%", reads="weight")
def effective_clients(rows: pd.DataFrame) -> float:
    """Return exp(−Σ w ln w) / M, M the clients that have a weight, mean over rounds."""
    rows = rows.dropna(subset=["weight"])
    weight = rows["weight"].to_numpy().clip(1e-300)
    entropy = np.bincount(rows["round"], weights=-weight * np.log(weight))
    cohorts = np.bincount(rows["round"])
    rounds = cohorts > 0
    return 100 * float((np.exp(entropy[rounds]) / cohorts[rounds]).mean())


def _credit(rows: pd.DataFrame, credit: str, yardstick: str) -> float:
    """Return Spearman's ρ over clients between their mean credit and a yardstick."""
    if credit == "weight":
        rows = rows.assign(weight=relative_weights(rows))
    means = rows.groupby("client")[[credit, yardstick]].mean()
    return _rank_correlation(means[credit], means[yardstick])


for _name in ("weight", "alignment", "credibility", "contribution", "shapley_estimate"):
    for _column in ("noise_rate", "shapley"):
        _title = f"ρ of {_name.replace('_', ' ')} with {_column.replace('_', ' ')}"
        _reads = f"client {_name} {_column}"
        metric(_title, reads=_reads, name=f"{_name}_by_{_column}")(
            partial(_credit, credit=_name, yardstick=_column)
        )


# --- detection of attackers ----------------------------------------------------------------------


def _detection(rows: pd.DataFrame, number: str) -> float:
    """Judge which clients are blocked in the end; an attacker that never took part counts nowhere.

    A client is blocked or not until another row says otherwise.
    """
    place = rows["round"].to_numpy() - 1, rows["client"].to_numpy()
    shape = place[0].max() + 1, place[1].max() + 1
    stated, blocked, present, attacks = np.zeros((4, *shape), bool)
    stated[place] = True
    for grid, column in ((blocked, "blocked"), (present, "participated"), (attacks, "attacker")):
        grid[place] = rows[column].eq(True)
    last = np.where(stated, np.arange(shape[0])[:, None], 0)
    blocked = np.take_along_axis(blocked, np.maximum.accumulate(last, axis=0), axis=0)
    at_end = blocked[-1]
    attackers = attacks.any(axis=0)
    met = attackers & present.any(axis=0)
    delays = blocked.argmax(axis=0) - present.argmax(axis=0)
    chosen = {
        "precision": 100.0 * attackers[at_end],
        "recall": 100.0 * at_end[met],
        "delay": delays[met & at_end],
        "wrongly_blocked": np.array([sum(at_end & ~attackers)]),
    }[number]
    return float(chosen.mean()) if len(chosen) else np.nan


for _name, _title, _unit in (
    ("precision", "attackers among the blocked clients", "%"),
    ("recall", "blocked clients among the attackers", "%"),
    ("delay", "rounds until an attacker is blocked", "rounds"),
    ("wrongly_blocked", "honest clients blocked", ""),
):
    metric(_title, _unit, reads="client participated attacker blocked", name=_name)(
        partial(_detection, number=_name)
    )


# --- costs ---------------------------------------------------------------------------------------


def _stored(rows: pd.DataFrame, columns: list[str], unit: float) -> float:
    return float(rows[columns].sum(axis=1).iloc[0] / unit)


for _name, _title, _unit, _columns, _size in (
    ("megabytes", "sent, both ways", "MB", "bytes_up bytes_down", 1e6),
    ("client_storage", "kept by a client between rounds", "kB", "client_storage_bytes", 1e3),
    ("communicated_parameters", "parameters sent", "", "communicated_parameters", 1),
    ("private_parameters", "parameters kept by a client", "", "private_parameters", 1),
    ("personal_steps", "steps for what clients keep", "thousand", "personal_steps", 1e3),
):
    metric(_title, _unit, table="runs", reads=_columns, exact=True, name=_name)(
        partial(_stored, columns=_columns.split(), unit=_size)
    )


@metric("seconds of one aggregation", "ms", table="timings", reads="aggregate_seconds")
def aggregation_ms(rows: pd.DataFrame) -> float:
    """Return the mean over rounds of the server's step."""
    timed = rows.loc[rows["round"] > 1, "aggregate_seconds"]  # the first loads and compiles
    return 1000 * float(timed.mean())


#: What the stragglers of a run did, summed over rounds: uploads, clients, seconds.
SUMS = ("idle_seconds", "arrived", "late", "discarded", "passed_over", "dropped", "out_of_time")
for _column in (*SUMS, "local_steps"):
    metric(_column.replace("_", " "), table="rounds", reads=_column, name=_column)(
        partial(_reduced, column=_column, how="sum")
    )
for _name, _table, _title, _unit in (
    ("wall_seconds", "timings", "seconds of a run", "s"),
    ("simulated_seconds", "rounds", "simulated time", "s"),
):
    metric(_title, _unit, table=_table, reads=_name, name=_name)(
        partial(_reduced, column=_name, how="max")
    )


#: The metrics of this package, which others do not replace.
OWN = frozenset(METRICS)
