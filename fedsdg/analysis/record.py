"""The committed record of an experiment: all that its tables and figures are made from.

What was computed lies in ``results/`` and is no part of the repository. The record is a small copy
of what analysis reads of it: every published table and figure can be made again without a run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.merging import OwnTraining, merged
from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.origins import FILE as ORIGINS
from fedsdg.analysis.origins import STAMPS, joined, origins_of, read_origins, read_stamps
from fedsdg.analysis.read_back import read_summary
from fedsdg.analysis.summarise import (
    Gathered,
    failed_runs,
    search_file,
    write_summary,
)
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.files import hint, read_json, write_hashes, write_json
from fedsdg.files.places import DIVISION, NAMED, ROLES, SUMMARY_TABLES, run_below, split_setting

#: Kinds of pages, and the files that say which there are.
_PAGES = {"tables": "csv", "figures": "json"}


def keep_record(
    experiment: str,
    results: Path = Path("results"),
    *,
    merge: bool = False,
    own_training: OwnTraining = lambda _: frozenset(),
) -> Path:
    """Write ``{results}/reference/{experiment}/`` anew and return it.

    It holds the summary; the partitions of the lowest seed, which the figure ``partition`` shows;
    every table as csv and Markdown; the claims; the facts of the backbones; where and with what the
    runs were made; ``pages.json``, the names of its tables and figures; and the hashes of what all
    pages are made from. The folder appears whole or not at all.

    ``merge``: the runs of the record that were not computed here stay in it, and everything is
    made from the runs of both (``merging``, which explains ``own_training``).

    Raises ``FileNotFoundError`` where the experiment was not computed here, and ``ValueError``
    where a run of it failed, and where the record is damaged or its runs cannot stand beside those
    computed here; runs that were not run are no obstacle.
    """
    summary = results / "summary" / experiment
    if not (summary / "runs.parquet").is_file():
        known = sorted(place.name for place in summary.parent.glob("*") if place.is_dir())
        raise FileNotFoundError(
            f"there is no summary of {experiment!r} in {summary}: run the experiment first"
            f"{hint(experiment, known) if known else ''}"
        )
    failed = [run for run in failed_runs(summary) if run.error != NOT_RUN]
    if failed:
        raise ValueError(f"{len(failed)} run(s) of {experiment!r} failed, the first is {failed[0]}")
    target = results / "reference" / experiment
    partial = target.with_name(f".{experiment}.{os.getpid()}")
    here = _done(Summary(summary).runs)
    origins, stamps = origins_of(here, results / "runs" / experiment), []
    pages = _pages(experiment, results)
    # Where to look for what the runs were made from, the first that has it.
    places = [results]
    with tempfile.TemporaryDirectory() as folder:
        made = results
        if merge and target.is_dir():
            made = Path(folder)
            recorded = read_summary(target)
            stamps = read_stamps(target, {run.folder for run in recorded})
            runs = merged(recorded, read_summary(summary), own_training, stamps)
            staying = set(_done(run.row for run in runs)) - set(here)
            origins = joined([*read_origins(target, staying), *origins])
            stamps = read_stamps(target, staying)
            pages = _joined_pages(pages, target)
            places.append(target)
            _make_again(summary, target, made, runs, pages)
        try:
            for file, place in _contents(experiment, made, places):
                (partial / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, partial / place)
            write_json(partial / "pages.json", pages)
            write_json(partial / ORIGINS, origins)
            if stamps:
                write_json(partial / STAMPS, stamps)
            write_record_hashes(partial)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def write_record_hashes(record: Path) -> None:
    """Write the hashes of a record's own tables and facts; its pages are made again from those."""
    names = [file.name for file in record.iterdir() if file.suffix in (".parquet", ".json")]
    write_hashes(record, names)


def _done(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The folders of the runs that went well."""
    return [run_below(run) for run in runs if run["status"] == "ok"]


def _make_again(
    summary: Path, record: Path, made: Path, runs: list[Gathered], pages: dict[str, list[str]]
) -> None:
    """Summary, tables and claims of merged runs, where those of one computation would be.

    What else lies in the record, and in the folder ``summary`` of those computed here, goes with
    them: the latter's where both have it.
    """
    experiment = summary.name
    write_summary(runs, made / "summary" / experiment, Summary(summary).roles)
    for file in (*record.glob("*.json"), *summary.glob("*.json")):
        shutil.copyfile(file, made / "summary" / experiment / file.name)
    summary = made / "summary" / experiment
    for table in pages.get("tables", []):
        write_table(summary, table, made / "tables" / experiment / table)
    write_claims(summary, made / "claims" / experiment)


def _joined_pages(ours: dict[str, list[str]], record: Path) -> dict[str, list[str]]:
    """The tables and figures of both; figures are drawn later, from the record."""
    file = record / "pages.json"
    theirs: dict[str, list[str]] = read_json(file) if file.is_file() else {}
    theirs["tables"] = [table.stem for table in record.glob("*.csv")]
    both = {kind: sorted({*ours.get(kind, []), *theirs.get(kind, [])}) for kind in _PAGES}
    return {kind: names for kind, names in both.items() if names}


def _pages(experiment: str, results: Path) -> dict[str, list[str]]:
    """The names of what was made; a kind of which nothing was made here is left out."""
    names = {
        kind: sorted(file.stem for file in (results / kind / experiment).glob(f"*.{suffix}"))
        for kind, suffix in _PAGES.items()
    }
    return {kind: listed for kind, listed in names.items() if listed}


def _contents(experiment: str, results: Path, places: list[Path]) -> Iterator[tuple[Path, Path]]:
    """(file, its place in the record) of all that is copied.

    ``places`` have the partitions and the backbones, and the first of them the search.
    """
    summary = results / "summary" / experiment
    for name in SUMMARY_TABLES:
        yield summary / f"{name}.parquet", Path(f"{name}.parquet")
    for name in (NAMED, ROLES):
        if (summary / name).is_file():
            yield summary / name, Path(name)
    for suffix in ("csv", "md"):
        for table in sorted((results / "tables" / experiment).glob(f"*.{suffix}")):
            yield table, Path(table.name)
    yield results / "claims" / f"{experiment}.md", Path("claims.md")
    if (search := search_file(experiment, places[0])) is not None:
        yield search, Path("search.json")
        # As the search names it, or as a record does.
        name = "tuned.yaml" if search.name == "search.json" else f"{search.stem}.tuned.yaml"
        if (tuned := search.with_name(name)).is_file():
            yield tuned, Path("tuned.yaml")
    runs = Summary(summary).runs
    first = min(run["seed"] for run in runs)
    for place in sorted({_division(run, first) for run in runs}):
        if file := _first(places, Path("partitions", place)):
            yield file, Path("partitions", place)
    done = [run for run in runs if run["status"] == "ok"]
    # A run of which all parameters are trained names no backbone.
    backbones = {json.loads(run["config"]).get("backbone") for run in done} - {None}
    for name in sorted(backbones):
        facts = Path("backbones", f"{name}.json")
        yield _first(places, facts) or places[0] / facts, facts


def _first(places: list[Path], file: Path) -> Path | None:
    return next((place / file for place in places if (place / file).is_file()), None)


def _division(run: dict[str, Any], seed: int) -> str:
    """Where the partition lies, below the folder of partitions."""
    skew, _ = split_setting(run["skew"])
    return DIVISION.format_map({**run, "skew": skew, "seed": seed})
