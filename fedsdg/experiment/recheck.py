"""Whether a recorded run comes out here as its record says: its first rounds, done again.

Runs may be compared seed by seed, as pairs, if clients, cohorts, first values and backbone are the
same. On the machine of the record a run is the same byte for byte. A processor with other
instructions rounds sums differently: then losses of the first round agree within `SAME_LOSS`, and
training amplifies the difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from fedsdg.config.layers import load
from fedsdg.errors import ConfigError
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import repeatable, threads
from fedsdg.experiment.material import load_material
from fedsdg.experiment.partitions import draw
from fedsdg.experiment.runs import Task, task_of
from fedsdg.federation import rounds
from fedsdg.files import sha256_json
from fedsdg.files.places import ARENAS, RECORDS, run_below
from fedsdg.files.records import read_parquet

ROUNDS = 5
"""Rounds that are done again: enough for every client's data, cohort and first values to count."""
SAME_LOSS = 1e-4
"""In nats; losses of equal federations differ by less in the first round."""
KEYS = {"rounds": ("round",), "clients": ("round", "client")}
"""What names a row of a table within a run."""
LEFT_OUT = ("answers", "gates")
"""Columns that depend on which rounds were evaluated."""


@dataclass(frozen=True)
class RecordedRun:
    """A run of a record."""

    record: Path
    "the folder of the record"
    row: Mapping[str, Any]
    "its row of runs.parquet"

    @property
    def folder(self) -> str:
        """The folder of the run below ``results/runs/{experiment}``."""
        return run_below(self.row)

    def rows(self, table: str, most: int) -> list[dict[str, Any]]:
        """Return the rows of ``rounds`` or ``clients`` up to a round."""
        where = pc.field("round") <= most
        for key in ("dataset", "skew", "method", "seed"):
            where &= pc.field(key) == self.row[key]
        found: list[dict[str, Any]]
        found = read_parquet(self.record / f"{table}.parquet").filter(where).to_pylist()
        return found


def recorded_runs(record: Path) -> list[RecordedRun]:
    """Return the runs of a record, or of a summary, that went well."""
    rows = read_parquet(record / "runs.parquet").to_pylist()
    return [RecordedRun(record, row) for row in rows if row["status"] == "ok"]


@dataclass(frozen=True)
class Agreement:
    """How a recorded run and its first rounds here agree."""

    run: str
    "the folder of the run"
    differs: tuple[str, ...] = ()
    "sentences; if there is any, runs made here are no pairs of recorded ones"
    exactly: bool = False
    "whether every recorded number is the same"
    largest: float | None = None
    "of the differences between clients' losses in the first round; None: no round was done"
    kernels: tuple[str, str] | None = None
    "what computed the record and what computes here, if these are not the same"

    @property
    def paired(self) -> str | None:
        """How runs made here are paired: "exactly", "by federation", or None if they are not."""
        if self.differs:
            return None
        return "exactly" if self.exactly else "by federation"

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.differs:
            return f"not paired with the record: {'; '.join(self.differs)}"
        if self.exactly:
            return f"paired exactly: {self.run} comes out bit for bit"
        text = (
            f"paired by federation: {self.run} has the same clients, cohorts and first values, and "
            f"its losses agree to {self.largest:.0e} in the first round"
        )
        if self.kernels:
            text += "; training.kernel is {} in the record, but {} here".format(*self.kernels)
        return text


def recheck(task: Task, recorded: RecordedRun, most: int = ROUNDS) -> Agreement:
    """Do the first rounds of a recorded run again, and compare them.

    Config, partition and backbone are compared first; if they differ, nothing is trained. Nothing
    is written.

    Args:
        task: The run as a config describes it now, and the files that it needs.
        recorded: The run as its record has it.
        most: The number of rounds.

    Raises:
        FileNotFoundError: The data set or the backbone is not there.
    """
    run = task.run
    there = json.loads(recorded.row["config"])
    material = load_material(task.source, task.backbone, run.training.device)
    partition = draw(run, material.data)
    kernels = (there["training"].pop("kernel", "torch"), run.training.kernel)
    differs = [f"the config's {one}" for one in _differences(there, run.complete())]
    for what, hashes in (
        ("partition", (recorded.row["partition_hash"], partition.sha256)),
        ("backbone", (recorded.row["backbone_hash"], material.backbone_hash)),
    ):
        if hashes[0] != hashes[1]:
            short = [str(one)[:12] for one in hashes]
            differs.append(f"the {what} is {short[0]} in the record, but {short[1]} here")
    if differs:
        return Agreement(recorded.folder, tuple(differs))
    device = material.samples.images.device
    with threads(run.training.threads), repeatable(device, tf32=run.training.precision == "tf32"):
        setup = build(run, material, partition)
        done = [record for _, record in islice(rounds.run(setup, *setup.initial()), most)]
    here = {
        "rounds": [record.round for record in done],
        "clients": [row for record in done for row in record.clients],
    }
    agreement = compared(recorded, here, most)
    return replace(agreement, kernels=kernels if kernels[0] != kernels[1] else None)


def recheck_record(root: Path, number: int | None, salt: str) -> Iterator[tuple[str, Agreement]]:
    """Recheck a sample of the published runs of every arena.

    Args:
        root: The repository.
        number: The number of runs of each arena; None: all.
        salt: The hash of a commit, which decides which runs: every commit tries others.

    Yields:
        The name of the arena and the agreement of a run.
    """
    for arena, name in ARENAS.items():
        record = root / RECORDS / name
        if not (record / "runs.parquet").is_file():
            continue
        config = load([root / f"config/{name}.yaml"])
        backbone = root / RECORDS / f"backbones/{config.backbone}.safetensors"
        found = recorded_runs(record)
        found.sort(key=lambda recorded: sha256_json([salt, recorded.folder]))
        for recorded in found[:number]:
            row = recorded.row
            try:
                entry = config.method(row["method"])
            except ConfigError as error:
                yield arena, Agreement(recorded.folder, (str(error),))
                continue
            run = config.run(row["dataset"], row["skew"], entry, row["seed"])
            yield arena, recheck(replace(task_of(config, run), backbone=backbone), recorded)


def _differences(there: Any, here: Any, place: str = "") -> Iterator[str]:
    """Yield where values of keys that both have are not the same; others were added or are gone."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() & here.keys()):
            yield from _differences(there[key], here[key], f"{place}.{key}" if place else key)
    elif there != here:
        yield f"{place} is {there!r} in the record, but {here!r} here"


def compared(
    recorded: RecordedRun, here: Mapping[str, Iterable[Mapping[str, Any]]], most: int
) -> Agreement:
    """Compare recorded rows with those made here.

    Whole numbers and truth values (who took part, with how many samples and steps) must be the
    same, and the losses of the first round agree within ``SAME_LOSS``, for runs to be pairs.

    Args:
        recorded: The recorded run.
        here: The rows made here, ``rounds`` and ``clients``.
        most: The last round.
    """
    exactly = True
    largest = 0.0
    for table, key in KEYS.items():
        made = {tuple(row[name] for name in key): row for row in here[table]}
        rows = recorded.rows(table, most)
        if len(rows) != len(made):
            text = f"{table}.parquet has {len(rows)} rows in the record, but {len(made)} here"
            return Agreement(recorded.folder, (text,))
        for row in rows:
            place = ", ".join(f"{name} {row[name]}" for name in key)
            own = made.get(tuple(row[name] for name in key), {})
            for column in row.keys() & own.keys() - {*LEFT_OUT}:
                same = _same(row[column], own[column])
                exactly &= same
                if not same and isinstance(row[column], int):
                    text = f"{column} is {row[column]} in the record, but {own[column]} here"
                    return Agreement(recorded.folder, (f"{table}.parquet, {place}: {text}",))
            if row["round"] == 1 and row.get("train_loss") is not None:
                gap = abs(row["train_loss"] - own.get("train_loss", math.nan))
                largest = max(largest, gap)
                if not gap <= SAME_LOSS:
                    text = f"the training losses differ by {gap:.1e}"
                    return Agreement(recorded.folder, (f"{place}: {text}",), False, gap)
    return Agreement(recorded.folder, (), exactly, largest)


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, float) and isinstance(here, float) and math.isnan(there):
        return math.isnan(here)
    if isinstance(there, list) and here is not None:
        here = list(here)
    return bool(there == here)
