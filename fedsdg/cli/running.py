"""Commands that train: one run, a grid, a search, a comparison, an experiment by the workflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.cli.command import (
    Count,
    Laid,
    Minutes,
    Seed,
    answer,
    plain_rows,
    remark,
    require_writable,
)

if TYPE_CHECKING:
    from fedsdg.config.config import Config

ACCURACIES = {
    "accuracy": "of clients' models on the common test set as each client sees it",
    "accuracy_own_test": "of clients' models on their own test sets",
    "accuracy_shared": "of the shared model on the common test set",
}
"""The accuracies that are shown, and what each is the mean of."""


def _require_store() -> None:
    store = os.environ.get("FEDSDG_STORE") or ".fedsdg"
    require_writable(store, remedy="name another place with FEDSDG_STORE")


def run(
    *,
    laid: Laid,
    method: str,
    dataset: str | None = None,
    skew: str | None = None,
    seed: Seed = None,
    output: Path | None = None,
    trace: Count | None = None,
) -> int:
    """Do one run, and print the accuracies that it reached.

    The partition and the backbone that it lacks are made.

    Args:
        laid: the config that the options describe
        method: a label of the config, or any method of `fedsdg methods`
        dataset: of the config, or any that the benchmark knows
        skew: of the config, or any: dirichlet~0.05, classes~2, iid
        seed: default: the config's first
        output: default: where the grid would have it
        trace: print loss, penalties, their sum and gates of every N-th batch

    Example:
        fedsdg run --method fedsdg --skew dirichlet~0.1
    """
    given = laid.load()
    if method not in [entry.label for entry in given.methods]:
        remark(f"{method} is not in the config: it runs with its defaults and the config's rates")
    _require_store()
    require_writable(output or "results")
    from fedsdg.experiment.grid import run_here
    from fedsdg.experiment.notebook import chosen

    config, task = chosen(given, method, dataset, skew, seed)
    folder = output or task.folder
    failure = run_here(config, replace(task, folder=folder), trace=trace or 0)
    if failure is not None:
        remark(f"error: {task.title} failed: {failure}")
        return 1
    print("\n".join(_reached(folder)))
    if config.training.save is not None:
        print(f"its models for peft and timm: fedsdg export {folder}")
    print(f"all methods and seeds, with tables: fedsdg grid{laid.words()}")
    return 0


def _reached(folder: Path) -> Iterator[str]:
    """Yield the accuracies of a run after its last round, and where its records are."""
    from fedsdg.analysis.records import renamed
    from fedsdg.experiment import chance
    from fedsdg.files import read_json

    result = read_json(folder / "result.json")
    labels = chance.labels_of_run(result)
    last = {renamed(name): value for name, value in result["last"].items()}
    yield f"after round {last['round']}, means over clients:"
    for name, meaning in ACCURACIES.items():
        if last.get(name) is not None:
            on_common_test = name != "accuracy_own_test" and labels is not None
            note = chance.remark(last[name], labels) if on_common_test else ""
            yield f"{name:18}{last[name]:.4f}  {note or meaning}"
    yield f"records: {folder}"


def grid(
    files: Sequence[str] = (),
    *,
    laid: Laid,
    jobs: Count = 1,
    only: Sequence[str] = (),
    minutes: Minutes = None,
    runs_only: bool = False,
) -> int:
    """Do all runs of a config, and make tables and figures.

    Finished runs, partitions and the backbone are not made again.

    Args:
        files: configs laid over the default config, as --config
        laid: the config that the options describe
        jobs: runs side by side
        only: data sets, settings, methods, seed~N; others wait
        minutes: start no run after so many; 0: tables of what is there
        runs_only: no summary, tables or figures; a failed run is no error then

    Example:
        fedsdg grid smoke --jobs 2
    """
    config = laid.load(files)
    _require_store()
    require_writable("results", remedy="call it in another folder")
    from fedsdg.experiment.grid import run_grid

    failed = run_grid(config, jobs=jobs, only=only, minutes=minutes)
    for line in failed:
        remark(f"failed: {line}")
    if runs_only:
        return 0
    print("\n".join(_pages(config)))
    if failed:
        remark(f"error: {len(failed)} run(s) failed; mend the cause and give the command again")
    return int(bool(failed))


def _pages(config: Config) -> Iterator[str]:
    """Make tables and figures; yield the first table, and paths of it, a figure and the page."""
    from fedsdg.analysis.page import write_page
    from fedsdg.analysis.records import record
    from fedsdg.analysis.render import write_shown
    from fedsdg.experiment.summary import write_summary

    name = config.experiment
    summary = Path("results/summary") / name
    write_summary(Path("results/runs") / name, summary, config)
    opened = record(summary)
    files = write_shown(opened, Path("results/tables") / name, Path("results/figures") / name)
    tables = [file for file in files if file.suffix == ".md"]
    figures = [file for file in files if file.suffix == ".svg"]
    if tables:
        yield f"{tables[0].read_text(encoding='utf-8')}\na table:  {tables[0]}"
    if figures:
        yield f"a figure: {figures[0]}"
    yield f"a page:   {write_page(Path('results/report') / f'{name}.html', [opened])}"


def search(
    *,
    laid: Laid,
    output: Path | None = None,
    jobs: Count | None = None,
    only: Sequence[str] = (),
    minutes: Minutes = None,
    show: bool = False,
) -> None:
    """Search hyper-parameters, equally long for every method.

    On seeds outside the grid, by validation accuracy. The same command goes on where it was.

    Args:
        laid: the config that the options describe
        output: default: results/search/<experiment>.json
        jobs: runs side by side (default: a processor each)
        only: labels; others wait
        minutes: start no run after so many
        show: run nothing: show the values that have been found

    Example:
        fedsdg search --config needs --only fedavg --minutes 10
    """
    config = laid.load()
    target = output or Path("results/search") / f"{config.experiment}.json"
    from fedsdg.experiment import search
    from fedsdg.files import read_json

    if not show:
        require_writable(target, kind="file")
        _require_store()
        count = jobs or os.cpu_count() or 1
        search.search(config, target, jobs=count, only=only, minutes=minutes)
    print("\n".join(search.summary_lines(read_json(target))))


def compare(
    file: Sequence[str],
    *,
    arena: str = "needs",
    seeds: Count = 5,
    against: Sequence[str] = (),
    tune: bool = False,
    baselines_here: bool = False,
    jobs: Count | None = None,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Set methods of your own beside the published rows of an arena.

    Args:
        file: my_method.py, which defines METHODS; or a config file with plugins and methods
        arena: needs, label-skew or views
        seeds: how many of the record's
        against: rows of the record (default: all)
        tune: search for values first, as the rows' were found
        baselines_here: run the record's rows here too, where runs cannot be paired with it
        jobs: runs side by side (default: a processor each)
        output: default: compare/<arena>-<file>
        json: print JSON

    Example:
        fedsdg compare my_method.py --against ditto fedrep
    """
    require_writable(output or "compare")
    from fedsdg.experiment import compare

    found = compare.compare(
        file,
        arena,
        seeds,
        against=against,
        tune=tune,
        baselines_here=baselines_here,
        jobs=jobs or os.cpu_count() or 1,
        output=output,
    )
    ranking = [row for table in found.tables for row in plain_rows(table.numbers)]
    facts = {"paired": found.agreement.paired, "page": str(found.page), "ranking": ranking}
    answer(json, facts, [*(table.markdown() for table in found.tables), *found.sentences])
    remark(f"the page: {found.page}")


def reproduce(snakemake: Sequence[str] = (), *, laid: Laid, cores: str = "all") -> int:
    """Make every table and figure from nothing, by the workflow.

    With a config those of its experiment, without one those of the arenas, as `make reproduce`.

    Args:
        snakemake: after `--`, passed on: -- --dry-run
        laid: the config that the options describe
        cores: how many jobs side by side

    Example:
        fedsdg reproduce --config needs --cores 2
    """
    from fedsdg.config.layers import kept_whole, merged
    from fedsdg.files.places import PACKAGE, shipped

    if find_spec("snakemake") is None:
        raise ValueError(
            "fedsdg reproduce needs snakemake, which is not installed; `fedsdg grid` makes the "
            "same without it"
        )
    words = ["--snakefile", str(shipped("workflow/Snakefile")), "--cores", cores]
    words += ["--workflow-profile", str(shipped("profiles/default"))]
    if laid.words():
        words += ["--configfile", str(kept_whole(merged(*laid)))]
    if not snakemake:
        words += ["--quiet", "host", "reason", "progress"]
    require_writable("results", ".fedsdg", remedy="call it in another folder")
    # Its jobs use this interpreter and this package, whatever is on the search path.
    for variable, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", PACKAGE.parent)):
        before = os.environ.get(variable)
        os.environ[variable] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    from snakemake.cli import main

    try:
        main([*words, *snakemake])
    except SystemExit as end:
        return int(end.code or 0)
    return 0
