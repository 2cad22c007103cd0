"""Metrics: numbers of a run, each declared once with its title and unit.

Stored metrics are columns of runs.parquet, derived ones functions of a run's rows of another table.
``_a`` and ``_b`` restrict a metric to the clients that agree with the majority and to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from fedsdg.next_analysis.records import RUN, Record

#: Readings of a stored metric: the round selected on validation data, and the mean of the last
#: quarter's evaluations.
READINGS = {"selected": "round selected on validation data", "quarter": "mean of the last quarter"}
GROUPS = {"": "", "_a": ", clients that agree (A)", "_b": ", clients that conflict (B)"}

#: Rows of a run → its number.
Number = Callable[[pd.DataFrame], float]


@dataclass(frozen=True)
class Metric:
    """A number of a run: ``table`` and ``columns`` are what ``number`` reads; none: it is stored.

    ``exact`` numbers are counted, so that a single seed decides about them.
    """

    title: str
    unit: str = ""
    number: Number | None = None
    table: str = "runs"
    columns: tuple[str, ...] = ()
    exact: bool = False


METRICS: dict[str, Metric] = {
    f"{name}{group}": Metric(f"{title}{tail}", "%")
    for name, title, groups in (
        ("expected_accuracy", "personal accuracy", GROUPS | {"_new": ", new clients"}),
        ("expected_worst_decile", "worst-decile accuracy", {"": ""}),
        ("personal_accuracy", "accuracy on the own shard", {"": ""}),
        ("personal_worst_decile", "worst-decile accuracy on the own shard", {"": ""}),
        ("global_accuracy", "accuracy of the shared model", {"": ""}),
        ("val_accuracy", "validation accuracy", {"": ""}),
    )
    for group, tail in groups.items()
}


def values(
    record: Record, name: str, runs: pd.DataFrame | None = None, at: str = "selected"
) -> pd.DataFrame:
    """Return a metric of every finished run that has it.

    Args:
        record: The experiment.
        name: A key of ``METRICS``.
        runs: The runs that are wanted; all by default.
        at: A reading of a stored metric.

    Returns:
        ``RUN``, ``metric``, ``value`` in the metric's unit.
    """
    metric = METRICS[name]
    runs = record.finished if runs is None else runs
    if metric.number is None:
        column = f"{at}_{name}"
        found = (
            100 * runs[column].astype(float) if column in runs else pd.Series(np.nan, runs.index)
        )
    elif metric.table == "runs":
        found = metric.number(runs)
    else:
        rows = record.rows(metric.table, metric.columns, runs)
        rows = rows.dropna(how="all", subset=[c for c in metric.columns if c not in _KEYS])
        numbers = {key: metric.number(own) for key, own in rows.groupby(RUN, sort=False)}
        found = pd.Series(
            [numbers.get(tuple(key), np.nan) for key in runs[RUN].to_numpy()], runs.index
        )
    return runs[RUN].assign(metric=name, value=found).dropna(subset=["value"])


_KEYS = ("round", "client", "conflicts")


def metric(
    title: str,
    unit: str = "",
    *,
    table: str = "clients",
    reads: str = "",
    exact: bool = False,
    groups: bool = False,
) -> Callable[[Number], Number]:
    """Enter a function of a run's rows as a metric of its name, with ``groups`` three of them."""

    def enter(number: Number) -> Number:
        columns = tuple(
            dict.fromkeys(["round", *reads.split(), *(["conflicts"] if groups else [])])
        )
        for group, tail in (GROUPS if groups else {"": ""}).items():
            of = partial(_of_group, number, group) if group else number
            METRICS[number.__name__ + group] = Metric(title + tail, unit, of, table, columns, exact)
        return number

    return enter


def _of_group(number: Number, group: str, rows: pd.DataFrame) -> float:
    members = rows[rows["conflicts"].eq(group == "_b")]
    return number(members) if len(members) else np.nan


def _late(rows: pd.DataFrame, share: float = 3 / 4) -> pd.DataFrame:
    return rows[rows["round"] > share * rows["round"].max()]


def _per_client(
    rows: pd.DataFrame, column: str, number: Callable[[np.ndarray], float]
) -> pd.Series:
    """Return the mean of ``number`` over the evaluations of the last quarter, client by client."""
    late = _late(rows).dropna(subset=["val_accuracy", column])
    return late[column].map(np.asarray).map(number).groupby(late["client"]).mean()


# --- training ------------------------------------------------------------------------------------


@metric(
    "change of accuracy over the last half", "points", table="rounds", reads="expected_accuracy"
)
def trend(rows: pd.DataFrame) -> float:
    last = _late(rows)
    before = _late(rows, 1 / 2).drop(last.index)
    return 100 * (last["expected_accuracy"].mean() - before["expected_accuracy"].mean())


@metric("swing between evaluations", "points", table="rounds", reads="global_accuracy")
def swing(rows: pd.DataFrame) -> float:
    return 100 * float(_late(rows, 1 / 2)["global_accuracy"].diff().abs().mean())


# --- gates and private parts ---------------------------------------------------------------------

for _name, _title, _inside in (
    ("gate", "mean gate", lambda m: m),
    ("gates_closed", "gates below 0.1 (%)", lambda m: 100.0 * (m < 0.1)),
    ("gates_middle", "gates in [0.4, 0.6] (%)", lambda m: 100.0 * ((m > 0.4) & (m < 0.6))),
    ("gates_open", "gates above 0.9 (%)", lambda m: 100.0 * (m > 0.9)),
    (
        "gates_extreme",
        "gates below 0.1 or above 0.9 (%)",
        lambda m: 100.0 * ((m < 0.1) | (m > 0.9)),
    ),
):

    def _mean_gate(rows: pd.DataFrame, inside: Callable = _inside) -> float:
        return _per_client(rows, "gates", lambda m: inside(m).mean()).mean()

    _mean_gate.__name__ = _name
    metric(_title, reads="client gates val_accuracy", groups=True)(_mean_gate)


@metric("spread of gates over blocks", reads="client gates val_accuracy", groups=True)
def gate_spread(rows: pd.DataFrame) -> float:
    return _per_client(rows, "gates", np.ptp).mean()


@metric("private share", reads="client private_shares val_accuracy", groups=True)
def private_share(rows: pd.DataFrame) -> float:
    return _per_client(rows, "private_shares", np.mean).mean()


@metric("spread of private shares", reads="client private_shares val_accuracy", groups=True)
def share_spread(rows: pd.DataFrame) -> float:
    return _per_client(rows, "private_shares", np.ptp).mean()


@metric("‖θ_p‖ / ‖θ_g‖", reads="client private_ratio val_accuracy", groups=True)
def private_ratio(rows: pd.DataFrame) -> float:
    return _per_client(rows, "private_ratio", np.mean).mean()


for _of in ("gate", "private"):
    for _when, _pick in (
        ("first", lambda rows, c: rows.loc[rows["round"].idxmin(), c]),
        ("late", lambda rows, c: _late(rows)[c].mean()),
        ("largest", lambda rows, c: rows[c].max()),
    ):

        def _penalty(rows: pd.DataFrame, pick: Callable = _pick, of: str = _of) -> float:
            return float(pick(rows, f"{of}_penalty"))  # rounds without a gate have none

        _penalty.__name__ = f"{_of}_penalty_{_when}"
        metric(f"{_of} penalty, {_when}", table="rounds", reads=f"{_of}_penalty")(_penalty)


@metric("ρ of gates with local steps", reads="client gates val_accuracy local_steps")
def gates_and_steps(rows: pd.DataFrame) -> float:
    steps = rows.groupby("client")["local_steps"].sum()
    return _per_client(rows, "gates", np.mean).corr(steps, method="spearman")


# --- weights and credit --------------------------------------------------------------------------


def _weights(rows: pd.DataFrame) -> pd.Series:
    """Return weights in units of an equal share; cohorts differ in size."""
    return rows["weight"] * rows.groupby("round")["weight"].transform("count")


for _when, _slice in (
    ("", lambda rows: rows),
    ("_first", lambda rows: rows.drop(_late(rows, 1 / 4).index)),
    ("_last", _late),
):

    def _weight(rows: pd.DataFrame, part: Callable = _slice) -> float:
        conflicting = rows.assign(weight=_weights(rows))
        return part(conflicting)[part(conflicting)["conflicts"].eq(True)]["weight"].mean()

    _weight.__name__ = f"weight_b{_when}"
    metric("weight of clients in conflict (1: equal)", reads="weight conflicts")(_weight)


@metric("effective clients (%)", reads="weight")
def effective_clients(rows: pd.DataFrame) -> float:
    w = rows[rows["weight"] > 0].groupby("round")["weight"]
    entropy = -w.apply(lambda w: (w * np.log(w)).sum())
    return 100 * float((np.exp(entropy) / rows.groupby("round")["weight"].count()).mean())


for _credit in ("weight", "alignment", "credibility", "contribution", "shapley_estimate"):
    for _against in ("noise_rate", "shapley"):

        def _rank(rows: pd.DataFrame, credit: str = _credit, against: str = _against) -> float:
            if credit == "weight":
                rows = rows.assign(weight=_weights(rows))
            means = rows.groupby("client")[[credit, against]].mean().dropna()
            return (
                means[credit].corr(means[against], method="spearman") if len(means) > 2 else np.nan
            )

        _rank.__name__ = f"{_credit}_by_{_against}"
        metric(f"ρ of {_credit} with {_against}", reads=f"client weight {_credit} {_against}")(
            _rank
        )


# --- costs ---------------------------------------------------------------------------------------


def _count(name: str, title: str, unit: str, number: Number) -> None:
    METRICS[name] = Metric(title, unit, number, exact=True)


_count("megabytes", "bytes sent both ways", "MB", lambda r: (r["bytes_up"] + r["bytes_down"]) / 1e6)
_count("degenerate_rounds", "rounds without alignment", "", lambda r: r["degenerate_rounds"])
_count(
    "private_size",
    "private over communicated parameters",
    "",
    lambda r: r["private_parameters"] / r["communicated_parameters"],
)


def _seconds(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["round"] > 1]


@metric("seconds of one aggregation", "ms", table="timings", reads="aggregate_seconds")
def aggregation_ms(rows: pd.DataFrame) -> float:
    return 1000 * _seconds(rows)["aggregate_seconds"].mean()


@metric(
    "aggregation over training time", "%", table="timings", reads="aggregate_seconds train_seconds"
)
def aggregation_share(rows: pd.DataFrame) -> float:
    sums = _seconds(rows).sum(numeric_only=True)
    return 100 * sums["aggregate_seconds"] / sums["train_seconds"]


@metric("seconds of a run", "s", table="timings", reads="wall_seconds")
def wall_seconds(rows: pd.DataFrame) -> float:
    return rows["wall_seconds"].iloc[0]


@metric("simulated time", "s", table="rounds", reads="simulated_seconds")
def simulated_seconds(rows: pd.DataFrame) -> float:
    return rows["simulated_seconds"].max()


#: Columns of a round that count uploads and clients.
SUMS = ("idle_seconds", "arrived", "late", "discarded", "passed_over", "dropped")
for _column in SUMS:

    def _sum(rows: pd.DataFrame, column: str = _column) -> float:
        return rows[column].sum()

    _sum.__name__ = f"{_column}_sum"
    metric(_column.replace("_", " "), table="rounds", reads=_column)(_sum)


# --- detection of attackers ----------------------------------------------------------------------

_BLOCKED = "client participated attacker blocked"


def _caught(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by client: ``attacks``, ``blocked`` in the end, ``delay`` until it was first blocked."""
    rows = rows.sort_values("round")
    rows = rows.assign(blocked=rows["blocked"].eq(True), attacks=rows["attacker"].eq(True))
    first = [
        rows[rows[c].eq(True)].groupby("client")["round"].min() for c in ("blocked", "participated")
    ]
    by_client = rows.groupby("client").agg(attacks=("attacks", "any"), blocked=("blocked", "last"))
    return by_client.assign(delay=first[0] - first[1])


@metric("attackers among the blocked (%)", "%", reads=_BLOCKED)
def precision(rows: pd.DataFrame) -> float:
    caught = _caught(rows)
    return 100 * caught.loc[caught["blocked"], "attacks"].mean()


@metric("blocked among the attackers (%)", "%", reads=_BLOCKED)
def recall(rows: pd.DataFrame) -> float:
    caught = _caught(rows)
    return 100 * caught.loc[caught["attacks"], "blocked"].mean()


@metric("rounds until an attacker is blocked", reads=_BLOCKED)
def delay(rows: pd.DataFrame) -> float:
    caught = _caught(rows)
    return caught.loc[caught["attacks"] & caught["blocked"], "delay"].mean()
