"""What glibc's allocator is told, and what telling it is worth.

By default glibc gives large blocks back to the kernel when they are freed and faults them in again
at the next allocation, so that code which makes large copies pays for zeroed pages every time, now
more and now less. Timings that are to be compared are taken with `SETTINGS`, which keep the memory
in the process: that is generous to code that copies. Other C libraries ignore them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}

_CHILD = """
import json, sys, torch
from benchmarks.cohorts import Cohort
from benchmarks.rivals import works
from benchmarks.rules import ours
from benchmarks.timing import in_turns
clients, parameters, threads, budget = json.loads(sys.argv[1])
torch.set_num_threads(threads)
cohort = Cohort.draw(clients, parameters)
turns = [works("fedsdg", cohort)["plain"], ours("fedsdg", cohort)]
for work in turns:
    work()
best = in_turns(turns, budget)
print(json.dumps([min(times) for times in best]))
"""


def specification_and_ours(
    clients: int, parameters: int, *, keep: bool, threads: int, budget: float
) -> tuple[float, float]:
    """Seconds of FedSDG as specified and of ours, in a process with (keep) or without SETTINGS.

    glibc reads them once, when a process starts: hence a process of its own.
    """
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    command = [sys.executable, "-c", _CHILD, json.dumps([clients, parameters, threads, budget])]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env=environment | (SETTINGS if keep else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    theirs, own = json.loads(done.stdout)
    return theirs, own
