"""Whether the machine is quiet enough for a judgement about speed.

Two signs: what other programs do on this process's cores (from /proc/stat, time stolen by a
hypervisor included), and whether a busy loop gets a whole core (a quota or a crowd denies it).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

LIMIT = 0.1
"""Others may take this share of the cores."""


def cores() -> set[int]:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds that our cores have worked since the machine started, for anyone; None if unknown."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    total = 0
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores():
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


class Watch:
    """Begins when it is made; `others()` is how many cores others have used since, on average."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.perf_counter(), busy_seconds(), _own_seconds()

    def others(self) -> float:
        """Cores in use by other programs; without /proc/stat what a busy loop lacks of a core."""
        elapsed = time.perf_counter() - self._wall
        if self._busy is None or elapsed < 0.1:  # The kernel counts in hundredths of a second.
            return lacking()
        now = busy_seconds()
        assert now is not None
        return max(0.0, (now - self._busy) - (_own_seconds() - self._own)) / elapsed


def _own_seconds() -> float:
    """Processor time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def lacking(span: float = 0.2) -> float:
    """What a busy loop of `span` seconds lacked of a whole core: 0 on a free one."""
    wall, own = time.perf_counter(), time.process_time()
    while time.perf_counter() < wall + span:
        pass
    return max(0.0, 1 - (time.process_time() - own) / (time.perf_counter() - wall))


def refusal(others: float) -> str | None:
    """Why nothing is judged, in one sentence; None when the machine was quiet."""
    count = len(cores())
    if others <= LIMIT * count:
        return None
    return (
        f"not judged: other programs took {others:.1f} of {count} cores; close them and run again"
    )
