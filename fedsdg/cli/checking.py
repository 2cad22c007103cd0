"""The command that checks a config, or a user's methods, before anything runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.cli.command import ConfigFiles, NamedFile
from fedsdg.cli.options import answer, leave_out, print_remarks

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config
    from fedsdg.experiment.examining.findings import Finding, Outcome


def check(
    files: Sequence[NamedFile] = (),
    *,
    laid: ConfigFiles,
    brief: bool = False,
    verbose: bool = False,
    json: bool = False,
) -> int:
    """Validate a config, or examine the parts of your own methods.

    For a config, print the size of its grid. For files with methods of your own, try what every
    part must hold: failures come first, then warnings.

    Args:
        laid: the config that the options describe
        files: files with METHODS of your own to examine
        brief: say nothing but what is wrong
        verbose: list the properties that hold, too
        json: print JSON

    Example:
        fedsdg check my_method.py
        fedsdg check --config cross-needs
    """
    if files:
        for file in files:
            if Path(file).suffix in (".yaml", ".yml"):
                raise ValueError(f"{file} is a config: give `fedsdg check --config {file}`")
        leave_out(
            f"is for a config, and files are examined without one; name {files[0]} with --plugin "
            "to check a config that uses it",
            **laid._asdict(),
            brief=brief,
        )
        return _check_files(files, verbose, json)
    leave_out("lists the properties of a file: name the file, or leave it out", verbose=verbose)
    return _check_config(laid.load(), brief, json)


def _check_config(config: Config, brief: bool, json: bool) -> int:
    from fedsdg.experiment.declared_data import class_count, notes
    from fedsdg.experiment.possible import require_possible

    require_possible(config)
    cases = [config.scenario(setting).conditions for setting in config.settings]
    for name in config.datasets:
        num_classes = class_count(config.source(name))
        for case in cases:
            if case.label_conflict is not None:
                case.label_conflict.require_classes(num_classes, name)
    if brief:
        return 0
    runs = len(config.datasets) * len(config.settings) * len(config.methods) * len(config.seeds)
    untuned = [one.label for one in config.methods if one.label in config.untuned]
    counted = ("methods", "datasets", "skews", "scenarios", "seeds")
    sizes = {key: len(getattr(config, key)) for key in counted}
    facts = {"experiment": config.experiment, **sizes, "runs": runs, "untuned": untuned}
    product = " x ".join(f"{size} {name}" for name, size in sizes.items() if size)
    product = product.replace("datasets", "data sets")
    answer(json, facts, [f"{config.experiment}: {product} = {runs} runs"])
    if untuned:
        print(
            f"fedsdg: {config.tuned[-1]} has no values for {', '.join(untuned)}; 'fedsdg search' "
            "finds them",
            file=sys.stderr,
        )
    remarks = [remark for case in cases for remark in case.remarks(config.federation.clients)]
    for remark in dict.fromkeys(remarks):
        print(f"fedsdg: {remark}", file=sys.stderr)
    for note in notes(config.own):
        print(f"fedsdg: {note}", file=sys.stderr)
    print_remarks(config)
    return 0


#: What no property can show; printed after them.
NOT_SEEN = (
    "Not seen: whether the method is the one that its paper describes, what it does with other "
    "values of its parameters, and what only real data or many clients show. A term that changes "
    "gradients by `correct` and states no `value` is compared with nothing."
)

#: Properties that are listed by name below the failure that they wait for; more are counted.
MOST = 5


def _check_files(files: Sequence[str], verbose: bool, json: bool) -> int:
    """Return 1 where a property does not hold, else 0."""
    from fedsdg.experiment.examining.plugin import examine_plugin, require_sound
    from fedsdg.methods.plugins import find_plugin

    plugins = [find_plugin(file) for file in files]
    for plugin in plugins:  # All of them are sound before any is examined.
        require_sound(plugin)
    findings: list[Finding] = []
    for plugin in plugins:
        some = list(examine_plugin(plugin))
        if len(plugins) > 1:
            some = [one._replace(part=f"{plugin.place}: {one.part}") for one in some]
        if not json:
            print("\n".join(_report(plugin.place, some, verbose)), flush=True)
        findings += some
    answer(json, [one._asdict() for one in findings], [NOT_SEEN])
    return int(any(one.outcome == "failed" for one in findings))


def _report(place: str, found: Sequence[Finding], verbose: bool) -> Iterator[str]:
    """Yield failures, then warnings, each with what follows from it, then the rest or its number.

    Methods that fail by the same sentence, such as two with one rule, share a line.
    """
    for bad in ("failed", "warning"):
        alike: dict[tuple[str, ...], list[Finding]] = {}
        for one in found:
            if one.outcome == bad:
                key = (one.part.partition(", ")[2] or one.part, one.property, one.sentence)
                alike.setdefault(key, []).append(one)
        for same in alike.values():
            yield f"{bad:14}  {same[0].part}: {same[0].property}: {same[0].sentence}"
            if more := [_owner(one) for one in same[1:]]:
                yield f"{'':14}  the same of {', '.join(dict.fromkeys(more))}"
            cause = (same[0].property, _owner(same[0]))
            if waiting := [one.property for one in found if (one.cause, _owner(one)) == cause]:
                names = "; ".join(waiting) if len(waiting) <= MOST else f"{len(waiting)} others"
                yield f"{'':14}  not tried until then: {names}"
    if verbose:
        for outcome in ("ok", "does not apply"):
            for one in found:
                if one.outcome == outcome and not one.cause:
                    yield f"{outcome:14}  {one.part}: {one.property}: {one.sentence}"
    yield f"{place}: {_counts(found)}{'' if verbose else ' (--verbose)'}"


def _counts(found: Sequence[Finding]) -> str:
    """Say how many properties failed, passed and so on."""
    counts = Counter(one.outcome for one in found if not one.cause)
    words: dict[Outcome, str] = {
        "failed": "failed",
        "warning": "warning" if counts["warning"] == 1 else "warnings",
        "ok": "passed",
        "does not apply": "does not apply" if counts["does not apply"] == 1 else "do not apply",
    }
    return ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if counts[kind])


def _owner(one: Finding) -> str:
    """Return the method, loss or attack that a finding is about."""
    return one.part.partition(", ")[0]
