"""Commands that show what there is to run: the table of methods, and what is said of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedsdg.cli.command import Command
from fedsdg.cli.options import add_plugin_option


def methods(arguments: argparse.Namespace) -> int:
    """Print the table of methods."""
    from fedsdg.methods.plugins import find_plugin, find_row, offered

    plugins = [find_plugin(place) for place in arguments.plugin or ()]
    table = {name: find_row(name, plugin) for name, plugin in offered(plugins).items()}
    if arguments.markdown:
        from fedsdg.methods.page import method_page

        print(method_page(table), end="")
        return 0
    rows = [("method", "rule", "objective", "personalisation", "optimiser", "parameters")]
    for name, row in table.items():
        terms = " + ".join(["cross-entropy", *row.terms])
        parameters = ", ".join(f"{k}={p.default}" for k, p in row.parameters.items())
        optimiser = row.optimiser or "adam"
        rows.append((name, row.rule, terms, row.personalisation, optimiser, parameters))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for cells_of_row in rows:
        cells = [cell.ljust(width) for cell, width in zip(cells_of_row, widths, strict=False)]
        print("  ".join([*cells, cells_of_row[5]]).rstrip())
    return 0


def documents(arguments: argparse.Namespace) -> int:
    """Generate what is said of the parts elsewhere: declarations, schema, methods, config."""
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


def _methods_options(sub: argparse.ArgumentParser) -> None:
    add_plugin_option(sub)
    sub.add_argument("--markdown", action="store_true", help="the whole page, docs/methods.md")


COMMANDS = (
    Command(methods, _methods_options),
    Command(documents, _documents_options),
)
