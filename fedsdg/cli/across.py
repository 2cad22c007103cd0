"""The command that summarises several arenas together."""

from __future__ import annotations

import argparse

from fedsdg.cli.command import Command


def across(arguments: argparse.Namespace) -> int:
    """Compare the methods that several arenas have, over all of them."""
    from pathlib import Path

    from fedsdg.analysis.regret import write_across

    written = write_across(
        arguments.arena,
        arguments.records,
        arguments.output,
        arguments.figures,
        arguments.metric,
    )
    print((Path(arguments.output) / "regret.md").read_text(encoding="utf-8"))
    for path in written:
        print(path)
    return 0


def _across_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("arena", nargs="+", help="folders of the records: label-skew needs views")
    sub.add_argument("--records", default="results/reference", help="default: %(default)s")
    sub.add_argument(
        "--metric",
        default="expected_accuracy",
        help="as runs.parquet calls it, without what is reported of it (default: %(default)s)",
    )
    sub.add_argument("--output", required=True, metavar="FOLDER", help="of the tables")
    sub.add_argument("--figures", metavar="FOLDER", help="of the figure (default: the tables')")


_ACROSS = "fedsdg across label-skew needs views --output results/across"
COMMANDS = (Command(across, _across_options, example=_ACROSS),)
