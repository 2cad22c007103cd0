"""Rounds as a rule meets them, from small ones on, so that the first to fail is a small one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.experiment.examining.findings import (
    RAISED,
    Failure,
    Inapplicable,
    bytes_of,
    counted,
    raised,
)

#: What clients measure for each kind of question that a rule may ask (``UploadRequest``).
MEASURED: Mapping[str, tuple[str, ...]] = {
    "scores": ("scores",),
    "losses": ("global_loss", "benchmark_loss"),
    "fisher": ("fisher", "fisher_theta"),
}
#: Of these a few numbers a client, of all other uploads a vector [d].
NUMBERS = ("scores", "global_loss", "benchmark_loss")
#: What the server makes itself: no upload of anybody, and sent by nobody.
SERVER, ADAPTERS = "server", "adapters"
CLASSES = 3


@dataclass(frozen=True)
class Case:
    """So many clients in a round, so many parameters, and where the numbers are drawn from.

    ``further``: vectors [d] that clients send beside those that the rule says it reads.
    """

    size: int
    d: int
    seed: int = 0
    further: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{counted(self.size, 'client')}, {counted(self.d, 'parameter')}, seed {self.seed}"


#: From small to large; the last are for rules that ask for many clients.
LADDER = tuple(
    Case(size, d, seed)
    for size, d in ((3, 1), (3, 2), (4, 3), (5, 4), (7, 6), (9, 33), (12, 5), (25, 3))
    for seed in (0, 1)
)


class Asked(NamedTuple):
    """A rule, and what the terms of its method upload: it may read that without saying so."""

    rule: Rule
    further: tuple[str, ...] = ()


class Situation(NamedTuple):
    """The arguments of a rule."""

    uploads: dict[str, Tensor]
    context: Context
    state: dict[str, Tensor]

    def reordered(self, order: np.ndarray) -> Situation:
        """The same round, its clients in another order."""
        rows = torch.from_numpy(order)
        context = self.context
        return Situation(
            {n: x if n == SERVER else x[rows] for n, x in self.uploads.items()},
            replace(
                context,
                clients=context.clients[order],
                num_samples=context.num_samples[order],
                num_batches=context.num_batches[order],
            ),
            self.state,
        )


def federation_of(rule: Rule, size: int) -> int:
    """K of a federation in which ``size`` clients can be a round: some more, or else these.

    Raises ``Inapplicable`` where the rule refuses so many.
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
    """The cases of the ladder that a rule can work with; ``Inapplicable`` where there is none."""
    found = 0
    for case in LADDER:
        if found >= 12 and case.size > 9:
            return
        try:
            federation_of(rule, case.size)
        except Inapplicable as error:
            why = error
            continue
        found += 1
        yield case
    if not found:
        raise why


def situation(
    rule: Rule,
    case: Case,
    *,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
    round_: int = 1,
    state: Mapping[str, Tensor] | None = None,
) -> Situation:
    """A round with normal updates times ``scale``; equal arguments give equal bytes.

    ``state``: None is what the rule begins with, told what it asks to be told.
    """
    clients = federation_of(rule, case.size)
    draw = np.random.default_rng([case.seed, case.size, case.d, round_])

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(draw.normal(size=shape) + 0.5)

    samples = 10 + 7 * np.arange(clients)
    cohort = draw.choice(clients, case.size, replace=False).astype(np.int64)
    many = rule.models(clients)
    updates = (scale * normal(case.size, case.d)).to(dtype)
    uploads: dict[str, Tensor] = {"update": updates}
    asked = [name for ask in rule.probes for name in MEASURED[ask.kind]]
    for name in dict.fromkeys([*getattr(rule, "reads", ()), *asked, *case.further]):
        if name in NUMBERS:
            uploads[name] = normal(case.size, many if name == "scores" else 1).abs()
        elif name == SERVER:
            uploads[name] = normal(many, case.d).to(dtype)
        elif name == ADAPTERS:
            uploads[name] = updates[:, : max(1, case.d // 2)].clone()
        elif name not in uploads:
            vectors = normal(case.size, case.d).to(dtype)
            uploads[name] = vectors.abs() if name == "fisher" else vectors
    context = Context(
        round=round_,
        clients=cohort,
        num_clients=clients,
        num_samples=samples[cohort],
        num_batches=-(-samples[cohort] // 4),
        client_samples=samples,
        rounding=lambda update_norm: torch.finfo(dtype).eps / 2 * update_norm,
        models=normal(many, case.d).to(dtype),
    )
    before = _first_state(rule, case.d, samples) if state is None else dict(state)
    return Situation(uploads, context, before)


def _first_state(rule: Any, d: int, samples: np.ndarray) -> dict[str, Tensor]:
    state: dict[str, Tensor] = dict(rule.init(d, samples))
    everybody = np.arange(len(samples))
    if "clusters" in rule.server_prior:
        state = rule.with_clusters(state, everybody % rule.clusters)
    if "labels" in rule.server_prior:
        counts = np.random.default_rng(len(samples)).integers(0, 9, (len(samples), CLASSES))
        state = rule.with_labels(state, counts)
    return state


def fresh(part: Any) -> Any:
    """A copy that shares nothing with the part, as another process would have one."""
    try:
        return copy.deepcopy(part)
    except Exception:  # What cannot be copied is examined as it is.
        return part


def outcome(rule: Rule, given: Situation) -> Aggregate:
    """What the rule makes of a round; ``Failure`` where it has not the form of a result."""
    found = rule(given.uploads, given.context, given.state)
    d, many = given.uploads["update"].shape[1], rule.models(given.context.num_clients)
    steps = getattr(found, "steps", None)
    if not isinstance(steps, Tensor):
        raise Failure(f"it returns a {type(found).__name__} and no Aggregate with `steps`")
    if tuple(steps.shape) != (many, d):
        raise Failure(
            f"it returns steps of shape {list(steps.shape)}, but [{many}, {d}] are asked for, a "
            "row for each model of the server"
        )
    if not steps.is_floating_point():
        raise Failure(f"it returns steps of {steps.dtype}, but a model is of floating numbers")
    if not isinstance(found.state, Mapping):
        raise Failure(f"it returns a {type(found.state).__name__} as the state, and no dict")
    for name, value in found.state.items():
        if not isinstance(value, Tensor):
            raise Failure(f"it returns a {type(value).__name__} as the state {name!r}, no tensor")
    return found


def difference(one: Aggregate, two: Aggregate) -> str:
    """Name a part of two results that has other bytes; "" where all are equal."""
    if bytes_of(one.steps) != bytes_of(two.steps):
        return "step"
    if bytes_of(one.weights) != bytes_of(two.weights):
        return "list of weights"
    for name in dict.fromkeys([*one.state, *two.state]):
        if bytes_of(one.state.get(name)) != bytes_of(two.state.get(name)):
            return f"state {name!r}"
    return ""


def everywhere(
    holds: Callable[..., None], *choices: Any, within: Callable[[Rule], Any] = cases
) -> Callable[[Asked], str]:
    """Try a property on all cases and ``choices``; the first failure names its case."""

    def over(asked: Asked) -> str:
        rule, further = asked
        seen: list[Case] = []
        for case, *chosen in itertools.product(within(rule), *([choices] if choices else [])):
            case = replace(case, further=further)
            try:
                holds(rule, case, *chosen)
            except Failure as failure:
                raise Failure(f"{failure} ({case})") from failure
            except Inapplicable:
                raise
            except RAISED as error:
                raise Failure(f"{raised(error)} ({case})") from error
            seen.append(case)
        sizes, widths = ({getattr(case, name) for case in seen} for name in ("size", "d"))
        return f"{_range(sizes, 'client')} and {_range(widths, 'parameter')}"

    return over


def _range(numbers: set[int], what: str) -> str:
    """ "3 to 9 clients", or "1 client"."""
    if len(numbers) == 1:
        return counted(min(numbers), what)
    return f"{min(numbers)} to {max(numbers)} {what}s"


def relative_distance(one: Tensor, two: Tensor, reference: Tensor) -> float:
    """‖one − two‖ as a share of the way ‖one − reference‖, or of ‖reference‖·10⁻⁵ if longer."""
    way = max(float((one - reference).norm()), 1e-5 * float(reference.norm()), 1e-12)
    return float((one - two).norm()) / way
