"""Properties of the models that clients keep for themselves: see ``OwnModel``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.experiment.examining.federations import Trial
from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    bytes_of,
    counted,
)
from fedsdg.experiment.examining.rules import REPEATS, STATE, WORKS
from fedsdg.experiment.examining.situations import relative_distance
from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.rounds import Federation

#: How far clients that train together may be from clients that train one by one, in float32.
ONE_BY_ONE = 1e-3
#: The round in which clients are compared: some of them have taken part before, others not.
ROUND = 3
METHODS = ("begin", "keep", "models")


class Given(NamedTuple):
    """The arguments of an own model's methods, for some clients of a round."""

    cohort: np.ndarray
    clients: Clients
    has: Tensor
    local: LocalResult

    def only(self, k: int) -> Given:
        rows = np.array([k])
        return Given(self.cohort[rows], self.clients[rows], self.has[rows], self.local[rows])


def _given(trial: Trial, round_: int) -> tuple[Federation, Given]:
    one = trial.make()
    if not _overridden(one.own):
        raise Inapplicable("clients keep no model of their own")
    for earlier in range(1, round_):
        one.step(earlier)
    cohort = one.cohort(round_)
    clients, layout = one.clients(round_, cohort), one.layout.of_round(round_)
    local = one.passes.train(one.model, layout, one.samples, clients, one.work)
    return one, Given(cohort, clients, one.bank.trained[torch.from_numpy(cohort)], local)


def _overridden(own: OwnModel) -> list[str]:
    return [name for name in METHODS if getattr(type(own), name) is not getattr(OwnModel, name)]


def keeps_what_it_names(trial: Trial) -> str:
    """``keep`` returns vectors [M, d] of the names in ``keeps``, and no others."""
    one, given = _given(trial, 1)
    own, names = one.own, ", ".join(one.own.keeps) or "nothing"
    kept, _ = own.keep(one.train_on, given.clients, given.has, given.local)
    if more := sorted(set(kept) - set(own.keeps)):
        raise Failure(f"`keep` returns {', '.join(map(repr, more))}, but `keeps` names {names}")
    if lacking := sorted(set(own.keeps) - set(kept)):
        raise Failure(f"`keeps` names {', '.join(map(repr, lacking))}, but `keep` returns no such")
    if not own.keeps:
        raise Failure(f"it defines {', '.join(_overridden(own))}, but `keeps` names nothing, so "
                      "that none of them is ever called")  # fmt: skip
    shape = [len(given.cohort), one.layout.d]
    for name, value in kept.items():
        if not isinstance(value, Tensor) or list(value.shape) != shape:
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise Failure(f"`keep` returns {found} as {name!r}, but {shape} is asked for")
    return names


def newcomers_use_what_they_download(trial: Trial) -> str:
    """A client that has never taken part begins at, and uses, the model that it downloads."""
    one, given = _given(trial, ROUND)
    none = {name: torch.zeros_like(given.clients.start) for name in one.own.keeps}
    vectors = _used(one, given, none, torch.zeros_like(given.has))
    for method, found in zip(("begin", "models"), vectors, strict=True):
        off = float((found - given.clients.start).norm() / given.clients.start.norm())
        if not off <= ONE_BY_ONE:
            raise Failure(
                f"`{method}` gives clients that never took part (`has` is False, what they keep is "
                f"0) another model than they download (by {off:.1e} of its length)"
            )
    return f"{counted(len(given.cohort), 'client')} before a first round"


def arguments_stay(trial: Trial) -> str:
    """``begin``, ``keep`` and ``models`` write to none of their arguments."""
    one, given = _given(trial, ROUND)
    before = _bytes(given)
    for method, call in _calls(one, given, given.clients.state, given.has):
        call()
        for name, value in _bytes(given).items():
            if value != before[name]:
                raise Failure(f"`{method}` changes `{name}` in place")
    return ", ".join(f"`{name}`" for name in METHODS)


def _calls(one: Federation, given: Given, kept: Mapping[str, Tensor], has: Tensor) -> Any:
    """(name, call) of each method, on these clients."""
    own, start, score = one.own, given.clients.start, one.score(given.cohort)
    yield "begin", lambda: own.begin(start, kept, has, score)
    yield "keep", lambda: own.keep(one.train_on, given.clients, has, given.local)
    yield "models", lambda: own.models(start, kept, has, score)


def _bytes(given: Given) -> dict[str, Any]:
    """The bytes of all that the methods are given, by the name that a plugin knows."""
    found = {"has": bytes_of(given.has)}
    for owner, value in (("clients", given.clients), ("local", given.local)):
        for entry in fields(value):
            inner = getattr(value, entry.name)
            for name, one in inner.items() if isinstance(inner, Mapping) else [("", inner)]:
                place = f"{owner}.{entry.name}" + (f"[{name!r}]" if name else "")
                found[place] = repr(one) if isinstance(one, list) else bytes_of(one)
    return found


def own_models_stand_alone(trial: Trial) -> str:
    """Alone, a client begins, keeps and uses the same vectors as in its cohort."""
    one, given = _given(trial, ROUND)
    together = _played(one, given)
    for k in range(len(given.cohort)):
        reference = given.clients.start[k]
        for what, value in _played(one, given.only(k)).items():
            off = relative_distance(together[what][k], value[0], reference)
            if not off <= ONE_BY_ONE:
                raise Failure(
                    f"{what}: client {k} of {len(given.cohort)} has another vector than when it "
                    f"is alone (by {off:.1e} of the way from the server's model)"
                )
    return f"{counted(len(given.cohort), 'client')} in round {ROUND}, together and alone"


def _played(one: Federation, given: Given) -> dict[str, Tensor]:
    """All vectors [M, d] that the methods make of these clients, in the order of a round."""
    own, kept, start = one.own, given.clients.state, given.clients.start
    score, everybody = one.score(given.cohort), torch.ones_like(given.has)
    found = {"`begin`": own.begin(start, kept, given.has, score)}
    made, more = own.keep(one.train_on, given.clients, given.has, given.local)
    found |= {f"`keep`, {name!r}": value for name, value in made.items()}
    if more is not None:
        found["`keep`, the model trained beside"] = more.theta
    found["`models` before the round"] = own.models(start, kept, given.has, score)
    found["`models` after the round"] = own.models(start, {**kept, **made}, everybody, score)
    return found


def kept_models_are_used(trial: Trial) -> str:
    """Where clients begin, or the models that they use, depend on what they keep."""
    one, given = _given(trial, ROUND)
    everybody, state = torch.ones_like(given.has), given.clients.state
    first = _used(one, given, {name: state[name] for name in one.own.keeps}, everybody)
    unused = []
    for name in one.own.keeps:
        length = given.clients.start.norm(dim=1, keepdim=True) / one.layout.d**0.5
        kept = {**state, name: state[name] + 0.1 * length}
        second = _used(one, given, kept, everybody)
        unused += [name] * all(map(torch.equal, first, second))
    if unused:
        raise Failure(
            f"clients keep {', '.join(map(repr, unused))}, but neither where they begin nor the "
            "model that they use depends on it"
        )
    return ", ".join(map(repr, one.own.keeps))


def _used(
    one: Federation, given: Given, kept: Mapping[str, Tensor], has: Tensor
) -> tuple[Tensor, Tensor]:
    score = one.score(given.cohort)
    begin = one.own.begin(given.clients.start, kept, has, score)
    return begin, one.own.models(given.clients.start, kept, has, score)


NAMES = "clients keep what `keeps` names"
STAY = "what its methods are given stays as it is"
FIRST = "until it has one, a client uses what it downloads"
ALONE = "a client's own model is made of its own data"
OWN = (
    Property(
        NAMES,
        keeps_what_it_names,
        "return from `keep` a vector [M, d] for each name in `keeps`",
        (WORKS,),
    ),
    Property(
        STAY,
        arguments_stay,
        "write into copies: `local.theta.clone()`",
        (REPEATS, STATE),
    ),
    Property(
        FIRST,
        newcomers_use_what_they_download,
        "write `torch.where(has[:, None], kept[…], downloaded)`",
        (REPEATS, STATE, STAY),
    ),
    Property(
        ALONE,
        own_models_stand_alone,
        "work row by row: row k of every tensor is client k; keep nothing in modules",
        (REPEATS, STATE, STAY),
    ),
)
