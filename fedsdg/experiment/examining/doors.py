"""A rule works through every door: tensors, parameters in pieces, files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.types import Rule
from fedsdg.experiment.examining.findings import Failure, Inapplicable
from fedsdg.experiment.examining.situations import (
    ADAPTERS,
    SERVER,
    Asked,
    Case,
    Situation,
    cases,
    fresh,
    outcome,
    situation,
)

COLUMNS = 33


def same_through_every_door(asked: Asked) -> str:
    """The step of the rule called on tensors is that through the other doors, in float64."""
    rule = asked.rule
    if type(rule).plan is Rule.plan:
        raise Inapplicable("it defines no `plan`, and works on whole tensors in memory")
    size = max(5, next(iter(cases(rule))).size)
    case = Case(size, COLUMNS)
    given = situation(rule, case)
    if why := _only_in_a_federation(rule, size):
        raise Inapplicable(why)
    expected = _at_home(rule, given)
    for what, found in (
        ("parameters in pieces", _in_pieces(fresh(rule), given)),
        ("files", _in_files(fresh(rule), given)),
    ):
        _require_same(expected, found, what, case)
    return f"of {size} clients with {COLUMNS} parameters"


def _only_in_a_federation(rule: Rule, size: int) -> str:
    """Why the doors for parameters, which know no federation, cannot be asked."""
    if rule.probes or rule.server_prior or {SERVER, ADAPTERS} & set(getattr(rule, "reads", ())):
        return "what else it reads only a federation has"
    if rule.models(size) > 1:
        return "it serves clients with several models"
    return ""


def _at_home(rule: Rule, given: Situation) -> Tensor:
    """The step where the clients of the round are the whole federation."""
    context = given.context
    samples = context.num_samples.astype(np.float64)
    whole = type(context)(
        round=1,
        clients=np.arange(len(samples)),
        num_clients=len(samples),
        num_samples=samples,
        num_batches=context.num_batches.astype(np.float64),
        client_samples=samples,
        rounding=context.rounding,
    )
    own = fresh(rule)
    state = own.init(given.uploads["update"].shape[1], samples)
    return outcome(own, Situation(given.uploads, whole, state)).steps[0]


def _in_pieces(rule: Rule, given: Situation) -> Tensor:
    uploads = {n: dict(enumerate(map(_pieces, x))) for n, x in given.uploads.items()}
    clients = uploads.pop("update")
    origin = {name: torch.zeros_like(value) for name, value in clients[0].items()}
    found = aggregate(rule, origin, clients, uploads=uploads, **_facts(given))
    return torch.cat([found.parameters[name].flatten() for name in origin])


def _in_files(rule: Rule, given: Situation) -> Tensor:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files: dict[str, list[str | Path]] = {}
        for name, rows in given.uploads.items():
            files[name] = [folder / f"{name}-{k}.safetensors" for k in range(len(rows))]
            for file, row in zip(files[name], rows, strict=True):
                save_file(_pieces(row), file)
        origin = {name: torch.zeros_like(x) for name, x in _pieces(rows[0]).items()}
        save_file(origin, folder / "global.safetensors")
        clients = files.pop("update")
        stateful = bool(rule.init(rows.shape[1], given.context.num_samples))
        aggregate_files(
            rule,
            folder / "global.safetensors",
            clients,
            folder / "new.safetensors",
            uploads=files,
            state_out=folder / "state.safetensors" if stateful else None,
            **_facts(given),
        )
        found = load_file(folder / "new.safetensors")
    return torch.cat([found[name].flatten() for name in origin])


def _facts(given: Situation) -> dict[str, Any]:
    counts = given.context.num_samples.tolist()
    batches = given.context.num_batches.tolist()
    return {"num_samples": counts, "num_batches": batches, "client_samples": counts}


def _pieces(row: Tensor) -> dict[str, Tensor]:
    """A vector as named tensors."""
    cut = 2 * (len(row) // 3)
    pieces = {"a": row[:cut].reshape(2, -1), "b": row[cut:]}
    return {name: piece.contiguous() for name, piece in pieces.items()}


def _require_same(expected: Tensor, found: Tensor, through: str, case: Case) -> None:
    off = float((expected - found).abs().max())
    if not off <= 1e-7 * max(1.0, float(expected.abs().max())):
        raise Failure(f"through {through} the step differs by {off:.3g} ({case})")
