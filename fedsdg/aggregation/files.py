"""The door for safetensors files, aggregated a block of columns at a time."""

import json
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fedsdg.aggregation.api import Aggregated, apply_plan, check_choices
from fedsdg.aggregation.buffers import BufferRule, combine, remark_on
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.file_clients import client_numbers, counts_by_client
from fedsdg.aggregation.file_rows import FileRows, ReadMeter
from fedsdg.aggregation.rows import Block, Rows
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.tensor_files import TensorFile
from fedsdg.aggregation.types import ADAPTERS, Plan, Rule, State
from fedsdg.errors import shortened
from fedsdg.files import atomic_path, flush

LEAST_MEMORY = 1 << 20


@dataclass(frozen=True, eq=False)
class AggregatedFiles(Aggregated):
    """What `aggregate_files` returns: `parameters` is the file, `weights` a list.

    In diagnostics "winner" is a file, and clients are files in `dropped`.
    """

    rule: Mapping[str, Any] = field(default_factory=dict)
    "its type and all its parameters"
    clients: Sequence[str] = ()
    "the files, as given"
    num_parameters: int = 0
    "d"
    passes: int = 0
    "how often files were read, the pass that writes included"
    bytes_read: int = 0
    "in all passes"
    seconds: float = 0.0
    "of the whole call"

    def report(self) -> dict[str, Any]:
        """Return all of it but the state, for JSON: facts of the round and of every file.

        A number that is not finite is null.
        """
        columns = {} if self.weights is None else {"weight": self.weights}
        columns |= self.diagnostics
        by_client: dict[str, dict[str, Any]] = {
            file: {name: _plain(column[k]) for name, column in columns.items() if np.ndim(column)}
            for k, file in enumerate(self.clients)
        }
        for file, counts in self.dropped.items():
            by_client[str(file)]["dropped"] = counts
        return {
            "rule": self.rule,
            "num_clients": len(self.clients),
            "num_dropped": len(self.dropped),
            "num_parameters": self.num_parameters,
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "diagnostics": {n: _plain(value) for n, value in columns.items() if not np.ndim(value)},
            "clients": by_client,
            "remarks": list(self.remarks),
        }


def aggregate_files(
    rule: str | Mapping[str, Any] | Rule,
    global_file: str | Path,
    client_files: Sequence[str | Path],
    out: str | Path,
    *,
    num_samples: Any = None,
    num_batches: Any = None,
    client_samples: Any = None,
    num_clients: int | None = None,
    uploads: Mapping[str, Sequence[str | Path]] | None = None,
    round: int = 1,
    state: State | None = None,
    state_out: str | Path | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    buffers: BufferRule = "largest",
    overwrite: bool = False,
    memory: int = 256 << 20,
    progress: Callable[[str, int, int], None] | None = None,
) -> AggregatedFiles:
    """Aggregate safetensors files, whatever their number and size, in little memory.

    Args:
        rule: As for `aggregate`.
        global_file: theta_g.
        client_files: theta_k, a file each with the tensors of the global file, in any order. A
            client's id is its path as given; with client_samples or num_clients it is the number
            at the end of the file's name, or of its folder's if files have equal names.
        out: The file to write, with the layout and metadata of the global file; may be the global
            file. On any error nothing is written.
        num_samples: Counts in the order of the files, or by path as given, name, name without
            ending, or folder if files have equal names. None: if the rule needs them, those of the
            files' metadata.
        num_batches: The same, of local steps per epoch.
        client_samples: As for `aggregate`.
        num_clients: As for `aggregate`.
        uploads: Further files by upload, in the order of client_files.
        round: As for `aggregate`.
        state: What the last call returned, or `read_state` of what it wrote.
        state_out: A file for the state after the round.
        on_nonfinite: As for `aggregate`.
        buffers: As for `aggregate`.
        overwrite: Whether out and state_out may exist.
        memory: Bytes of the blocks that are read at a time, at least 1 MiB.
        progress: Called with a title, the bytes of a pass that were read, and all of its bytes.

    Returns:
        Weights, diagnostics, state and what was read.

    Raises:
        FileNotFoundError: A file or the folder of `out` does not exist.
        FileExistsError: `out` or `state_out` exists, and overwrite is not set.
        PermissionError: A file may not be read or written.
        ValueError: A file is damaged, given twice or changed meanwhile, or as `aggregate`.
        NonFiniteError: As `aggregate`.
    """
    started = time.monotonic()
    made = make_rule(rule)
    check_choices(on_nonfinite, buffers)
    if not isinstance(memory, int) or memory < LEAST_MEMORY:
        raise ValueError(
            f"memory={shortened(memory)} is too little; give a whole number of bytes, at least "
            "1 MiB"
        )
    targets = [out] if state_out is None else [out, state_out]
    for target in targets:
        check_target(target, overwrite=overwrite)
    origin = TensorFile(global_file)
    if isinstance(client_files, str | Path):
        raise ValueError(f"client_files is the path {client_files}; give a list of paths")
    labels = [str(path) for path in client_files]
    if {"update", ADAPTERS} & set(uploads or ()):
        raise ValueError(
            f"uploads are {shortened(list(uploads or ()))}; give those that are sent beside the "
            "parameters, which are client_files"
        )
    sent = {
        upload: [TensorFile(path) for path in paths]
        for upload, paths in {"update": labels, **(uploads or {})}.items()
    }
    _check_alike(origin, sent, labels)
    _check_distinct(origin, sent, targets)
    averaged = [name for name, entry in origin.entries.items() if not entry.is_buffer]
    others = [name for name, entry in origin.entries.items() if entry.is_buffer]
    if not averaged or not labels:
        raise ValueError("there are no floating tensors or no clients; give at least one of each")
    remarks = (remark_on(others, buffers),) if others else ()
    ids: list[Hashable] = list(labels)
    if client_samples is not None or num_clients is not None:
        ids = list(client_numbers(labels))
    cohort = Cohort(
        ids,
        False,
        counts_by_client("num_samples", num_samples, made.needs, labels, ids, sent["update"]),
        counts_by_client("num_batches", num_batches, made.needs, labels, ids, sent["update"]),
        client_samples,
        num_clients,
        round,
    )
    context = cohort.context(made)
    d = sum(origin.entries[name].numel for name in averaged)
    current = cohort.state(made, state, context, d)
    if current and state_out is None:
        raise ValueError("the rule keeps a state for the next round; give state_out, its file")
    meter = ReadMeter(progress) if progress else ReadMeter()
    rows: dict[str, Rows] = {
        upload: FileRows(
            files, origin if upload == "update" else None, averaged, memory, meter, upload
        )
        for upload, files in sent.items()
    }

    def write(plan: Plan, updates: Rows) -> None:
        assert isinstance(updates, FileRows)
        with _new_file(out, overwrite) as new:
            with open(new, "r+b") as file:
                _write_result(file, plan, updates, others, buffers)
            flush(new)
            if state_out is not None:  # Both are on the disk before either has its name.
                with _new_file(state_out, overwrite) as new_state:
                    new_state.write_bytes(save({n: v.contiguous() for n, v in plan.state.items()}))
                    flush(new_state)

    plan, kept = apply_plan(made, rows, cohort, context, current, on_nonfinite, write)
    label_of = dict(zip(ids, labels, strict=True))
    weights = cohort.weights(plan, kept)
    facts = cohort.diagnostics(plan, kept, context)
    if "winner" in facts:
        facts["winner"] = label_of[facts["winner"]]
    named = rule["type"] if isinstance(rule, Mapping) else rule
    return AggregatedFiles(
        parameters=out,
        weights=None if weights is None else list(weights.values()),
        diagnostics=facts,
        state=plan.state,
        dropped={label_of[client]: counts for client, counts in cohort.dropped.items()},
        remarks=remarks,
        rule={
            "type": named if isinstance(named, str) else type(made).__name__,
            **made.model_dump(serialize_as_any=True),
        },
        clients=labels,
        num_parameters=d,
        passes=meter.passes,
        bytes_read=meter.bytes,
        seconds=time.monotonic() - started,
    )


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the state that `aggregate_files` wrote; raises as `TensorFile`."""
    return load_file(TensorFile(path).path)


def read_counts(path: str | Path) -> Any:
    """Return the counts in a user's JSON file, with or without a byte order mark.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not JSON; the message says where.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: there is no such file; correct its name") from error
    except ValueError as error:  # Of the text, or of its encoding.
        raise ValueError(f"{path} is not JSON ({error}); correct it") from error


def check_target(path: str | Path, *, overwrite: bool) -> None:
    """Check that a file can be written.

    Args:
        path: The file.
        overwrite: Whether it may exist.

    Raises:
        FileNotFoundError: Its folder does not exist.
        FileExistsError: It exists and may not.
        PermissionError: Its folder may not be written to.
        ValueError: It is not a regular file.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}; make it first")
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is not a regular file; choose another name")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; choose another name, or overwrite it (--overwrite)")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"{path}: you may not write to the folder {target.parent}")


def check_not_read(target: str | Path, inputs: Sequence[str | Path]) -> None:
    """Raise ValueError if a file that is to be written is also read, also under another name."""
    for path in inputs:
        if os.path.realpath(target) == os.path.realpath(path) or (
            os.path.exists(target) and os.path.exists(path) and os.path.samefile(target, path)
        ):
            raise ValueError(f"{target} is to be written, but is also read; choose another name")


def _new_file(path: str | Path, overwrite: bool) -> AbstractContextManager[Path]:
    """Return the context of a file that appears whole or not at all."""
    check_target(path, overwrite=overwrite)
    return atomic_path(os.path.realpath(path))  # A link stays one.


def _write_result(
    file: BinaryIO, plan: Plan, updates: FileRows, others: Sequence[str], buffers: BufferRule
) -> None:
    """Write the header and tensors of a result, in the layout of the global file."""
    origin = updates.origin
    assert origin is not None

    def write(name: str, start: int, tensor: Tensor) -> None:
        file.seek(origin.entries[name].offset + start * tensor.element_size())
        file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)

    def put(block: Block, outs: list[Tensor]) -> None:
        for name, start, tensor in zip(block.names, block.starts, outs, strict=True):
            write(name, start, tensor)

    file.write(origin.header)
    updates.map(plan.step, Block.empty, put)
    for name in others:
        values = [client.whole(name) for client in updates.files if plan.takes_any]
        write(name, 0, combine(origin.whole(name), values, buffers))


def _check_alike(
    origin: TensorFile, sent: Mapping[str, list[TensorFile]], labels: Sequence[str]
) -> None:
    """Raise ValueError unless every file has the names, shapes and dtypes of the global one."""
    expected = {name: (entry.shape, entry.dtype) for name, entry in origin.entries.items()}
    for upload, files in sent.items():
        if len(files) != len(labels):
            raise ValueError(f"upload {upload!r} has {len(files)} files for {len(labels)} clients")
        for label, file in zip(labels, files, strict=True):
            given = {name: (entry.shape, entry.dtype) for name, entry in file.entries.items()}
            for name in {**expected, **given}:
                if given.get(name) != expected.get(name):
                    who = f"client {label}" + ("" if upload == "update" else f", upload {upload!r}")
                    raise ValueError(
                        f"{who}: tensor {name!r} is {_described(given.get(name))}, but "
                        f"{_described(expected.get(name))} in the global file; send exactly its "
                        "tensors"
                    )


def _check_distinct(
    origin: TensorFile, sent: Mapping[str, list[TensorFile]], targets: Sequence[str | Path]
) -> None:
    """Raise ValueError unless each file has one part; but the result may replace theta_g."""
    files = [file for of_upload in sent.values() for file in of_upload]
    seen = {origin.identity}
    for file in files:
        if file.identity in seen:
            raise ValueError(f"{file.path} is given twice; every client counts once")
        seen.add(file.identity)
    read = [file.path for file in files]
    check_not_read(targets[0], read)
    for target in targets[1:]:
        check_not_read(target, [targets[0], origin.path, *read])


def _described(tensor: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if tensor is None else f"{tensor[1]} of shape {tensor[0]}"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return float(value) if math.isfinite(value) else None
