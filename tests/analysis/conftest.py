"""Folders of runs with known numbers, written as training writes them, and their record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.gather import keep_record, summarise
from fedsdg.analysis.records import Record
from fedsdg.federation.conditions.difference import LabelConflict
from fedsdg.files import write_json
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    more,
    write_parquet,
    write_tables,
)

REFERENCE = Path(__file__).parents[2] / "results/reference"
ROUNDS = 8
#: Personal accuracy in the last round, in percent, without what the seed adds.
LEVELS = {"fedavg": 80.0, "fedsdg": 90.0, "fedsdg-fast": 88.0}
METHODS = {
    label: {
        "title": label.upper(),
        "family": "all",
        "personal": label != "fedavg",
        "oracle": False,
        "order": order,
    }
    for order, label in enumerate(("fedsdg", "fedsdg-fast", "fedavg"))
}


def write_run(folder: Path, method: str, seed: int, *, gates: bool = True, **facts: object) -> None:
    """Write a run of two clients, of which client 1 conflicts; ``facts`` change its result."""
    accuracy = (LEVELS[method] + seed) / 100
    reading = {"round": ROUNDS, "accuracy": accuracy, "accuracy_shared": 0.5}
    config = {"method": method.partition("-")[0], "backbone": "tiny", "seed": seed}
    result = {
        **{"experiment": "made", "method": config["method"], "status": "ok", "error": None},
        **{"last": reading, "selected": reading, "end": reading | {"evaluations": 2}},
        **{"bytes_up": 10**6, "bytes_down": 2 * 10**6, "address": f"{method}{seed}"},
        **{"partition_hash": f"p{seed}", "backbone_hash": "b"},
        "config": config | {"training": {"threads": 1, "eta_g": 0.1}, "parameters": {}},
    }
    write_json(folder / "result.json", result | facts)
    made = {"commit": "c", "machine": f"m{seed % 2}", "wall_seconds": 3.0}
    days = {"started": f"2026-01-0{seed + 1}", "finished": f"2026-02-0{seed + 1}"}
    write_json(folder / "provenance.json", made | days)
    rounds = range(1, ROUNDS + 1)
    rows = [{"round": t, "accuracy": accuracy * t / ROUNDS} for t in rounds]
    write_parquet(folder / "rounds.parquet", rows, ROUNDS_SCHEMA)
    clients = [
        {"round": t, "client": k, "val_accuracy": 0.5, "weight": 0.25 + k / 2, "conflicts": k == 1}
        | {"train_loss": 1 / 3}
        | ({"gates": [0.05, 0.95 * k]} if gates and method != "fedavg" else {})
        for t in rounds
        for k in (0, 1)
    ]
    write_parquet(
        folder / "clients.parquet", clients, CLIENTS_SCHEMA, more("clients", LabelConflict.columns)
    )
    times = [{"round": t, "aggregate_seconds": 0.5 if t == 1 else 0.002} for t in rounds]
    write_parquet(folder / "timings.parquet", times, TIMINGS_SCHEMA)


def run_folder(root: Path, method: str, seed: int) -> Path:
    """Return where a run lies below the root of an experiment."""
    return root / f"results/runs/made/digits/clients~2/iid@half/{method}/seed~{seed}"


def summary_of(root: Path, runs: Iterable[tuple[str, int]]) -> Path:
    """Summarise these runs, which are written where they are not there."""
    folders = []
    for method, seed in runs:
        folder = run_folder(root, method, seed)
        if not folder.exists():
            write_run(folder, method, seed)
        folders.append(folder)
    summary = root / "results/summary/made"
    summarise(folders, summary, METHODS)
    write_json(summary / "pages.json", {"tables": ["main"], "figures": ["differences", "tuning"]})
    write_json(root / "results/backbones/tiny.json", {"accuracy": 0.5})
    return summary


def record_of(root: Path) -> Path:
    """Return where the record lies below the root of an experiment."""
    return root / "results/reference/made"


def contents(folder: Path) -> dict[str, bytes]:
    """Return what all files below a folder hold."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def rewrite(file: Path, **columns: object) -> None:
    """Change columns of a parquet file, each to one value."""
    write_frame(file, pq.read_table(file).to_pandas().assign(**columns))


def write_frame(file: Path, frame: pd.DataFrame) -> None:
    """Write a data frame as a file of records."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_tables(file, [table], table.schema)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an experiment of three methods and five seeds with its record; not to change."""
    root = tmp_path_factory.mktemp("made")
    keep_record(summary_of(root, [(m, seed) for m in LEVELS for seed in range(5)]), record_of(root))
    return root


@pytest.fixture
def record(made: Path) -> Record:
    """The record of that experiment."""
    return Record(record_of(made))


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of the committed records."""
    return REFERENCE
