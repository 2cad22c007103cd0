"""What a command is, and how it may fail."""

import argparse
import shutil
import textwrap
from collections.abc import Callable
from typing import NamedTuple

#: What bad input or a failing run raises; anything else is a defect and keeps its traceback.
FORESEEN = (ValueError, FloatingPointError, OSError)


class Command(NamedTuple):
    """A subcommand: its function's name is its name, and the function's docstring its help."""

    #: From the arguments that were given to the exit code.
    function: Callable[[argparse.Namespace], int]
    #: Declares its arguments to its own parser.
    add_options: Callable[[argparse.ArgumentParser], None]
    #: Of what its help names all that the package has: see ``fedsdg.files.declarations``.
    tells: tuple[str, ...] = ()


class Parser(argparse.ArgumentParser):
    """A parser whose help ends with names that the parts declare, read when help is asked for."""

    tells: tuple[str, ...] = ()

    def format_help(self) -> str:
        """The usual help, and below it the names."""
        text = super().format_help()
        if not self.tells:
            return text
        from fedsdg.files.declarations import names

        wrapper = textwrap.TextWrapper(
            shutil.get_terminal_size().columns - 2, subsequent_indent="  ", break_on_hyphens=False
        )
        lines = [
            wrapper.fill(f"{what}: {', '.join(known)}")
            for table in self.tells
            for what, known in names(table).items()
        ]
        return "\n".join([text, *lines, ""])
