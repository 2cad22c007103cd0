"""The passes over the files: the rule's plan, what is not finite, and the writing of the result."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.files.file_rows import FileRows, Meter, NonFinite, PassedNorm
from fedsdg.aggregation.engines.files.new_files import NewFile
from fedsdg.aggregation.engines.files.tensor_files import READ_BYTES, FileVector, TensorFile
from fedsdg.aggregation.engines.memory.screening import who
from fedsdg.aggregation.engines.rows import TensorRows, all_finite
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule, planned
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import ADAPTERS, NonFiniteError, adapters_of


@dataclass(frozen=True, eq=False)
class FilePasses:
    """What the passes over the files of one round have in common, and these passes."""

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
        names = list(adapters_of(self.origin.places)) if name == ADAPTERS else self.names
        origin = FileVector(self.origin, names)
        formed = name in ("update", ADAPTERS)
        sent = self.sent["update" if formed else name]
        return FileRows(
            [FileVector(sent[k], names, origin) for k in chosen],
            origin if formed else None,
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
            parameter_norm=PassedNorm(rows.get(ADAPTERS, updates)),
        )
        try:
            plan = planned(self.rule, rows, context, self.state)
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


def _not_finite(owner: str, file: TensorFile, counts: Mapping[str, int]) -> NonFiniteError:
    name, count = next(iter(counts.items()))
    return NonFiniteError(
        f"{owner}: tensor {name!r} has {count} non-finite values of {file.places[name].numel}; "
        f"leave the client out or restore its last finite parameters"
    )
