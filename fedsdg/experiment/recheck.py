"""Whether a recorded run comes out here as its record says: its first rounds, done again.

Runs may be compared seed by seed, as pairs, if clients, cohorts, first values and backbone are the
same. On the machine of the record a run is the same byte for byte. A processor with other
instructions rounds sums differently: then losses of the first round agree within `SAME_LOSS`, and
training amplifies the difference.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fedsdg.config.layers import load
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import repeatable
from fedsdg.experiment.material import draw, load_material
from fedsdg.experiment.runs import Task, task_of
from fedsdg.experiment.training import Training
from fedsdg.files import differences, sha256_json
from fedsdg.files.places import ARENAS, RECORDS, run_below
from fedsdg.files.records import read_parquet, rounded

ROUNDS = 5
"""Rounds that are done again: enough for every client's data, cohort and first values to count."""
SAME_LOSS = 1e-4
"""In nats; losses of equal federations differ by less in the first round."""
KEYS = {"rounds": ["round"], "clients": ["round", "client"]}
"""What names a row of a run's table."""
LEFT_OUT = ["answers", "gates"]
"""Columns that depend on which rounds were evaluated."""


class Agreement(NamedTuple):
    """How a recorded run and its first rounds here agree."""

    run: str
    "the folder of the run, below those of its experiment"
    paired: str | None
    """how runs made here are paired with recorded ones: "exactly" if every recorded number is the
    same, else "by federation"; None if they are not"""
    sentence: str


def recorded_runs(record: Path) -> list[dict[str, Any]]:
    """Return the rows of runs.parquet, of a record or a summary, whose runs went well."""
    rows = read_parquet(record / "runs.parquet").to_pylist()
    return [row for row in rows if row["status"] == "ok"]


def recheck(task: Task, record: Path, row: Mapping[str, Any], most: int = ROUNDS) -> Agreement:
    """Do the first rounds of a recorded run again, and compare them.

    Config, partition and backbone are compared first; if they differ, nothing is trained. Nothing
    is written.

    Args:
        task: The run as a config describes it now, and the files that it needs.
        record: The folder of the record.
        row: The run's row of runs.parquet.
        most: The number of rounds.

    Raises:
        FileNotFoundError: The data set or the backbone is not there.
    """
    run = task.run
    there = json.loads(row["config"])
    here = run.complete()
    material = load_material(task.source, task.backbone, run.training.device)
    partition = draw(run, material.data)
    # Either kernel makes the same federation.
    there["training"]["kernel"] = here["training"]["kernel"]
    there |= {key: row[key] for key in ("partition_hash", "backbone_hash")}
    here |= {"partition_hash": partition.sha256, "backbone_hash": material.backbone_hash}
    # Keys that one of them lacks were added since, or are gone.
    differing = "; ".join(differences(_common(there, here), _common(here, there)))
    if differing:
        return _no_pair(row, differing)
    device = material.samples.images.device
    tf32 = run.training.precision == "tf32"
    with repeatable(device, threads=run.training.threads, tf32=tf32):
        made = Training(build(run, material, partition)).advance(most).records
    return compared(record, row, {"rounds": made.rounds, "clients": made.clients})


def _common(config: Any, other: Any) -> Any:
    """Return a config with the keys that the other has, too."""
    if not isinstance(config, dict) or not isinstance(other, dict):
        return config
    return {key: _common(value, other[key]) for key, value in config.items() if key in other}


def compared(
    record: Path, row: Mapping[str, Any], here: Mapping[str, list[dict[str, Any]]]
) -> Agreement:
    """Compare the rows of a recorded run with those made here.

    Whole numbers and truth values (who took part, with how many samples and steps) must be the
    same, and the losses of the first round agree within ``SAME_LOSS``, for runs to be pairs.

    Args:
        record: The folder of the record.
        row: The run's row of runs.parquet.
        here: The rows of ``rounds`` and ``clients`` made here.
    """
    exactly = True
    largest = 0.0
    for table, key in KEYS.items():
        where = pc.field("round") <= max(made["round"] for made in here[table])
        for name in ("dataset", "skew", "method", "seed"):
            where &= pc.field(name) == row[name]
        rows = read_parquet(record / f"{table}.parquet").filter(where)
        there = pd.DataFrame(rows.to_pylist()).set_index(key)
        names = set().union(*here[table])
        kinds = pa.schema([column for column in rows.schema if column.name in names])
        made_here = pa.Table.from_pylist(here[table], schema=kinds)
        if table == "clients":  # As a record keeps them.
            made_here = rounded(made_here)
        own = pd.DataFrame(made_here.to_pylist()).set_index(key)
        if not there.index.equals(own.index):
            text = f"{table}.parquet has other rounds or clients: {len(rows)} rows in the record"
            return _no_pair(row, f"{text}, {len(own)} here")
        for name in there.columns.intersection(own.columns).difference(LEFT_OUT):
            same = (there[name] == own[name]) | (there[name].isna() & own[name].isna())
            exactly &= bool(same.all())
            if not same.all() and own[name].dtype.kind in "bi":
                place: Any = same.idxmin()
                text = f"{there[name][place]} in the record, but {own[name][place]} here"
                return _no_pair(row, f"{table}.parquet, {', '.join(key)} {place}: {name} is {text}")
        gaps = (there["train_loss"] - own["train_loss"]).abs()
        if table == "clients":  # Both are rounded, by up to this much together.
            gaps -= there["train_loss"].abs() / 2**16
        largest = max(largest, gaps[own.index.get_level_values("round") == 1].max())
    run = run_below(row)
    if largest > SAME_LOSS:
        return _no_pair(row, f"training losses of the first round differ by {largest:.1e}")
    if exactly:
        return Agreement(run, "exactly", f"paired exactly: {run} comes out as recorded")
    agree = f"agree to {largest:.0e}" if largest else "are equal"
    sentence = (
        f"paired by federation: {run} has the same clients, cohorts and first values, and "
        f"its losses {agree} in the first round"
    )
    return Agreement(run, "by federation", sentence)


def _no_pair(row: Mapping[str, Any], fault: str) -> Agreement:
    return Agreement(run_below(row), None, f"not paired with the record: {fault}")


def recheck_record(root: Path, number: int | None, salt: str) -> Iterator[tuple[str, Agreement]]:
    """Recheck a sample of the published runs of every arena.

    Args:
        root: The repository.
        number: The number of runs of each arena; None: all.
        salt: The hash of a commit, which decides which runs: every commit tries others.

    Yields:
        The name of the arena and the agreement of a run.
    """
    for arena in ARENAS:
        record = root / RECORDS / arena
        if not (record / "runs.parquet").is_file():
            continue
        config = load([root / f"config/{arena}.yaml"])
        backbone = root / RECORDS / f"backbones/{config.backbone}.safetensors"
        rows = recorded_runs(record)
        rows.sort(key=lambda row: sha256_json([salt, run_below(row)]))
        for row in rows[:number]:
            run = config.run(row["dataset"], row["skew"], config.method(row["method"]), row["seed"])
            task = replace(task_of(config, run), backbone=backbone)
            yield arena, recheck(task, record, row)
