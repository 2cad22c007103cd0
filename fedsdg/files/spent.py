"""Processor time by command, in a file: where the core-minutes of ``make reproduce`` went.

Each command adds a line when it ends, its child processes included. Snakemake's lines therefore
include those of the commands that it calls, and what they leave is Snakemake's own.
"""

from __future__ import annotations

import os
import re
import resource
from collections import defaultdict
from pathlib import Path

#: The environment variable that names the file; without it nothing is noted.
SPENT = "FEDSDG_SPENT"

#: What is shown, and the commands it consists of; training and evaluation are parts of commands.
PARTS = {
    "training": ("training",),
    "evaluation": ("evaluation",),
    "starting the processes that train": ("run",),
    "backbone": ("pretrain",),
    "partitions": ("partition",),
    "tables, figures and claims": (
        "summarise",
        "render",
        "agree",
    ),
    "checks": ("check",),
    "reports": ("report",),
    "Snakemake and the measurement of speed": ("snakemake",),
}
#: Commands that Snakemake does not call; ``reproduce`` is the process of Snakemake itself.
APART = ("snakemake", "report", "agree", "reproduce")


def note_spent(name: str, seconds: float | None = None) -> None:
    """Add a line to the file that ``$FEDSDG_SPENT`` names, if it names one.

    Args:
        name: the command, or a part of one.
        seconds: of processor time; None: those of this process and its children so far.
    """
    file = os.environ.get(SPENT)
    if not file:
        return
    if seconds is None:
        used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = sum(one.ru_utime + one.ru_stime for one in used)
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(f"{name} {seconds:.3f}\n")


def spent(text: str) -> dict[str, float]:
    """Core-minutes by part (``PARTS``), from the lines of a file; their sum is the whole."""
    by_name: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        name, seconds = line.split()
        by_name[name] += float(seconds) / 60
    of_runs = by_name["training"] + by_name["evaluation"]
    called = sum(
        minutes
        for name, minutes in by_name.items()
        if name not in (*APART, "training", "evaluation")
    )
    found = {part: sum(by_name[name] for name in names) for part, names in PARTS.items()}
    found["starting the processes that train"] -= of_runs
    found["Snakemake and the measurement of speed"] -= called
    return found


def spent_sentence(file: str | Path, installed: str | Path | None = None) -> str:
    """Say in a sentence where core-minutes went.

    Args:
        file: lines of ``note_spent``.
        installed: what the shell's ``times`` said after the installation, if that is there.
    """
    parts = spent(Path(file).read_text(encoding="utf-8"))
    shown = ", ".join(f"{part} {minutes:.1f}" for part, minutes in parts.items())
    sentence = f"{sum(parts.values()):.1f} core-minutes: {shown}"
    place = None if installed is None else Path(installed)
    times = place.read_text(encoding="utf-8") if place and place.is_file() else ""
    # The last line: user and system time of the children, as 1m2.03s.
    last = re.findall(r"(\d+)m([\d.,]+)s", times.strip().rpartition("\n")[2])
    if last:
        minutes = sum(int(m) + float(s.replace(",", ".")) / 60 for m, s in last)
        sentence += f"; the installation took {minutes:.1f} before"
    return sentence
