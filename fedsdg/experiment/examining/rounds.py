"""What holds for every method over the rounds of a federation: see ``Trial``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import ADAPTERS, Aggregate, Context, Rule
from fedsdg.experiment.examining.federations import Trial, result_of
from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    Suspicion,
    counted,
)
from fedsdg.experiment.examining.own_models import (
    ALONE,
    FIRST,
    NAMES,
    ONE_BY_ONE,
    STAY,
    kept_models_are_used,
)
from fedsdg.experiment.examining.rules import FOLLOWS, REPEATS, STATE, WEIGHTS, WORKS
from fedsdg.experiment.examining.situations import NUMBERS, SERVER, relative_distance
from fedsdg.experiment.examining.terms import TERM_ALONE, TERM_WORKS
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.evaluation import losses
from fedsdg.federation.judged_models import JudgedModels, judged_models
from fedsdg.federation.messages import serialise
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.passes import Passes
from fedsdg.federation.rounds import Federation

#: A method that has learned less than this share of what the plain mean has is suspicious.
SLOW = 0.1


def trains(trial: Trial) -> str:
    """All rounds are done, and no loss becomes NaN or infinite."""
    one, _ = trial.whole
    for row in one.records.rounds:
        if not np.isfinite(row.get("train_loss", 0.0)):
            raise Failure(f"in round {row['round']} the training loss is {row['train_loss']}")
    if not torch.isfinite(one.theta).all():
        raise Failure(f"after round {one.rounds_done} the global model is not finite")
    size = counted(one.schedule.clients_per_round, "client")
    return f"{one.rounds_done} rounds of {size} of {one.num_clients}, {one.layout.d} parameters"


def runs_repeat(trial: Trial) -> str:
    """The same seed gives the same bytes: models, states, records."""
    again = trial.make()
    again.run()
    _require_same(trial.result, result_of(again), "a second run with the same seed")
    return f"{again.rounds_done} rounds, twice"


def resumes(trial: Trial) -> str:
    """From the checkpoint of every round on the rest is the same, bit for bit."""
    one = trial.make()
    with tempfile.TemporaryDirectory() as place:
        for round_ in range(1, one.schedule.rounds + 1):
            one.step(round_)
            with closing(Checkpoints(Path(place, str(round_)), {})) as checkpoints:
                checkpoints.save(one, {"after": round_})
        whole = result_of(one)
        for round_ in range(1, one.schedule.rounds + 1):
            later = trial.make()
            with closing(Checkpoints(Path(place, str(round_)), {})) as checkpoints:
                try:
                    found = checkpoints.restore(later)
                except ValueError as error:
                    raise Failure(
                        f"the checkpoint of round {round_} is of no use: {error}"
                    ) from error
            if found != {"after": round_} or later.rounds_done != round_:
                raise Failure(f"the checkpoint of round {round_} brings back {later.rounds_done}")
            later.run()
            _require_same(whole, result_of(later), f"a run taken up after round {round_}")
    return f"taken up after each of {counted(one.schedule.rounds, 'round')}"


def bytes_are_as_declared(trial: Trial) -> str:
    """What is recorded is what the uploads take as messages, and what the row says."""
    one, heard = trial.whole
    if not one.pooling.central:
        for round_, uploads in heard.rounds:
            _require_recorded(one, round_, uploads)
    row, last = trial.row, one.records.rounds[-1]
    if row is None:
        return f"{len(heard.rounds)} rounds"
    last_cohort = sum(r["participated"] for r in one.records.clients if r["round"] == last["round"])
    whole = len(serialise({"": torch.zeros(one.layout.d)}, one.layout))
    for what, says, sent in (
        ("up", row.up, last["bytes_up"]),
        ("down", row.down, last["bytes_down"]),
    ):
        bound, times = declared_multiple(says)
        # Names of further tensors, and what is small, are not worth a tenth of the model.
        if sent > last_cohort * whole * (times + 0.1) or not (
            bound or sent >= last_cohort * whole * times
        ):
            found = sent / (last_cohort * whole) if whole else float(sent)
            raise Failure(
                f"a client {'sends' if what == 'up' else 'receives'} {found:.2f} d in round "
                f"{last['round']}, but the row says {what}={says!r}"
            )
    return f"{last['bytes_up']} bytes up and {last['bytes_down']} down in round {last['round']}"


def _require_recorded(one: Federation, round_: int, uploads: Mapping[str, Tensor]) -> None:
    sent = {n: x for n, x in uploads.items() if n not in (SERVER, ADAPTERS)}
    vectors = {"" if n == "update" else n: x for n, x in sent.items() if n not in NUMBERS}
    numbers = {n: x for n, x in sent.items() if n in NUMBERS}
    layout = one.layout.of_round(round_)
    total = 0
    for k in range(len(uploads["update"])):
        own = ({n: x[k] for n, x in kind.items()} for kind in (vectors, numbers))
        total += len(serialise(next(own), layout, next(own)))
    recorded = one.records.rounds[round_ - 1]["bytes_up"]
    if total != recorded:
        raise Failure(
            f"in round {round_} the rule was given {total} bytes of uploads, but {recorded} are "
            "recorded"
        )


def declared_multiple(says: str) -> tuple[bool, int]:
    """ "≤ 2d + …" as (whether it is a bound, 2)."""
    found = re.fullmatch(r"(≤ )?(0|(\d*)d)( \+ .*)?", says)
    if not found:
        raise Failure(f"the row says {says!r}, which is not of the form '0', '2d', '≤ d', 'd + …'")
    return bool(found[1]), 0 if found[2] == "0" else int(found[3] or 1)


def one_by_one(trial: Trial) -> str:
    """Clients that train one after another end where they end together, but for rounding."""
    results = []
    for number in (None, 1):
        one = trial.make()
        asked, layout = one.clients(1, one.cohort(1)), one.layout.of_round(1)
        if len(asked) < 2:
            raise Inapplicable("one client trains in a round")
        passes = Passes(one.schedule.batch_size or 16, number)
        results.append((asked, passes.train(one.model, layout, one.samples, asked, one.work)))
    (asked, together), (_, alone) = results
    moved = {
        "model": (together.theta - asked.start, alone.theta - asked.start),
        "private parameters": (together.private - asked.private, alone.private - asked.private),
    }
    for name, value in together.uploads.items():
        moved[f"upload {name!r}"] = value, alone.uploads[name]
    for name, value in together.state.items():
        moved[f"kept vector {name!r}"] = value, alone.state[name]
    for what, (one_, other) in moved.items():
        for k in range(len(one_)):
            off = float((one_[k] - other[k]).norm() / one_[k].norm().clamp(min=1e-12))
            if not off <= ONE_BY_ONE:
                raise Failure(
                    f"the {what} of client {k} in round 1 differs by {off:.1e} of its length from "
                    "what it is when the client trains alone"
                )
    return f"{len(asked)} clients in round 1"


class Still:
    """A rule, but the server's models and its state stay as they are."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def __call__(
        self, uploads: Mapping[str, Tensor], context: Context, state: Mapping[str, Tensor]
    ) -> Aggregate:
        steps = uploads["update"].new_zeros(self._rule.models(context.num_clients), 1)
        return Aggregate(steps.expand(-1, uploads["update"].shape[1]), None, dict(state), {})


def clients_see_their_own_data(trial: Trial) -> str:
    """While the server stands still, other labels of the others change nothing for a client."""
    one, other = trial.make(), trial.make()
    if one.pooling.central or one.pooling.disclosed(one.train_sizes) is not None:
        raise Inapplicable("data leave their clients")
    client = int(one.cohort(1)[:2][-1])  # Neither the first nor the last, which leak most easily.
    labels = (other.samples.labels + 1) % (int(other.samples.labels.max()) + 1)
    for shards in (one.shards.train, one.shards.val, one.shards.test):
        index = torch.from_numpy(shards[client])
        labels[index] = one.samples.labels[index]
    other.samples = replace(other.samples, labels=labels)
    reference, found = _vectors(one, client), []
    for federation in (one, other):
        federation.rule = cast(Rule, Still(federation.rule))
        federation.run()
        found.append(_vectors(federation, client))
    for what, start in reference.items():
        off = relative_distance(found[0][what], found[1][what], start)
        if not off <= ONE_BY_ONE:
            raise Failure(
                f"the {what} of client {client} differs by {off:.1e} of its way when the other "
                "clients have other labels, though the server stands still"
            )
    return f"{one.rounds_done} rounds in which the others of client {client} have other labels"


def _vectors(one: Federation, client: int) -> dict[str, Tensor]:
    """What a client has, by what it is called."""
    private, kept = one.bank.gather(torch.tensor([client]))
    model = _models(one).theta.expand(one.num_clients, -1)[client]
    found = {"model": model, "private parameters": private[0]}
    return found | {f"kept vector {name!r}": value[0] for name, value in kept.items()}


def _models(one: Federation) -> JudgedModels:
    everybody = np.ones(one.num_clients, dtype=bool)
    return judged_models(one, max(1, one.rounds_done), everybody, ~everybody)


def learns_as_the_mean(trial: Trial) -> str:
    """Warn where clients have learned next to nothing of what the plain mean has taught them.

    A client's own model must have a lower loss on its training samples than the plain mean.
    """
    one, plain = trial.whole[0], trial.make()
    before = _loss(plain)
    if one.pooling.central:
        raise Inapplicable("one place trains on the samples of all")
    plain.rule, plain.state, plain.probes, plain.first = Mean("uniform"), {}, (), None
    plain.theta, plain.own = plain.models[0], OwnModel()
    plain.work = replace(plain.work, terms=())
    plain.schedule = replace(plain.schedule, personal_epochs=0)
    plain.run()
    found, mean = _loss(one), _loss(plain)
    least = 0.0 if one.own.keeps else 1 - SLOW
    if not found <= mean + least * max(0.0, before - mean):
        whose = "of the clients' own models" if one.own.keeps else ""
        raise Suspicion(
            f"after {one.rounds_done} rounds the loss {whose} on their training samples is "
            f"{found:.4g}, but {mean:.4g} by the plain mean (before: {before:.4g})"
        )
    return f"a loss of {found:.4g} after {one.rounds_done} rounds; the plain mean: {mean:.4g}"


def _loss(one: Federation) -> float:
    """Mean loss of the clients' models on their training samples."""
    models, everybody = _models(one), torch.arange(one.num_clients)
    theta = models.theta.expand(one.num_clients, -1)
    common = (one.model, one.layout, one.samples, one.shards.train)
    return float(losses(*common, theta, models.private(everybody), one.work.loss).mean())


def _require_same(expected: Mapping[str, Any], found: Mapping[str, Any], who: str) -> None:
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            raise Failure(f"{who} has another {name} than the whole run")


TRAINS = "it trains"
USED = "kept models are used"
ONE = "clients one by one are clients together"
OWN_DATA = "clients see their own data alone"
RUNS_REPEAT = "the same seed gives the same bytes"
METHOD = (
    Property(
        TRAINS,
        trains,
        "a small federation with the defaults of the parameters must work",
        (WORKS, WEIGHTS, STATE, TERM_WORKS, NAMES),
    ),
    Property(
        ONE,
        one_by_one,
        "let no term and no loss mix the rows of clients",
        (TERM_ALONE,),
    ),
    Property(
        OWN_DATA,
        clients_see_their_own_data,
        "keep nothing in modules and classes, and let nothing mix the rows of clients",
        (ALONE, REPEATS, STATE, ONE),
    ),
    Property(
        USED,
        kept_models_are_used,
        "let `models` return what clients keep, where `has` says that they have it",
        (STAY, ALONE, OWN_DATA),
    ),
    Property(
        RUNS_REPEAT,
        runs_repeat,
        "draw random numbers from generators that are seeded by the round, and keep nothing in "
        "modules",
        (REPEATS, STATE, ALONE, OWN_DATA),
    ),
    Property(
        "resumed, it is the whole run bit for bit",
        resumes,
        "keep what outlives a round in the rule's state, or in vectors that a term `keeps`",
        (REPEATS, STATE, ALONE, OWN_DATA, RUNS_REPEAT),
    ),
    Property(
        "bytes are as declared",
        bytes_are_as_declared,
        "say in the row's `up` and `down` what a client sends and receives in a round: '2d', '≤ d'",
    ),
    Property(
        "it learns as the plain mean does",
        learns_as_the_mean,
        "look at signs and factors, and at which model a client uses",
        (FOLLOWS, STAY, FIRST, ALONE, USED, OWN_DATA),
    ),
)
