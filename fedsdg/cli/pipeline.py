"""The command that makes a whole experiment by the workflow, in any folder."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from fedsdg.cli.command import RUN, WORKFLOW, Command
from fedsdg.cli.options import add_config_options

GROUP = RUN

#: What the workflow's jobs call, kept in the folder of the experiment, where nodes of a cluster
#: find it too. Whatever is on the search path: jobs have the interpreter and the package of
#: whoever calls, for the workflow's hashes are those of its code.
JOBS_CALL = Path(".fedsdg/bin/fedsdg")


def reproduce(arguments: argparse.Namespace) -> int:
    """Make every table, figure and claim of an experiment from nothing, by the workflow."""
    from importlib.util import find_spec

    from fedsdg.experiment.config import parse_config
    from fedsdg.experiment.config_files import kept_whole, merged_config
    from fedsdg.files.shipped import shipped

    if find_spec("snakemake") is None:
        raise ValueError(
            "fedsdg reproduce needs snakemake, which is not installed; `fedsdg run --grid` makes "
            "the same without it"
        )
    merged = merged_config(arguments.config or (), arguments.set or (), arguments.plugin or ())
    parse_config(merged)
    command = ["--snakefile", str(shipped("workflow/Snakefile"))]
    command += ["--workflow-profile", str(shipped("profiles/default"))]
    command += ["--configfile", str(kept_whole(merged)), "--cores", arguments.cores]
    _write_jobs_call()
    sought = [str(JOBS_CALL.parent.absolute()), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(sought)
    from snakemake.cli import main

    try:
        main([*command, *arguments.snakemake])
    except SystemExit as end:
        if end.code or arguments.snakemake:  # Options may ask for less than everything.
            return int(end.code or 0)
    print(_where(merged["experiment"]))
    return 0


def _where(experiment: str) -> str:
    """Name the folders with the results of an experiment."""
    from fedsdg.files.places import CLAIMS, FIGURE, TABLE

    tables = TABLE.format(experiment=experiment, table="")
    figures = FIGURE.format(experiment=experiment, figure="")
    claims = CLAIMS.format(experiment=experiment)
    return f"{experiment}: tables in {tables}, figures in {figures}, claims in {claims}.md"


def spent(arguments: argparse.Namespace) -> int:
    """Say where the core-minutes of commands went that ran with FEDSDG_SPENT=FILE."""
    from fedsdg.files.spent import spent_sentence

    print(spent_sentence(arguments.file, arguments.installed))
    return 0


def _spent_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("file", help="which FEDSDG_SPENT named")
    sub.add_argument("--installed", metavar="FILE", help="what `times` said after installing")


def _write_jobs_call() -> None:
    from fedsdg.files import PACKAGE, write_bytes

    found = repr(str(PACKAGE.parent))
    start = (
        f"import sys; {found} in sys.path or sys.path.insert(0, {found}); "
        "from fedsdg.cli import main; sys.exit(main())"
    )
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c {shlex.quote(start)} "$@"\n'
    if not (JOBS_CALL.is_file() and JOBS_CALL.read_text(encoding="utf-8") == text):
        write_bytes(JOBS_CALL, text.encode())
    JOBS_CALL.chmod(0o755)


def _reproduce_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--cores", default="all", help="how many jobs side by side (default: all)")
    sub.add_argument(
        "snakemake",
        nargs="*",
        metavar="-- OPTION",
        help="passed on to snakemake: -- --dry-run, -- runs, -- --report report.html",
    )


COMMANDS = (
    Command(reproduce, _reproduce_options, ("keys",), "fedsdg reproduce --config needs --cores 2"),
    Command(spent, _spent_options, (), "fedsdg spent .fedsdg/spent.txt", WORKFLOW),
)
