"""Commands that make pages to be opened in a browser, from what has been recorded."""

from __future__ import annotations

import argparse

from fedsdg.cli.command import Command


def page(arguments: argparse.Namespace) -> int:
    """Make the results page, one file to be opened without a network; prints its path."""
    from fedsdg.analysis.page import write_page

    written = write_page(
        arguments.records,
        arguments.output,
        experiments=arguments.experiments,
        reference=arguments.reference,
        configs=arguments.configs,
    )
    print(written)
    return 0


def _page_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--records",
        default="results/reference",
        help="folder with a record or summary of each experiment, such as results/summary "
        "(default: %(default)s)",
    )
    sub.add_argument(
        "--experiments",
        nargs="+",
        default=(),
        metavar="NAME",
        help="default: those of label-skew, needs and views that are there",
    )
    sub.add_argument(
        "--reference",
        default="results/reference",
        help="the record, for ledger, attacks and speed (default: %(default)s)",
    )
    sub.add_argument(
        "--configs", default="config", help="folder of the configs (default: %(default)s)"
    )
    sub.add_argument("--output", default="results/report/index.html", help="default: %(default)s")


COMMANDS = (Command(page, _page_options, example="fedsdg page --output results/report/index.html"),)
