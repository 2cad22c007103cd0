"""The command that says beforehand what is wrong: with a config, or with methods of one's own."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.cli.command import LOOK, Command
from fedsdg.cli.options import add_config_options, add_json_option, load, say_json, say_remarks

if TYPE_CHECKING:
    from fedsdg.experiment.examining.findings import Finding

GROUP = LOOK


def check(arguments: argparse.Namespace) -> int:
    """Validate a config, or examine the parts of your own methods.

    For a config, print the size of its grid, and whether its rounds suffice. For files with methods
    of your own, try what every part must hold: failures come first, then warnings.
    """
    if arguments.files:
        return _check_files(arguments)
    if arguments.verbose:
        raise ValueError("--verbose lists the properties of a file: name the file, or leave it out")
    return _check_config(arguments)


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


#: What no property can tell; printed after them.
NOT_SEEN = (
    "Not seen: whether the method is the one that its paper describes, what it does with other "
    "values of its parameters, and what only real data or many clients show. A term that changes "
    "gradients by `correct` and states no `value` is compared with nothing."
)

#: Properties that are listed by name below the failure that they wait for; more are counted.
MOST = 5


def _check_files(arguments: argparse.Namespace) -> int:
    """1 where a property does not hold, else 0."""
    _require_files_alone(arguments)
    from fedsdg.experiment.examining.findings import FAILED
    from fedsdg.experiment.examining.plugin import examine_plugin, require_sound
    from fedsdg.methods.plugins import find_plugin

    plugins = [find_plugin(place) for place in arguments.files]
    for plugin in plugins:  # All of them are sound before any is examined.
        require_sound(plugin)
    found = []
    for plugin in plugins:
        some = list(examine_plugin(plugin))
        if len(plugins) > 1:
            some = [one._replace(part=f"{plugin.place}: {one.part}") for one in some]
        if not arguments.json:
            print("\n".join(_report(plugin.place, some, arguments.verbose)), flush=True)
        found += some
    if arguments.json:
        say_json([one._asdict() for one in found])
    else:
        print(NOT_SEEN)
    return int(any(one.outcome == FAILED for one in found))


def _report(place: str, found: Sequence[Finding], verbose: bool) -> Iterator[str]:
    """Yield failures, then warnings, each with what follows from it, then the rest or its number.

    Methods that fail by the same sentence, such as two with one rule, share a line.
    """
    from fedsdg.experiment.examining.findings import FAILED, NOT, OK, WARNING

    for bad in (FAILED, WARNING):
        alike: dict[tuple[str, ...], list[Finding]] = {}
        for one in found:
            if one.outcome == bad:
                key = (one.part.partition(", ")[2] or one.part, one.property, one.sentence)
                alike.setdefault(key, []).append(one)
        for same in alike.values():
            yield f"{bad:14}  {same[0].part}: {same[0].property}: {same[0].sentence}"
            if more := [_owner(one) for one in same[1:]]:
                yield f"{'':14}  the same of {', '.join(dict.fromkeys(more))}"
            if waiting := [one.property for one in found if _follows(one, same[0])]:
                names = "; ".join(waiting) if len(waiting) <= MOST else f"{len(waiting)} others"
                yield f"{'':14}  not tried until then: {names}"
    if verbose:
        for outcome in (OK, NOT):
            for one in found:
                if one.outcome == outcome and not one.cause:
                    yield f"{outcome:14}  {one.part}: {one.property}: {one.sentence}"
    counts = Counter(one.outcome for one in found if not one.cause)
    words = (
        f"{counts[FAILED]} failed",
        f"{counts[WARNING]} warning{'s' * (counts[WARNING] != 1)}",
        f"{counts[OK]} passed",
        f"{counts[NOT]} do{'es' * (counts[NOT] == 1)} not apply",
    )
    told = ", ".join(text for text in words if not text.startswith("0 "))
    yield f"{place}: {told}{'' if verbose else ' (--verbose)'}"


def _owner(one: Finding) -> str:
    """The method, loss or attack that a finding is about."""
    return one.part.partition(", ")[0]


def _follows(one: Finding, cause: Finding) -> bool:
    return one.cause == cause.property and _owner(one) == _owner(cause)


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
    sub.add_argument("--verbose", action="store_true", help="list the properties that hold, too")
    add_json_option(sub)


#: What a config may name.
TOLD = ("methods", "optimisers", "losses", "attacks", "keys", "tables", "figures")
_CHECK = "fedsdg check my_method.py\nfedsdg check --config needs"
COMMANDS = (Command(check, _check_options, TOLD, _CHECK),)
