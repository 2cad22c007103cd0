"""The parser of all commands, and what becomes of their errors.

Every subcommand validates the whole config first. Whatever goes wrong in a foreseeable way is one
sentence on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
from collections.abc import Iterator, Sequence

from fedsdg import __version__
from fedsdg.cli import (
    across,
    aggregation,
    analysis,
    checking,
    comparing,
    completing,
    configs,
    data,
    models,
    pages,
    pipeline,
    provenance,
    showing,
    training,
)
from fedsdg.cli.command import FORESEEN, JUDGE, TITLES, Command, GroupedParser, Parser
from fedsdg.files.spent import note_spent

#: The modules of commands, in the order of the help within each of its groups.
GROUPS = (
    training,
    pipeline,
    comparing,
    checking,
    configs,
    showing,
    data,
    analysis,
    across,
    provenance,
    pages,
    models,
    aggregation,
    completing,
)


def commands() -> Iterator[tuple[str, Command]]:
    """Every command with the title of its group."""
    for module in GROUPS:
        for command in module.COMMANDS:
            yield command.group or getattr(module, "GROUP", JUDGE), command


def parser() -> Parser:
    """The parser of the whole command line."""
    whole = GroupedParser(
        prog="fedsdg", description="Benchmark and reproduce federated fine-tuning."
    )
    whole.add_argument("--version", action="version", version=f"fedsdg {__version__}")
    whole.add_argument("--traceback", action="store_true", help="show where an error came from")
    known = whole.add_subparsers(
        dest="command", required=True, metavar="command", parser_class=Parser
    )
    whole.groups = {title: [] for title in TITLES}
    for title, command in commands():
        text = command.help
        line = text.partition("\n")[0]
        whole.groups[title].append((command.name, line.rstrip(".")))
        sub = known.add_parser(command.name, help=line, description=text)
        sub.tells, sub.example = command.tells, command.example
        sub.set_defaults(function=command.function, parser=sub)
        command.add_options(sub)
    return whole


_INTERRUPTED = "interrupted; what was finished is kept, and the same command goes on"


def _end_output() -> None:
    """Drop what could not be printed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_gone() -> bool:
    """Whether standard output or error is a pipe that nobody reads any more."""
    watch = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # A stream without a file.
            watch.register(stream.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    whole = parser()
    arguments, rest = whole.parse_known_args(argv)
    if rest:
        arguments.parser.unknown(rest)
    arguments.command_line = whole
    try:
        code = int(arguments.function(arguments))
        sys.stdout.flush()
        return code
    except FORESEEN as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            # As with `fedsdg methods | head`: end without a word, as other tools do.
            _end_output()
            return 1
        if arguments.traceback:
            raise
        sentence = str(error)
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
        said = str(stop) if len(stop.args) > 1 else _INTERRUPTED
        print(f"fedsdg: {said}", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
    finally:
        note_spent(arguments.command)
