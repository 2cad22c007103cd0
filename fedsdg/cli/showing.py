"""Commands that check a config or a plugin, and list methods, data sets and arenas."""

from __future__ import annotations

import contextlib
import math
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedsdg.cli.command import Laid, Words, answer
from fedsdg.errors import remark

if TYPE_CHECKING:
    from fedsdg.config.config import Config
    from fedsdg.methods.method import Method

NOT_SEEN = (
    "Not seen: whether the method is the one that its paper describes, what it does with other "
    "values of its parameters, and what only real data or many clients show."
)


def check(
    files: Words = (), *, laid: Laid, brief: bool = False, verbose: bool = False, json: bool = False
) -> int:
    """Validate a config, or examine methods of your own.

    For a config, draw its partitions and print the size of its grid. For files with methods of your
    own, try what every method must hold: failures come first.

    Args:
        files: plugins to examine, or configs, as --config
        laid: the config that the options describe
        brief: say nothing but what is wrong
        verbose: list the properties that hold, too
        json: print JSON

    Example:
        fedsdg check my_method.py
        fedsdg check --config needs
    """
    from fedsdg.config.layers import named_file

    with contextlib.suppress(FileNotFoundError):  # Names of configs that ship mean their files.
        files = [str(named_file(file)) for file in files]
    if all(file.endswith((".yaml", ".yml")) for file in files):
        _check_config(laid.load(files), brief, json)
        return 0
    if laid.words() or brief:
        raise ValueError(
            f"files are examined without a config: leave out{laid.words() or ' --brief'}, or name "
            f"{files[0]} with --plugin to check a config that uses it"
        )
    from fedsdg.experiment.conformance import check_plugin

    findings = [finding for file in files for finding in check_plugin(file)]
    findings.sort(key=lambda finding: finding.ok)
    failed = sum(not one.ok for one in findings)
    lines = [
        f"{'ok' if one.ok else 'FAILED'}: {one.part}: {one.property}: {one.sentence}"
        for one in findings
        if verbose or not one.ok
    ]
    counted = f"{failed} failed, {len(findings) - failed} passed"
    if not findings:
        counted = (
            "nothing to examine: it has no METHODS and no part with a name; metrics and data sets "
            "are tried where a config uses them"
        )
    lines.append(f"{' '.join(files)}: {counted}")
    answer(json, [one._asdict() for one in findings], [*lines, NOT_SEEN] if findings else lines)
    return int(failed > 0)


def _check_config(config: Config, brief: bool, json: bool) -> None:
    from fedsdg.analysis.render import require_known
    from fedsdg.experiment.material import load_images, require_runnable

    require_known(config.tables or (), config.figures or ())
    require_runnable(config)
    if brief:
        return
    kinds = ("methods", "datasets", "skews", "scenarios", "seeds")
    sizes = {kind: len(getattr(config, kind)) for kind in kinds}
    runs = math.prod(size or 1 for size in sizes.values())
    untuned = sorted(config.untuned)
    facts = {"experiment": config.experiment, **sizes, "runs": runs, "untuned": untuned}
    product = " x ".join(f"{size} {kind}" for kind, size in sizes.items() if size)
    product = product.replace("datasets", "data sets")
    answer(json, facts, [f"{config.experiment}: {product} = {runs} runs"])
    if untuned:
        remark(f"there are no values for {', '.join(untuned)}; 'fedsdg search' finds them")
    for source in config.datasets:
        if not isinstance(source, str):
            for note in load_images(source).notes:
                remark(f"{source.name}: {note}")
    config.print_remarks()


def methods(name: Words = (), *, plugin: Words = (), json: bool = False) -> None:
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
    from fedsdg.errors import require_one_of

    for place in plugin:
        plugins.load(place)
    words = name[1:] if name[:1] == ["show"] else name
    for word in words:
        require_one_of(plugins.METHODS, word, "neither the package nor --plugin has a method")
    if name and len(words) != 1:
        raise ValueError("name one method, as in 'fedsdg methods show scaffold'")
    rows = [_facts(word, plugins.METHODS[word]) for word in words or plugins.METHODS]
    lines = _method_lines(rows[0]) if words else _table_lines(rows)
    answer(json, rows[0] if words else rows, lines)


def _facts(name: str, row: Method) -> dict[str, Any]:
    """Return what is declared of a method, in JSON's types."""
    from fedsdg.config.reference import allowed, default_of
    from fedsdg.methods.families import FAMILIES

    family = next((title for title, rows in FAMILIES.items() if name in rows), "Plugins")
    parameters = [
        {
            "name": key,
            "default": default_of(info),
            "values": allowed(info).replace("`", ""),
            "meaning": (info.description or "").replace("`", ""),
        }
        for key, info in row.parameters.items()
    ]
    facts = {"name": name, "title": row.title, "family": family}
    return facts | {"formula": row.formula, "source": row.source, "parameters": parameters}


def _table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a heading for each family, and below it a line for each method."""
    width = max(len(row["name"]) for row in rows)
    for family, members in groupby(rows, lambda row: row["family"]):
        yield f"{family}:"
        for row in members:
            yield f"  {row['name']:{width}}  {row['title']}"
    yield "Formula, source and parameters of one: fedsdg methods NAME"


def _method_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is declared of a method, in lines as wide as the terminal."""
    yield f"{row['title']} ({row['name']}), of the family {row['family']}"
    for key in ("formula", "source"):
        yield _wrapped(f"{key}: {row[key] or 'not said'}")
    for one in row["parameters"]:
        meaning = f"{one['meaning']} (default {one['default']}; {one['values']})"
        yield _wrapped(f"parameter {one['name']}: {meaning}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent="    ")


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

    rows = list(data_sets(laid.load() if laid.words() else None))
    shown = [{**row, "here": "yes" if row["here"] else "no"} for row in rows]
    answer(json, rows, [_table(shown)])


def arenas(*, json: bool = False) -> None:
    """List the arenas: experiments with a published record.

    Args:
        json: print JSON

    Example:
        fedsdg arenas
    """
    from fedsdg.experiment.listing import arenas

    rows = list(arenas())
    lines = [_wrapped(f"{row['name']}: {row['about']}") for row in rows]
    sizes = [{key: value for key, value in row.items() if key != "about"} for row in rows]
    answer(json, rows, [*lines, "", _table(sizes)])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    import pandas as pd

    return pd.DataFrame(rows, dtype=object).fillna("—").to_markdown(index=False)
