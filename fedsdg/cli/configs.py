"""Commands that check a config, and write down what a config may hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedsdg.cli.command import LOOK, WORKFLOW, Command
from fedsdg.cli.options import add_config_options, add_json_option, load, say_json, say_remarks

GROUP = LOOK


def check(arguments: argparse.Namespace) -> int:
    """Validate a config: the size of its grid, and whether its rounds suffice."""
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
    horizon = list(findings(config))
    if arguments.json:
        counted = ("methods", "datasets", "skews", "scenarios", "seeds")
        sizes = {key: len(getattr(config, key)) for key in counted}
        say_json({"experiment": config.experiment, **sizes, "runs": runs, "horizon": horizon})
    else:
        print(
            f"{config.experiment}: {len(config.methods)} methods x {len(config.datasets)} data "
            f"sets x {len(config.skews)} skews x {under}{len(config.seeds)} seeds = {runs} runs"
        )
        print("\n".join(horizon))
    cases = [config.scenario(setting).conditions for setting in config.settings]
    remarks = [remark for case in cases for remark in case.remarks(config.federation.clients)]
    for remark in dict.fromkeys(remarks):
        print(f"fedsdg: {remark}", file=sys.stderr)
    say_remarks(config)
    return 0


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


def _check_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--brief", action="store_true", help="say nothing but what is wrong")
    add_json_option(sub)


def _documents_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--output", metavar="FOLDER", help="a checkout (default: this one)")
    sub.add_argument("--check", action="store_true", help="write nothing: say what is stale")


#: What a config may name.
TOLD = ("methods", "optimisers", "losses", "attacks", "keys", "tables", "figures")
COMMANDS = (
    Command(check, _check_options, TOLD, "fedsdg check --config config/needs.yaml"),
    Command(documents, _documents_options, (), "fedsdg documents --check", WORKFLOW),
)
