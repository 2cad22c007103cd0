"""Analysis of thousands of runs: how long it takes and how much memory, as the workflow does it."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from ..bad_inputs.outcomes import EVERYTHING
from .many_runs import CLIENTS, EVERY, METHODS, ROUNDS, write_many

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
