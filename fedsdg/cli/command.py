"""A command is a function: its signature gives the options, its docstring the help.

Parameters before the ``*`` are arguments, those after it options. A type hint says what is read:
``Sequence`` takes several words, ``bool`` is a switch, ``Annotated[int, "N", 1]`` has a name in the
help and a least value, ``ConfigFiles`` stands for the options that describe a config.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config

#: It returns the exit code; one without an answer succeeds.
Command = Callable[..., int | None]

#: What bad input or a failing run raises; anything else is a defect and keeps its traceback.
FORESEEN = (ValueError, FloatingPointError, OSError)

#: What the second part of an annotation says in the help, and to a shell that completes. A file
#: that is named may also be a config or a plugin by its name.
File = Annotated[Path, "FILE"]
Folder = Annotated[Path, "FOLDER"]
NamedFile = Annotated[str, "FILE"]
Method = Annotated[str, "METHOD"]
DataSet = Annotated[str, "DATASET"]
Rule = Annotated[str, "RULE"]
Page = Annotated[str, "NAME"]
Count = Annotated[int, "N", 1]
Seed = Annotated[int, "N", 0]
Minutes = Annotated[float, "N", 0]


class ConfigFiles(NamedTuple):
    """The options that describe a config.

    Args:
        config: laid over the default config, in order: files, or names of configs that ship
        set: laid over the config, such as training.device=cuda
        plugin: files that define further METHODS, or names of installed plugins
    """

    config: Sequence[NamedFile]
    set: Sequence[Annotated[str, "KEY=VALUE"]]
    plugin: Sequence[NamedFile]

    def load(self, more: Sequence[str] = ()) -> Config:
        """Return the config, with further files laid over those of ``--config``."""
        from fedsdg.experiment.config_files import load_config

        return load_config([*self.config, *more], self.set, self.plugin)


class Description(NamedTuple):
    """The parts of a command's docstring."""

    summary: str
    text: str
    arguments: dict[str, str]
    example: str


def describe(command: object) -> Description:
    """Read the docstring of a command, or of ``ConfigFiles``."""
    doc = inspect.getdoc(command) or ""
    text, *parts = re.split(r"^(Args|Example):\n", doc, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], map(textwrap.dedent, parts[1::2]), strict=True))
    entries = re.findall(r"^(\w+): (.*(?:\n .*)*)", sections.get("Args", ""), re.MULTILINE)
    arguments = {name: " ".join(meaning.split()) for name, meaning in entries}
    summary = text.partition("\n")[0].rstrip(".")
    return Description(summary, text.strip(), arguments, sections.get("Example", "").strip())


#: Former commands, and what took their place.
_REPLACED = {
    **dict.fromkeys(
        ("table", "figure", "claims", "kernels", "throughput", "page", "ledger"),
        "fedsdg render",
    ),
    "agree": "make reproduce",
    "train": "fedsdg run",
    "succeeded": "fedsdg summarise --succeeded",
    "documents": "make documents",
    "spent": "python -m fedsdg.files.spent",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence.

    Below its options the help lists names that the package declares (``tables``), and an example.
    """

    tables: Sequence[str] = ()
    example: str = ""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one sentence."""
        more = "" if message.endswith("?") else f"; see '{self.prog} --help'"
        self.exit(2, f"fedsdg: error: {message}{more}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject an invalid choice and suggest the closest."""
        if action.choices is None or value in action.choices:
            return
        from fedsdg.files import hint

        word = f"{value!r}{hint(str(value), action.choices)}"
        if isinstance(action, argparse._SubParsersAction):
            if value in _REPLACED:
                self.error(f"there is no command {value!r}; '{_REPLACED[value]}' does it now")
            self.error(f"there is no command {word}")
        self.error(f"{'/'.join(action.option_strings) or action.dest} cannot be {word}")

    def reject(self, words: Sequence[str]) -> NoReturn:
        """End because no option or argument takes these words."""
        from fedsdg.files import hint

        for word in words:
            if word.startswith("-"):
                option = word.partition("=")[0]
                known = self._option_string_actions
                self.error(f"there is no option {option!r}{hint(option, known)}")
        self.error(f"nothing takes {words[0]!r}")

    def format_help(self) -> str:
        """Return the usual help, followed by declared names and an example."""
        from fedsdg.files.declarations import names

        width = shutil.get_terminal_size().columns - 2
        wrapped = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
        lines = [
            wrapped.fill(f"{kind}: {', '.join(listed)}")
            for table in self.tables
            for kind, listed in names(table).items()
        ]
        example = self.example and f"example:\n{textwrap.indent(self.example, '  ')}"
        parts = [super().format_help().rstrip(), "\n".join(lines), example]
        return "\n\n".join(filter(None, parts)) + "\n"


def add_command(commands: Any, function: Command, tables: Sequence[str] = ()) -> None:
    """Add a command, whose parser sets ``function`` and ``parser``, to the command line.

    Args:
        commands: what ``add_subparsers`` returned.
        function: the command.
        tables: of ``fedsdg.files.declarations``, whose names the help lists.
    """
    about = describe(function)
    width = shutil.get_terminal_size().columns - 2
    sub: Parser = commands.add_parser(
        function.__name__,
        help=about.summary,
        description="\n\n".join(textwrap.fill(part, width) for part in about.text.split("\n\n")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.tables, sub.example = tables, about.example
    sub.set_defaults(function=function, parser=sub)
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint is ConfigFiles:
            of_config = describe(ConfigFiles).arguments
            for name, kind in get_type_hints(ConfigFiles, include_extras=True).items():
                sub.add_argument(f"--{name}", help=of_config[name], **_keywords(kind), default=[])
        else:
            _add_argument(sub, parameter, hint, about.arguments[parameter.name])


def _add_argument(
    sub: argparse.ArgumentParser, parameter: inspect.Parameter, hint: Any, meaning: str
) -> None:
    option, default = _keywords(hint), parameter.default
    needed = default is parameter.empty
    meaning = meaning.replace("%", "%%")
    if isinstance(default, str | int | Path) and default != "" and not isinstance(default, bool):
        meaning += " (default: %(default)s)"
    if option.get("action") == "extend" and default == ():
        default = []
    if parameter.kind is parameter.KEYWORD_ONLY:
        name = f"--{parameter.name.strip('_').replace('_', '-')}"
        option |= {"required": True} if needed else {"default": default}
        sub.add_argument(name, dest=parameter.name, help=meaning, **option)
    else:
        option |= {} if needed else {"default": default, "nargs": "*" if "nargs" in option else "?"}
        sub.add_argument(parameter.name, help=meaning, **option)


def _keywords(hint: Any) -> dict[str, Any]:
    """Return what ``add_argument`` is given for a type hint."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = _keywords(inside[0])
        # Several words or nothing: the option alone means an empty list.
        return {**found, "nargs": "*"} if "nargs" in found else found
    if origin is Annotated:
        several = {"nargs": len(inside[1])} if isinstance(inside[1], tuple) else {}
        checked = {"type": partial(_at_least, inside[2], inside[0])} if inside[2:] else {}
        return {**_keywords(inside[0]), "metavar": inside[1], **several, **checked}
    if origin is Literal:
        return {"choices": inside}
    if inside:  # a sequence
        return {"nargs": "+", "action": "extend", **_keywords(inside[0])}
    return {"action": "store_true"} if hint is bool else {"type": hint}


def _at_least(least: int, kind: type[int | float], text: str) -> float:
    """Read a number that may not be less."""
    with contextlib.suppress(ValueError):
        if (number := kind(text)) >= least:
            return number
    what = "a whole number" if kind is int else "a number"
    raise argparse.ArgumentTypeError(f"must be {what} from {least}, not {text!r}")


def call(arguments: argparse.Namespace) -> int:
    """Call the command that was parsed; return its exit code."""
    given = {
        name: ConfigFiles(arguments.config, arguments.set, arguments.plugin)
        if hint is ConfigFiles
        else getattr(arguments, name)
        for name, hint in get_type_hints(arguments.function).items()
        if name != "return"
    }
    return int(arguments.function(**given) or 0)
