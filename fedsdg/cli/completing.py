"""The command that prints a shell's completions, by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from fedsdg.cli.command import LOOK, Command

GROUP = LOOK

#: What is completed with the names of a table of ``fedsdg.files.declarations``, or with those of
#: ``datasets``: the options and arguments of these names, of one command or of all.
NAMED = {
    "method": "methods",
    "name": "methods",
    "only": "methods",
    "dataset": "datasets",
    "data": "datasets",
    "rule": "rules",
    "table table": "tables",
    "figure figure": "figures",
}
#: What is a folder; all else that takes a value is a file, unless it is one of those below.
FOLDERS = frozenset({"runs", "summary", "configs", "records", "tensorboard", "run", "model"})
#: What no completion can know.
FREE = frozenset(
    {"skew", "seed", "clients", "client", "num_clients", "minutes", "jobs", "seeds_together"}
    | {"memory", "round", "set", "experiment", "upload"}
)


def completion(arguments: argparse.Namespace) -> int:
    """Print what makes a shell complete this command."""
    import shtab

    whole = arguments.command_line
    tables = dict(_tables())
    for command, one in _arguments(whole):
        _complete(one, command, arguments.shell)
    functions = "\n".join(
        _FUNCTIONS[arguments.shell].format(name=name, words=" ".join(words))
        for name, words in tables.items()
    )
    preamble: Any = {arguments.shell: functions}
    print(shtab.complete(whole, arguments.shell, preamble=preamble))
    return 0


_FUNCTIONS = {
    "bash": '_fedsdg_{name}() {{ compgen -W "{words}" -- "$1"; }}',
    "zsh": "_fedsdg_{name}() {{ compadd -- {words} }}",
}


def _tables() -> Iterator[tuple[str, Sequence[str]]]:
    from fedsdg.data.datasets import DATASETS
    from fedsdg.files.declarations import names

    yield "datasets", tuple(DATASETS)
    for table in sorted({*NAMED.values()} - {"datasets"}):
        yield table, names(table)[table]


def _arguments(
    parser: argparse.ArgumentParser, command: str = ""
) -> Iterator[tuple[str, argparse.Action]]:
    """Every option and argument, with the command that takes it."""
    for one in parser._actions:
        if isinstance(one, argparse._SubParsersAction):
            for name, sub in one.choices.items():
                yield from _arguments(sub, command or name)
        else:
            yield command, one


def _complete(one: argparse.Action, command: str, shell: str) -> None:
    """Say of an argument what completes it."""
    import shtab

    table = NAMED.get(f"{command} {one.dest}") or NAMED.get(one.dest)
    if one.choices or one.nargs == 0 or one.dest in FREE:
        return
    if table:
        one.complete = {shell: f"_fedsdg_{table}"}  # type: ignore[attr-defined]
    else:
        one.complete = shtab.DIR if one.dest in FOLDERS else shtab.FILE  # type: ignore[attr-defined]


def _completion_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("shell", choices=("bash", "zsh"))


COMMANDS = (Command(completion, _completion_options, (), 'eval "$(fedsdg completion bash)"'),)
