"""Analysis of thousands of runs: how long it takes and how much memory, as the workflow does it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.files import read_json
from fedsdg.files.places import run_below
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA, read_parquet, write_parquet

from ..bad_inputs.outcomes import EVERYTHING
from .conftest import METHODS as LISTED
from .conftest import Plan, write_runs

METHODS = (*LISTED[:9], "local-only")
CLIENTS, ROUNDS, EVERY = 20, 100, 10
#: Different runs of a method; the other seeds and skews hold the same records under their names.
_DIFFERENT = 2
_SKEW = "dirichlet~0.3"
_COPIED = ("rounds.parquet", "clients.parquet", "timings.parquet", "provenance.json")


def write_many(runs: Path, skews: int, seeds: int) -> int:
    """Write ``len(METHODS) · skews · seeds`` runs below ``runs``, and return how many they are."""
    models = runs.with_name(f"{runs.name}-models")
    plan = Plan(METHODS, (_SKEW,), tuple(range(_DIFFERENT)), clients=CLIENTS, quarters=True,
                cohort=CLIENTS // 2, rounds=ROUNDS, evaluate_every=EVERY)  # fmt: skip
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


#: (skews, seeds, seconds of processor time, MiB): of 5,000 runs what was promised. Of a tenth of
#: them a tenth of the seconds, and 1.5 for each of six processes to start; and half the memory,
#: for a row group of clients is half full.
SIZES = {500: (5, 10, 60 / 10 + 6 * 1.5, 512), 5000: (25, 20, 60, 1024)}

# In a small process of its own: what a child takes counts from what its parent had.
_MEASURE = """
import json, os, sys
found = {}
for name, *arguments in json.load(sys.stdin):
    command = [sys.executable, "-m", "fedsdg", *arguments]
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=silent)
    _, status, used = os.wait4(child, 0)
    found[name] = (status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of the memory is that of Linux")
@pytest.mark.parametrize("size", [500, *([5000] if EVERYTHING else [])])
def test_many_runs_are_analysed_in_little_time_and_memory(size, tmp_path) -> None:
    skews, seeds, seconds, memory = SIZES[size]
    assert write_many(tmp_path / "runs/large", skews, seeds) == size
    summary = f"{tmp_path}/records/large"
    commands = [["summarise", "summarise", "--runs", f"{tmp_path}/runs/large", "--output", summary]]
    for table in ("main", "differences", "horizon", "rounds_to_target"):
        output = ["--summary", summary, "--output", f"{tmp_path}/tables"]
        commands.append([table, "render", f"table:{table}", *output])
    places = ["--records", f"{tmp_path}/records", "--output", f"{tmp_path}/across"]
    commands.append(["across", "render", "across", "--experiments", "large", *places])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE],
        input=json.dumps(commands),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    said = "\n".join(f"{name}: {used[1]:.1f} s, {used[2]:.0f} MiB" for name, used in found.items())
    assert all(status == 0 for status, _, _ in found.values()), done.stderr
    # All of it was there to be read: the cohort in each round, everybody at an evaluation.
    rows = pq.read_metadata(f"{summary}/clients.parquet").num_rows
    assert rows == size * (ROUNDS + ROUNDS // EVERY) * CLIENTS // 2
    assert len(pq.read_table(f"{summary}/runs.parquet", columns=["method"])) == size
    lines = (tmp_path / "tables/main.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + 3 * len(METHODS) * skews
    print(f"{size} runs\n{said}")
    assert sum(used for _, used, _ in found.values()) < seconds, said
    assert max(used for _, _, used in found.values()) < memory, said
