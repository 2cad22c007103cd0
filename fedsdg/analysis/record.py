"""The committed record of an experiment: all that its tables and figures are made from.

Results of runs lie in ``results/`` and are no part of the repository. The record is a small copy of
what analysis reads of them: every published table and figure can be made again without a run.

A grid may be completed in pieces, on several days and machines. provenance.json of a record is a
list of entries, one for each machine and commit, each with the ``runs`` that it covers: their
folders below ``results/runs/{experiment}``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.summarise import Run, failed_runs, read_summary, search_file, write_summary
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.files import canonical_json, differences, hint, read_json, write_hashes, write_json
from fedsdg.files.places import DIVISION, NAMED, ROLES, split_setting

ORIGINS = "provenance.json"
#: The addresses that runs of a record were given later (``fedsdg.experiment.restamping``).
STAMPS = "restamped.json"

#: The facts that tell entries of ``ORIGINS`` apart. The rest of a run's provenance concerns that
#: run alone.
_FACTS = (
    *("commit", "dirty", "python", "versions"),  # the code
    *("platform", "machine", "processor", "host", "cpu_count"),  # the machine
    *("device", "threads", "seeds_together"),  # how the machine was used
)

#: The keys of a config that all runs of a method share, and those in which runs of one experiment
#: may differ.
_OF_A_METHOD = ("method", "parameters", "plugin", "training")
_OF_A_RUN = {"dataset", "skew", "seed", *_OF_A_METHOD}

#: Type of a method -> the keys of ``training`` that it may set for itself.
OwnTraining = Callable[[str], frozenset[str]]
Origin = dict[str, Any]


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
    # A search may have left its values in the folder before the first runs are recorded.
    merging = merge and (target / "runs.parquet").is_file()
    here = read_summary(summary)
    recorded = read_summary(target) if merging else []
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
    """The tables and figures made here or recorded; a kind that neither has is left out.

    Figures are drawn later, from the record.
    """
    names = read_json(recorded / "pages.json") if recorded else {}
    for kind, suffix in (("tables", "csv"), ("figures", "json")):
        made = {file.stem for file in (results / kind / experiment).glob(f"*.{suffix}")}
        if made:
            names[kind] = sorted(made.union(names.get(kind, [])))
    return names


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


def merged(
    recorded: Collection[Run],
    here: Collection[Run],
    own_training: OwnTraining,
    stamps: Iterable[Mapping[str, Any]] = (),
) -> list[Run]:
    """Join a record and runs computed here.

    Args:
        recorded: The runs of the record.
        here: The runs computed here. Each replaces the recorded one of the same folder, except a
            run that was not run here.
        own_training: The keys of ``training`` that a type of method may set for itself.
        stamps: The addresses that recorded runs were given later (``read_stamps``).

    Returns:
        The runs of both.

    Raises:
        ValueError: Recorded runs that stay do not fit those computed here. They have other settings
            that all runs of an experiment share, the same method with other settings or code,
            another partition of the same data, or another backbone.
    """
    done = {run.folder: run for run in here if run.row["status"] != NOT_RUN}
    both = {run.folder: run for run in (*here, *recorded)} | done
    staying = [run for run in both.values() if run.folder not in done]
    kept = [run for run in staying if run.row["status"] != NOT_RUN]
    codes = {run.row["source_hash"] for run in done.values()}
    # Folder of a recorded run -> the code of runs computed here that computes the same.
    alike = {
        folder: source
        for entry in stamps
        for source in codes & entry["sources"].keys()
        for folder in entry["sources"][source]
    }
    _require_alike(kept, list(done.values()), own_training, alike)
    return list(both.values())


def _require_alike(
    kept: list[Run], here: list[Run], own_training: OwnTraining, alike: Mapping[str, str]
) -> None:
    configs = {run.folder: json.loads(run.row["config"] or "{}") for run in (*kept, *here)}
    training = {name for config in configs.values() for name in config.get("training", {})}

    def facts(run: Run) -> dict[tuple[Any, str], Any]:
        """(owner, name) -> value of every fact of which a record may hold one value only."""
        row, config = run.row, configs[run.folder]
        skew, scenario = split_setting(row["skew"])
        method = (scenario, row["method"])
        division = (row["dataset"], row["clients"], skew, row["seed"])
        own = config.get("training", {})
        return {
            (scenario, ""): {name: config[name] for name in config.keys() - _OF_A_RUN},
            **{
                (scenario, f"training.{name}"): own.get(name)
                for name in sorted(training - own_training(row["type"]))
            },
            (method, ""): {name: config.get(name) for name in _OF_A_METHOD},
            (method, "source_hash"): alike.get(run.folder, row["source_hash"]),
            (config.get("backbone"), "backbone_hash"): row["backbone_hash"],
            (division, "partition_hash"): row["partition_hash"],
        }

    recorded: dict[tuple[Any, str], tuple[Any, Run]] = {}
    for run in reversed(kept):
        recorded |= {fact: (value, run) for fact, value in facts(run).items()}
    for run in here:
        for fact, value in facts(run).items():
            there, other = recorded.get(fact, (value, run))
            for difference in differences(there, value, fact[1]):
                raise ValueError(
                    f"the runs computed here cannot join the record of {run.row['experiment']!r}: "
                    f"{difference} (its run {other.folder}, and {run.folder} of those here); "
                    "record without --merge to replace it"
                )


def origins_of(folders: Iterable[str], runs_dir: Path) -> list[Origin]:
    """Return the entries of runs computed here, as far as their provenance says anything.

    Args:
        folders: The folders of the runs, below ``runs_dir``.
        runs_dir: ``results/runs/{experiment}``.
    """
    origins = []
    for folder in folders:
        file = runs_dir / folder / ORIGINS
        if file.is_file():
            facts = read_json(file)
            days = {"first": facts.get("started"), "last": facts.get("finished")}
            origins.append({**facts, **days, "runs": [folder]})
    return joined(origins)


def read_origins(record: Path, folders: Iterable[str]) -> list[Origin]:
    """Return the entries of a record for some of its runs.

    An older record has one entry, that of its first run, which stands for all of them.

    Args:
        record: The folder of the record.
        folders: The folders of the runs.
    """
    file, wanted = record / ORIGINS, sorted(folders)
    content = read_json(file) if file.is_file() else []
    if isinstance(content, Mapping):
        content = [{**_facts(content), "runs": wanted}]
    entries = [
        {**entry, "runs": [run for run in entry["runs"] if run in wanted]} for entry in content
    ]
    return [entry for entry in entries if entry["runs"]]


def joined(origins: Iterable[Origin]) -> list[Origin]:
    """Join entries whose facts are equal, in the order in which they come."""
    entries: dict[str, Origin] = {}
    for origin in origins:
        facts = _facts(origin)
        entry = entries.setdefault(canonical_json(facts), {**facts, "runs": []})
        entry["runs"] += origin["runs"]
        for name, choose in (("first", min), ("last", max)):
            if origin.get(name) is not None:
                entry[name] = choose(origin[name], entry.get(name, origin[name]))
    return list(entries.values())


def _facts(content: Mapping[str, Any]) -> Origin:
    return {name: content[name] for name in _FACTS if name in content}


def read_stamps(record: Path, folders: Collection[str]) -> list[dict[str, Any]]:
    """Return the addresses that runs of a record were given later.

    Args:
        record: The folder of the record.
        folders: The folders of the runs; the others are left out.

    Returns:
        Entries of ``old`` and ``new``, the commits; ``gate``, what shows that both compute alike;
        ``sources``: hash of the code that a run can reach at ``new`` -> folders of runs.
    """
    file = record / STAMPS
    stamps: list[dict[str, Any]] = read_json(file) if file.is_file() else []
    for entry in stamps:
        sources = entry["sources"].items()
        staying = {source: [run for run in runs if run in folders] for source, runs in sources}
        entry["sources"] = {source: runs for source, runs in staying.items() if runs}
    return [entry for entry in stamps if entry["sources"]]
