"""Where the core-minutes of ``make reproduce`` went: ``python -m fedsdg.files.spent FILE``.

Each command adds a line to the file when it ends (``note_spent``), its child processes included.
Snakemake's lines therefore include those of the commands that it calls, and what they leave is
Snakemake's own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SNAKEMAKE = "Snakemake and the measurement of speed"
STARTING = "starting the processes that train"
#: What the time of a command, or of a part of one, is shown as.
PARTS = {
    "training": "training",
    "evaluation": "evaluation",
    "run": STARTING,
    "pretrain": "backbone",
    "partition": "partitions",
    **dict.fromkeys(("summarise", "render"), "tables and figures"),
    "check": "checks",
    "report": "reports",
    "snakemake": SNAKEMAKE,
}
#: Commands that Snakemake does not call; ``reproduce`` is the process of Snakemake itself.
APART = ("snakemake", "report", "reproduce")


def spent(text: str) -> dict[str, float]:
    """Core-minutes by part, from the lines of a file; their sum is the whole."""
    found = dict.fromkeys(PARTS.values(), 0.0)
    for line in text.splitlines():
        name, seconds = line.split()
        minutes = float(seconds) / 60
        if name in PARTS:
            found[PARTS[name]] += minutes
        if name in ("training", "evaluation"):
            found[STARTING] -= minutes
        elif name not in APART:
            found[SNAKEMAKE] -= minutes
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


if __name__ == "__main__":
    print(spent_sentence(*sys.argv[1:]))
