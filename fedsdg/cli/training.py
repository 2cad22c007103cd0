"""Commands that train: a run or a whole grid, a search, an experiment by the workflow."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg.cli.command import (
    ConfigFiles,
    Count,
    DataSet,
    File,
    Folder,
    Method,
    Minutes,
    NamedFile,
    Seed,
)
from fedsdg.cli.options import (
    answer,
    leave_out,
    plain_rows,
    print_failures,
    print_remarks,
    require_writable,
    where_next,
)
from fedsdg.experiment.store import store_folder
from fedsdg.files.places import SEARCH, filled

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config

#: Where the workflow's jobs find the command: in the folder of the experiment, which the nodes of
#: a cluster see too. They use the interpreter and the package of the process that starts them,
#: whatever is on the search path, for the workflow's hashes are those of its code.
JOBS_CALL = Path(".fedsdg/bin/fedsdg")


def run(
    laid: ConfigFiles,
    *,
    method: Method | None = None,
    dataset: DataSet | None = None,
    skew: str | None = None,
    seed: Seed | None = None,
    output: Folder | None = None,
    grid: Sequence[NamedFile] | None = None,
    trace: Count | None = None,
    jobs: Count = 1,
    only: Sequence[Method] = (),
    minutes: Minutes | None = None,
    runs_only: bool = False,
) -> int:
    """Run one method, or a whole grid.

    Partitions and the backbone that are lacking are made.

    Args:
        laid: the config that the options describe
        method: a label of the config, or any method of `fedsdg methods`
        dataset: of the config, or any that the benchmark knows
        skew: of the config, or any: dirichlet~0.05, classes~2, iid
        seed: default: the config's first
        output: default: where the grid would have it
        grid: a whole grid with summary, tables and figures; files laid over the config
        trace: of one run: print loss, penalties, their sum and gates of every N-th batch
        jobs: of a grid: runs side by side
        only: of a grid: data sets, skews, methods, seed~N; others wait
        minutes: of a grid: start no run after so many; 0: tables of what is there
        runs_only: of a grid: stop when the runs are done, failed ones included: no summary, tables
            or figures

    Example:
        fedsdg run --method fedsdg --skew dirichlet~0.1
        fedsdg run --grid smoke --jobs 2
    """
    config = laid.load(grid or ())
    of_run: dict[str, Any] = {"dataset": dataset, "skew": skew, "seed": seed}
    of_run |= {"output": output, "trace": trace}
    of_grid: dict[str, Any] = {"only": only, "minutes": minutes, "runs_only": runs_only}
    if grid is None:
        leave_out("is for a whole grid: add --grid", jobs=jobs > 1, **of_grid)
        if method is None:
            raise ValueError("name a method with --method, or a whole grid with --grid")
    else:
        leave_out("is for one run; choose runs of a grid with --only", method=method, **of_run)
    require_writable(store_folder(), remedy="name another place with FEDSDG_STORE")
    require_writable(output or "results", kind="folder")
    if method is not None:
        return _run_one(config, method, **of_run)
    from fedsdg.experiment.grid import run_grid
    from fedsdg.experiment.possible import require_possible

    require_possible(config)
    print_remarks(config)
    failed = run_grid(config, store_folder(), jobs=jobs, **of_grid)
    if failed:
        print_failures(failed, "mend the cause, and give the same command again")
        return 1
    if not runs_only:
        print("\n".join(where_next(config)))
    return 0


def _run_one(
    config: Config,
    method: str,
    dataset: str | None,
    skew: str | None,
    seed: int | None,
    output: Path | None,
    trace: int | None,
) -> int:
    from fedsdg.experiment.chance import ON_THE_GLOBAL_TEST, chance_of_run
    from fedsdg.experiment.machine.progress import round_progress
    from fedsdg.experiment.single import do, single
    from fedsdg.files import read_json

    one = single(config, method, dataset, skew, seed)
    if one.method.label not in [method.label for method in config.methods]:
        values = ", ".join(f"{key}={value}" for key, value in one.method.parameters.items())
        print(
            f"fedsdg: {one.method.label} is not in the config: it runs with its defaults"
            f"{f' ({values})' if values else ''} and the rates of the config",
            file=sys.stderr,
        )
    print_remarks(one.config)
    folder = output or one.folder
    failure = do(one, store_folder(), folder, round_progress, trace=trace or 0)
    if failure:
        print(f"fedsdg: error: {one.title} failed: {failure}", file=sys.stderr)
        return 1
    result = read_json(folder / "result.json")
    chance = chance_of_run(result)
    for name, value in result["last"].items():
        if value is not None:
            remark = chance.remark(value) if chance and name in ON_THE_GLOBAL_TEST else ""
            text = value if name == "round" else f"{value:.4f}"
            print(f"{name:28s}{text}  {remark}".rstrip())
    print(f"records in {folder}")
    print("tables and figures of a whole experiment: fedsdg run --grid smoke")
    return 0


def search(
    laid: ConfigFiles,
    *,
    backbone: File | None = None,
    output: File | None = None,
    jobs: Count | None = None,
    only: Sequence[Method] = (),
    minutes: Minutes | None = None,
    show: bool = False,
    found: File | None = None,
) -> None:
    """Search hyper-parameters, equally long for every method.

    On seeds outside the grid, by validation accuracy.

    Args:
        laid: the config that the options describe
        backbone: default: results/backbones/<backbone>.safetensors
        output: default: results/search/<experiment>.json
        jobs: runs side by side (default: a device or a processor each)
        only: labels; others wait
        minutes: start no run after so many
        show: run nothing: show the values that have been found
        found: run nothing: print the values in FILE as methods entries

    Example:
        fedsdg pretrain --output results/backbones/letters.safetensors
        fedsdg search --config cross-needs --only fedavg --minutes 10
    """
    if found:
        from fedsdg.experiment.search import found_entries, read_found

        print(found_entries(read_found(found)))
        return
    config = laid.load()
    target = output or filled(SEARCH, experiment=config.experiment)
    if not show:
        require_writable(target, kind="file")
        require_writable(store_folder(), remedy="name another place with FEDSDG_STORE")
    from fedsdg.experiment import search as searching
    from fedsdg.experiment.grid import backbone_file
    from fedsdg.experiment.possible import require_possible

    if show:
        results = searching.read_found(target)
    else:
        require_possible(config)
        results = searching.search(
            config,
            store_folder(),
            backbone or backbone_file(config),
            target,
            jobs=jobs,
            only=only,
            minutes=minutes,
        )
    print("\n".join(searching.summary_lines(results)))


def reproduce(snakemake: Sequence[str] = (), *, laid: ConfigFiles, cores: str = "all") -> int:
    """Make every table and figure of an experiment from nothing, by the workflow.

    Args:
        laid: the config that the options describe
        snakemake: after `--`, passed on: -- --dry-run, -- runs, -- --report report.html
        cores: how many jobs side by side

    Example:
        fedsdg reproduce --config cross-needs --cores 2
    """
    from fedsdg.experiment.config import parse_config
    from fedsdg.experiment.config_files import kept_whole, merged_config
    from fedsdg.files.places import shipped

    if find_spec("snakemake") is None:
        raise ValueError(
            "fedsdg reproduce needs snakemake, which is not installed; `fedsdg run --grid` makes "
            "the same without it"
        )
    merged = merged_config(laid.config, laid.set, laid.plugin)
    config = parse_config(merged)
    require_writable("results", ".fedsdg", remedy="call it in another folder")
    command = ["--snakefile", str(shipped("workflow/Snakefile"))]
    command += ["--workflow-profile", str(shipped("profiles/default"))]
    command += ["--configfile", str(kept_whole(merged)), "--cores", cores]
    if not snakemake:
        command += ["--quiet", "host", "reason", "progress"]
        chosen = ("Select jobs to execute", "Execute ")  # It says no more than that it chooses.
        log = logging.getLogger("snakemake.logging")
        log.addFilter(lambda line: not line.getMessage().startswith(chosen))
    _write_jobs_call()
    path = [str(JOBS_CALL.parent.absolute()), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(path)
    from snakemake.cli import main

    try:
        main([*command, *snakemake])
    except SystemExit as end:
        if end.code or snakemake:  # Options may ask for less than everything.
            return int(end.code or 0)
    print("\n".join(where_next(config)))
    return 0


def _write_jobs_call() -> None:
    from fedsdg.files import PACKAGE, write_bytes

    folder = repr(str(PACKAGE.parent))
    start = (
        f"import sys; {folder} in sys.path or sys.path.insert(0, {folder}); "
        "from fedsdg.cli import main; sys.exit(main())"
    )
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c {shlex.quote(start)} "$@"\n'
    if not (JOBS_CALL.is_file() and JOBS_CALL.read_text(encoding="utf-8") == text):
        write_bytes(JOBS_CALL, text.encode())
    JOBS_CALL.chmod(0o755)


def compare(
    file: Sequence[NamedFile],
    *,
    arena: str = "needs",
    seeds: int = 5,
    against: Sequence[Method] = (),
    tune: bool = False,
    baselines_here: bool = False,
    jobs: Count | None = None,
    output: Folder | None = None,
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
        jobs: side by side (default: a processor each)
        output: default: compare/<arena>-<file>
        json: print JSON

    Example:
        fedsdg compare my_method.py --against ditto fedrep
    """
    require_writable(output or "compare", kind="folder")
    from fedsdg.experiment import comparing
    from fedsdg.files import read_json

    request = comparing.Request(tuple(file), arena, seeds, tuple(against), tune, baselines_here)
    count = jobs or os.cpu_count() or 1
    outcome = comparing.compare(request, store_folder(), jobs=count, output=output)
    page = outcome.folder / comparing.PAGE
    facts = {
        "paired": read_json(outcome.folder / "comparison.json")["paired"],
        "page": page.as_posix(),
        "ranking": [row for table in outcome.tables for row in plain_rows(table.numbers)],
    }
    answer(json, facts, [*(table.markdown() for table in outcome.tables), *outcome.sentences])
    if not json:
        print(f"the page: {page}", file=sys.stderr)
