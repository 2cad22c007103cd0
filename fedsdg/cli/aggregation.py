"""The command that aggregates clients' files, without a config."""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

from fedsdg.cli.command import MODELS, Command

GROUP = MODELS


def aggregate(arguments: argparse.Namespace) -> int:
    """Aggregate clients' safetensors files into one, in little memory."""
    from fedsdg.aggregation.engines.files.inputs import check_no_input
    from fedsdg.aggregation.engines.files.new_files import check_target, new_file
    from fedsdg.aggregation.engines.files.streaming import aggregate_files, read_state
    from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
    from fedsdg.experiment.machine.progress import byte_progress
    from fedsdg.files import read_json

    def counts(path: str | None) -> Any:
        return None if path is None else read_json(path)

    if arguments.report:
        check_target(arguments.report, overwrite=arguments.overwrite)
        if Path(arguments.report).resolve() == Path(arguments.out).resolve():
            raise ValueError(f"{arguments.out} cannot hold both parameters and report")
    uploads = {}
    for name, folder in arguments.upload:
        uploads[name] = [Path(folder) / Path(client).name for client in arguments.clients]
    counted = [
        path
        for path in (arguments.num_samples, arguments.num_batches, arguments.client_samples)
        if path
    ]
    for target in (arguments.out, arguments.state_out, arguments.report):
        if target:
            check_no_input(target, counted)
    if arguments.report:
        read = [arguments.global_, *arguments.clients, *chain.from_iterable(uploads.values())]
        others = [path for path in (arguments.state, arguments.state_out) if path]
        check_no_input(arguments.report, [*read, *others])
    targets = [Path(path) for path in (arguments.out, arguments.state_out) if path]
    before = [_stamp(path) for path in targets]
    # A job that is told to end removes what it has begun.
    try:
        with stopped_by_signals(), byte_progress() as progress:
            result = aggregate_files(
                _rule(arguments.rule),
                arguments.global_,
                arguments.clients,
                arguments.out,
                num_samples=counts(arguments.num_samples),
                num_batches=counts(arguments.num_batches),
                client_samples=counts(arguments.client_samples),
                num_clients=arguments.num_clients,
                uploads=uploads,
                round=arguments.round,
                state=read_state(arguments.state) if arguments.state else None,
                state_out=arguments.state_out,
                on_nonfinite=arguments.on_nonfinite,
                overwrite=arguments.overwrite,
                memory=arguments.memory << 20,
                progress=progress,
            )
    except Stopped as stop:
        pairs = zip(targets, before, strict=True)
        written = [str(path) for path, stamp in pairs if _stamp(path) != stamp]
        what = f"{' and '.join(written)} had been written" if written else "nothing was written"
        raise Stopped(stop.args[0], f"stopped: {what}; the same command begins anew") from None
    report = {"global": arguments.global_, "out": arguments.out, **result.report()}
    if arguments.report:
        text = json.dumps(report, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
        with new_file(arguments.report, overwrite=arguments.overwrite) as file:
            file.write(f"{text}\n".encode())
    else:
        print(json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False))
    return 0


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another for every file that ever has this name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _aggregate_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--rule",
        required=True,
        metavar="RULE",
        help="a name (fedsdg, fedavg, krum, …) or a row of a config: '{type: krum, f: 2}'",
    )
    sub.add_argument(
        "--global", dest="global_", required=True, metavar="FILE", help="the global parameters"
    )
    sub.add_argument(
        "--clients",
        required=True,
        nargs="+",
        metavar="FILE",
        help="the clients' parameters, a file each, with the tensors of the global file",
    )
    sub.add_argument("--out", required=True, metavar="FILE", help="where the result goes")
    sub.add_argument("--overwrite", action="store_true", help="replace files that exist")
    sub.add_argument(
        "--report",
        metavar="FILE",
        help="write weights and diagnostics here, as JSON, and not to standard output",
    )
    sub.add_argument(
        "--num-samples",
        metavar="FILE",
        help='JSON: samples by client file ({"a.safetensors": 120, …}) or in their order; '
        "default: num_samples of the files' metadata",
    )
    sub.add_argument(
        "--num-batches",
        metavar="FILE",
        help="JSON: as --num-samples, local steps per epoch ('{type: fedavg, weights: batches}'); "
        "default: num_batches of the files' metadata",
    )
    sub.add_argument(
        "--on-nonfinite",
        choices=("raise", "drop"),
        default="raise",
        help="whether a client with NaN or infinity is an error (the default) or left out",
    )
    sub.add_argument(
        "--memory",
        type=int,
        default=256,
        metavar="MIB",
        help="for the blocks read at a time (default: %(default)s)",
    )
    sub.add_argument(
        "--client-samples",
        metavar="FILE",
        help="JSON: the list of the samples of all clients of the federation (for cgsv)",
    )
    sub.add_argument(
        "--num-clients", type=int, metavar="K", help="of the federation (for scaffold)"
    )
    sub.add_argument(
        "--upload",
        type=_upload,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a further upload: files named as the clients' (control=FOLDER for scaffold)",
    )
    sub.add_argument("--state", metavar="FILE", help="what --state-out wrote in the last round")
    sub.add_argument("--state-out", metavar="FILE", help="where the state for the next round goes")
    sub.add_argument("--round", type=int, default=1, metavar="N", help="default: 1")


def _rule(text: str) -> Any:
    """A rule as a config has it: a name, or a row such as {type: krum, f: 2}."""
    from fedsdg.files.strict_yaml import parse_yaml

    try:
        row = parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"--rule {text!r} is neither a name nor a row {{type: …}}") from error
    if not isinstance(row, str | dict):
        raise ValueError(f"--rule {text!r} is neither a name nor a row {{type: …}}")
    return {key: _number(value) for key, value in row.items()} if isinstance(row, dict) else row


def _number(value: Any) -> Any:
    """YAML takes 1e-8 for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _upload(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FOLDER")
    return name, folder


_AGGREGATE = """\
fedsdg aggregate --rule fedavg --global global.safetensors \\
  --clients clients/*.safetensors --out new.safetensors"""
COMMANDS = (Command(aggregate, _aggregate_options, ("rules",), _AGGREGATE),)
