"""What holds for every aggregation rule, each a function that looks for a case where it does not.

``fedsdg check`` calls them for the rules of a plugin, the tests for those of the package.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from fedsdg.aggregation import Ranks, aggregate, aggregate_files
from fedsdg.aggregation.types import ADAPTERS, Rule
from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    Suspicion,
    bytes_of,
)
from fedsdg.experiment.examining.situations import (
    NUMBERS,
    SERVER,
    Case,
    Situation,
    cases,
    difference,
    everywhere,
    fresh,
    outcome,
    situation,
)
from fedsdg.parts import is_part

T = TypeVar("T")
ROUNDING = 1e-7
"""Numbers of order one that were added in another order differ by at most so much."""
ROUNDS = 8
COLUMNS = 33
SHORT = 0.3
"""Clients that all send the same update for some rounds expect at least this share of it."""
LONG = 2.0
"""And in the first round at most so many times its length."""


def gives_a_plan(rule: Rule, case: Case) -> None:
    """Look for a round in which a rule raises, or returns anything but finite numbers."""
    if not is_part(rule):
        raise Failure("its class has no @part of fedsdg.parts above it")
    outcome(fresh(rule), situation(rule, case))


def repeats(rule: Rule, case: Case) -> None:
    """Look for two equal calls of one rule with other bytes."""
    one = fresh(rule)
    results = [outcome(one, situation(rule, case)) for _ in range(2)]
    if name := difference(*results):
        raise Failure(f"the same call gives another {name} the second time")


def arguments_stay(rule: Rule, case: Case) -> None:
    """Look for uploads, state or context with other bytes after the call."""
    given = situation(rule, case)
    before = situation(rule, case)
    outcome(fresh(rule), given)
    for what, now, then in (
        ("upload", given.uploads, before.uploads),
        ("state", given.state, before.state),
        ("context", vars(given.context), vars(before.context)),
    ):
        for name, value in now.items():
            if not callable(value) and bytes_of(value) != bytes_of(then[name]):
                raise Failure(f"the {what} {name!r} is changed in place")


def weights_add_up(rule: Rule, case: Case) -> None:
    """Look for weights that do not sum to 1; that they are [M], finite and at least 0 is known."""
    weights = outcome(fresh(rule), situation(rule, case)).weights
    if weights is not None and abs(weights.sum() - 1) > 1e-9:
        raise Failure(f"the weights sum to {weights.sum():.12g}")


def order_is_free(rule: Rule, case: Case) -> None:
    """Look for an order of clients that changes the step, the state, or a client's weight."""
    order = np.roll(np.random.default_rng(case.seed).permutation(case.size), 1)
    there = f"with the clients in the order {(order + 1).tolist()}"
    given = situation(rule, case)
    one = outcome(fresh(rule), given)
    two = outcome(fresh(rule), given.reordered(order))
    _require_close(two.steps, one.steps, f"{there} the step is another")
    if one.weights is not None and two.weights is not None:
        _require_close(two.weights, one.weights[order], f"{there} a client has another weight")
    for name, value in one.state.items():
        _require_close(two.state[name], value, f"{there} the state {name!r} is another")


def lives_by_its_state(rule: Rule, case: Case) -> None:
    """Look for a round that differs for a new rule with the state as files hold it."""
    one = fresh(rule)
    whole = stored = None
    for round_ in range(1, 4):
        result = outcome(one, situation(rule, case, round_=round_, state=whole))
        resumed = outcome(fresh(rule), situation(rule, case, round_=round_, state=stored))
        if name := difference(result, resumed):
            raise Failure(
                f"in round {round_} a rule that was given the stored state of round {round_ - 1} "
                f"gives another {name} than the one that has run since round 1"
            )
        whole = result.state
        stored = load(save({name: value.contiguous() for name, value in whole.items()}))


def follows_the_updates(rule: Rule) -> str:
    """Look for steps against an update that all clients send, and for steps if that is zero.

    Raises:
        Suspicion: The same update moves the model by very much more, or less, than its length.
    """
    case = Case(max(5, next(cases(rule)).size), COLUMNS)
    still = _steps(rule, case, 0.0)[0]
    if still.any() and not _draws(rule, case):
        raise Failure(f"updates are all zero, and the step is {float(still.abs().max()):.3g}")
    value = COLUMNS**-0.5  # Of an update of length 1.
    along = value * _steps(rule, case, value).sum(2)
    pace = along.mean(0)
    if pace.min() < -1e-6:
        raise Failure(
            f"all clients send the same update in {ROUNDS} rounds, and the steps are "
            f"{float(pace.min()):.2g} times as long along it, on average ({case})"
        )
    if pace.max() <= 1e-9:
        raise Inapplicable("equal updates move no model")
    first = along[0].max()
    if first > LONG or pace.max() < SHORT:
        raise Suspicion(
            f"all clients send the same update in {ROUNDS} rounds, and the first step is "
            f"{float(first):.2g} times as long, the mean of all {float(pace.max()):.2g} ({case})"
        )
    return f"{ROUNDS} rounds of {case}"


def _steps(rule: Rule, case: Case, value: float) -> Tensor:
    """The steps [rounds, C, d] if every vector that is sent has this value in every column."""
    one = fresh(rule)
    state = None
    steps = []
    for round_ in range(1, ROUNDS + 1):
        given = situation(rule, case, round_=round_, state=state)
        uploads = {
            name: sent if name in NUMBERS else torch.full_like(sent, value)
            for name, sent in given.uploads.items()
        }
        context = replace(given.context, models=torch.zeros_like(given.context.models))  # type: ignore[arg-type]
        result = outcome(one, Situation(uploads, context, given.state))
        state = result.state
        steps.append(result.steps)
    return torch.stack(steps)


def _draws(rule: Rule, case: Case) -> bool:
    """Whether the same arguments give another step in another round."""
    given = situation(rule, case)
    later = given._replace(context=replace(given.context, round=2))
    steps = [outcome(fresh(rule), one).steps for one in (given, later)]
    return not torch.equal(*steps)


def same_everywhere(rule: Rule) -> str:
    """Look for a step that depends on where the columns are: in memory, files, or over ranks."""
    size = max(5, next(cases(rule)).size)
    if rule.probes or rule.server_prior or {SERVER, ADAPTERS} & set(rule.reads):
        raise Inapplicable("only a federation has what it reads")
    if rule.models(size) > 1:
        raise Inapplicable("it serves clients with several models")
    case = Case(size, COLUMNS)
    if _draws(rule, case):
        raise Inapplicable("its steps are other ones in another round, as if they were drawn")
    given = situation(rule, case, everyone=True)
    expected = outcome(fresh(rule), given).steps[0]
    doors = {"parameters in memory": _in_memory, "files": _in_files, "ranks": _over_ranks}
    for through, door in doors.items():
        _require_close(door(rule, given), expected, f"through {through} the step is another")
    return f"of {size} clients with {COLUMNS} parameters, in memory, in files and over ranks"


def _in_memory(rule: Rule, given: Situation, ranks: Ranks | None = None) -> Tensor:
    """The step on parameters, or on the one of the two tensors that a rank has."""
    names = "ab" if ranks is None else "ab"[ranks.rank]

    def tensors(row: Tensor) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in _tensors(row).items() if name in names}

    uploads = {name: list(map(tensors, rows)) for name, rows in given.uploads.items()}
    clients = uploads.pop("update")
    origin = {name: torch.zeros_like(tensor) for name, tensor in clients[0].items()}
    made = aggregate(fresh(rule), origin, clients, uploads=uploads, ranks=ranks, **_counts(given))
    return torch.cat([made.parameters[name] for name in origin])


def _in_files(rule: Rule, given: Situation) -> Tensor:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        uploads = {}
        for name, rows in given.uploads.items():
            uploads[name] = [folder / f"{name}-{k}.safetensors" for k in range(len(rows))]
            for file, row in zip(uploads[name], rows, strict=True):
                save_file(_tensors(row), file)
        origin = _tensors(torch.zeros(COLUMNS, dtype=torch.float64))
        save_file(origin, folder / "global.safetensors")
        aggregate_files(
            fresh(rule),
            folder / "global.safetensors",
            uploads.pop("update"),
            folder / "new.safetensors",
            uploads=uploads,
            state_out=folder / "state.safetensors" if given.state else None,
            **_counts(given),
        )
        new = load_file(folder / "new.safetensors")
    return torch.cat([new[name] for name in origin])


def _over_ranks(rule: Rule, given: Situation) -> Tensor:
    meeting = threading.Barrier(2, timeout=60)
    results: list[Any] = [None, None]
    ranks = [_ThreadRanks(None, rank, 2, meeting, results) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return torch.cat([*pool.map(lambda rank: _in_memory(rule, given, rank), ranks)])


@dataclass(frozen=True)
class _ThreadRanks(Ranks):
    """A rank that is a thread of this process."""

    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    results: list[Any] = field(default_factory=list)

    def gathered(self, work: Callable[[], T]) -> list[T]:
        """Return what work() returned on each rank."""
        try:
            self.results[self.rank] = work()
        except Exception as error:
            self.results[self.rank] = error
        self.meeting.wait()
        results = list(self.results)
        self.meeting.wait()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


def _tensors(row: Tensor) -> dict[str, Tensor]:
    """A vector as two tensors."""
    return {name: part.clone() for name, part in zip("ab", row.split([22, 11]), strict=True)}


def _counts(given: Situation) -> dict[str, Any]:
    samples = given.context.num_samples.tolist()
    batches = given.context.num_batches.tolist()
    return {"num_samples": samples, "num_batches": batches, "client_samples": samples}


def _require_close(found: Any, expected: Any, what: str) -> None:
    one, two = (torch.as_tensor(x).double() for x in (found, expected))
    if not torch.allclose(one, two, rtol=10 * ROUNDING, atol=ROUNDING):
        raise Failure(f"{what} (by up to {float((one - two).abs().max()):.3g})")


WORKS = "it works on small rounds"
REPEATS = "the same call gives the same result"
PURE = "uploads, state and context stay as they are"
WEIGHTS = "weights sum to 1"
STATE = "it goes on from its state alone"
FOLLOWS = "its steps follow the updates"
RULE = (
    Property(
        WORKS,
        everywhere(gives_a_plan),
        "return a `Plan` with a finite step for rounds as small as this, or refuse them by "
        "`require`; `init` makes all entries of the state",
    ),
    Property(
        REPEATS,
        everywhere(repeats),
        "keep nothing in the rule, its class or its module: what it remembers goes in as `state` "
        "and comes out in the plan",
    ),
    Property(
        PURE,
        everywhere(arguments_stay),
        "write into copies: `state[…].clone()`",
    ),
    Property(
        WEIGHTS,
        everywhere(weights_add_up),
        "divide by their sum, or return None where the rule has no weights",
    ),
    Property(
        "the order of the clients does not matter",
        everywhere(order_is_free),
        "treat all rows alike, and know clients by `context.clients`",
        (REPEATS, PURE),
    ),
    Property(
        STATE,
        everywhere(lives_by_its_state),
        "return all that it remembers as the new state",
        (REPEATS, PURE),
    ),
    Property(
        FOLLOWS,
        follows_the_updates,
        "look at signs and factors: updates are θ_k − θ, and the server adds the step",
        (REPEATS, PURE, STATE),
    ),
    Property(
        "memory, files and ranks give the same",
        same_everywhere,
        "ask of rows what `Rows` offers, and nothing that depends on how columns are cut",
        (REPEATS,),
    ),
)
