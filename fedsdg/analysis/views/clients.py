"""Views of single clients: gates over the rounds, credits beside label noise, and trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fedsdg.analysis.frames import (
    CASE,
    PLACE,
    ROW,
    RUN,
    groups,
    in_order,
    over_seeds,
    split_scenario,
)
from fedsdg.analysis.inference import correlation_interval, pearson, spearman
from fedsdg.analysis.summary import Summary

#: Measures of a client's gates in a round, and their names in print.
GATE_MEASURES: Mapping[str, str] = {
    "gate": "gate m",
    "private_share": "private share",
    "private_ratio": "‖θ_p‖ / ‖θ_g‖",
    "gate_penalty": "gate penalty Σ m",
    "private_penalty": "private penalty",
    "closed": "gates < 0.1",
    "middle": "gates in [0.4, 0.6]",
    "open": "gates > 0.9",
}
#: The measures of ``gate_course``, in order.
GATE_COURSE = ("gate", "private_share", "correlation")
#: Beside the measures: Spearman's ρ of a client's mean gate with its local steps so far.
CORRELATION = "correlation"
#: Credits that a method may give a client, in the order shown.
CREDITS: Mapping[str, str] = {
    "weight": "weight (1 = equal)",
    "alignment": "alignment",
    "credibility": "credibility",
    "contribution": "contribution",
    "shapley_estimate": "Shapley value, estimated",
}
#: Yardsticks that credits are compared with.
YARDSTICKS: Mapping[str, str] = {
    "noise_rate": "share of wrong labels",
    "shapley": "exact Shapley value",
}
TRAJECTORY = [*RUN, "kind", "client", "round", "step", "x", "y", "plane_share"]

_PLACE_AND_SEED = [*PLACE, "seed"]
_OPTIONAL = [
    *("local_steps", "steps", "conflicts", "private_shares", "private_ratio"),
    *("gate_penalty", "private_penalty"),
]


def gate_dynamics(summary: Summary) -> pd.DataFrame:
    """Means over clients of the subject's gates at each evaluation.

    ``GATE_MEASURES`` are first taken within a client (its mean gate m, the shares of its gates
    below 0.1, in [0.4, 0.6] and above 0.9, its mean private share) and then averaged over the
    clients that were drawn. ``CORRELATION`` is taken over all drawn clients. Old records lack some
    measures; their local steps are counted from the rounds in which a client took part.

    Returns:
        dataset, clients, skew, seed, method, group ("A": clients that agree, "B": clients that do
        not, "": all clients, or clients of one kind), round, measure, value.
    """
    method = summary.subject()
    frame = summary.frame(
        "clients",
        [*_PLACE_AND_SEED, "method", "round", "client", "gates"],
        _OPTIONAL,
    )
    frame = frame[frame["method"] == method].sort_values("round", kind="stable")
    clients = frame.assign(local_steps=frame["local_steps"].fillna(0))
    counted = clients.groupby([*_PLACE_AND_SEED, "client"])["local_steps"].cumsum()
    frame = frame.assign(steps=frame["steps"].fillna(counted))
    at = [*_PLACE_AND_SEED, "method", "round"]
    evaluated = summary.frame("rounds", [*at, "evaluated"])
    evaluated = evaluated.loc[evaluated["evaluated"].astype(bool), at]
    frame = frame[frame["gates"].notna()].merge(evaluated, on=at)
    columns = [*_PLACE_AND_SEED, "method", "group", "round", "measure", "value"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    parted = frame["conflicts"].notna().any()
    kind = np.where(frame["conflicts"].fillna(False).astype(bool), "B", "A") if parted else ""
    frame = _within_clients(frame).assign(group=kind)
    rows = []
    for key, drawn in groups(frame, *at):
        where = dict(zip(at, key, strict=True))
        values = {
            (group, name): value
            for group, members in groups(drawn, "group")
            for name, value in members[list(GATE_MEASURES)].astype(float).mean().items()
        }
        steps = drawn["steps"].astype(float)
        values["", CORRELATION] = drawn["gate"].rank().corr(steps.rank())
        rows += [
            where | {"group": group, "measure": name, "value": float(value)}
            for (group, name), value in values.items()
            if np.isfinite(value)
        ]
    return pd.DataFrame(rows, columns=columns)


def gate_course(summary: Summary) -> pd.DataFrame:
    """``gate_dynamics`` in ``GATE_COURSE`` alone: means over seeds with their intervals."""
    rows = in_order(gate_dynamics(summary), "measure", GATE_COURSE)
    return over_seeds(rows, [*PLACE, "measure", "method", "group", "round"], "value")


def last_gates(summary: Summary) -> pd.DataFrame:
    """The last gates of every client at the lowest seed, method by method.

    Returns:
        ``CASE``, seed, group ("A", "B", or "" where clients are of one kind), client, block (from
        1) and ``gate``, NaN for a client that never trained. Clients of A come first.
    """
    identity = [*CASE, "seed"]
    frame = summary.frame("clients", [*identity, "round", "client", "gates"], ["conflicts"])
    # A client's kind is that of its data, which all methods share.
    kinds = frame.dropna(subset=["conflicts"]).groupby([*_PLACE_AND_SEED, "client"])["conflicts"]
    known: dict[Any, bool] = dict(kinds.last())
    frame = frame[frame["gates"].notna()].sort_values("round", kind="stable")
    rows = []
    for case, runs in groups(frame, *CASE):
        seed = runs["seed"].min()
        last = dict(runs.loc[runs["seed"] == seed, ["client", "gates"]].to_numpy())
        place, blocks = case[:3], len(next(iter(last.values())))
        parted = (*place, seed) in {key[:4] for key in known}
        for client in range(place[1]):
            differs = bool(known.get((*place, seed, client), False))
            where = dict(zip(identity, (*case, seed), strict=True))
            where |= {"group": "AB"[differs] if parted else "", "client": client}
            gates = last.get(client, [np.nan] * blocks)
            rows += [where | {"block": b, "gate": float(m)} for b, m in enumerate(gates, start=1)]
    columns = [*identity, "group", "client", "block", "gate"]
    return pd.DataFrame(rows, columns=columns).sort_values(
        [*CASE, "group", "client", "block"], kind="stable", ignore_index=True
    )


def weight_shares(summary: Summary) -> pd.DataFrame:
    """Weights of the subject's clients in each round, in units of an equal share.

    Returns:
        ``CASE``, group, round and ``MEAN`` over seeds: the mean weight of the clients that agree
        (A) and of those that differ (B) in the round's cohort; where clients are of one kind, the
        lowest, the median and the highest weight.
    """
    method = summary.subject()
    identity = [*CASE, "seed", "round"]
    frame = summary.frame("clients", [*identity, "client", "weight"], ["conflicts"])
    frame = frame[(frame["method"] == method) & frame["weight"].notna()]
    cohort = frame.groupby(identity)["weight"].transform("count")
    frame = frame.assign(share=frame["weight"] * cohort)
    if frame["conflicts"].notna().any():
        kinds = np.where(frame["conflicts"].eq(True), "B", "A")
        rounds = frame.assign(group=kinds).groupby([*identity, "group"])["share"].mean()
        order = ["A", "B"]
    else:
        quantiles = {"lowest": 0.0, "median": 0.5, "highest": 1.0}
        order = [*quantiles]
        shares = frame.groupby(identity)["share"]
        parts = [shares.quantile(q).to_frame().assign(group=g) for g, q in quantiles.items()]
        rounds = pd.concat(parts).set_index("group", append=True)["share"]
    rows = over_seeds(rounds.reset_index(), [*CASE, "group", "round"], "share")
    return in_order(rows, "group", order)


def _within_clients(frame: pd.DataFrame) -> pd.DataFrame:
    gates = frame["gates"].map(np.asarray)
    shares = frame["private_shares"].map(
        lambda value: float(np.mean(value)) if np.ndim(value) and len(value) else np.nan
    )
    return frame.assign(
        gate=gates.map(np.mean),
        closed=gates.map(lambda m: np.mean(m < 0.1)),
        middle=gates.map(lambda m: np.mean((m >= 0.4) & (m <= 0.6))),
        open=gates.map(lambda m: np.mean(m > 0.9)),
        private_share=shares,
    )


def credits(summary: Summary) -> pd.DataFrame:
    """Credits of the clients with a noise rate, means over the rounds that recorded them.

    Returns:
        ``RUN``, client, ``CREDITS`` and ``YARDSTICKS``. ``weight`` is in units of 1/M, M being the
        clients weighted in that round; ``shapley`` is in percentage points of accuracy.
    """
    identity = [*CASE, "seed"]
    optional = [name for name in (*CREDITS, *YARDSTICKS) if name not in ("weight", "alignment")]
    frame = summary.frame(
        "clients", [*identity, "round", "client", "weight", "alignment"], optional
    )
    frame = frame[frame["noise_rate"].notna()]
    cohort = frame.groupby([*identity, "round"])["weight"].transform("count")
    frame = split_scenario(
        frame.assign(weight=frame["weight"] * cohort, shapley=100 * frame["shapley"].astype(float))
    )
    columns = [*CREDITS, *YARDSTICKS]
    return frame.groupby([*RUN, "client"], sort=False)[columns].mean().reset_index()


def correlations(clients: pd.DataFrame) -> pd.DataFrame:
    """Correlation of each credit with each yardstick over the clients of ``credits``.

    Taken within each run and then averaged by Fisher's z (``correlation_interval``). A credit that
    does not vary between clients has no correlation, and no row.

    Returns:
        ``ROW``, measure, yardstick; the number of ``runs`` that allow a
        correlation, ``spearman`` with the ends ``low`` and ``high`` of its 95 % interval (None for
        one run), and ``pearson``.
    """
    rows = []
    for key, runs in groups(clients, *ROW):
        seeds = [run for _, run in groups(runs, "seed")]
        for measure, yardstick in product(CREDITS, YARDSTICKS):
            pairs = [(run[measure].to_numpy(), run[yardstick].to_numpy()) for run in seeds]
            ranks = [r for pair in pairs if (r := spearman(*pair)) is not None]
            linear = [r for pair in pairs if (r := pearson(*pair)) is not None]
            if not ranks:
                continue
            interval = correlation_interval(ranks)
            rows.append(
                dict(zip(ROW, key, strict=True))
                | {"measure": measure, "yardstick": yardstick, "runs": interval.n}
                | {"spearman": interval.mean, "low": interval.low, "high": interval.high}
                | {"pearson": correlation_interval(linear).mean}
            )
    columns = [*ROW, "measure", "yardstick", "runs", "spearman", "low", "high", "pearson"]
    return pd.DataFrame(rows, columns=columns)


def credit_points(summary: Summary) -> pd.DataFrame:
    """Pair each credit of the clients of the lowest seed with each yardstick.

    Returns:
        ``RUN``, client, credit, yardstick, ``x`` (by the yardstick), ``y`` (the credit), and
        ``spearman``, the mean over all seeds, NaN where all clients have the same credit and as
        text in ``note``. Only credits that a method gives; the estimated Shapley value is left to
        the table.
    """
    clients = credits(summary)
    known = {
        (*row[: len(ROW)], row[len(ROW)], row[len(ROW) + 1]): row[-1]
        for row in correlations(clients)[[*ROW, "measure", "yardstick", "spearman"]].itertuples(
            index=False, name=None
        )
    }
    lowest = clients[clients["seed"] == clients.groupby(ROW)["seed"].transform("min")]
    parts = []
    for yardstick, (credit, (key, rows)) in product(
        YARDSTICKS, product([*CREDITS][:-1], groups(lowest, *ROW))
    ):
        rows = rows.dropna(subset=[credit, yardstick])
        names = {"credit": credit, "yardstick": yardstick}
        rho = known.get((*key, credit, yardstick), np.nan)
        points = rows[[*RUN, "client"]].assign(
            **names,
            x=rows[yardstick].astype(float),
            y=rows[credit].astype(float),
            spearman=rho,
            note="no ρ" if np.isnan(rho) else f"ρ = {rho:+.2f}".replace("-", "−"),
        )
        parts += [points] if len(points) else []
    columns = [*RUN, "client", "credit", "yardstick", "x", "y", "spearman", "note"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def class_counts(partitions: Sequence[Path]) -> pd.DataFrame:
    """Samples of each class at each client, for the lowest seed of each place.

    Args:
        partitions: Partition files; their global test set (client −1) is left out.

    Returns:
        dataset, clients, skew, seed, client, label, ``samples`` (train, validation and test).

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: A file carries no facts of a partition.
    """
    found: dict[tuple[str, int, str], pd.DataFrame] = {}
    for path in partitions:
        if not path.exists():
            raise FileNotFoundError(f"no partition at {path}: make it with 'fedsdg partition'")
        table = pq.read_table(path, columns=["label", "client"], partitioning=None)
        facts = json.loads((table.schema.metadata or {}).get(b"fedsdg", b"{}"))
        if not facts:
            raise ValueError(
                f"{path} carries no facts of a partition; make it with 'fedsdg partition'"
            )
        place = (facts["dataset"], facts["num_clients"], facts["skew"])
        if place in found and facts["seed"] >= found[place]["seed"].iloc[0]:
            continue
        every = pd.MultiIndex.from_product(
            [range(facts["num_clients"]), range(facts["num_classes"])], names=["client", "label"]
        )
        counts = table.to_pandas().value_counts(["client", "label"]).reindex(every, fill_value=0)
        names = dict(zip(PLACE, place, strict=True)) | {"seed": facts["seed"]}
        found[place] = counts.rename("samples").reset_index().assign(**names)
    rows = pd.concat(found.values(), ignore_index=True)
    return rows[[*PLACE, "seed", "client", "label", "samples"]]


def trajectories(summary: Summary) -> pd.DataFrame:
    """Paths of models through parameter space: clients within a round, and the aggregates.

    Returns:
        Rows of ``TRAJECTORY`` for the lowest seed. ``kind`` is "local" for a client's points,
        step 0 being what it starts from, and "aggregate" for the server's model after a round
        (client and step are null). x and y are coordinates in the plane of the run,
        ``plane_share`` the share of all variation that lies in it.
    """
    identity = [*CASE, "seed"]
    ways = summary.frame("clients", [*identity, "round", "client"], ["path_x", "path_y"])
    models = summary.frame("rounds", [*identity, "round"], ["model_x", "model_y", "plane_share"])
    ways, models = ways[ways["path_x"].notna()], models[models["model_x"].notna()]
    shares = models.groupby(identity, as_index=False)["plane_share"].first()
    steps = pd.Series([list(range(len(way))) for way in ways["path_x"]], index=ways.index)
    local = ways.assign(step=steps).explode(["path_x", "path_y", "step"])
    local = local.rename(columns={"path_x": "x", "path_y": "y"}).assign(kind="local")
    local = local.merge(shares, on=identity, how="left")
    models = models.rename(columns={"model_x": "x", "model_y": "y"}).assign(kind="aggregate")
    rows = split_scenario(pd.concat([part for part in (local, models) if len(part)] or [local]))
    numbers = ["x", "y", "client", "step", "plane_share"]
    rows = rows.reindex(columns=TRAJECTORY).astype(dict.fromkeys(numbers, float))
    lowest = rows.groupby(ROW)["seed"].transform("min")
    return rows[rows["seed"] == lowest].reset_index(drop=True)
