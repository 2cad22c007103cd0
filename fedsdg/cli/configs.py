"""The command that writes down what the parts declare."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedsdg.cli.command import WORKFLOW, Command


def documents(arguments: argparse.Namespace) -> int:
    """Generate declarations, schema and reference pages from the parts."""
    from fedsdg.experiment.documents import ROOT, stale, write_documents

    if not arguments.output and not (ROOT / "pyproject.toml").is_file():
        raise ValueError(f"{ROOT} is no checkout of the sources; name one with --output")
    folder = Path(arguments.output or ROOT)
    if arguments.check:
        if due := stale(folder):
            raise ValueError(f"not what the parts say: {', '.join(due)}; give `make documents`")
        return 0
    for path in write_documents(folder):
        print(path)
    return 0


def _documents_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--output", metavar="FOLDER", help="a checkout (default: this one)")
    sub.add_argument("--check", action="store_true", help="write nothing: say what is stale")


COMMANDS = (Command(documents, _documents_options, (), "fedsdg documents --check", WORKFLOW),)
