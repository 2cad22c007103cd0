"""The command that sets methods of one's own beside the published rows."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fedsdg.cli.command import RUN, Command
from fedsdg.cli.options import add_json_option, say_json

GROUP = RUN


def compare(arguments: argparse.Namespace) -> int:
    """Set methods of your own beside the published rows of an arena."""
    from fedsdg.analysis.tables.render import to_text
    from fedsdg.analysis.tables.standing import differences, places, standing_table
    from fedsdg.experiment.comparing import PAGE, Request
    from fedsdg.experiment.comparing import compare as compared
    from fedsdg.experiment.store import store_folder
    from fedsdg.files import read_json

    if arguments.jobs < 1:
        raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1")
    request = Request(
        tuple(arguments.file),
        arguments.arena,
        arguments.seeds,
        tuple(arguments.against or ()),
        arguments.tune,
        arguments.baselines_here,
    )
    output = Path(arguments.output) if arguments.output else None
    found = compared(request, store_folder(), jobs=arguments.jobs, output=output)
    page = found.folder / PAGE
    if arguments.json:
        from itertools import chain

        rows = chain(*(differences(one) for one in found.standings))
        facts = read_json(found.folder / "comparison.json")
        said = {
            "paired": facts["paired"],
            "page": page.as_posix(),
            "differences": [*rows],
        }
        say_json(said)
        return 0
    for standing in found.standings:
        print(to_text(standing_table(standing)))
        for sentence in places(standing):
            print(sentence)
    print(f"the page: {page}", file=sys.stderr)
    return 0


def _compare_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "file",
        nargs="+",
        help="my_method.py, which defines METHODS; or a config file with plugins and methods",
    )
    sub.add_argument(
        "--arena", default="needs", help="needs, label-skew or views (default: %(default)s)"
    )
    sub.add_argument(
        "--seeds", type=int, default=5, help="how many of the record's (default: %(default)s)"
    )
    sub.add_argument("--against", nargs="+", metavar="METHOD", help="rows of the record; all else")
    sub.add_argument(
        "--tune", action="store_true", help="search for values first, as the rows' were found"
    )
    sub.add_argument(
        "--baselines-here",
        action="store_true",
        help="run the record's rows here too, where runs cannot be paired with it",
    )
    sub.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="side by side (default: a processor each)",
    )
    sub.add_argument("--output", metavar="FOLDER", help="default: compare/<arena>-<file>")
    add_json_option(sub)


_COMPARE = "fedsdg compare my_method.py --against ditto fedrep"
COMMANDS = (Command(compare, _compare_options, example=_COMPARE),)
