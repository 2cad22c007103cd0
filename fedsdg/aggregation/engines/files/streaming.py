"""The door for parameters in files: aggregated a block of columns at a time, never loaded whole."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedsdg.aggregation.arguments import check_on_nonfinite
from fedsdg.aggregation.cohort import Cohort
from fedsdg.aggregation.engines.files.aggregated import AggregatedFiles
from fedsdg.aggregation.engines.files.file_rows import Meter
from fedsdg.aggregation.engines.files.inputs import (
    check_alike,
    check_distinct,
    check_ids,
    check_path,
    check_paths,
    counts_of,
    further_files,
    number_of,
)
from fedsdg.aggregation.engines.files.new_files import check_target, new_file
from fedsdg.aggregation.engines.files.passes import FilePasses
from fedsdg.aggregation.engines.files.tensor_files import FileVector, TensorFile, opened
from fedsdg.aggregation.plans import Plan, PlannedRule
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.uploads import ADAPTERS
from fedsdg.parts import shown

READERS = 4
"""Files that are read at a time."""


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
    num_samples, num_batches: counts in the order of the files, or by path, file name or name
        without ending; None to take those that the files' metadata hold under the same name, if
        they do. "fedavg" weighs by the first, Mean("batches") by the second.
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
        counts_of("num_samples", num_samples, labels, ids, clients),
        counts_of("num_batches", num_batches, labels, ids, clients),
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
        if name not in sent and name != ADAPTERS:
            raise ValueError(f"the rule reads the upload {name!r}; give its files in uploads")

    meter = Meter(progress)
    with ThreadPoolExecutor(READERS) as executor:
        work = FilePasses(planned, origin, labels, sent, context, state, memory, executor, meter)
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


def _described(given: Any, rule: PlannedRule) -> dict[str, Any]:
    name = given if isinstance(given, str) else type(rule).__name__
    if isinstance(given, Mapping):
        name = given["type"]
    parameters: dict[str, Any] = asdict(rule) if is_dataclass(rule) else {}
    return {"type": name, **parameters}
