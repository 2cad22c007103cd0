"""The committed record of an experiment: all that its tables and figures are made from.

What was computed lies in ``results/`` and is no part of the repository. The record is a small copy
of what analysis reads of it: every published table and figure can be made again without a run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsdg.analysis.names import NOT_RUN, split_skew
from fedsdg.analysis.summarise import failed_runs, search_file
from fedsdg.analysis.summary import PRIMARY_FILE, Summary
from fedsdg.results import write_json

_SUMMARY = ("runs", "rounds", "clients", "timings", "differences")


def keep_record(experiment: str, results: Path = Path("results")) -> Path:
    """Write ``{results}/reference/{experiment}/`` anew and return it.

    It holds the summary; the partitions of the lowest seed, which the figure ``partition`` shows;
    every table as csv and Markdown; the claims; the facts of the backbones; the provenance of the
    first run that went well; and ``pages.json``, the names of its tables and figures. The folder
    appears whole or not at all.

    Raises ``FileNotFoundError`` where the experiment was not computed here, and ``ValueError``
    where a run of it failed; runs that were not run are no obstacle.
    """
    summary = results / "summary" / experiment
    if not (summary / "runs.parquet").is_file():
        raise FileNotFoundError(
            f"there is no summary of {experiment!r} in {summary}: run the experiment first"
        )
    failed = [run for run in failed_runs(summary) if run.error != NOT_RUN]
    if failed:
        raise ValueError(f"{len(failed)} run(s) of {experiment!r} failed, the first is {failed[0]}")
    target = results / "reference" / experiment
    partial = target.with_name(f".{experiment}.{os.getpid()}")
    try:
        for source, place in _contents(experiment, results):
            (partial / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial / place)
        write_json(partial / "pages.json", _pages(experiment, results))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _pages(experiment: str, results: Path) -> dict[str, list[str]]:
    """The names of what was made; a kind of which nothing was made here is left out."""
    made = {"tables": "csv", "figures": "json"}
    names = {
        kind: sorted(file.stem for file in (results / kind / experiment).glob(f"*.{suffix}"))
        for kind, suffix in made.items()
    }
    return {kind: listed for kind, listed in names.items() if listed}


def _contents(experiment: str, results: Path) -> Iterator[tuple[Path, Path]]:
    """(file, its place in the record) of all that is kept."""
    summary = results / "summary" / experiment
    for name in _SUMMARY:
        yield summary / f"{name}.parquet", Path(f"{name}.parquet")
    if (summary / PRIMARY_FILE).is_file():
        yield summary / PRIMARY_FILE, Path(PRIMARY_FILE)
    for suffix in ("csv", "md"):
        for table in sorted((results / "tables" / experiment).glob(f"*.{suffix}")):
            yield table, Path(table.name)
    yield results / "claims" / f"{experiment}.md", Path("claims.md")
    if (search := search_file(experiment, results)) is not None:
        yield search, Path("search.json")
    runs = Summary(summary).runs
    first = min(run["seed"] for run in runs)
    for place in sorted({f"{_division(run)}/seed~{first}.parquet" for run in runs}):
        file = results / "partitions" / place
        if file.is_file():
            yield file, Path("partitions", place)
    done = [run for run in runs if run["status"] == "ok"]
    # A run of which all parameters are trained names no backbone.
    backbones = {json.loads(run["config"]).get("backbone") for run in done} - {None}
    for name in sorted(backbones):
        yield results / "backbones" / f"{name}.json", Path("backbones", f"{name}.json")
    for run in done[:1]:
        folder = f"{_setting(run)}/{run['method']}/seed~{run['seed']}"
        file = results / "runs" / experiment / folder / "provenance.json"
        yield file, Path("provenance.json")


def _division(run: dict[str, Any]) -> str:
    """Where the partition lies: scenarios divide the data alike."""
    return _setting(run | {"skew": split_skew(run["skew"])[0]})


def _setting(run: dict[str, Any]) -> str:
    return f"{run['dataset']}/clients~{run['clients']}/{run['skew']}"
