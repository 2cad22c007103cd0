"""Commands that check a config or a plugin, and list methods, data sets and arenas."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsdg.cli.command import Laid, answer, remark

if TYPE_CHECKING:
    from fedsdg.config.config import Config
    from fedsdg.methods.method import Method

NOT_SEEN = (
    "Not seen: whether the method is the one that its paper describes, what it does with other "
    "values of its parameters, and what only real data or many clients show."
)


def check(
    files: Sequence[str] = (),
    *,
    laid: Laid,
    brief: bool = False,
    verbose: bool = False,
    json: bool = False,
) -> int:
    """Validate a config, or examine methods of your own.

    For a config, draw its partitions and print the size of its grid. For files with methods of your
    own, try what every method must hold: failures come first.

    Args:
        files: plugins to examine
        laid: the config that the options describe
        brief: say nothing but what is wrong
        verbose: list the properties that hold, too
        json: print JSON

    Example:
        fedsdg check my_method.py
        fedsdg check --config needs
    """
    if not files:
        _check_config(laid.load(), brief, json)
        return 0
    if laid.words() or brief:
        raise ValueError(
            f"files are examined without a config: leave out{laid.words() or ' --brief'}, or name "
            f"{files[0]} with --plugin to check a config that uses it"
        )
    from fedsdg.experiment.conformance import check_plugin

    findings = [finding for file in files for finding in check_plugin(file)]
    failed = [one for one in findings if not one.ok]
    passed = [one for one in findings if one.ok]
    lines = [f"FAILED  {one.part}: {one.property}: {one.sentence}" for one in failed]
    if verbose:
        lines += [f"ok      {one.part}: {one.property}: {one.sentence}" for one in passed]
    lines.append(f"{' '.join(files)}: {len(failed)} failed, {len(passed)} passed")
    answer(json, [one._asdict() for one in findings], [*lines, NOT_SEEN])
    return int(bool(failed))


def _check_config(config: Config, brief: bool, json: bool) -> None:
    from fedsdg.experiment.conformance import require_runnable

    require_runnable(config)
    kinds = ("methods", "datasets", "skews", "scenarios", "seeds")
    sizes = {kind: len(getattr(config, kind)) for kind in kinds}
    runs = len(config.datasets) * len(config.settings) * len(config.methods) * len(config.seeds)
    product = " x ".join(f"{size} {kind}" for kind, size in sizes.items() if size)
    line = f"{config.experiment}: {product.replace('datasets', 'data sets')} = {runs} runs"
    untuned = [entry.label for entry in config.methods if entry.label in config.untuned]
    facts = {"experiment": config.experiment, **sizes, "runs": runs, "untuned": untuned}
    if not brief:
        answer(json, facts, [line])
    if untuned and not brief:
        remark(f"no tuned values for {', '.join(untuned)}; 'fedsdg search' finds them")


def methods(name: Sequence[str] = (), *, plugin: Sequence[str] = (), json: bool = False) -> None:
    """List the methods by family, or print all about one.

    For one method: its formula, source and parameters. `fedsdg methods scaffold` is short for
    `fedsdg methods show scaffold`.

    Args:
        name: [show] and a method
        plugin: Python files or modules that define further METHODS
        json: print JSON

    Example:
        fedsdg methods scaffold
    """
    from fedsdg.config import plugins
    from fedsdg.errors import hint

    for place in plugin:
        plugins.load(place)
    words = name[1:] if name[:1] == ["show"] else name
    for word in words:
        if word not in plugins.METHODS:
            raise ValueError(f"there is no method {word!r}{hint(word, plugins.METHODS)}")
    if name and len(words) != 1:
        raise ValueError("name one method, as in 'fedsdg methods show scaffold'")
    facts = [_facts(word, plugins.METHODS[word]) for word in words or plugins.METHODS]
    if words:
        answer(json, facts[0], _method_lines(facts[0]))
    else:
        answer(json, facts, _table_lines(facts))


def _facts(name: str, row: Method) -> dict[str, Any]:
    """Return all that is declared of a method, in JSON's types."""
    from fedsdg.config.reference import allowed, default_of
    from fedsdg.methods.families import FAMILIES

    families = [title for title, rows in FAMILIES.items() if name in rows]
    parameters = []
    for key, info in row.parameters.items():
        values = {"values": allowed(info).replace("`", ""), "meaning": info.description or ""}
        parameters.append({"name": key, "default": default_of(info), **values})
    return {
        "name": name,
        "title": row.title,
        "family": families[0] if families else "Others",
        "formula": row.formula,
        "source": row.source,
        "made of": " + ".join(type(part).__name__ for part in row.parts),
        "fixed": ", ".join(row.fixed),
        "parameters": parameters,
    }


def _table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a heading for each family, and below it a line for each method."""
    width = max(len(row["name"]) for row in rows)
    for family in dict.fromkeys(row["family"] for row in rows):
        yield f"{family}:"
        for row in rows:
            if row["family"] == family:
                yield textwrap.shorten(row["title"], 76 - width, placeholder="…").join(
                    (f"  {row['name']:{width}}  ", "")
                )
    yield "Formula, source and parameters of one: fedsdg methods NAME"


def _method_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield all about a method, in lines as wide as the terminal."""
    yield f"{row['title']} ({row['name']}), of the family {row['family']}"
    for key in ("formula", "source", "made of", "fixed"):
        if row[key]:
            yield _wrapped(row[key], f"{key:9}", 9)
    yield "parameters:" if row["parameters"] else "It has no parameters of its own."
    for one in row["parameters"]:
        text = f"{one['meaning']} (default {one['default']}; {one['values']})".replace("`", "")
        yield _wrapped(text, f"  {one['name']}: ", 4)


def _wrapped(text: str, head: str, indent: int) -> str:
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * indent)


def data(*, laid: Laid, json: bool = False) -> None:
    """List the data sets, and whether they are on this machine.

    With --config or --plugin also those that the config describes.

    Args:
        laid: the config that the options describe
        json: print JSON

    Example:
        fedsdg data
    """
    from fedsdg.experiment.listing import data_sets

    found = list(data_sets(laid.load() if laid.words() else None))
    rows = [("data set", "classes", "images", "pixels", "here", "from")]
    for one in found:
        pixels = f"{one.size}×{one.size}" if one.size else "—"
        pixels += {1: " grey", 3: " colour"}.get(one.channels or 0, "")
        counts = ["—" if count is None else f"{count:,}" for count in (one.classes, one.images)]
        here = "yes" if one.here else "no"
        rows.append((one.name, *counts, pixels, here, one.place))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    answer(json, [one._asdict() for one in found], lines)


def arenas(*, json: bool = False) -> None:
    """List the arenas: experiments with a published record.

    Args:
        json: print JSON

    Example:
        fedsdg arenas
    """
    from fedsdg.experiment.listing import arenas

    found = list(arenas())
    lines = []
    for one in found:
        sizes = f"{one.clients} clients, {one.rounds} rounds, {one.methods} rows"
        lines += [f"{one.name}: {', '.join(one.datasets)}, {sizes}, {one.seeds} seeds"]
        lines += [_wrapped(one.about, "  ", 2), f"  fedsdg compare FILE --arena {one.name}"]
    answer(json, [one._asdict() for one in found], lines)
