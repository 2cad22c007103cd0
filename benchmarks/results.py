"""Rows of measurements, the thresholds that they have to keep, and the file that holds them.

A row has the same keys for every question: `question`, `setting` (sizes or model), `subject` (a
rule, a method or a run), `code` (who did it), `seconds` (best turn), `ratio` (median over the turns
of seconds of this code over seconds of ours), and `busy_cores` (cores used by other programs).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.timing import Timings, allowed_cores
from fedsdg.files import provenance, write_json

Row = dict[str, Any]
THRESHOLDS = Path(__file__).with_name("thresholds.yaml")
BUSY = 0.1
"""Nothing is judged while other programs use a larger share of the cores."""


def rows_of(question: str, setting: str, subject: str, timings: Timings, **facts: Any) -> list[Row]:
    """Return a row for every code of one comparison.

    Args:
        question: As in the row.
        setting: As in the row.
        subject: As in the row.
        timings: What the codes took.
        facts: Further keys: a value for all codes, or a mapping of values by code.
    """
    rows = []
    for code in timings.seconds:
        row: Row = {"question": question, "setting": setting, "subject": subject, "code": code}
        row |= {"seconds": min(timings.seconds[code]), "ratio": timings.ratio(code)}
        row["busy_cores"] = round(timings.busy_cores, 2)
        for name, value in facts.items():
            row[name] = value.get(code) if isinstance(value, Mapping) else value
        rows.append(row)
    return rows


def thresholds() -> dict[str, Any]:
    """Return the thresholds: `ratios`, `compare` and `files`."""
    read: dict[str, Any] = yaml.safe_load(THRESHOLDS.read_text(encoding="utf-8"))
    return read


def missed(rows: Sequence[Row], ratios: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for every threshold that a row misses.

    Args:
        rows: Of one comparison.
        ratios: Thresholds: the least `ratio` of rows whose question, setting, subject and code are
            those that the threshold names.
    """
    sentences = []
    for row in rows:
        for threshold in ratios:
            named = threshold.keys() & {"question", "setting", "subject", "code"}
            applies = all(row[key] == threshold[key] for key in named)
            if applies and row["ratio"] < threshold["least"]:
                sentences.append(
                    f"{row['subject']}, {row['setting']}: {row['code']} takes {row['ratio']:.2f} "
                    f"times as long as ours, at least {threshold['least']:g} is required "
                    f"({threshold['reason']})"
                )
    return sentences


def too_busy(busy_cores: float) -> str:
    """Return why nothing can be judged, or nothing if the machine was quiet."""
    count = len(allowed_cores())
    if busy_cores <= BUSY * count:
        return ""
    return f"other programs used {busy_cores:.1f} of {count} cores; close them and measure again"


def threads() -> int:
    """Return OMP_NUM_THREADS, or else the number of allowed cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(allowed_cores()))


def machine() -> dict[str, Any]:
    """Return what a reader of timings needs to know, without the names of host and user."""
    wanted = ("commit", "dirty", "python", "platform", "processor", "versions")
    known = provenance()
    facts = {key: known[key] for key in wanted}
    return facts | {"cores": len(allowed_cores()), "threads": threads()}


def write(path: Path, rows: Sequence[Row], **facts: Any) -> None:
    """Write measurements as JSON: `machine` and `rows`."""
    write_json(path, {"machine": machine() | facts, "rows": list(rows)})
