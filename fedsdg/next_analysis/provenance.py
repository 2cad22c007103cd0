"""Where a number comes from, and whether committed files say what their records give.

A row of a table's or figure's CSV begins with its key: experiment, cell, method, metric. The runs
behind it are those with this key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from fedsdg.next_analysis.metrics import values
from fedsdg.next_analysis.records import Record

HASHES = ["config_hash", "partition_hash", "backbone_hash", "source_hash"]
_NUMBER = re.compile(
    r"(?:(?<=[\s\[(|;])[−+-])?(?<![\w.~])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])"
)


def trace(root: str | Path, key: str, metric: str, at: str = "selected") -> pd.DataFrame:
    """Return the runs behind a number: value, folder, hashes, commit and day, one row per seed.

    Args:
        root: The folder of the records.
        key: ``experiment/cell/method``.
        metric: A metric.
        at: Its reading.
    """
    experiment, cell, method = key.split("/")
    record = Record(Path(root) / experiment)
    runs = record.finished
    runs = runs[(runs["cell"] == cell) & (runs["method"] == method)]
    if runs.empty:
        raise ValueError(
            f"no run of {experiment} has the key {key}; its cells are {sorted(set(record.runs['cell']))}"
        )
    folder = (
        "results/runs/"
        + experiment
        + "/"
        + runs["dataset"]
        + "/clients~"
        + runs["clients"].astype(str)
    )
    folder += "/" + runs["skew"] + "/" + runs["method"] + "/seed~" + runs["seed"].astype(str)
    found = runs[["seed", *HASHES]].assign(run=folder, made=folder.map(_origins(record)))
    return found.merge(values(record, metric, runs, at)[["seed", "value"]], on="seed")


def _origins(record: Record) -> Callable[[str], str]:
    """Return a function from the folder of a run to commit, day and machine."""
    file = record.folder / "provenance.json"
    made = {}
    for origin in json.loads(file.read_text()) if file.is_file() else []:
        text = f"{origin['commit'][:10]}, {origin.get('first', '')[:10]}, {origin['processor']}, torch {origin['versions']['torch']}"
        made |= dict.fromkeys(origin["runs"], text)
    return lambda folder: made.get(folder.split("/", 3)[3], "unknown")


def trace_line(root: str | Path, place: str) -> pd.DataFrame:
    """Return the runs behind a line of a CSV: ``results/reference/cross-needs/main.csv:12``."""
    file, _, line = place.rpartition(":")
    row = pd.read_csv(file).iloc[int(line) - 2]
    return trace(
        root,
        "/".join(row[["experiment", "cell", "method"]]),
        row["metric"],
        row.get("at", "selected"),
    )


def verify(made: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield a sentence for every committed file that does not say what its records give.

    Args:
        made: Files with the text that they should hold.
    """
    for file, text in made:
        if not file.is_file():
            yield f"{file} is missing"
            continue
        committed, fresh = (_lines(file, t) for t in (file.read_text(encoding="utf-8"), text))
        if len(committed) != len(fresh):
            yield f"{file} has {len(committed)} lines; the records give {len(fresh)}"
        for number, (one, other) in enumerate(zip(committed, fresh), start=1):
            if not same(one, other):
                yield f"{file}:{number}: {one!r} is committed, but the records give {other!r}"
                break


def _lines(file: Path, text: str) -> list[str]:
    return (text.replace(",", " ; ") if file.suffix == ".csv" else text).splitlines()


def same(line: str, other: str) -> bool:
    """Return whether two lines agree, numbers by one unit of their last digit."""
    if line == other:
        return True
    if _NUMBER.sub("#", line) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(line), _NUMBER.findall(other), strict=True)
    return all(_close(*pair) for pair in pairs)


def _close(one: str, other: str) -> bool:
    a, b = (text.replace(",", "").replace("−", "-") for text in (one, other))
    decimals = max(len(text.partition(".")[2].partition("e")[0]) for text in (a, b))
    return a == b or (
        decimals > 0
        and abs(float(a) - float(b)) <= max(10.0**-decimals, 1e-5 * abs(float(a))) * 1.01
    )
