"""Commands that list methods, data sets and arenas."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedsdg.cli.command import ConfigFiles, Method, NamedFile
from fedsdg.cli.options import answer
from fedsdg.files import hint

if TYPE_CHECKING:
    from fedsdg.experiment.arenas import Arena
    from fedsdg.methods.declared import Row


def methods(
    name: Sequence[Method] = (),
    *,
    plugin: Sequence[NamedFile] = (),
    json: bool = False,
) -> None:
    """List the methods by family, or print all about one.

    For one method: its formula, messages, kept state, parameters, cost and source. `fedsdg methods
    scaffold` is short for `fedsdg methods show scaffold`.

    Args:
        name: [show] and a method
        plugin: files that define further METHODS, or names of installed plugins
        json: print JSON

    Example:
        fedsdg methods show scaffold
    """
    from fedsdg.methods.plugins import find_plugin, find_row, offered
    from fedsdg.methods.showing import facts, lines

    known = offered([find_plugin(place) for place in plugin])
    if name:
        words = name[1:] if name[0] == "show" else name
        for word in words:
            if word not in known:
                raise ValueError(f"there is no method {word!r}{hint(word, ['show', *known])}")
        if len(words) != 1:
            raise ValueError("name one method, as in 'fedsdg methods show scaffold'")
        row = find_row(words[0], known[words[0]])
        wide = shutil.get_terminal_size().columns
        answer(json, facts(words[0], row), lines(words[0], row, wide))
        return
    table = {method: find_row(method, place) for method, place in known.items()}
    # In a pipe a line is not cut.
    wide = shutil.get_terminal_size(fallback=(10_000, 24)).columns
    answer(json, (facts(method, row) for method, row in table.items()), _listed(table, wide))


def _listed(table: Mapping[str, Row], wide: int) -> Iterator[str]:
    """Yield a heading for each family and below it a line for each method, cut to ``wide``."""
    names = max(map(len, table))
    titles = max(len(row.title) for row in table.values())
    for family in dict.fromkeys(row.family for row in table.values()):
        yield f"{family or 'Others'}:"[:wide]
        for name, row in table.items():
            if row.family != family:
                continue
            parts = [" + ".join([row.rule, *row.terms])]
            parts += [row.personalisation] if row.personalisation not in ("", "none") else []
            parts += [row.optimiser] if row.optimiser else []
            parts += [f"{key}={one.default}" for key, one in row.parameters.items()]
            line = f"  {name:{names}}  {row.title:{titles}}  {', '.join(parts)}".rstrip()
            yield line if len(line) <= wide else f"{line[: wide - 1].rstrip()}…"


def data(laid: ConfigFiles, *, json: bool = False) -> None:
    """List the data sets, and whether they are on this machine.

    With --config or --plugin also those that the config describes.

    Args:
        laid: the config that the options describe
        json: print JSON

    Example:
        fedsdg data
    """
    config = laid.load() if any(laid) else None
    from fedsdg.experiment.offered_data import offered_data

    sets = list(offered_data(config))
    rows = [["data set", "classes", "images", "pixels", "here", "from"]]
    for one in sets:
        pixels = f"{one.size}×{one.size}" if one.size else "—"
        pixels += {1: " grey", 3: " colour"}.get(one.channels or 0, "")
        note = f" ({one.note})" if one.note else ""
        counts = ["—" if n is None else f"{n:,}" for n in (one.classes, one.images)]
        here = "yes" if one.here else "no"
        rows.append([one.name, *counts, pixels, here, f"{one.place}{note}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    answer(json, map(asdict, sets), lines)


def arenas(*, json: bool = False) -> None:
    """List the experiments that ship, with a sentence on each.

    Args:
        json: print JSON

    Example:
        fedsdg arenas
    """
    from fedsdg.experiment.arenas import arenas as listed

    experiments = list(listed())
    answer(json, map(asdict, experiments), map(_presented, experiments))


def _presented(one: Arena) -> str:
    """Return a paragraph about an experiment, with the command that runs it."""
    counts = {name: getattr(one, f"{name}s") for name in ("method", "round", "seed", "run")}
    size = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    record = "with a committed record" if one.recorded else "no committed record"
    wide = shutil.get_terminal_size().columns - 1
    about = textwrap.fill(one.about, wide, initial_indent="  ", subsequent_indent="  ")
    return (
        f"{one.name}: {', '.join(one.datasets)}, {one.clients} clients\n{about}\n"
        f"  {size}; {record}\n  fedsdg run --grid {one.file.removesuffix('.yaml')}\n"
    )
