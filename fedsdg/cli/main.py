"""The parser of all commands, and what becomes of their errors.

Every subcommand validates the whole config first. Whatever goes wrong in a foreseeable way is one
sentence on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from fedsdg import __version__
from fedsdg.cli import aggregation, analysis, configs, data, models, pipeline, training
from fedsdg.cli.command import FORESEEN, Parser

#: The groups of commands, in the order of the help.
GROUPS = (configs, data, training, pipeline, analysis, models, aggregation)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedsdg", description="Benchmark and reproduce federated fine-tuning."
    )
    parser.add_argument("--version", action="version", version=f"fedsdg {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="command", parser_class=Parser
    )
    for group in GROUPS:
        for command in group.COMMANDS:
            text = (command.function.__doc__ or "").strip()
            sub = commands.add_parser(command.function.__name__, help=text, description=text)
            sub.tells = command.tells
            sub.set_defaults(function=command.function)
            command.add_options(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.function(arguments))
    except BrokenPipeError:
        # The reader has gone (`fedsdg methods | head`): end without a word, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FORESEEN as error:
        if arguments.traceback:
            raise
        print(f"fedsdg: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"fedsdg: {str(stop) or 'interrupted'}", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
