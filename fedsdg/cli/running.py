"""Commands that train: one run, a grid, a search, a comparison, an experiment by the workflow."""

from __future__ import annotations

import json as json_format
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedsdg.cli.command import CORES, Count, File, Laid, Minutes, Number, Words, answer
from fedsdg.errors import remark
from fedsdg.experiment.store import RESULT, require_writable, store_folder
from fedsdg.files import read_json

if TYPE_CHECKING:
    from fedsdg.experiment.runs import Task

ACCURACIES = {
    "accuracy": "of clients' models on the common test set as each client sees it",
    "accuracy_own_test": "of clients' models on their own test sets",
    "accuracy_shared": "of the shared model on the common test set",
}
"""The accuracies that are shown, and what each is the mean of."""


def _require_places(place: str | Path) -> None:
    require_writable(place, store_folder("runs"))


def run(
    *,
    laid: Laid,
    method: str,
    dataset: str | None = None,
    skew: str | None = None,
    seed: Annotated[int | None, 0] = None,
    output: File = None,
    trace: Number = None,
) -> int:
    """Do one run, and print the accuracies that it reached.

    The partition and the backbone that it lacks are made. A whole grid: `fedsdg grid`.

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
    _require_places((output or Path("results")) / RESULT)
    from fedsdg.experiment import grid, notebook

    config, task = notebook.chosen(given, method, dataset, skew, seed)
    if config.methods != given.methods:
        remark(f"{method} is not in the config: it runs with its defaults and the config's rates")
    config.print_remarks()
    folder = output or task.folder
    assert folder is not None
    failure = grid.run_here(config, replace(task, folder=folder), trace=trace or 0)
    if failure is not None:
        remark(f"error: {task.title} failed: {failure}")
        return 1
    print("\n".join(_reached(folder, task)))
    if config.training.save is not None:
        print(f"models for peft and timm: fedsdg export {folder}")
    print(f"all methods and seeds, with tables: fedsdg grid{laid.words()}")
    return 0


def _reached(folder: Path, task: Task) -> Iterator[str]:
    """Yield the accuracies of a run after its last round, and where its records are."""
    import numpy as np

    from fedsdg.data.partition_files import read_partition
    from fedsdg.experiment import chance
    from fedsdg.federation.preparation import test_set

    samples = read_partition(task.partition)
    images = test_set(samples, task.run.federation.global_images, task.run.seed)
    counts = np.bincount(samples.label[images])
    last = read_json(folder / RESULT)["last"]
    yield f"after round {last['round']}, means over clients:"
    for name, meaning in ACCURACIES.items():
        if last.get(name) is not None:
            luck = "" if name == "accuracy_own_test" else chance.remark(last[name], counts)
            yield f"{name:18}{last[name]:.4f}  {luck or meaning}"
    yield f"records: {folder}"


def grid(
    files: Words = (),
    *,
    laid: Laid,
    jobs: Count = 1,
    only: Words = (),
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
    _require_places("results")
    from fedsdg.analysis import page, records, render
    from fedsdg.experiment import grid, summary

    render.require_known(config.tables or (), config.figures or ())
    config.print_remarks()
    failed = grid.run_grid(config, jobs=jobs, only=only, minutes=minutes)
    for line in failed:
        remark(f"failed: {line}")
    if runs_only:
        return 0
    name = config.experiment
    summary.write_summary(Path("results/runs", name), Path("results/summary", name), config)
    opened = records.record(Path("results/summary", name))
    folders = (Path("results/tables", name), Path("results/figures", name))
    for folder in folders:  # What was shown before may be shown no more.
        shutil.rmtree(folder, ignore_errors=True)
    render.write_shown(opened, *folders)
    if len(opened.finished):
        page.write_page("results/report/index.html", [opened])
        print("\n".join(summary.closing_lines([name])))
    if failed:
        remark(f"error: {len(failed)} run(s) failed; mend the cause and give the command again")
    return int(bool(failed))


def search(
    *,
    laid: Laid,
    output: File = None,
    jobs: Count = CORES,
    only: Words = (),
    minutes: Minutes = None,
    show: bool = False,
) -> None:
    """Search hyper-parameters, equally long for every method.

    On seeds outside the grid, by validation accuracy. The same command goes on where it was.

    Args:
        laid: the config that the options describe
        output: default: results/search/<experiment>.json
        jobs: runs side by side
        only: labels; others wait
        minutes: start no run after so many
        show: run nothing: show the values that have been found

    Example:
        fedsdg search --config needs --only fedavg --minutes 10
    """
    config = laid.load()
    target = output or Path("results/search") / f"{config.experiment}.json"
    from fedsdg.experiment import search

    if not show:
        _require_places(target)
        if target.is_dir():
            raise IsADirectoryError(f"--output {target} is a folder; name a file, ending in .json")
        search.search(config, target, jobs=jobs, only=only, minutes=minutes)
    elif not target.is_file():
        raise FileNotFoundError(f"there is no {target}; search first, without --show")
    print("\n".join(search.summary_lines(search.read_search(target))))


def compare(
    file: Words,
    *,
    arena: str = "needs",
    seeds: Count = 5,
    against: Words = (),
    tune: bool = False,
    baselines_here: bool = False,
    jobs: Count = CORES,
    output: File = None,
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
        jobs: runs side by side
        output: default: compare/<arena>-<file>
        json: print JSON

    Example:
        fedsdg compare my_method.py --against ditto fedrep
    """
    _require_places(output or "compare")
    from fedsdg.experiment import compare

    options: dict[str, Any] = {"against": against, "tune": tune, "baselines_here": baselines_here}
    found = compare.compare(file, arena, seeds, jobs=jobs, output=output, **options)
    numbers = [table.numbers.to_json(orient="records") for table in found.tables]
    ranking = [row for text in numbers for row in json_format.loads(text)]  # NaN is null there.
    facts = {"paired": found.paired, "page": str(found.page), "ranking": ranking}
    answer(json, facts, [*(table.markdown() for table in found.tables), *found.sentences])
    remark(f"the page: {found.page}")


def reproduce(snakemake: Words = (), *, laid: Laid, cores: str = "all") -> int:
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
    from fedsdg.experiment.summary import closing_lines
    from fedsdg.files.places import ARENAS, PACKAGE, VERIFIED, filled, shipped

    # The page is written by other commands too: this one's last job always writes it again.
    words = ["--forcerun", "verify", "--cores", cores]
    words += ["--snakefile", str(shipped("workflow/Snakefile"))]
    words += ["--workflow-profile", str(shipped("profiles/default"))]
    config = laid.load() if laid.words() else None
    if config is not None:
        words += ["--configfile", str(kept_whole(merged(*laid)))]
    words += snakemake or ["--quiet", "host", "reason", "progress"]
    _require_places("results")
    # Its jobs use this interpreter and this package, whatever is on the search path.
    for variable, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", PACKAGE.parent)):
        others = os.environ.get(variable, "").split(os.pathsep)
        os.environ[variable] = os.pathsep.join([str(folder), *filter(None, others)])
    from snakemake.cli import main

    handler = signal.getsignal(signal.SIGTERM)
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            return int(end.code)
    finally:  # Snakemake leaves its own, which would let a notebook ignore the signal from now on.
        if signal.getsignal(signal.SIGTERM) != handler:
            signal.signal(signal.SIGTERM, handler)
    names = ARENAS if config is None else [config.experiment]
    done = [name for name in names if filled(VERIFIED, experiment=name).is_file()]
    if done:  # Options may ask for less than everything.
        print("\n".join(closing_lines(done)))
    return 0
