"""The command that says beforehand what is wrong: with a config, or with methods of one's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsdg.cli.command import LOOK, Command
from fedsdg.cli.options import add_config_options, add_json_option, load, say_json, say_remarks

GROUP = LOOK


def check(arguments: argparse.Namespace) -> int:
    """Validate a config, or examine the parts of your own methods.

    Of a config the size of its grid, and whether its rounds suffice. Of files with methods of your
    own what every part must hold, in a line each.
    """
    return _check_files(arguments) if arguments.files else _check_config(arguments)


def _check_config(arguments: argparse.Namespace) -> int:
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


def _check_files(arguments: argparse.Namespace) -> int:
    """1 where a property does not hold, else 0."""
    _require_files_alone(arguments)
    from fedsdg.experiment.examining.findings import FAILED, NOT, OK
    from fedsdg.experiment.examining.plugin import examine_plugin, require_sound
    from fedsdg.methods.plugins import find_plugin

    plugins = [find_plugin(place) for place in arguments.files]
    for plugin in plugins:  # All of them are sound before any is examined.
        require_sound(plugin)
    found = []
    for plugin in plugins:
        counts = dict.fromkeys((OK, FAILED, NOT), 0)
        for one in examine_plugin(plugin):
            if len(plugins) > 1:
                one = one._replace(part=f"{plugin.place}: {one.part}")
            counts[one.outcome] += 1
            found.append(one)
            if not arguments.json:
                text = f"{one.outcome:14}  {one.part}: {one.property}: {one.sentence}"
                print(text, flush=True)
        if not arguments.json:
            told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
            print(f"{plugin.place}: {told}")
    if arguments.json:
        say_json([one._asdict() for one in found])
    return int(any(one.outcome == FAILED for one in found))


def _require_files_alone(arguments: argparse.Namespace) -> None:
    files: Sequence[str] = arguments.files
    for file in files:
        if Path(file).suffix in (".yaml", ".yml"):
            raise ValueError(f"{file} is a config: give `fedsdg check --config {file}`")
    for option in ("config", "set", "plugin", "brief"):
        if getattr(arguments, option):
            raise ValueError(
                f"files are examined by themselves, without a config: leave out --{option}, or "
                f"name {files[0]} with --plugin to check a config that uses it"
            )


def _check_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "files", nargs="*", metavar="FILE", help="files with METHODS of one's own to examine"
    )
    add_config_options(sub)
    sub.add_argument("--brief", action="store_true", help="say nothing but what is wrong")
    add_json_option(sub)


#: What a config may name.
TOLD = ("methods", "optimisers", "losses", "attacks", "keys", "tables", "figures")
_CHECK = "fedsdg check my_method.py\nfedsdg check --config config/needs.yaml"
COMMANDS = (Command(check, _check_options, TOLD, _CHECK),)
