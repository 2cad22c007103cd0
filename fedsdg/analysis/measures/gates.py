"""Measures of gates and private parts, of penalties on them, and of what gates go with."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedsdg.analysis.inference import spearman
from fedsdg.analysis.measures.records import Case, LackingError, Record, Values, after


def penalty(record: Record, case: Case) -> Values:
    """Σ of the gates or Σ of squares of the private parameters, at a time of the run."""
    name, at = f"{case.options['of']}_penalty", case.options.get("at", "quarter")
    values = {}
    for seed, rounds in record.per_seed(case, record.rounds, name).items():
        rows = rounds[rounds[name].notna()].sort_values("round")[["round", name]]
        late = rows.loc[after(rows, 3 / 4), name]
        picks = {"first": rows[name].iloc[0], "quarter": late.mean(), "largest": rows[name].max()}
        values[seed] = float(picks[at])
    return values


def gate_share(record: Record, case: Case) -> Values:
    """Share [%] of a client's gates in a range, mean over clients."""
    low, high = case.options.get("above", -math.inf), case.options.get("below", math.inf)
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = _gates(rows)
        values[seed] = 100 * _over_clients(rows, ((gates > low) & (gates < high)).mean(axis=1))
    return values


def gate_extremes(record: Record, case: Case) -> Values:
    """Share [%] of a client's gates below 0.1 or above 0.9, mean over clients."""
    values = {}
    for seed, rows in _late_clients(record, case, "gates").items():
        gates = _gates(rows)
        values[seed] = 100 * _over_clients(rows, ((gates < 0.1) | (gates > 0.9)).mean(axis=1))
    return values


def gate_mean(record: Record, case: Case) -> Values:
    """The mean gate of a client, mean over clients."""
    frames = _late_clients(record, case, "gates")
    return {seed: _over_clients(rows, _gates(rows).mean(axis=1)) for seed, rows in frames.items()}


def within_client(record: Record, case: Case) -> Values:
    """Mean over clients of the largest minus the smallest gate, or private share, of a client."""
    name = case.options.get("of", "gates")
    values = {}
    for seed, rows in _late_clients(record, case, name).items():
        blocks = np.stack([np.asarray(one, dtype=float) for one in rows[name]])
        values[seed] = _over_clients(rows, np.ptp(blocks, axis=1))
    return values


def private_share(record: Record, case: Case) -> Values:
    """‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), mean over blocks and clients."""
    values = {}
    for seed, rows in _late_clients(record, case, "private_shares").items():
        shares = np.stack([np.asarray(one, dtype=float) for one in rows["private_shares"]])
        values[seed] = _over_clients(rows, shares.mean(axis=1))
    return values


def private_ratio(record: Record, case: Case) -> Values:
    """‖θ_p‖ / ‖θ_g‖ of the adapters, mean over clients."""
    frames = _late_clients(record, case, "private_ratio")
    return {
        seed: _over_clients(rows, rows["private_ratio"].to_numpy(float))
        for seed, rows in frames.items()
    }


def gates_and_steps(record: Record, case: Case) -> Values:
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


def _late_clients(record: Record, case: Case, *columns: str) -> dict[int, pd.DataFrame]:
    """Seed → clients' rows of the last quarter's evaluations that have these columns.

    ``clients`` picks those whose labels or images differ (``conflict``), or the others (``agree``).
    """
    group = case.options.get("clients", "all")
    needed = columns if group == "all" else (*columns, "conflicts")
    found = {}
    for seed, rows in record.per_seed(case, record.clients, *needed).items():
        late = rows[after(rows, 3 / 4) & rows["val_accuracy"].notna()]
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
