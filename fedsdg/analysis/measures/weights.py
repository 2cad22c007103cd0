"""Measures of what the server makes of clients: weights, credit, rounds without any."""

from __future__ import annotations

import numpy as np

from fedsdg.analysis.inference import spearman
from fedsdg.analysis.measures.records import Case, LackingError, Record, Values


def relative_weight(record: Record, case: Case) -> Values:
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


def effective_clients(record: Record, case: Case) -> Values:
    """exp(entropy of the weights) / M, mean over the rounds: 100 % for equal weights."""
    cohort = record.settings(case)["federation"]["clients_per_round"]
    frames = record.per_seed(case, record.rounds, "weight_entropy")
    return {
        seed: 100 * float(np.exp(rounds["weight_entropy"].dropna()).mean() / cohort)
        for seed, rounds in frames.items()
    }


def credit(record: Record, case: Case) -> Values:
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


def degenerate(record: Record, case: Case) -> Values:
    """Rounds in which all alignments were zero."""
    return {seed: float(run["degenerate_rounds"]) for seed, run in record.runs(case).items()}
