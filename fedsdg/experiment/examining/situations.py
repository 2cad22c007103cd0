"""Rounds for a rule, from small to large, so that the first one to fail is a small one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context, Rule
from fedsdg.experiment.examining.findings import (
    RAISED,
    Failure,
    Inapplicable,
    bytes_of,
    counted,
    raised,
)

SERVER = "server"
"""The upload that the server makes itself."""
MEASURED: Mapping[str, tuple[str, ...]] = {
    "scores": ("scores",),
    "losses": ("global_loss", "benchmark_loss"),
    "fisher": ("fisher", "fisher_theta"),
}
"""The uploads of each kind of `UploadRequest`."""
NUMBERS = ("scores", "global_loss", "benchmark_loss")
"""Uploads of a few numbers a client; all others are vectors [d]."""
CLASSES = 3
SIZES = ((1, 3), (3, 1), (3, 2), (4, 3), (5, 4), (7, 6), (9, 33), (12, 5), (25, 3))
"""(clients, parameters) of the rounds that are tried."""
ENOUGH = 6
"""Rounds after which no larger cohorts are tried."""


@dataclass(frozen=True)
class Case:
    """The size of a cohort, the number of parameters, and the seed of the numbers."""

    size: int
    d: int
    seed: int = 0

    def __str__(self) -> str:
        return f"{counted(self.size, 'client')}, {counted(self.d, 'parameter')}, seed {self.seed}"


class Situation(NamedTuple):
    """The arguments of a rule."""

    uploads: dict[str, Tensor]
    context: Context
    state: Mapping[str, Tensor]

    def reordered(self, order: np.ndarray) -> Situation:
        """Return the same round with its clients in another order."""
        rows = torch.from_numpy(order)
        uploads = {n: x if n == SERVER else x[rows] for n, x in self.uploads.items()}
        return self._replace(uploads=uploads, context=self.context.subset(order))


def federation_of(rule: Rule, size: int) -> int:
    """Return K of a federation in which `size` clients can be a round: some more, or else these.

    Raises:
        Inapplicable: The rule refuses so many.
    """
    for clients in (size + 3, size):
        try:
            rule.require(size, clients)
        except ValueError as error:
            refused = error
        else:
            return clients
    raise Inapplicable(f"`require` refuses {counted(size, 'client')} in a round ({refused})")


def cases(rule: Rule) -> Iterator[Case]:
    """Yield the cases that a rule accepts.

    Raises:
        Inapplicable: It accepts none.
    """
    accepted = 0
    for size, d in SIZES:
        if accepted == ENOUGH:
            return
        try:
            federation_of(rule, size)
        except Inapplicable as error:
            refused = error
            continue
        accepted += 1
        yield Case(size, d)
    if not accepted:
        raise refused


def situation(
    rule: Rule,
    case: Case,
    *,
    round_: int = 1,
    state: Mapping[str, Tensor] | None = None,
    everyone: bool = False,
) -> Situation:
    """Return a round with normal updates; equal arguments give equal bytes.

    Args:
        rule: Its `reads` and `probes` say what is uploaded.
        case: The size.
        round_: The round.
        state: None: what the rule starts with.
        everyone: Whether the cohort is the whole federation, in the order of the ids.
    """
    clients = case.size if everyone else federation_of(rule, case.size)
    draw = np.random.default_rng([case.seed, case.size, case.d, round_])

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(draw.normal(size=shape) + 0.5)

    samples = 10.0 + 7 * np.arange(clients)
    cohort = np.arange(clients)
    if not everyone:
        cohort = draw.choice(clients, case.size, replace=False).astype(np.int64)
    models = rule.models(clients)
    uploads = {"update": normal(case.size, case.d)}
    measured = [name for request in rule.probes for name in MEASURED[request.kind]]
    for name in dict.fromkeys([*rule.reads, *measured]):
        if name in NUMBERS:
            uploads[name] = normal(case.size, models if name == "scores" else 1).abs()
        elif name == SERVER:
            uploads[name] = normal(models, case.d)
        elif name == ADAPTERS:
            uploads[name] = uploads["update"][:, : max(1, case.d // 2)].clone()
        elif name != "update":
            uploads[name] = normal(case.size, case.d).abs()
    context = Context(
        round=round_,
        clients=cohort,
        num_clients=clients,
        num_samples=samples[cohort],
        num_batches=np.ceil(samples[cohort] / 4),
        client_samples=samples,
        rounding=lambda update_norm: torch.finfo(torch.float64).eps / 2 * update_norm,
        models=normal(models, case.d),
    )
    return Situation(uploads, context, _first_state(rule, case.d, samples, state))


def _first_state(
    rule: Any, d: int, samples: np.ndarray, state: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor]:
    if state is not None:
        return state
    state = dict(rule.init(d, samples))
    if "clusters" in rule.server_prior:
        state = rule.with_clusters(state, np.arange(len(samples)) % rule.clusters)
    if "labels" in rule.server_prior:
        counts = np.random.default_rng(len(samples)).integers(0, 9, (len(samples), CLASSES))
        state = rule.with_labels(state, counts)
    return state


def fresh(part: Any) -> Any:
    """Return a copy that shares nothing with the part, as another process would have one."""
    try:
        return copy.deepcopy(part)
    except Exception:  # What cannot be copied is examined as it is.
        return part


def outcome(rule: Rule, given: Situation) -> Aggregate:
    """Return what the rule makes of a round.

    Raises:
        Failure: A step or an entry of the state is no finite tensor of the right shape.
    """
    result = rule(given.uploads, given.context, given.state)
    shape = rule.models(given.context.num_clients), given.uploads["update"].shape[1]
    if tuple(result.steps.shape) != shape or not torch.isfinite(result.steps).all():
        raise Failure(f"its step {result.steps.tolist()} is not {list(shape)} finite numbers")
    if not isinstance(result.state, Mapping) or set(result.state) != set(given.state):
        raise Failure(
            f"it returns the state {list(result.state)}, but `init` made {list(given.state)}"
        )
    for name, before in given.state.items():
        value = result.state[name]
        if not isinstance(value, Tensor) or value.shape != before.shape:
            raise Failure(
                f"it returns the state {name!r} as {_kind(value)}, but `init` made {_kind(before)}"
            )
    return result


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {list(getattr(value, 'shape', []))}"


def difference(one: Aggregate, two: Aggregate) -> str:
    """Return the name of a part of two results that has other bytes, or nothing."""
    if bytes_of(one.steps) != bytes_of(two.steps):
        return "step"
    if bytes_of(one.weights) != bytes_of(two.weights):
        return "list of weights"
    states = (name for name in one.state if bytes_of(one.state[name]) != bytes_of(two.state[name]))
    return "".join(f"state {name!r}" for name in [*states][:1])


def everywhere(holds: Callable[[Rule, Case], None]) -> Callable[[Rule], str]:
    """Return a function that tries a property on all cases; the first failure names its case."""

    def over(rule: Rule) -> str:
        tried = list(cases(rule))
        for case in tried:
            try:
                holds(rule, case)
            except Failure as failure:
                raise Failure(f"{failure} ({case})") from failure
            except Inapplicable:
                raise
            except RAISED as error:
                raise Failure(f"{raised(error)} ({case})") from error
        return f"{tried[0].size} to {counted(tried[-1].size, 'client')}"

    return over


def relative_distance(one: Tensor, two: Tensor, reference: Tensor) -> float:
    """‖one − two‖ as a share of the way ‖one − reference‖, or of ‖reference‖·10⁻⁵ if longer."""
    way = max(float((one - reference).norm()), 1e-5 * float(reference.norm()), 1e-12)
    return float((one - two).norm()) / way
