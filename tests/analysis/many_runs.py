"""Records of very many runs, as a large grid leaves them: the real schemas, every column filled."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedsdg.files import read_json
from fedsdg.files.places import run_below
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA, read_parquet, write_parquet

from .conftest import Plan, write_runs

METHODS = (
    "fedsdg",
    "fedavg",
    "fedavg-uniform",
    "fedavg-sgd",
    "fine-tune",
    "fedprox",
    "scaffold",
    "krum",
    "multikrum",
    "local-only",
)
CLIENTS, ROUNDS, EVERY = 20, 100, 10
#: Different runs of a method; the other seeds and skews hold the same records under their names.
_DIFFERENT = 2
_SKEW = "dirichlet~0.3"
_COPIED = ("rounds.parquet", "clients.parquet", "timings.parquet", "provenance.json")


def write_many(runs: Path, skews: int, seeds: int) -> int:
    """Write ``len(METHODS) · skews · seeds`` runs below ``runs``, and return how many they are."""
    models = runs.with_name(f"{runs.name}-models")
    plan = Plan(
        METHODS,
        (_SKEW,),
        tuple(range(_DIFFERENT)),
        clients=CLIENTS,
        cohort=CLIENTS // 2,
        rounds=ROUNDS,
        evaluate_every=EVERY,
        quarters=True,
    )
    write_runs(models, plan)
    identity = {"dataset": "digits", "clients": CLIENTS}
    for method in METHODS:
        for number in range(_DIFFERENT):
            model = models / run_below(identity | {"skew": _SKEW, "method": method, "seed": number})
            _fill(model / "rounds.parquet", ROUNDS_SCHEMA, number)
            _fill(model / "clients.parquet", CLIENTS_SCHEMA, number)
            for skew in (f"dirichlet~{k / 100:g}" for k in range(1, skews + 1)):
                for seed in range(number, seeds, _DIFFERENT):
                    named = {"experiment": runs.name, "skew": skew, "seed": seed}
                    _copy(model, runs / run_below(identity | {"method": method} | named), named)
    return len(METHODS) * skews * seeds


def _fill(file: Path, schema: pa.Schema, seed: int) -> None:
    """Numbers in the columns that ``write_runs`` leaves empty; the gates stay as they are."""
    table = read_parquet(file)
    rng = np.random.default_rng(seed)
    for name in table.column_names:
        kind = table.schema.field(name).type
        if table[name].null_count == len(table) and not pa.types.is_list(kind):
            values = pa.array(1 + 99 * rng.random(len(table))).cast(kind, safe=False)
            table = table.set_column(table.column_names.index(name), name, values)
    columns = {name: table[name] for name in table.column_names}
    more = [field for field in table.schema if field.name not in schema.names]
    write_parquet(file, columns, pa.schema([*schema, *more]))


def _copy(model: Path, folder: Path, named: dict) -> None:
    folder.mkdir(parents=True)
    for name in _COPIED:
        os.link(model / name, folder / name)
    result = read_json(model / "result.json")
    config = result["config"] | {"skew": named["skew"], "seed": named["seed"]}
    text = json.dumps(result | named | {"config": config})
    (folder / "result.json").write_text(text, encoding="utf-8")
