"""Measures of cost: bytes, sizes, seconds."""

from __future__ import annotations

import json

from fedsdg.analysis.measures.records import Case, LackingError, Record, Values
from fedsdg.files import read_json


def bytes_sent(record: Record, case: Case) -> Values:
    """All bytes sent, both ways, in MB."""
    return {
        seed: (run["bytes_up"] + run["bytes_down"]) / 1e6 for seed, run in record.runs(case).items()
    }


def scalars(record: Record, case: Case) -> Values:
    """Bytes sent both ways, over 4 bytes · 2 M d_g · rounds."""
    values = {}
    for seed, run in record.runs(case).items():
        cohort = json.loads(run["config"])["federation"]["clients_per_round"]
        scalars = 2 * cohort * run["communicated_parameters"] * run["rounds"]
        values[seed] = (run["bytes_up"] + run["bytes_down"]) / (4 * scalars)
    return values


def share_of_model(record: Record, case: Case) -> Values:
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


def private_size(record: Record, case: Case) -> Values:
    """Parameters kept by a client over parameters sent."""
    return {
        seed: run["private_parameters"] / run["communicated_parameters"]
        for seed, run in record.runs(case).items()
    }


def aggregation_time(record: Record, case: Case) -> Values:
    """Milliseconds of an aggregation, mean over rounds."""
    frames = record.per_seed(case, record.timings, "aggregate_seconds")
    # The first round loads and compiles what the others only use.
    return {
        seed: 1000 * float(rounds.loc[rounds["round"] > 1, "aggregate_seconds"].mean())
        for seed, rounds in frames.items()
    }


def aggregation_share(record: Record, case: Case) -> Values:
    """Seconds of aggregation over seconds of training, in %."""
    frames = record.per_seed(case, record.timings, "aggregate_seconds", "train_seconds")
    values = {}
    for seed, rounds in frames.items():
        rounds = rounds[rounds["round"] > 1]
        seconds = rounds[["aggregate_seconds", "train_seconds"]].sum()
        values[seed] = 100 * float(seconds["aggregate_seconds"] / seconds["train_seconds"])
    return values


def simulated_seconds(record: Record, case: Case) -> Values:
    """The simulated clock at the end of a run, in s."""
    frames = record.per_seed(case, record.rounds, "simulated_seconds")
    return {seed: float(rounds["simulated_seconds"].max()) for seed, rounds in frames.items()}
