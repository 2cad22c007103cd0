"""The door for parameters in files: aggregated a block of columns at a time, never loaded whole."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, is_dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedsdg.aggregation.arguments import check_on_nonfinite
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.engines.files.file_rows import FileRows, Meter, NonFinite, PassedNorm
from fedsdg.aggregation.engines.files.inputs import (
    check_alike,
    check_distinct,
    check_ids,
    check_path,
    check_paths,
    further_files,
    number_of,
    samples_of,
)
from fedsdg.aggregation.engines.files.new_files import NewFile, check_target, new_file
from fedsdg.aggregation.engines.files.tensor_files import READ_BYTES, FileVector, TensorFile, opened
from fedsdg.aggregation.engines.memory.screening import who
from fedsdg.aggregation.engines.rows import TensorRows, all_finite
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import NonFiniteError
from fedsdg.parts import shown

READERS = 4
"""Files that are read at a time."""


@dataclass(frozen=True, eq=False)
class AggregatedFiles:
    """What `aggregate_files` returns, beside the file it wrote."""

    rule: dict[str, Any]
    """Its type, as given, and all its parameters."""
    clients: list[str]
    """The files, as given."""
    weights: list[float] | None
    """[M], 0 for a dropped client; None where the rule has no weights. They sum to 1."""
    diagnostics: dict[str, Any]
    """Arrays [M], NaN for a dropped client, or one value; "winner" is a file."""
    state: dict[str, torch.Tensor]
    """Goes into the next call; empty for most rules."""
    dropped: dict[str, dict[str, int]]
    """Of every file left out, its number of non-finite values by tensor."""
    num_parameters: int
    """d."""
    passes: int
    """How often files were gone through, the one that writes included."""
    bytes_read: int
    seconds: float

    def report(self) -> dict[str, Any]:
        """All of it but the state, for JSON: facts of the round, and those of every client by
        file. A number that is not finite is null."""
        by_client: dict[str, dict[str, Any]] = {file: {} for file in self.clients}
        facts: dict[str, Any] = {}
        columns = {"weight": self.weights} if self.weights is not None else {}
        for name, value in {**columns, **self.diagnostics}.items():
            if np.ndim(value) == 0:
                facts[name] = _plain(value)
                continue
            for file, one in zip(self.clients, value, strict=True):
                by_client[file][name] = _plain(one)
        for file, counts in self.dropped.items():
            by_client[file]["dropped"] = counts
        return {
            "rule": self.rule,
            "num_clients": len(self.clients),
            "num_dropped": len(self.dropped),
            "num_parameters": self.num_parameters,
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "diagnostics": facts,
            "clients": by_client,
        }


def aggregate_files(
    rule: str | Mapping[str, Any] | PlannedRule,
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
    state: Mapping[str, torch.Tensor] | None = None,
    state_out: str | Path | None = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    overwrite: bool = False,
    memory: int = 256 << 20,
    progress: Callable[[str, int, int], None] | None = None,
) -> AggregatedFiles:
    """As `aggregate`, for safetensors files, whatever their number and size in little memory.

    rule: as for `aggregate`; a rule object must be a PlannedRule.
    global_file: theta_g. client_files: theta_k, one file per client, with its tensors (by name, in
        any order), shapes and dtypes. A client's id is its path as given; or, when client_samples
        or num_clients are given, the whole number at the end of its name ("client-12.safetensors").
    out: the file to write: the global file with new numbers, its metadata and layout kept. It may
        be the global file itself with overwrite. On any error nothing is written.
    num_samples: counts in the order of the files, or by path, file name or name without ending;
        None to take those that the files' metadata hold under "num_samples", if they do.
    uploads: further files by upload, in the order of client_files.
    state, state_out: what the last call returned, and a safetensors file for what this one does.
    overwrite: whether out and state_out may exist.
    memory: bytes of the blocks read at a time. All else needs a fixed amount, except rules whose
        state has the size of the parameters (SCAFFOLD).
    progress: called now and then with a title, bytes read of this pass, and bytes to read.

    Results equal those of `aggregate` on the same parameters up to rounding. Raises what it
    raises, the client named by its file; FileNotFoundError, FileExistsError, PermissionError, and
    ValueError for a file that is not whole, that appears twice, or that changes meanwhile.
    """
    started = time.monotonic()
    planned = make_rule(rule)
    if not isinstance(planned, PlannedRule):
        raise ValueError(
            f"the rule {type(planned).__name__} wants all updates at once, so it cannot work on "
            f"files; load them and use fedsdg.aggregation.aggregate"
        )
    check_on_nonfinite(on_nonfinite)
    for what, path in (("global_file", global_file), ("out", out), ("state_out", state_out)):
        if what != "state_out" or path is not None:
            check_path(what, path)
    check_paths("client_files", client_files)
    if not client_files:
        raise ValueError("there are no client files; name at least one")
    if isinstance(memory, bool) or not isinstance(memory, Integral) or memory < 1 << 20:
        raise ValueError(
            f"memory={shown(memory)} bytes is too little; give a whole number of at least {1 << 20}"
        )
    for target in (out, *([] if state_out is None else [state_out])):
        check_target(target, overwrite=overwrite)
    origin = TensorFile(global_file)
    if not origin.places:
        raise ValueError(f"{origin.path} holds no tensors; give the shared parameters")
    clients = [TensorFile(path) for path in client_files]
    sent = {"update": clients, **further_files(uploads, len(clients))}
    labels = [str(path) for path in client_files]
    for name, files in sent.items():
        check_alike(labels, name, files, origin)
    check_distinct(origin, sent, out, state_out)

    federated = client_samples is not None or num_clients is not None
    ids = [number_of(path) for path in labels] if federated else list(labels)
    check_ids(ids, labels)
    cohort = Cohort(
        ids,
        False,
        samples_of(num_samples, labels, ids, clients),
        num_batches,
        client_samples,
        num_clients,
        round,
    )
    context = cohort.context()
    cohort.check_counts(planned)
    d = sum(place.numel for place in origin.places.values())
    state = cohort.state(planned, state, context, d)
    if state and state_out is None:
        raise ValueError("the rule keeps a state for the next round; give state_out, its file")
    for name in planned.reads:
        if name not in sent:
            raise ValueError(f"the rule reads the upload {name!r}; give its files in uploads")

    meter = Meter(progress)
    with ThreadPoolExecutor(READERS) as executor:
        work = _Work(planned, origin, labels, sent, context, state, memory, executor, meter)
        with new_file(out, origin.size, overwrite=overwrite) as written:
            kept: list[int] = list(range(len(clients)))
            dropped: dict[str, dict[str, int]] = {}
            plan = work.run(kept, written)
            if isinstance(plan, FileVector):
                dropped = work.screen(plan, on_nonfinite)
                kept = [k for k in kept if labels[k] not in dropped]
                plan = work.run(kept, written)
            assert isinstance(plan, Plan)  # All that is not finite has been dropped.
            if state_out is not None:
                data = save({name: value.contiguous() for name, value in plan.state.items()})
                with new_file(state_out, len(data), overwrite=overwrite) as kept_state:
                    kept_state.write(data)
                    kept_state.sync()
                    written.sync()  # Both are on the disk before either has its name.

    def spread(values: Any, missing: float) -> np.ndarray:
        """[M] the values of those kept, and `missing` for the dropped."""
        spread = np.full(len(labels), missing)
        spread[kept] = values
        return spread

    diagnostics: dict[str, Any] = {
        name: spread(value, np.nan) if np.shape(value) == (len(kept),) else value
        for name, value in plan.diagnostics.items()
    }
    if "winner" in diagnostics:
        by_row = dict(zip(context.clients.tolist(), labels, strict=True))
        diagnostics["winner"] = by_row[int(diagnostics["winner"])]
    return AggregatedFiles(
        _described(rule, planned),
        labels,
        None if plan.weights is None else spread(plan.weights, 0.0).tolist(),
        diagnostics,
        plan.state,
        dropped,
        d,
        meter.passes,
        meter.bytes,
        time.monotonic() - started,
    )


def read_state(path: str | Path) -> dict[str, torch.Tensor]:
    """The state that `aggregate_files` wrote. Raises ValueError when the file is damaged."""
    try:
        os.close(opened(path, os.O_RDONLY))
        return load_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: there is no such file") from error
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); give what state_out wrote"
        ) from error


@dataclass(frozen=True, eq=False)
class _Work:
    """What the passes over the files have in common."""

    rule: PlannedRule
    origin: TensorFile
    labels: list[str]
    sent: Mapping[str, list[TensorFile]]
    context: Context
    state: dict[str, torch.Tensor]
    memory: int
    executor: Executor
    meter: Meter

    @property
    def names(self) -> list[str]:
        """Of the tensors; the columns follow them as they lie in the global file."""
        return list(self.origin.places)

    @property
    def dtype(self) -> torch.dtype:
        dtypes = {place.dtype for place in self.origin.places.values()}
        return torch.float64 if torch.float64 in dtypes else torch.float32

    def rows(self, name: str, chosen: Sequence[int], **how: Any) -> FileRows:
        """The upload `name` of some clients."""
        origin = FileVector(self.origin, self.names)
        return FileRows(
            [FileVector(self.sent[name][k], self.names, origin) for k in chosen],
            origin if name == "update" else None,
            self.dtype,
            memory=self.memory,
            executor=self.executor,
            meter=self.meter,
            **how,
        )

    def run(self, kept: list[int], out: NewFile) -> Plan | FileVector:
        """Aggregate the clients in `kept` and write the result from the beginning of the file.

        The first file that turns out to hold NaN or infinity is returned instead.
        """
        try:
            return self._run(kept, out)
        except NonFinite as found:
            return found.vector

    def _run(self, kept: list[int], out: NewFile) -> Plan:
        facts = self.context
        rows = {name: self.rows(name, kept) for name in dict.fromkeys((*self.rule.reads, "update"))}
        updates = rows["update"]
        context = replace(
            facts,
            clients=facts.clients[kept],
            num_samples=facts.num_samples[kept],
            num_batches=facts.num_batches[kept],
            parameter_norm=PassedNorm(updates),
        )
        try:
            plan = self.rule.plan(rows, context, self.state)
        except ValueError as error:
            if len(kept) == len(self.labels):
                raise
            left_out = f"{len(self.labels) - len(kept)} of {len(self.labels)} clients"
            raise ValueError(f"{error} ({left_out} were dropped as non-finite)") from error
        self._write(plan, updates, kept, out)
        return plan

    def screen(self, found: FileVector, on_nonfinite: str) -> dict[str, dict[str, int]]:
        """The clients to drop, with their non-finite values by tensor; raises unless dropping."""
        if found.file is self.origin:
            counts = self._count(found.file)
            raise _not_finite("global parameters", found.file, counts)
        dropped: dict[str, dict[str, int]] = {}
        for upload, files in self.sent.items():
            if upload not in self.rule.reads and upload != "update":
                continue
            for label, file in zip(self.labels, files, strict=True):
                if on_nonfinite == "raise" and file is not found.file:
                    continue
                counts = self._count(file)
                if counts and on_nonfinite == "raise":
                    raise _not_finite(who(label, upload), file, counts)
                for name, count in counts.items():
                    key = name if upload == "update" else f"{upload}: {name}"
                    dropped.setdefault(label, {})[key] = count
        if len(dropped) == len(self.labels):
            label, counts = next(iter(dropped.items()))
            name, count = next(iter(counts.items()))
            raise NonFiniteError(
                f"all {len(self.labels)} clients hold non-finite values (client {label}: tensor "
                f"{name!r} has {count}); nothing is left to aggregate: lower the learning rate"
            )
        return dropped

    def _count(self, file: TensorFile) -> dict[str, int]:
        """How many values are NaN or infinite, by tensor; only the tensors that hold any."""
        counts = {}
        for name, place in file.places.items():
            vector, count = FileVector(file, [name]), 0
            numbers = READ_BYTES // place.dtype.itemsize
            for start in range(0, len(vector), numbers):
                part = torch.empty(min(numbers, len(vector) - start), dtype=place.dtype)
                for _ in vector.read(start, part):
                    pass
                count += int((~torch.isfinite(part)).sum())
            self.meter.bytes += len(vector) * place.dtype.itemsize
            if count:
                counts[name] = count
        return counts

    def _write(self, plan: Plan, updates: FileRows, kept: list[int], out: NewFile) -> None:
        step, chosen = plan.step, list(range(len(kept)))
        if isinstance(step, Combination) and updates.screened and step.coefficients.any():
            # Files without weight, of which it is known that all is finite, need not be read again.
            chosen = np.flatnonzero(step.coefficients).tolist()
            step = Combination(step.coefficients[chosen])
        rows = self.rows(
            "update", [kept[k] for k in chosen], screened=updates.screened, what="writing"
        )
        assert rows.origin is not None
        out.restart(self.origin.header)
        for columns, block in rows.blocks():
            base = torch.empty(columns.stop - columns.start, dtype=self.dtype)
            for place, dtype in rows.origin.read(columns.start, base):
                self.meter.bytes += (place.stop - place.start) * dtype.itemsize
            base += step.of(TensorRows(block))
            for place, dtype in rows.origin.parts(columns.start, columns.stop):
                part = base[place.start - columns.start : place.stop - columns.start].to(dtype)
                if not all_finite(part):
                    beyond = int(torch.nonzero(~torch.isfinite(part))[0])
                    raise ValueError(
                        f"the aggregated tensor {rows.origin.name_of(place.start + beyond)!r} "
                        f"overflows {dtype}; convert the parameters to a wider dtype, or lower "
                        f"the rate of the server"
                    )
                out.write(part.view(torch.uint8).numpy().data)


def _described(given: Any, rule: PlannedRule) -> dict[str, Any]:
    name = given if isinstance(given, str) else type(rule).__name__
    if isinstance(given, Mapping):
        name = given["type"]
    parameters: dict[str, Any] = asdict(rule) if is_dataclass(rule) else {}
    return {"type": name, **parameters}


def _not_finite(owner: str, file: TensorFile, counts: Mapping[str, int]) -> NonFiniteError:
    name, count = next(iter(counts.items()))
    return NonFiniteError(
        f"{owner}: tensor {name!r} has {count} non-finite values of {file.places[name].numel}; "
        f"leave the client out or restore its last finite parameters"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
