"""A small record: made-up runs of a few methods, whose numbers can be computed by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedsdg.analysis.records import Record
from tests.analysis.conftest import write_frame

TITLES = {"fedsdg": "FedSDG", "fedavg-uniform": "FedAvg (uniform)", "known": "Known clusters"}
#: Personal accuracy of five seeds in percent.
ACCURACY = {
    "fedsdg": (90.0, 91.0, 92.0, 93.0, 94.0),
    "fedavg-uniform": (80.0, 82.0, 81.0, 83.0, 84.0),
    "known": (99.0, 99.0, 99.0, 99.0, 99.0),
}
ROUNDS = (10, 20, 30, 40)


def config(method: str, **conditions: object) -> str:
    """Return a config as runs.parquet holds it."""
    parameters = {"lambda1": 0.03} if method == "fedsdg" else {}
    federation = {"clients": 4, "rounds": 40}
    return json.dumps(
        {
            "method": method,
            "parameters": parameters,
            "training": {"eta_g": 0.001 if method == "fedsdg" else 0.002, "epochs": 2},
            "federation": federation,
            "conditions": conditions or None,
        }
    )


def run_row(method: str, seed: int, accuracy: float, **facts: object) -> dict[str, object]:
    """Return a row of runs.parquet whose accuracies follow from one, in percent."""
    row = {"experiment": "small", "dataset": "digits", "clients": 4, "skew": "iid@half"}
    row |= {"method": method, "seed": seed, "type": method, "status": "ok", "error": None}
    for at, shift in (("selected", 0.0), ("end", -1.0)):
        for name, gain in (("accuracy", 0), ("accuracy_a", 2), ("accuracy_b", -2)):
            row[f"{at}_{name}"] = (accuracy + gain + shift) / 100
        row[f"{at}_worst_decile"] = (accuracy - 10 + shift) / 100
        row[f"{at}_accuracy_shared"] = (accuracy - 5 + shift) / 100
    sizes = {"bytes_up": 10**6, "bytes_down": 2 * 10**6, "client_storage_bytes": 3000}
    row |= sizes | {"communicated_parameters": 100, "private_parameters": 0, "personal_steps": 0}
    return row | {"config": config(method)} | facts


def rows_of(accuracy: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    """Return rows of runs.parquet, one per method and seed."""
    return [
        run_row(method, seed, value)
        for method, values in accuracy.items()
        for seed, value in enumerate(values)
    ]


def write_record(
    folder: Path, rows: Sequence[Mapping[str, object]] = (), search: object = None
) -> Record:
    """Write runs, rounds and clients of some runs and return the record."""
    folder.mkdir(parents=True)
    runs = pd.DataFrame([*(rows or rows_of(ACCURACY))])
    write_frame(folder / "runs.parquet", runs)
    identity = runs[runs["status"] == "ok"][[*runs.columns[:6], "selected_accuracy"]]
    rounds = identity.merge(pd.DataFrame({"round": ROUNDS}), how="cross")
    rounds["accuracy"] = rounds.pop("selected_accuracy") * rounds["round"] / 40
    rounds = rounds.assign(local_steps=100, personal_steps=0, bytes_up=10**6, bytes_down=0)
    write_frame(folder / "rounds.parquet", rounds)
    clients = identity.drop(columns="selected_accuracy").assign(round=40, client=0)
    write_frame(folder / "clients.parquet", clients)
    write_frame(folder / "timings.parquet", clients.assign(wall_seconds=7.0))
    facts = {"family": "all", "oracle": False, "personal": False}
    methods = {
        label: facts | {"title": TITLES.get(label, label), "order": place}
        for place, label in enumerate(runs["method"].unique())
    }
    for label in methods:
        methods[label]["oracle"] = label == "known"
        methods[label]["personal"] = label == "fedsdg"
    (folder / "methods.json").write_text(json.dumps(methods))
    if search is not None:
        (folder / "search.json").write_text(json.dumps(search))
    return Record(folder)
