"""The committed record of an experiment: all that its tables and figures are made from.

Results of runs lie in ``results/`` and are no part of the repository. The record is a small copy of
what analysis reads of them: every published table and figure can be made again without a run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.recorded_runs import (
    ORIGINS,
    STAMPS,
    OwnTraining,
    joined,
    merged,
    origins_of,
    read_origins,
    read_stamps,
    read_summary,
)
from fedsdg.analysis.summarise import Run, failed_runs, search_file, write_summary
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.files import hint, read_json, write_hashes, write_json
from fedsdg.files.places import DIVISION, NAMED, ROLES, split_setting


def keep_record(
    experiment: str,
    results: Path = Path("results"),
    *,
    merge: bool = False,
    own_training: OwnTraining = lambda _: frozenset(),
) -> Path:
    """Write ``{results}/reference/{experiment}/`` anew and return it.

    It holds the summary; the partitions of the lowest seed, which the figure ``partition`` shows;
    every table as csv and Markdown and the claims, rendered from this summary; the facts of the
    backbones; where and with what the runs were made; ``pages.json``, the names of its tables and
    figures; and the hashes of its data. The folder appears whole or not at all.

    Args:
        experiment: The name of an experiment that was summarised.
        results: The folder of results and records.
        merge: Keep the runs of the record that were not computed here, and make everything from
            the runs of both.
        own_training: The keys of ``training`` that a type of method may set for itself; see
            ``merged``.

    Raises:
        FileNotFoundError: The experiment was not computed here, or the facts of a backbone are
            missing.
        ValueError: A run failed, the record is damaged, or its runs do not fit those computed here.
            Runs that were not run are no obstacle.
    """
    summary = results / "summary" / experiment
    _require_finished(experiment, summary)
    target = results / "reference" / experiment
    merging = merge and target.is_dir()
    here, recorded = read_summary(summary), read_summary(target) if merging else []
    stamps = read_stamps(target, [run.folder for run in recorded])
    runs = merged(recorded, here, own_training, stamps)
    done = _done(here)
    staying = set(_done(runs)) - set(done)
    origins = [*read_origins(target, staying), *origins_of(done, results / "runs" / experiment)]
    pages = _pages(experiment, results, target if merging else None)
    partial = target.with_name(f".{experiment}.{os.getpid()}")
    try:
        write_summary(runs, partial, Summary(summary).roles)
        write_json(partial / ORIGINS, joined(origins))
        if stamps := read_stamps(target, staying):
            write_json(partial / STAMPS, stamps)
        _copy_search(experiment, results, partial)
        for name in (NAMED, ROLES):
            if (summary / name).is_file():
                shutil.copyfile(summary / name, partial / name)
        _copy_sources([results, target] if merging else [results], partial)
        for table in pages.get("tables", []):
            write_table(partial, table, partial / table)
        write_claims(partial, partial / "claims")
        for file in (*partial.glob("*.tex"), partial / "claims.json"):
            file.unlink()
        write_json(partial / "pages.json", pages)
        write_record_hashes(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def write_record_hashes(record: Path) -> None:
    """Write the hashes of a record's data and facts; its pages are made again from those."""
    names = [file.name for file in record.iterdir() if file.suffix in (".parquet", ".json")]
    write_hashes(record, names)


def _require_finished(experiment: str, summary: Path) -> None:
    if not (summary / "runs.parquet").is_file():
        known = sorted(folder.name for folder in summary.parent.glob("*") if folder.is_dir())
        raise FileNotFoundError(
            f"there is no summary of {experiment!r} in {summary}: run the experiment first"
            f"{hint(experiment, known) if known else ''}"
        )
    errors = failed_runs(summary)
    failed = [f"{folder}: {error}" for folder, error in errors.items() if error != NOT_RUN]
    if failed:
        raise ValueError(f"{len(failed)} run(s) of {experiment!r} failed, the first is {failed[0]}")


def _done(runs: Iterable[Run]) -> list[str]:
    return [run.folder for run in runs if run.row["status"] == "ok"]


def _pages(experiment: str, results: Path, recorded: Path | None) -> dict[str, list[str]]:
    """The tables and figures made here or recorded; a kind without any is left out.

    Figures are drawn later, from the record.
    """
    names = read_json(recorded / "pages.json") if recorded else {}
    for kind, suffix in (("tables", "csv"), ("figures", "json")):
        made = {file.stem for file in (results / kind / experiment).glob(f"*.{suffix}")}
        names[kind] = sorted(made.union(names.get(kind, [])))
    return {kind: stems for kind, stems in names.items() if stems}


def _copy_search(experiment: str, results: Path, record: Path) -> None:
    search = search_file(experiment, results)
    if search is not None:
        shutil.copyfile(search, record / "search.json")
        # Named after the search, except in a record.
        name = "tuned.yaml" if search.name == "search.json" else f"{search.stem}.tuned.yaml"
        if (tuned := search.with_name(name)).is_file():
            shutil.copyfile(tuned, record / "tuned.yaml")


def _copy_sources(folders: list[Path], record: Path) -> None:
    """Copy the partitions of the lowest seed, as far as there are any, and facts of the backbones.

    The first of the folders that has a file counts.
    """
    runs = Summary(record).runs
    seed = min(run["seed"] for run in runs)
    places = [{**run, "skew": split_setting(run["skew"])[0], "seed": seed} for run in runs]
    partitions = {f"partitions/{DIVISION.format_map(place)}" for place in places}
    done = [json.loads(run["config"]) for run in runs if run["status"] == "ok"]
    # A run of which all parameters are trained names no backbone.
    names = {config.get("backbone") for config in done} - {None}
    backbones = {f"backbones/{name}.json" for name in names}
    for file in sorted(partitions | backbones):
        found = [folder / file for folder in folders if (folder / file).is_file()]
        if found or file in backbones:
            (record / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found[0] if found else folders[0] / file, record / file)
