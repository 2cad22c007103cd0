"""Run the command line, and turn foreseeable errors into one sentence.

Every command validates the whole config first. A foreseeable error is one sentence on stderr and
exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from fedsdg import __version__
from fedsdg.cli import models, results, running, showing
from fedsdg.cli.command import add_command
from fedsdg.errors import remark

FORESEEN = (ValueError, FloatingPointError, OSError, TyperException)
"""What bad input or a failing run raises; anything else is a defect and keeps its traceback."""


COMMANDS = (
    *(running.run, running.grid, running.search, running.compare, running.reproduce),
    *(showing.check, showing.methods, showing.data, showing.arenas),
    *(models.partition, models.pretrain),
    *(results.render, results.summarise, results.record, results.trace, results.verify),
    *(models.export, models.evaluate, models.aggregate),
)
"""All commands, in the order of the help."""

app = typer.Typer(
    help="Benchmark and reproduce federated fine-tuning.",
    epilog="'fedsdg COMMAND --help' says more, with an example.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in COMMANDS:
    add_command(app, function)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedsdg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show it")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="show where an error came from")
    ] = False,
) -> None:
    """Read the options before the command; ``main`` looks at --traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        argv: The words after ``fedsdg``; None: those of the process.
    """
    _open_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    commands = typer.main.get_command(app)
    if "_FEDSDG_COMPLETE" in os.environ:
        commands(prog_name="fedsdg")  # It answers the shell and exits.
    try:
        with commands.make_context("fedsdg", [*words]) as context:
            code = int(commands.invoke(context) or 0)
        sys.stdout.flush()
        return code
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # As with `fedsdg methods | head`: other tools end without a word, too.
        _drop_output()
        return 1
    except FORESEEN as error:
        if "--traceback" in words:
            raise
        return _fail(error)
    except KeyboardInterrupt as stop:
        remark(str(stop) or "interrupted; what was finished is kept, and the same command goes on")
        return int(getattr(stop, "exit_code", 130))


def _open_streams() -> None:
    """Print into nothing where a stream is closed, and "?" for what its encoding lacks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
        with contextlib.suppress(AttributeError):  # Something else stands in the stream's place.
            getattr(sys, name).reconfigure(errors="replace")


def _drop_output() -> None:
    """Drop what cannot be printed, so that Python does not fail on it at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception) -> int:
    """Print one sentence about an error, and return the exit code."""
    sentence = str(error)
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "fedsdg"
        message = " ".join(error.format_message().split()).rstrip(".")
        sentence = f"{message}; see '{path} --help'"
    elif isinstance(error, OSError) and error.filename is not None and sentence[:1] == "[":
        sentence = f"{error.filename2 or error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and sentence[:1] == "[":
        sentence = str(error.strerror)
    try:
        print(end="", flush=True)
    except OSError as full:
        _drop_output()
        sentence = f"standard output cannot be written to ({full.strerror})"
    remark(f"error: {sentence}")
    return 2
