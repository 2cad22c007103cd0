"""Commands that show what there is: methods, data sets, arenas."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedsdg.cli.command import LOOK, Command
from fedsdg.cli.options import (
    add_config_options,
    add_json_option,
    add_plugin_option,
    load,
    say_json,
)

GROUP = LOOK


def methods(arguments: argparse.Namespace) -> int:
    """Print the table of methods, or all about one.

    Of one method: formula, what is sent and kept, parameters, cost and source. `fedsdg methods
    scaffold` is short for `fedsdg methods show scaffold`.
    """
    from fedsdg.files import hint
    from fedsdg.methods.plugins import find_plugin, find_row, offered
    from fedsdg.methods.showing import facts, lines

    plugins = [find_plugin(place) for place in arguments.plugin or ()]
    known = offered(plugins)
    if arguments.name:
        words = arguments.name[1:] if arguments.name[0] == "show" else arguments.name
        for name in words:
            if name not in known:
                raise ValueError(f"there is no method {name!r}{hint(name, ['show', *known])}")
        if len(words) != 1:
            raise ValueError("name one method, as in 'fedsdg methods show scaffold'")
        (name,) = words
        row = find_row(name, known[name])
        if arguments.json:
            say_json(facts(name, row))
        else:
            print("\n".join(lines(name, row, shutil.get_terminal_size().columns)))
        return 0
    table = {name: find_row(name, plugin) for name, plugin in known.items()}
    if arguments.markdown:
        from fedsdg.methods.page import method_page

        print(method_page(table), end="")
        return 0
    if arguments.json:
        say_json([facts(name, row) for name, row in table.items()])
        return 0
    rows = [("method", "rule", "objective", "personalisation", "optimiser", "parameters")]
    for name, row in table.items():
        terms = " + ".join(["cross-entropy", *row.terms])
        parameters = ", ".join(f"{k}={p.default}" for k, p in row.parameters.items())
        optimiser = row.optimiser or "adam"
        rows.append((name, row.rule, terms, row.personalisation, optimiser, parameters))
    _print_columns(rows)
    return 0


def _methods_options(sub: argparse.ArgumentParser) -> None:
    add_plugin_option(sub)
    sub.add_argument("--markdown", action="store_true", help="the whole page, docs/methods.md")
    add_json_option(sub)
    sub.add_argument("name", nargs="*", metavar="[show] METHOD", help="print all about one method")


def data(arguments: argparse.Namespace) -> int:
    """Say what data sets there are, and whether they are here.

    With --config or --plugin also those that the config describes.
    """
    from fedsdg.experiment.offered_data import offered_data

    config = load(arguments) if arguments.config or arguments.set or arguments.plugin else None
    found = list(offered_data(config))
    if arguments.json:
        say_json([asdict(one) for one in found])
        return 0
    rows: list[tuple[str, ...]] = [("data set", "classes", "images", "pixels", "here", "from")]
    for one in found:
        pixels = f"{one.size}×{one.size}" if one.size else "—"
        pixels += {1: " grey", 3: " colour"}.get(one.channels or 0, "")
        note = f" ({one.note})" if one.note else ""
        counts = ["—" if n is None else f"{n:,}" for n in (one.classes, one.images)]
        here = "yes" if one.here else "no"
        rows.append((one.name, *counts, pixels, here, f"{one.place}{note}"))
    _print_columns(rows)
    return 0


def _data_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    add_json_option(sub)


def arenas(arguments: argparse.Namespace) -> int:
    """List the experiments that ship, with a sentence on each."""
    from fedsdg.experiment.arenas import CONFIGS, arenas

    folder = Path(arguments.configs) if arguments.configs else CONFIGS
    found = list(arenas(folder))
    if arguments.json:
        say_json([asdict(one) for one in found])
        return 0
    wide = shutil.get_terminal_size().columns - 1
    for one in found:
        data = ", ".join(one.datasets)
        files = [folder / name for name in (*one.over, one.file)]
        if folder == CONFIGS:  # These go by their names in any folder.
            files = [file.relative_to(folder).with_suffix("") for file in files]
        shown = " ".join(map(str, files))
        size = f"{one.methods} methods, {one.rounds} rounds, {one.seeds} seeds, {one.runs} runs"
        record = "with a committed record" if one.recorded else "no committed record"
        print(f"{one.name}: {data}, {one.clients} clients")
        print(textwrap.fill(one.about, wide, initial_indent="  ", subsequent_indent="  "))
        print(f"  {size}; {record}\n  fedsdg run --grid {shown}\n")
    return 0


def _arenas_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--configs", metavar="FOLDER", help="default: config, of the checkout")
    add_json_option(sub)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Rows in columns that are as wide as what they hold; the last one is left as it is."""
    last = len(rows[0]) - 1
    widths = [max(len(row[i]) for row in rows) for i in range(last)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[last]]).rstrip())


COMMANDS = (
    Command(methods, _methods_options, example="fedsdg methods show scaffold"),
    Command(data, _data_options, example="fedsdg data"),
    Command(arenas, _arenas_options, example="fedsdg arenas"),
)
