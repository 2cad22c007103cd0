"""How a function becomes a command, and what commands share.

Parameters before the ``*`` are arguments, those after it options; the help is the docstring, which
ends with an example. ``python -OO`` drops docstrings, so they are then read from the source.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json as json_format
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer import Argument, Option
from typer.core import TyperCommand

if TYPE_CHECKING:
    import pandas as pd

    from fedsdg.config.config import Config

Command = Callable[..., int | None]
Count = Annotated[int, Option(min=1)]
Seed = Annotated[int | None, Option(min=0)]
Minutes = Annotated[float | None, Option(min=0)]


class Laid(NamedTuple):
    """The options that describe a config.

    Args:
        config: laid over the default config, in order: files, or names of configs that ship
        set: KEY=VALUE, laid over the config, such as training.device=cuda
        plugin: Python files or modules with methods and parts of your own
    """

    config: Sequence[str] = ()
    set: Sequence[str] = ()
    plugin: Sequence[str] = ()

    def load(self, more: Sequence[str] = ()) -> Config:
        """Return the config, with further files laid over those of ``--config``."""
        from fedsdg.config.layers import load

        return load([*self.config, *more], self.set, self.plugin)

    def words(self) -> str:
        """Return the options as they are written on a command line; "" without any."""
        pairs = zip(("--config", "--set", "--plugin"), self, strict=True)
        return "".join(f" {name} {shlex.join(values)}" for name, values in pairs if values)


class _Command(TyperCommand):
    """A command whose options for lists take several words: ``--only fedavg krum``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        lists = {flag for one in self.params if one.multiple for flag in one.opts}
        option = ""
        words: list[str] = []
        for position, word in enumerate(args):
            if word == "--":
                words += args[position:]
                break
            if word.startswith("-"):
                option = word if word in lists else ""
            elif option and args[position - 1] != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


def add_command(app: typer.Typer, function: Command) -> None:
    """Add a function to a command line, under its name.

    A parameter ``laid: Laid`` stands for the options --config, --set and --plugin.

    Args:
        app: The command line.
        function: Returns the exit code; None is 0.
    """
    text, example, meanings = _described(function)
    meanings |= _described(Laid)[2]
    declared = inspect.signature(function, eval_str=True).parameters
    parameters = [one for name, one in declared.items() if name != "laid"]
    for name, hint in get_type_hints(Laid).items() if "laid" in declared else ():
        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
        parameters.append(option.replace(default=()))

    def call(**words: Any) -> int | None:
        if "laid" in declared:
            words["laid"] = Laid(*(words.pop(name) for name in Laid._fields))
        return function(**words)

    shown = [_parameter(one, meanings[one.name]) for one in parameters]
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in shown}
    epilog = "\b\nExample:\n" + textwrap.indent(example, "  ")
    app.command(function.__name__, cls=_Command, help=text, epilog=epilog)(call)


def _described(function: Any) -> tuple[str, str, dict[str, str]]:
    """Return the text of a docstring, its example, and the meanings of its arguments."""
    doc = inspect.getdoc(function)
    if doc is None or sys.flags.optimize == 2:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        doc = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    text, *parts = re.split(r"^(Args|Example):\n", doc, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], map(textwrap.dedent, parts[1::2]), strict=True))
    entries = re.findall(r"^(\w+): (.*(?:\n .*)*)", sections.get("Args", ""), re.MULTILINE)
    meanings = {name: " ".join(meaning.split()) for name, meaning in entries}
    return text.strip(), sections.get("Example", "").strip(), meanings


def _parameter(one: inspect.Parameter, meaning: str) -> inspect.Parameter:
    """Return a parameter as typer reads it."""
    hint = one.annotation
    is_list = get_origin(hint) is Sequence
    if is_list:
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    known = [copy.copy(info) for info in getattr(hint, "__metadata__", ())]
    is_argument = one.kind is one.POSITIONAL_OR_KEYWORD
    info = known[0] if known else Argument() if is_argument else Option()
    info.help = meaning
    if not is_argument:
        info.param_decls = (f"--{one.name.strip('_').replace('_', '-')}",)
    kind = get_args(hint)[0] if known else hint
    default = [] if is_list and one.default == () else one.default
    return inspect.Parameter(
        one.name, one.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def answer(json: bool, facts: Any, lines: Iterable[str]) -> None:
    """Print what a command found.

    Args:
        json: Whether the command was given ``--json``.
        facts: What the JSON holds; an iterator becomes a list.
        lines: What a person reads.
    """
    if not json:
        print("\n".join(lines))
        return
    content = list(facts) if isinstance(facts, Iterator) else facts
    print(json_format.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame in JSON's types; what is missing is null."""
    rows: list[dict[str, Any]] = json_format.loads(frame.to_json(orient="records"))
    return rows


def remark(text: str) -> None:
    """Print a line on standard error, where it is no part of the answer."""
    print(f"fedsdg: {text}", file=sys.stderr, flush=True)


def require_writable(
    *places: str | Path,
    remedy: str = "name another place with --output",
    kind: Literal["file", "folder"] = "folder",
) -> None:
    """Refuse places that cannot be written to, before anything is imported or computed.

    Args:
        places: Files or folders; of those that do not exist the nearest folder above is tried.
        remedy: What names another place.
        kind: What the places are to be.

    Raises:
        OSError: One sentence with the reason and the remedy.
    """
    for place in map(Path, places):
        if place.exists() and place.is_dir() != (kind == "folder"):
            raise OSError(f"{place} is to be a {kind}, which it is not: {remedy}")
        above = [place.absolute(), *place.absolute().parents][kind == "file" :]
        folder = next(folder for folder in above if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
        except OSError as error:
            raise OSError(
                f"{place} cannot be written ({error.strerror}): make room or change the "
                f"permissions in {folder}, or {remedy}"
            ) from error
