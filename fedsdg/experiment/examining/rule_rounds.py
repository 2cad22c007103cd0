"""Properties of a rule over several rounds: where its steps lead, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.experiment.examining.findings import Failure, Inapplicable, Suspicion, bytes_of
from fedsdg.experiment.examining.situations import (
    ADAPTERS,
    SERVER,
    Asked,
    Case,
    Situation,
    cases,
    difference,
    fresh,
    outcome,
    situation,
)

ROUNDS = 3
#: Runs over whose mean a rule is judged that draws random numbers.
DRAWS = 8
#: The share of the way to its optimum that a client goes in a round.
RATE = 0.1
#: A step shorter than this share of the first is much shorter: below that of AdaGrad's third.
SHORT = 0.55
#: A first step of so many times the length of the updates is no mean of them.
FAR = 2.0
#: Rounds in which the state of a rule should change: a client may be
#: blocked that stays an outlier, and a method may have two phases.
MANY = 12


# --- Where its steps lead -------------------------------------------------------------------------


class Course(NamedTuple):
    """Three rounds in which all clients want the server to go the same way."""

    along: np.ndarray
    """[rounds, C], the steps along the update that the clients of a model send in common."""
    lengths: np.ndarray
    """[rounds, C], the steps' lengths."""
    loss: float
    """Mean of the clients' ½‖θ − θ*‖² at the end, as a share of that at the beginning."""


def _course(rule: Rule, case: Case, first: int, pulled: bool, size: float = 1.0) -> Course:
    """Run rounds ``first``, ``first`` + 1, …

    With ``pulled``, clients minimise ½‖θ − θ*‖² and go a tenth of the way to θ* in a round, else
    they send the same update in all rounds. Updates differ from client to client by a tenth of
    their length, and the server's own training agrees with theirs.
    """
    own, given = fresh(rule), situation(rule, case)
    noise = given.uploads["update"] - given.uploads["update"].mean(0)
    noise = 0.1 * noise / noise.norm(dim=1, keepdim=True).clamp(min=1e-12)
    target = _target(case.d, size)
    state, models = given.state, torch.zeros_like(given.context.models)  # type: ignore[arg-type]
    along, lengths = [], []
    for round_ in range(first, first + ROUNDS):
        there = _downloaded(own, state, given.context.clients, models)
        wanted = RATE * (target - (there if pulled else 0 * there))
        updates = wanted + wanted.norm(dim=1, keepdim=True) * noise
        uploads = {**given.uploads, "update": updates}
        if SERVER in uploads:
            uploads[SERVER] = RATE * (target - (models if pulled else 0 * models))
        if ADAPTERS in uploads:
            uploads[ADAPTERS] = updates[:, : uploads[ADAPTERS].shape[1]]
        context = replace(given.context, round=round_, models=models)
        found = outcome(own, Situation(uploads, context, state))
        along.append((found.steps @ target / target.norm()).numpy())
        lengths.append(found.steps.norm(dim=1).numpy())
        models, state = models + found.steps, dict(found.state)
    there = _downloaded(own, state, given.context.clients, models)
    loss = float((target - there).square().sum(1).mean() / target.square().sum())
    return Course(np.array(along), np.array(lengths), loss)


def _target(d: int, size: float = 1.0) -> Tensor:
    """The optimum [d] of all clients."""
    return torch.from_numpy(np.random.default_rng(d).normal(size, size, d))


def _downloaded(
    rule: Rule, state: Mapping[str, Tensor], clients: np.ndarray, models: Tensor
) -> Tensor:
    return torch.from_numpy(rule.mixing(state, clients)).to(models) @ models


def _courses(asked: Asked, pulled: bool, size: float = 1.0) -> tuple[Case, list[Course]]:
    """One course, or as many as draws where the rule does something else in other rounds."""
    rule = asked.rule
    case = Case(max(5, next(iter(cases(rule))).size), 33, 0, asked.further)
    courses = [_course(rule, case, 1 + 100 * draw, pulled, size) for draw in range(2)]
    if np.array_equal(courses[0].along, courses[1].along):
        return case, courses[:1]
    return case, [_course(rule, case, 1 + 100 * draw, pulled, size) for draw in range(DRAWS)]


def _error(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean over draws, 0 for a single one."""
    if len(values) == 1:
        return np.zeros(values.shape[1:])
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def _judged(courses: list[Course]) -> str:
    return "" if len(courses) == 1 else f", mean of {len(courses)} draws"


def steps_follow_the_updates(asked: Asked) -> str:
    """Fail a rule that moves a model against the update that all of its clients send."""
    case, courses = _courses(asked, pulled=False)
    along = np.array([course.along for course in courses])
    lengths = np.array([course.lengths for course in courses]).mean(0)
    mean, error = along.mean(0), _error(along)
    if (wrong := mean < -2 * error - 1e-6 * lengths).any():
        round_ = int(np.flatnonzero(wrong.any(1))[0])
        one = int(np.flatnonzero(wrong[round_])[0])
        cosine = mean[round_, one] / lengths[round_, one]
        raise Failure(
            f"all clients send nearly the same update, and the step of round {round_ + 1} points "
            f"against it (cosine {cosine:.2f}{_judged(courses)}; {case})"
        )
    if (error > mean.clip(0)).any():
        raise Inapplicable(f"in {DRAWS} draws the noise of its steps is larger than the steps")
    return f"{ROUNDS} rounds of {case}{_judged(courses)}"


def steps_keep_their_length(asked: Asked) -> str:
    """Warn where the same update moves the model much less in a later round, or on and off."""
    case, courses = _courses(asked, pulled=False)
    along = np.array([course.along for course in courses])
    mean = along.mean(0).max(1)
    if mean[0] <= 0 or (4 * _error(along).max(1) > mean).any():
        raise Inapplicable("its steps are zero, or are drawn too widely to be compared")
    shares = mean / mean[0]
    told = f"are {_listed(shares)} times the first{_judged(courses)} ({case})"
    if shares.min() < SHORT:
        raise Suspicion(
            f"all clients send the same update in {ROUNDS} rounds, and the steps along it {told}"
        )
    if shares[1] < 0.97 * min(shares[0], shares[2]):
        raise Suspicion(
            f"all clients send the same update in {ROUNDS} rounds, and the steps become shorter "
            f"and longer in turn: they {told}"
        )
    return f"steps are {_listed(shares)} times the first"


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.2g}" for number in numbers)


def loss_falls_as_by_the_mean(asked: Asked) -> str:
    """Warn where clients with one optimum come less near to it than by the mean of the updates.

    And where the server goes much farther than they ask for, as by their sum.
    """
    case, courses = _courses(asked, pulled=True)
    _, longer = _courses(asked, pulled=True, size=10.0)
    length = float(_target(case.d).norm())
    once, tenfold = (np.mean([one.along[0].max() for one in some]) for some in (courses, longer))
    if once > 0 and not 8 < tenfold / once < 12:
        raise Inapplicable("ten times longer updates are no ten times longer steps")
    if once > FAR * RATE * length:
        raise Suspicion(
            f"all clients send nearly the same update, and the first step is "
            f"{once / (RATE * length):.2g} times as long{_judged(courses)} ({case})"
        )
    mean, found = (1 - RATE) ** (2 * ROUNDS), float(np.mean([course.loss for course in courses]))
    if not found <= mean + 0.05:
        raise Suspicion(
            f"all clients have the same optimum, and after {ROUNDS} rounds the loss is "
            f"{found:.2f} of the first one, but {mean:.2f} by the plain mean of the updates"
            f"{_judged(courses)} ({case})"
        )
    return f"after {ROUNDS} rounds the loss is {found:.2f} of the first one; the mean: {mean:.2f}"


# --- What it remembers ----------------------------------------------------------------------------


def lives_by_its_state(rule: Rule, case: Case) -> None:
    """Rounds in which every rule is a new one, with the state as files hold it, are the same."""
    own = fresh(rule)
    state: Mapping[str, Tensor] | None = None
    stored: Mapping[str, Tensor] | None = None
    kept = situation(rule, case).state
    for round_ in range(1, ROUNDS + 1):
        whole = outcome(own, situation(rule, case, round_=round_, state=state))
        after = outcome(fresh(rule), situation(rule, case, round_=round_, state=stored))
        if name := difference(whole, after):
            raise Failure(
                f"in round {round_} a rule that was given the stored state of round {round_ - 1} "
                f"gives another {name} than the one that has run since round 1"
            )
        _require_storable(whole.state, kept, round_)
        state = whole.state
        stored = load(save({name: value.contiguous() for name, value in whole.state.items()}))


def _require_storable(state: Mapping[str, Any], first: Mapping[str, Tensor], round_: int) -> None:
    if set(state) != set(first):
        raise Failure(
            f"after round {round_} the state holds {sorted(state)}, but `init` made {sorted(first)}"
        )
    for name, value in first.items():
        if state[name].shape != value.shape:
            raise Failure(
                f"after round {round_} the state {name!r} has the shape {list(state[name].shape)}, "
                f"but `init` made {list(value.shape)}"
            )


def state_is_used(asked: Asked) -> str:
    """Warn about state that never changes, or that nothing but itself depends on.

    What the federation tells the rule before the first round may stay as it is.
    """
    rule = asked.rule
    largest = [*cases(rule)][-1]
    own = fresh(rule)
    first = situation(rule, largest).state
    declared = own.init(largest.d, situation(rule, largest).context.client_samples)
    told = {n for n, x in first.items() if n in declared and bytes_of(x) != bytes_of(declared[n])}
    unchanged, unread = set(first) - told, set(first)
    state: Mapping[str, Tensor] = first
    for round_ in range(1, MANY + 1):
        given = situation(rule, replace(largest, further=asked.further), round_=round_, state=state)
        given.uploads["update"][given.context.clients == 0] *= 1e4  # An outlier may be remembered.
        found = outcome(own, given)
        for name in sorted(unread):
            other = given._replace(state={**given.state, name: first[name]})
            if _effects(rule, other, name) != _effects(rule, given, name):
                unread.discard(name)
        unchanged = {n for n in unchanged if torch.equal(found.state[n], first[n])}
        state = found.state
    if unchanged:
        raise Suspicion(
            f"in {MANY} rounds the state {', '.join(map(repr, sorted(unchanged)))} stays as `init` "
            f"made it ({largest})"
        )
    if unread:
        raise Suspicion(
            f"no step, weight or message of {MANY} rounds depends on the state "
            f"{', '.join(map(repr, sorted(unread)))} ({largest})"
        )
    if not first:
        raise Inapplicable("it remembers nothing")
    return f"{', '.join(sorted(first))} in {MANY} rounds"


def _effects(rule: Rule, given: Situation, without: str) -> list[Any]:
    """The bytes of all that a round comes to, but for the next value of one state."""
    found = outcome(fresh(rule), given)
    clients, d = given.context.clients, given.uploads["update"].shape[1]
    state = {name: value for name, value in found.state.items() if name != without}
    values = [found.steps, found.weights, *state.values()]
    for one in (given.state, found.state):
        values += [rule.mixing(one, clients), rule.partial(one, clients, d)]
        values += rule.broadcast(one).values()
    return list(map(bytes_of, values))
