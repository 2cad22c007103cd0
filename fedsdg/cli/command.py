"""What a command is, and how it may fail."""

import argparse
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
