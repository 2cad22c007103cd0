"""Parse the command line, and turn foreseeable errors into one sentence.

Every command validates the whole config first. A foreseeable error is one sentence on stderr and
exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import select
import sys
from collections.abc import Sequence
from typing import Any, Literal

from fedsdg import __version__
from fedsdg.cli.aggregation import aggregate
from fedsdg.cli.checking import check
from fedsdg.cli.command import FORESEEN, Command, Parser, add_command, call, describe
from fedsdg.cli.models import evaluate, export, partition, pretrain
from fedsdg.cli.records import record, summarise, trace, verify
from fedsdg.cli.rendering import render
from fedsdg.cli.showing import arenas, data, methods
from fedsdg.cli.training import compare, reproduce, run, search
from fedsdg.files import note_spent


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Print the script by which a shell completes this command.

    Args:
        shell: bash or zsh

    Example:
        eval "$(fedsdg completion bash)"
    """
    import shtab

    from fedsdg.cli.rendering import OTHERS
    from fedsdg.data.sources import DATASETS
    from fedsdg.files.declarations import names

    # The words that complete an argument, by what the help calls it.
    words = {
        "METHOD": names("methods")["methods"],
        "DATASET": DATASETS,
        "RULE": names("rules")["rules"],
        "NAME": sorted({*names("tables")["tables"], *names("figures")["figures"], *OTHERS}),
    }
    completions: dict[Any, Any] = {name: {shell: f"_fedsdg_{name}"} for name in words}
    completions |= {"FILE": shtab.FILE, "FOLDER": shtab.DIR}
    whole = parser()
    (commands,) = (one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    commands.help = None  # What has no place in the help would not be completed either.
    for sub in commands.choices.values():
        for argument in sub._actions:
            if argument.metavar in completions:
                argument.complete = completions[argument.metavar]
    form = {
        "bash": '_fedsdg_{name}() {{ compgen -W "{words}" -- "$1"; }}',
        "zsh": "_fedsdg_{name}() {{ compadd -- {words} }}",
    }[shell]
    functions = [form.format(name=name, words=" ".join(known)) for name, known in words.items()]
    preamble: Any = {shell: "\n".join(functions)}
    print(shtab.complete(whole, shell, preamble=preamble))


#: The commands by group, in the order of the help.
COMMANDS: dict[str, Sequence[Command]] = {
    "run": (run, search, reproduce, compare),
    "look at what there is": (check, methods, data, arenas, completion),
    "data and backbones": (partition, pretrain),
    "judge what was run": (render, summarise, record, trace, verify),
    "models": (export, evaluate, aggregate),
}
#: The tables of ``fedsdg.files.declarations`` whose names a command's help lists.
TABLES: dict[Command, Sequence[str]] = {
    run: ("methods",),
    search: ("methods",),
    reproduce: ("keys",),
    check: ("methods", "optimisers", "losses", "attacks", "keys", "tables", "figures"),
    render: ("tables", "figures"),
    aggregate: ("rules",),
}


def parser() -> Parser:
    """Return the parser of all commands; its help lists them in their groups."""
    groups = [
        "\n".join([f"{title}:", *(f"  {one.__name__:12}{describe(one).summary}" for one in group)])
        for title, group in COMMANDS.items()
    ]
    whole = Parser(
        prog="fedsdg",
        usage="%(prog)s [options] command …",
        description="\n\n".join(["Benchmark and reproduce federated fine-tuning.", *groups]),
        epilog="'%(prog)s command --help' says more, with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"fedsdg {__version__}")
    whole.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = whole.add_subparsers(
        dest="command", required=True, metavar="command", prog="fedsdg", help=argparse.SUPPRESS
    )
    for group in COMMANDS.values():
        for function in group:
            add_command(commands, function, TABLES.get(function, ()))
    return whole


_INTERRUPTED = "interrupted; what was finished is kept, and the same command goes on"


def _end_output() -> None:
    """Drop what could not be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_gone() -> bool:
    """Return whether standard output or error is a pipe that nobody reads any more."""
    watch = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # A stream without a file.
            watch.register(stream.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


def _sentence(error: Exception) -> str:
    """Return the message; of the system's own the file and the reason, without its number."""
    if isinstance(error, OSError) and error.filename is not None and str(error)[:1] == "[":
        return f"{error.filename2 or error.filename}: {error.strerror}"
    return str(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments, rest = parser().parse_known_args(argv)
    if rest:
        arguments.parser.reject(rest)
    try:
        code = call(arguments)
        sys.stdout.flush()
        return code
    except FORESEEN as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            # As with `fedsdg methods | head`: end without a word, as other tools do.
            _end_output()
            return 1
        if arguments.traceback:
            raise
        sentence = _sentence(error)
        try:
            # A full disk that no file is named for may be that of standard output.
            unnamed = isinstance(error, OSError) and error.errno == errno.ENOSPC
            print(end="\n" if unnamed else "", flush=True)
        except OSError as full:  # Python would say so once more.
            _end_output()
            sentence = f"standard output cannot be written to ({full.strerror})"
        print(f"fedsdg: error: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        # A signal's number alone, or nothing, where the work had not come to what it keeps.
        sentence = str(stop) if len(stop.args) > 1 else _INTERRUPTED
        print(f"fedsdg: {sentence}", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
    finally:
        note_spent(arguments.command)
