"""Commands that show what there is to run: a config, the table of methods."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedsdg.cli.command import Command
from fedsdg.cli.options import add_config_options, add_plugin_option, load, say_remarks


def check(arguments: argparse.Namespace) -> int:
    """Validate the config and print the size of its grid, and whether its rounds suffice."""
    from fedsdg.experiment.declared_data import class_count
    from fedsdg.experiment.horizon import findings
    from fedsdg.experiment.possible import require_possible

    config = load(arguments)
    require_possible(config)
    for name in config.datasets:
        num_classes = class_count(config.source(name))
        for setting in config.settings:
            conflict = config.scenario(setting).conditions.label_conflict
            if conflict is not None:
                conflict.require_classes(num_classes, name)
    if arguments.brief:
        return 0
    runs = len(config.datasets) * len(config.settings) * len(config.methods) * len(config.seeds)
    under = f"{len(config.scenarios)} scenarios x " if config.scenarios else ""
    print(
        f"{config.experiment}: {len(config.methods)} methods x {len(config.datasets)} data sets x "
        f"{len(config.skews)} skews x {under}{len(config.seeds)} seeds = {runs} runs"
    )
    for line in findings(config):
        print(line)
    cases = [config.scenario(setting).conditions for setting in config.settings]
    remarks = [remark for case in cases for remark in case.remarks(config.federation.clients)]
    for remark in dict.fromkeys(remarks):
        print(f"fedsdg: {remark}", file=sys.stderr)
    say_remarks(config)
    return 0


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


def _check_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--brief", action="store_true", help="say nothing but what is wrong")


def _documents_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--output", metavar="FOLDER", help="a checkout (default: this one)")
    sub.add_argument("--check", action="store_true", help="write nothing: say what is stale")


def _methods_options(sub: argparse.ArgumentParser) -> None:
    add_plugin_option(sub)
    sub.add_argument("--markdown", action="store_true", help="the whole page, docs/methods.md")


#: What a config may name.
TOLD = ("methods", "optimisers", "losses", "attacks", "keys", "tables", "figures")
COMMANDS = (
    Command(check, _check_options, TOLD),
    Command(methods, _methods_options),
    Command(documents, _documents_options),
)
