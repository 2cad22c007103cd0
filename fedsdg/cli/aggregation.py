"""The command that aggregates clients' files, without a config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from fedsdg.cli.command import NamedFile, Rule
from fedsdg.cli.options import print_json


def aggregate(
    *,
    rule: Rule,
    global_: NamedFile,
    clients: Sequence[NamedFile],
    out: NamedFile,
    overwrite: bool = False,
    report: NamedFile | None = None,
    num_samples: NamedFile | None = None,
    num_batches: NamedFile | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    buffers: Literal["largest", "global", "refuse"] = "largest",
    memory: Annotated[int, "MIB"] = 256,
    client_samples: NamedFile | None = None,
    num_clients: Annotated[int, "K"] | None = None,
    upload: Sequence[Annotated[str, "NAME=FOLDER"]] = (),
    state: NamedFile | None = None,
    state_out: NamedFile | None = None,
    round: Annotated[int, "N"] = 1,
) -> None:
    r"""Aggregate clients' safetensors files into one, in little memory.

    Args:
        rule: a name (fedsdg, fedavg, krum, …) or a row of a config: '{type: krum, f: 2}'
        global_: the global parameters
        clients: the clients' parameters, a file each, with the tensors of the global file
        out: where the result goes
        overwrite: replace files that exist
        report: write weights and diagnostics here, as JSON, and not to standard output
        num_samples: JSON: samples by client file ({"a.safetensors": 120, …}; by folder if files
            have equal names) or in their order; default: num_samples of the files' metadata
        num_batches: JSON: as --num-samples, local steps per epoch ('{type: fedavg, weights:
            batches}'); default: num_batches of the files' metadata
        on_nonfinite: whether a client with NaN or infinity is an error or left out
        buffers: integer and boolean tensors: the largest client value, the global one, or an error
        memory: for the blocks read at a time
        client_samples: JSON: the list of the samples of all clients of the federation (for cgsv)
        num_clients: of the federation (for scaffold)
        upload: further uploads: files named as the clients' (control=FOLDER for scaffold)
        state: what --state-out wrote in the last round
        state_out: where the state for the next round goes
        round: the number of this round

    Example:
        fedsdg aggregate --rule fedavg --global global.safetensors \
          --clients clients/*.safetensors --out new.safetensors
    """
    from fedsdg.aggregation.file_clients import upload_files
    from fedsdg.aggregation.files import (
        aggregate_files,
        check_not_read,
        check_target,
        read_counts,
        read_state,
    )
    from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
    from fedsdg.experiment.machine.progress import byte_progress
    from fedsdg.files import write_bytes

    uploads = {name: upload_files(folder, clients) for name, folder in map(_upload, upload)}
    counts = {
        "num_samples": num_samples,
        "num_batches": num_batches,
        "client_samples": client_samples,
    }
    counted = [path for path in counts.values() if path]
    if report:
        check_target(report, overwrite=overwrite)
        if Path(report).resolve() == Path(out).resolve():
            raise ValueError(f"{out} cannot hold both parameters and report")
        states = [path for path in (state, state_out) if path]
        others = chain.from_iterable(uploads.values())
        check_not_read(report, [global_, *clients, *others, *states, *counted])
    targets = [Path(path) for path in (out, state_out) if path]
    for target in targets:
        check_not_read(target, counted)
    before = [_stamp(path) for path in targets]
    # A job that is told to end removes what it has begun.
    try:
        with stopped_by_signals(), byte_progress() as progress:
            result = aggregate_files(
                _rule(rule),
                global_,
                clients,
                out,
                **{name: read_counts(path) if path else None for name, path in counts.items()},
                num_clients=num_clients,
                uploads=uploads,
                round=round,
                state=read_state(state) if state else None,
                state_out=state_out,
                on_nonfinite=on_nonfinite,
                buffers=buffers,
                overwrite=overwrite,
                memory=memory << 20,
                progress=progress,
            )
    except Stopped as stop:
        pairs = zip(targets, before, strict=True)
        written = [str(path) for path, stamp in pairs if _stamp(path) != stamp]
        what = f"{' and '.join(written)} had been written" if written else "nothing was written"
        raise Stopped(stop.args[0], f"stopped: {what}; the same command begins anew") from None
    facts = {"global": global_, "out": out, **result.report()}
    if report:
        text = json.dumps(facts, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
        write_bytes(report, f"{text}\n".encode())
    else:
        print_json(facts)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what differs between any two files that ever have this name."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _rule(text: str) -> Any:
    """Return a rule as a config has it: a name, or a row such as {type: krum, f: 2}."""
    from fedsdg.files.strict_yaml import parse_yaml

    try:
        row = parse_yaml(text)
    except ValueError:
        row = None
    if not isinstance(row, str | dict):
        raise ValueError(f"--rule {text!r} is neither a name nor a row {{type: …}}")
    return {key: _number(value) for key, value in row.items()} if isinstance(row, dict) else row


def _number(value: Any) -> Any:
    """Read a number that YAML takes for a text, such as 1e-8."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _upload(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ValueError(f"--upload {text!r} is not of the form NAME=FOLDER")
    return name, folder
