"""How a function becomes a command, and what commands share.

Parameters before the ``*`` are arguments, those after it options; the help is the docstring, which
ends with an example. ``python -OO`` drops docstrings, so they are then read from the source.
"""

from __future__ import annotations

import ast
import inspect
import json as json_format
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from fedsdg.config.config import Config

Words = Sequence[str]
File = Path | None
Count = Annotated[int, 1]
"""A type with its smallest value."""
CORES = os.cpu_count() or 1
Number = Annotated[int | None, 1]
Minutes = Annotated[float | None, 0]


class Laid(NamedTuple):
    """The options that describe a config.

    Args:
        config: laid over the default config, in order: files, or names of configs that ship
        set: KEY=VALUE, laid over the config, such as training.device=cuda
        plugin: Python files or modules with methods and parts of your own
    """

    config: Words
    set: Words
    plugin: Words

    def load(self, more: Words = (), **values: str | None) -> Config:
        """Return the config, with further files laid over those of ``--config``, and values."""
        from fedsdg.config.layers import load

        given = [f"{key}={value}" for key, value in values.items() if value is not None]
        return load([*self.config, *more], [*self.set, *given], self.plugin)

    def words(self) -> str:
        """Return the options as they are written on a command line; "" without any."""
        pairs = zip(("--config", "--set", "--plugin"), self, strict=True)
        return "".join(f" {name} {shlex.join(values)}" for name, values in pairs if values)


class _Command(TyperCommand):
    """A command whose options for lists take several words: ``--only fedavg krum``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lists = {flag for one in self.params if one.multiple for flag in one.opts}
        end = args.index("--") if "--" in args else len(args)
        option = ""
        words: list[str] = []
        for before, word in zip(["", *args], args[:end], strict=False):
            if word.startswith("-"):
                option = word if word in lists else ""
            elif option and before != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words + args[end:])


def add_command(app: typer.Typer, function: Callable[..., int | None]) -> None:
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
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=(), annotation=hint))
    shown = [_as_typer_reads_it(one, meanings[one.name]) for one in parameters]

    def call(**words: Any) -> int | None:
        if "laid" in declared:
            words["laid"] = Laid(*(words.pop(name) for name in Laid._fields))
        return function(**words)

    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    epilog = "\b\nExample:\n" + textwrap.indent(example, "  ")
    app.command(function.__name__, cls=_Command, help=text, epilog=epilog)(call)


def _described(function: Any) -> tuple[str, str, dict[str, str]]:
    """Return the text of a docstring, its example, and the meanings of its arguments."""
    doc = inspect.getdoc(function) or ""
    if sys.flags.optimize == 2:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        doc = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    text, *parts = re.split(r"^(Args|Example):\n", doc, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], map(textwrap.dedent, parts[1::2]), strict=True))
    entries = re.findall(r"^(\w+): (.*(?:\n .*)*)", sections.get("Args", ""), re.MULTILINE)
    meanings = {name: " ".join(meaning.split()) for name, meaning in entries}
    return text.strip(), sections.get("Example", "").strip(), meanings


def _as_typer_reads_it(one: inspect.Parameter, meaning: str) -> inspect.Parameter:
    """Return a parameter with its help, an option with two dashes, and a list for a sequence."""
    hint = one.annotation
    least = None
    if get_origin(hint) is Annotated:
        hint, least = get_args(hint)
    if get_origin(hint) is Sequence:
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    flag = f"--{one.name.strip('_').replace('_', '-')}"
    info = typer.Option(flag, help=meaning, min=least)
    if one.kind is one.POSITIONAL_OR_KEYWORD:
        info = typer.Argument(help=meaning)
    default = [] if one.default == () else one.default
    return one.replace(kind=one.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info])


def answer(json: bool, facts: Any, lines: Iterable[str]) -> None:
    """Print what a command found.

    Args:
        json: Whether the command was given ``--json``.
        facts: What the JSON holds.
        lines: What a person reads.
    """
    if json:
        # JSON has no word for infinity.
        finite = json_format.loads(json_format.dumps(facts), parse_constant=lambda _: None)
        lines = [json_format.dumps(finite, indent=2, allow_nan=False, ensure_ascii=False)]
    print("\n".join(lines))
