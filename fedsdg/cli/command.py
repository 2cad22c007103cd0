"""What a command is, how its help and its errors read, and how it may fail."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

#: What bad input or a failing run raises; anything else is a defect and keeps its traceback.
FORESEEN = (ValueError, FloatingPointError, OSError)

#: The groups of the help, in its order. A module of commands says its own as ``GROUP`` (else its
#: commands judge), and a command may say another.
RUN = "run"
LOOK = "look at what there is"
DATA = "data and backbones"
JUDGE = "judge what was run"
MODELS = "models"
WORKFLOW = "for the workflow"
TITLES = (RUN, LOOK, DATA, JUDGE, MODELS, WORKFLOW)


class Command(NamedTuple):
    """A subcommand: its function's name is its name, and the function's docstring its help.

    The docstring's first line stands in the list of commands.
    """

    #: From the arguments that were given to the exit code.
    function: Callable[[argparse.Namespace], int]
    #: Declares its arguments to its own parser.
    add_options: Callable[[argparse.ArgumentParser], None]
    #: Of what its help names all that the package has: see ``fedsdg.files.declarations``.
    tells: tuple[str, ...] = ()
    #: Lines with which its help ends; they work in any folder, but for those on the record.
    example: str = ""
    #: One of ``TITLES``; where it is empty, its module's.
    group: str = ""

    @property
    def name(self) -> str:
        """What it is called by."""
        return self.function.__name__

    @property
    def help(self) -> str:
        """All that its help says of it."""
        return textwrap.dedent(f"    {(self.function.__doc__ or '').strip()}")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose help ends with an example.

    Below its options the help has names that the parts declare, read when help is asked for.
    """

    tells: tuple[str, ...] = ()
    example: str = ""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one sentence."""
        more = "" if message.endswith("?") else f"; see '{self.prog} --help'"
        self.exit(2, f"fedsdg: error: {message}{more}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A value that is none of the choices: what was meant."""
        if action.choices is None or value in action.choices:
            return
        from fedsdg.files import hint

        word = f"{value!r}{hint(str(value), action.choices)}"
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {word}")
        self.error(f"{'/'.join(action.option_strings) or action.dest} cannot be {word}")

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """End because of words that no option or argument takes."""
        from fedsdg.files import hint

        for word in words:
            if word.startswith("-"):
                option = word.partition("=")[0]
                self.error(
                    f"there is no option {option!r}{hint(option, self._option_string_actions)}"
                )
        self.error(f"nothing takes {words[0]!r}")

    def format_help(self) -> str:
        """The usual help, and below it names and an example."""
        text = super().format_help()
        lines = []
        if self.tells:
            from fedsdg.files.declarations import names

            wrapper = textwrap.TextWrapper(
                shutil.get_terminal_size().columns - 2,
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
            lines += [
                wrapper.fill(f"{what}: {', '.join(known)}")
                for table in self.tells
                for what, known in names(table).items()
            ]
        if self.example:
            said = textwrap.indent(self.example, "  ")
            lines += [*([""] if lines else []), "example:", said]
        return "\n".join([text, *lines, ""]) if lines else text


class GroupedParser(Parser):
    """The parser of all commands: its help lists them in their groups."""

    #: The lines of each group: names and what they do.
    groups: dict[str, list[tuple[str, str]]]

    def format_help(self) -> str:
        """Usage, what it is, the commands in groups, the options."""
        formatter = self._get_formatter()
        formatter.start_section("options")
        formatter.add_arguments(self._optionals._group_actions)
        formatter.end_section()
        wide = max(len(name) for known in self.groups.values() for name, _ in known)
        listed = [
            "\n".join([f"{title}:", *(f"  {name:{wide}}  {text}" for name, text in known)])
            for title, known in self.groups.items()
        ]
        usage = f"usage: {self.prog} [options] command …"
        ask = f"'{self.prog} command --help' says more, with an example."
        options = formatter.format_help().strip()
        return "\n\n".join([usage, str(self.description), *listed, options, ask, ""])
