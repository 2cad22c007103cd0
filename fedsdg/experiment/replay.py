"""Whether a published run comes out here as its record says: its first rounds, done again.

Two runs may be compared seed by seed, as pairs, where clients, cohorts, first values and backbone
are the same. On the machine of the record a run is the same byte for byte. On a processor with
other instructions sums are rounded otherwise: losses of the first round agree within 1e-4, and then
training amplifies the difference. By how much: ``tests/tools/rounding.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedsdg.data.partition import Partition, PartitionSettings
from fedsdg.experiment.building import build
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.material import Material
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.federation import rounds
from fedsdg.files import differences
from fedsdg.files.places import run_below
from fedsdg.files.records import read_parquet
from fedsdg.methods.plugins import find_row
from fedsdg.parts import declared, plain

#: So many rounds are done again: enough for every client's data, cohort and first values to count.
ROUNDS = 5
#: In their first round losses of the same federation differ by less, by the other kernel too:
#: results/reference/rounding.json.
SAME_LOSS = 1e-4

#: Columns in front of every table of a record.
IDENTITY = ["experiment", "dataset", "clients", "skew", "method", "seed"]

#: Keys that make no other experiment: which code computes a run, and keys of earlier releases: two
#: that changed no result, and one of feddpa, whose value is the only one that there is today.
_LEFT_OUT = {
    "training": {"kernel"},
    "federation": {"trace_every", "record_gates"},
    "parameters": {"mixture"},
}

_SECTIONS = {
    "federation": FederationConfig,
    "partition": PartitionSettings,
    "training": TrainingConfig,
    "adapters": AdaptersConfig,
}


@dataclass(frozen=True)
class RecordedRun:
    """A run of a record: the folder of the record, and the run's row of runs.parquet."""

    record: Path
    row: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The folder of the run below ``results/runs/{experiment}``."""
        return run_below(self.row)

    def table(self, name: str) -> pa.Table:
        """Return the run's rows of ``rounds`` or ``clients``, without columns that it lacks."""
        where = pc.field("seed") == self.row["seed"]
        for key in ("dataset", "skew", "method"):
            where &= pc.field(key) == self.row[key]
        table = read_parquet(self.record / f"{name}.parquet", where=where)
        table = table.drop_columns(IDENTITY)
        return table.select([c for c in table.column_names if table[c].null_count < len(table)])


def recorded_runs(record: Path) -> list[RecordedRun]:
    """Return the runs of a record, or of a summary, that went well."""
    rows = read_parquet(record / "runs.parquet").to_pylist()
    return [RecordedRun(record, row) for row in rows if row["status"] == "ok"]


@dataclass(frozen=True)
class Agreement:
    """How a recorded run and its first rounds here agree.

    ``differs``: what is not the same, a sentence each; where there is any, runs made here are no
    pairs of recorded ones. ``exactly``: every recorded number is the same. ``largest``: of the
    differences between training losses of clients in the first round, in nats, and ``later`` in
    those after it; None where no round was done. ``kernels``: what computed the record and what
    computes here, where these are not the same.
    """

    run: str
    differs: tuple[str, ...] = ()
    exactly: bool = False
    largest: float | None = None
    later: float | None = None
    kernels: tuple[str, str] | None = None

    @property
    def paired(self) -> str | None:
        """ "exactly", "by federation", or None where runs made here are no pairs."""
        if self.differs:
            return None
        return "exactly" if self.exactly else "by federation"

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        if self.differs:
            return f"not paired with the record: {'; '.join(self.differs)}"
        if self.exactly:
            return f"paired exactly: {self.run} comes out bit for bit"
        found = (
            f"paired by federation: {self.run} has the same clients, cohorts and first values, and "
            f"its losses agree to {self.largest:.0e} in the first round"
        )
        if self.kernels:
            found += "; training.kernel is {} in the record, but {} here".format(*self.kernels)
        return found


def replay(
    run: RunConfig,
    recorded: RecordedRun,
    material: Material,
    partition: Partition,
    most: int = ROUNDS,
) -> Agreement:
    """Do the first ``most`` rounds of a recorded run, as ``run`` describes it, and compare them.

    What the run is made of (config, partition, backbone) is compared first; where it differs
    nothing is trained.
    """
    config = json.loads(recorded.row["config"])
    found = config_differences(run, config)
    found += material_differences(recorded.row, material, partition)
    if found:
        return Agreement(recorded.folder, tuple(found))
    torch.set_num_threads(run.training.threads)
    with repeatable(material.samples.images.device, tf32=run.training.precision == "tf32"):
        setup = build(run, material, partition)
        done = [record for _, record in islice(rounds.run(setup, *setup.initial()), most)]
    of_clients = [row for record in done for row in record.clients]
    before = declared(TrainingConfig)["kernel"].absent
    assert before is not None
    kernels = config.get("training", {}).get("kernel", before.value), run.training.kernel
    agreement = compared(recorded, [record.round for record in done], of_clients, most)
    return replace(agreement, kernels=kernels if kernels[0] != kernels[1] else None)


def config_differences(run: RunConfig, recorded: Mapping[str, Any]) -> list[str]:
    """Where the config of a recorded run is another than this one, a sentence each.

    A key that the record does not have yet stands for its default, or for the value that the key
    declares as ``absent``.
    """
    here, there = run.to_dict(), dict(recorded)
    for config in (here, there):
        for name, left_out in _LEFT_OUT.items():
            if run.plugin is None or name != "parameters":
                section = config.get(name) or {}
                config[name] = {k: value for k, value in section.items() if k not in left_out}
    known = {name: declared(section) for name, section in _SECTIONS.items()}
    known["parameters"] = find_row(run.method, run.plugin).parameters
    for name, keys in known.items():
        usual = {key: plain(one.default) for key, one in keys.items()}
        absent = {key: one.absent.value for key, one in keys.items() if one.absent is not None}
        own = {key: value for key, value in (there.get(name) or {}).items() if value is not None}
        mine = here.get(name, {})
        if own and mine:
            own, mine = {**absent, **own}, {**absent, **mine}
            here[name] = mine
        since = {key: usual.get(key) for key in mine if key not in own}
        if own or mine:
            known_since = {key: value for key, value in since.items() if value is not None}
            there[name] = {**known_since, **own}
    return [f"the config's {sentence}" for sentence in differences(there, here)]


def material_differences(
    row: Mapping[str, Any], material: Material, partition: Partition
) -> list[str]:
    """Where partition or backbone are others than those of a recorded run."""
    found = []
    if row["partition_hash"] != partition.sha256:
        found.append(
            f"the partition of seed {row['seed']} drawn here ({partition.sha256[:12]}) is not that "
            f"of the record ({str(row['partition_hash'])[:12]}), so clients hold other samples"
        )
    if row["backbone_hash"] != material.backbone_hash:
        found.append(
            f"the backbone here ({str(material.backbone_hash)[:12]}) is not that of the record "
            f"({str(row['backbone_hash'])[:12]})"
        )
    return found


def compared(
    recorded: RecordedRun,
    rounds_here: Iterable[Mapping[str, Any]],
    clients_here: Iterable[Mapping[str, Any]],
    most: int,
) -> Agreement:
    """Recorded rows and those made here, up to round ``most``.

    Whole numbers and truth values (who took part, with how many samples and steps) must be the
    same, and the losses of the first round agree within ``SAME_LOSS``, for runs to be pairs.
    Gates are compared in rounds that are evaluated here.
    """
    exactly, largest, later = True, 0.0, 0.0
    found: list[str] = []
    tables = (
        ("rounds.parquet", recorded.table("rounds"), list(rounds_here), ("round",)),
        ("clients.parquet", recorded.table("clients"), list(clients_here), ("round", "client")),
    )
    for name, table, here, key in tables:
        mine = {tuple(row[k] for k in key): row for row in here}
        theirs = {
            tuple(row[k] for k in key): row for row in table.to_pylist() if row["round"] <= most
        }
        if mine.keys() != theirs.keys():
            found.append(
                f"{name} has other rounds or clients: {len(theirs)} rows in the record, "
                f"{len(mine)} here"
            )
            continue
        counted = [f.name for f in table.schema if _is_counted(f.type)]
        for place, row in theirs.items():
            own = mine[place]
            left_out = {"answers"} if "gates" in own else {"answers", "gates"}
            exactly &= all(_same(row[c], own.get(c)) for c in row.keys() - left_out)
            where = ", ".join(f"{k} {v}" for k, v in zip(key, place, strict=True))
            found += [
                f"{name}, {where}: {column} is {row[column]} in the record, but "
                f"{own.get(column)} here"
                for column in counted
                if not _same(row[column], own.get(column))
            ]
            gap = _gap(row.get("train_loss"), own.get("train_loss"))
            if row["round"] > 1:
                later = max(later, gap)
                continue
            largest = max(largest, gap)
            if not gap <= SAME_LOSS:
                found.append(f"{name}, {where}: the training losses differ by {gap:.1e}")
    # The first says it; thousands of rows would say it again.
    return Agreement(recorded.folder, tuple(found[:1]), exactly and not found, largest, later)


def _is_counted(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, float) and isinstance(here, float) and math.isnan(there):
        return math.isnan(here)
    if isinstance(there, list) and here is not None:
        here = list(here)
    return bool(there == here)


def _gap(there: float | None, here: float | None) -> float:
    if there is None or here is None:
        return 0.0 if there is here else math.inf
    return abs(there - here)
