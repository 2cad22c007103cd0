"""How far rounding alone moves a run: published runs done again by PyTorch.

    python -m tests.tools.rounding --work rounding --output results/reference/rounding.json

The runs are those of the arenas with the methods and seeds named, with `training.kernel: torch` in
place of the compiled pass that the record was made with, on the same clients, cohorts, first values
and backbone. Sums are then rounded otherwise, and nothing else differs from the record. Reported
are the largest and the root mean square difference of what tables show, and by how much losses
differ in the first rounds. It goes on where it was broken off.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.experiment.replay import ROUNDS, RecordedRun, recorded_runs
from fedsdg.files import provenance, read_json, write_json
from fedsdg.files.places import ANY_RUN, ARENAS, BACKBONE, RECORDS, RUNS, filled, shipped

#: The value of `training.kernel` in the repeated runs.
KERNEL = "torch"
METRICS = ("expected_accuracy", "expected_worst_decile", "global_accuracy")
METRICS_OF_GROUPS = ("expected_accuracy_a", "expected_accuracy_b")
#: Of each kind of method one or two: a run by the other kernel takes several times as long.
METHODS = ("fedsdg", "fedavg-uniform", "fine-tune", "ditto", "fedper", "gated-head", "local-only")


def do_again(
    arena: str, methods: Sequence[str], seeds: Sequence[int], work: Path, jobs: int
) -> None:
    """Run an arena's methods below ``work`` by the other kernel, with the record's backbone."""
    place = work / filled(BACKBONE, backbone="letters")
    place.parent.mkdir(parents=True, exist_ok=True)
    for file in (place, place.with_suffix(".json")):
        shutil.copyfile(shipped(f"{RECORDS}/backbones/{file.name}"), file)
    over = [f"seeds={list(seeds)}", f"training.kernel={KERNEL}"]
    command = [sys.executable, "-m", "fedsdg", "run", "--runs-only", "--jobs", str(jobs)]
    subprocess.run(
        [*command, "--grid", str(shipped(ARENAS[arena])), "--set", *over, "--only", *methods],
        cwd=work,
        env={**os.environ, "FEDSDG_STORE": str(work / ".fedsdg")},
        check=True,
    )


def moved(there: RecordedRun, here: Path) -> dict[str, Any]:
    """One run: differences of the metrics in points, and of losses in the first rounds in nats."""
    result = read_json(here / "result.json")["quarter"]
    row = {"method": there.row["method"], "seed": there.row["seed"]}
    for metric in (*METRICS, *METRICS_OF_GROUPS):
        known = there.row[f"quarter_{metric}"]
        if known is not None and not math.isnan(known):
            row[metric] = 100 * (result[metric] - known)
    losses = [
        table.set_index(["round", "client"])["train_loss"]
        for table in (there.table("clients").to_pandas(), pd.read_parquet(here / "clients.parquet"))
    ]
    gaps = (losses[0] - losses[1]).abs()
    rounds = gaps.index.get_level_values("round")
    row["first_loss"] = float(gaps[rounds == 1].max())
    row["loss"] = float(gaps[rounds <= ROUNDS].max())
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Largest and root mean square difference of each metric, and the largest of the losses."""
    found: dict[str, Any] = {"runs": len(rows)}
    for metric in (*METRICS, *METRICS_OF_GROUPS):
        values = [row[metric] for row in rows if metric in row]
        if values:
            rms = math.sqrt(sum(value * value for value in values) / len(values))
            largest = max(map(abs, values))
            found[metric] = {"largest": round(largest, 2), "rms": round(rms, 2)}
    for name in ("first_loss", "loss"):
        found[name] = float(f"{max(row[name] for row in rows):.1e}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the runs again, print what moved, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arenas", nargs="+", default=list(ARENAS), choices=ARENAS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[3])
    parser.add_argument("--work", type=Path, required=True, help="a folder for runs and store")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    arenas, methods = {}, {}
    for arena in given.arenas:
        work = given.work.resolve()
        work.mkdir(parents=True, exist_ok=True)
        record = {run.folder: run for run in recorded_runs(shipped(f"{RECORDS}/{arena}"))}
        there = {run.row["method"] for run in record.values()}
        wanted = [method for method in given.methods if method in there]
        do_again(arena, wanted, given.seeds, work, given.jobs)
        runs = work / filled(RUNS, experiment=arena)
        here = {folder.relative_to(runs).as_posix(): folder for folder in runs.glob(ANY_RUN)}
        rows = [moved(record[below], here[below]) for below in sorted(here.keys() & record.keys())]
        arenas[arena] = summary(rows)
        for row in rows:
            methods.setdefault(row["method"], []).append(row)
        print(arena, arenas[arena], flush=True)
    origin = provenance()
    write_json(
        given.output,
        {
            "kernel": KERNEL,
            "seeds": given.seeds,
            "unit": "percentage points; losses in nats, of the first round and the first few",
            "first_rounds": ROUNDS,
            "arenas": arenas,
            "methods": {name: summary(rows) for name, rows in sorted(methods.items())},
            **{key: origin[key] for key in ("commit", "dirty", "processor", "versions")},
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
