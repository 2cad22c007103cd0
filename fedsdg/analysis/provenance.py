"""Where a number comes from: from a line of a CSV, a key or a claim to the runs behind it.

A row of a CSV has its key, ``experiment``, ``cell`` and ``method``, which selects its runs. A
metric is read again, seed by seed; of any other number the runs are named.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.claims import Claim, by_seed, checked, completed, judge, read_claims
from fedsdg.analysis.claims import numbers as compared
from fedsdg.analysis.metrics import METRICS, READINGS
from fedsdg.analysis.records import IDENTITY, KEY, RUN, Record, record
from fedsdg.errors import hint, require_one_of
from fedsdg.files.places import RECORDS, RUNS, run_below

#: What ``with_origins`` adds besides the folder of a run, where the record does not say it.
_UNKNOWN = dict.fromkeys(("commit", "dirty", "day", "machine"), "unknown")
#: Columns that say of which part of a run a number is.
_PARTS = {"round", "client"}
#: CSV of which no run of the record is behind the rows → what is, in the record's folder.
_SOURCES = {
    "tuning": "the trials of {method} in search.json",
    "partition": "the files in partitions",
}
_NUMBERS = ("n", "mean", "std", "low", "high")
_METRIC = re.compile(r"\b[a-z_]\w*")


@dataclass(frozen=True)
class Trace:
    """A number and the runs behind it."""

    what: str
    """Metric, keys and reading; of a claim its sentence before."""
    seeds: Mapping[int, float]
    """Seed → its number, the difference where two rows are compared; the committed number is their
    mean. Empty for a number that is no metric of a run, such as a round of a curve."""
    runs: pd.DataFrame
    """Rows of ``Record.runs`` with the columns of ``with_origins`` and each run's own ``value``."""
    committed: str = ""
    """The number as it is printed."""


def trace(root: str | Path, what: str, metric: str = "", at: str = "selected") -> Trace:
    """Find the runs behind a number.

    Args:
        root: The root of the repository.
        what: ``FILE.csv:LINE`` of a table or figure, ``experiment/cell/method``, or the id of a
            claim.
        metric: Of a key: a metric, or arithmetic of metrics.
        at: Of a key or a claim: the reading of metrics that have two.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: There is no such line, key, metric or claim; or no run stands behind
            the line.
    """
    root = Path(root)
    file, _, line = what.rpartition(":")
    if file.endswith(".csv") and line.isdecimal():
        return _trace_line(root, Path(file), int(line))
    if re.fullmatch(r"[^/]+/[^/]+/[^/]+", what) and Path(what).suffix not in (".csv", ".md"):
        if not metric:
            raise ValueError(f"name a metric of {what} as well, such as accuracy")
        fields = {"claim": what, "origin": "post hoc", "metric": metric, "of": what, "holds": "> 0"}
        return _trace_sides(root, checked(f"of {what}", fields), at, what)
    claims = {claim.id: claim for claim in read_claims(root / "claims.yaml")}
    if what not in claims:
        raise ValueError(
            f"{what!r} is no line of a CSV (results/reference/needs/main.csv:2), no key "
            f"(needs/iid@half/fedsdg) and no claim{hint(what, claims)}"
        )
    return _trace_claim(root, claims[what], at)


def _trace_claim(root: Path, claim: Claim, at: str) -> Trace:
    """Trace the comparison that decides a claim."""
    verdict = judge(claim, root / RECORDS)
    if not verdict.n:
        raise ValueError(f"no run stands behind the claim {claim.id!r}, which is {verdict.word}")
    decides = verdict.tests[verdict.tests["mean"] == verdict.mean].iloc[0]
    traced = _trace_sides(root, claim, at, decides["of"], decides["against"])
    number = f"{verdict.number}, {verdict.word}" if at == "selected" else ""
    return replace(traced, what=f"{claim.claim} {traced.what}", committed=number)


def _trace_line(root: Path, file: Path, line: int) -> Trace:
    """Trace a row of a CSV."""
    rows = [*csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    if not 2 <= line <= len(rows) + 1:
        raise ValueError(f"{file} has rows in lines 2 to {len(rows) + 1}, and none in line {line}")
    row = {"experiment": file.resolve().parent.name, **rows[line - 2]}
    if file.stem in _SOURCES:
        raise ValueError(
            f"{file}:{line}: no run of the record stands behind it, but "
            f"{_SOURCES[file.stem].format_map(row)} of {root / RECORDS / row['experiment']}"
        )
    metrics = {*_METRIC.findall(row.get("metric", ""))}
    if "claim" in row:
        claim = next(c for c in read_claims(root / "claims.yaml") if c.id == row["claim"])
        traced = _trace_sides(root, claim, row["at"], row["of"], row["against"])
    elif metrics and metrics <= METRICS.keys() and "n" in row and not _PARTS & row.keys():
        traced = _trace_metric(root, row)
    else:
        return _trace_runs(root, row)
    if not np.isclose(np.mean([*traced.seeds.values()]), float(row["mean"]), rtol=1e-4, atol=1e-6):
        raise ValueError(f"{file}:{line} has another number than {RECORDS}; its runs are elsewhere")
    return replace(traced, committed=row["mean"])


def _trace_metric(root: Path, row: Mapping[str, str]) -> Trace:
    """Trace a row whose number is the mean of a metric, or of a paired difference."""
    key = "/".join(row[name] for name in KEY)
    sides = [key, row["rival"]] if row.get("rival") else [key]
    if row.get("clean"):  # What an attack costs: without attackers minus with them.
        sides = [completed(f"{row['clean']}/{row['method']}", key), key]
    claim = Claim("", "", "", row["metric"], (sides[0],), "", minus=tuple(sides[1:]))
    return _trace_sides(root, claim, row.get("at") or "selected", *sides)


def _trace_sides(root: Path, claim: Claim, at: str, of: str, against: str = "") -> Trace:
    """Trace a comparison of a claim; any row, or pair of rows, is one of a claim without a name."""
    at = at if at in claim.readings else claim.readings[0]
    sides = [of, completed(against, of)] if against else [of]
    parts = []
    for key in dict.fromkeys(" + ".join(sides).split(" + ")):
        runs = _runs_of(root, key)
        values = by_seed(root / RECORDS, key, claim.metric, at)
        parts.append(runs.assign(value=runs["seed"].map(values)))
    found = compared(claim, root / RECORDS)
    chosen = (found["of"] == of) & (found["against"] == against) & (found["at"] == at)
    seeds = {int(seed): float(x) for seed, x in found.loc[chosen, ["seed", "value"]].to_numpy()}
    if not seeds:
        raise ValueError(f"no run of {' and '.join(sides)} has a value of {claim.metric}")
    what = f"{claim.metric} of {' over '.join(sides) if claim.over else ' minus '.join(sides)}"
    reading = f", {READINGS[at]}" if len(claim.readings) > 1 else ""
    runs = pd.concat(parts, ignore_index=True)
    return Trace(what + reading, seeds, runs[runs["seed"].isin(seeds)])


def _trace_runs(root: Path, row: Mapping[str, str]) -> Trace:
    """Trace a row that is no metric of a run, such as a point of a curve, to its runs."""
    opened = record(root / RECORDS / row["experiment"])
    runs = opened.finished
    for name in {*RUN} & {key for key, text in row.items() if text}:
        runs = runs[runs[name].astype(str) == row[name]]
    what = ", ".join(f"{name} {text}" for name, text in row.items() if name not in _NUMBERS)
    return Trace(what, {}, with_origins(opened, runs).assign(value=np.nan), row.get("mean", ""))


def _runs_of(root: Path, key: str) -> pd.DataFrame:
    """Return the runs of a row with their origins."""
    experiment, cell, method = key.split("/")
    folders = [file.parent.name for file in (root / RECORDS).glob("[!.]*/runs.parquet")]
    require_one_of(folders, experiment, "there is no record of")
    opened = record(root / RECORDS / experiment)
    runs = opened.finished
    for column, value in (("method", method), ("cell", cell)):
        require_one_of(runs[column].unique(), value, f"{experiment} has no {column}")
        runs = runs[runs[column] == value]
    return with_origins(opened, runs)


def with_origins(opened: Record, runs: pd.DataFrame) -> pd.DataFrame:
    """Add to runs of a record where they lie and where they were made.

    Args:
        opened: The record.
        runs: Rows of ``opened.runs``.

    Returns:
        The rows with ``run`` (its folder), ``commit``, ``dirty`` (the checkout had changes),
        ``day`` (the first of the runs made there) and ``machine``.
    """
    identities = runs[IDENTITY].to_numpy()
    below = [run_below(dict(zip(IDENTITY, values, strict=True))) for values in identities]
    made: dict[str, dict[str, Any]] = {}
    for entry in opened.json("provenance.json"):
        day = str(entry["first"])[:10]
        code = f"Python {entry['python']}, PyTorch {entry['versions']['torch']}"
        machine = f"{entry['processor']} ({entry['device']}), {code}"
        commit = entry.get("commit") or "unknown"
        origin = {"commit": commit, "dirty": entry["dirty"], "day": day, "machine": machine}
        made |= dict.fromkeys(entry["runs"], origin)
    origins = pd.DataFrame([made.get(run, _UNKNOWN) for run in below], index=runs.index)
    folder = RUNS.format(experiment=opened.name)
    return runs.join(origins).assign(run=[f"{folder}/{run}" for run in below])


def command(runs: pd.DataFrame, configs: str | Path = "config") -> str:
    """Return the command that makes runs of one experiment again; "" where no config names it.

    Args:
        runs: Rows of ``Record.runs``.
        configs: The folder of the configs.
    """
    name = re.escape(runs["experiment"].iloc[0])
    named = re.compile(rf"""^experiment: *["']?{name}["']?\s*(#.*)?$""", re.MULTILINE)
    words = [*runs["skew"].unique(), *runs["method"].unique()]
    words += [f"seed~{seed}" for seed in runs["seed"].unique()]
    for file in sorted(Path(configs).rglob("*.yaml")):
        if named.search(file.read_text(encoding="utf-8")):
            return f"fedsdg grid {file} --only {' '.join(words)}"
    return ""
