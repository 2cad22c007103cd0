"""What holds for every method over the rounds of a federation: see ``Trial``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Aggregate, Context, Rule
from fedsdg.experiment.examining.federations import Federation, Trial
from fedsdg.experiment.examining.findings import (
    Failure,
    Inapplicable,
    Property,
    Suspicion,
    counted,
)
from fedsdg.experiment.examining.rules import FOLLOWS, REPEATS, STATE, WEIGHTS, WORKS
from fedsdg.experiment.examining.situations import relative_distance
from fedsdg.experiment.examining.terms import TERM_ALONE, TERM_KEEPS, TERM_WORKS
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.clients import draw_cohort
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.scoring import mean_losses
from fedsdg.federation.setup import Setup
from fedsdg.federation.traffic import message_bytes

#: How far clients that train together may be from clients that train one by one, in float32.
ONE_BY_ONE = 1e-3
#: A method that has learned less than this share of what the plain mean has is suspicious.
SLOW = 0.1


def trains(trial: Trial) -> str:
    """All rounds are done, and no loss becomes NaN or infinite."""
    one = trial.whole
    setup = one.setup
    for row in one.rounds:
        if not np.isfinite(row.get("train_loss", 0.0)):
            raise Failure(f"in round {row['round']} the training loss is {row['train_loss']}")
    if not torch.isfinite(one.server.models).all():
        raise Failure(f"after round {len(one.rounds)} the global model is not finite")
    size = counted(setup.schedule.clients_per_round, "client")
    return f"{len(one.rounds)} rounds of {size} of {setup.num_clients}, {setup.layout.d} parameters"


def runs_repeat(trial: Trial) -> str:
    """The same seed gives the same bytes: models, states, records."""
    again = Federation(trial.make()).run()
    _require_same(trial.whole.result, again.result, "a second run with the same seed")
    return f"{len(again.rounds)} rounds, twice"


def resumes(trial: Trial) -> str:
    """From the checkpoint of every round on the rest is the same, bit for bit."""
    one = Federation(trial.make())
    last = one.setup.schedule.rounds
    with tempfile.TemporaryDirectory() as place:
        for t in range(1, last + 1):
            one.run(1)
            records = {"rounds": one.rounds, "clients": one.clients}
            Checkpoints(Path(place, str(t)), {}).save(t, one.setup, one.server, one.store, records)
        for t in range(1, last + 1):
            later = Federation(trial.make())
            checkpoints = Checkpoints(Path(place, str(t)), {})
            restored = checkpoints.restore(later.setup, later.server, later.store)
            if restored is None or restored[0] != t:
                raise Failure(f"the checkpoint of round {t} brings back {restored}")
            _, later.server, records = restored
            later.rounds, later.clients = records["rounds"], records["clients"]
            _require_same(one.result, later.run().result, f"a run taken up after round {t}")
    return f"taken up after each of {counted(last, 'round')}"


def bytes_are_as_declared(trial: Trial) -> str:
    """What is recorded of the last round is what the row says."""
    one = trial.whole
    row, last = trial.row, one.rounds[-1]
    if row is None:
        raise Inapplicable("there is no row that says what is sent")
    trained = [r for r in one.clients if r["round"] == last["round"] and r["participated"]]
    whole = len(trained) * message_bytes(one.setup.layout, ("",))
    for what, says, sent in (
        ("up", row.up, last["bytes_up"]),
        ("down", row.down, last["bytes_down"]),
    ):
        bound, times = declared_multiple(says)
        # Names of further tensors, and what is small, are not worth a tenth of the model.
        if sent > whole * (times + 0.1) or not (bound or sent >= whole * times):
            found = sent / whole if whole else float(sent)
            raise Failure(
                f"a client {'sends' if what == 'up' else 'receives'} {found:.2f} d in round "
                f"{last['round']}, but the row says {what}={says!r}"
            )
    return f"{last['bytes_up']} bytes up and {last['bytes_down']} down in round {last['round']}"


def declared_multiple(says: str) -> tuple[bool, int]:
    """ "≤ 2d + …" as (whether it is a bound, 2)."""
    found = re.fullmatch(r"(≤ )?(0|(\d*)d)( \+ .*)?", says)
    if not found:
        raise Failure(f"the row says {says!r}, which is not of the form '0', '2d', '≤ d', 'd + …'")
    return bool(found[1]), 0 if found[2] == "0" else int(found[3] or 1)


def one_by_one(trial: Trial) -> str:
    """Clients that train one after another end where they end together, but for rounding."""
    setup = trial.make()
    _, tasks = rounds.begin(setup, *setup.initial(), 1)
    if len(tasks) < 2:
        raise Inapplicable("one client trains in a round")
    arguments = (setup.layout.of_round(1), tasks, setup.phases, "round 1")
    together, alone = (MicroBatcher(size).train(setup, *arguments) for size in (len(tasks), 1))
    moved = {
        "model": (together.theta - tasks.start, alone.theta - tasks.start),
        "private parameters": (together.private - tasks.private, alone.private - tasks.private),
    }
    for name, value in together.uploads.items():
        moved[f"upload {name!r}"] = value, alone.uploads[name]
    for name, value in together.kept.items():
        moved[f"kept vector {name!r}"] = value, alone.kept[name]
    for what, (one, other) in moved.items():
        for k in range(len(one)):
            off = float((one[k] - other[k]).norm() / one[k].norm().clamp(min=1e-12))
            if not off <= ONE_BY_ONE:
                raise Failure(
                    f"the {what} of client {k} in round 1 differs by {off:.1e} of its length from "
                    "what it is when the client trains alone"
                )
    return f"{len(tasks)} clients in round 1"


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
    setup, other = trial.make(), trial.make()
    if setup.sharing.central or "disclosed" in setup.data.facts:
        raise Inapplicable("data leave their clients")
    # Neither the first nor the last, which leak most easily.
    client = int(draw_cohort(setup, 1)[:2][-1])
    labels = (other.samples.labels + 1) % (int(other.samples.labels.max()) + 1)
    for shards in (setup.data.train, setup.data.val, setup.data.test):
        index = torch.from_numpy(shards[client])
        labels[index] = setup.samples.labels[index]
    other = replace(other, samples=replace(other.samples, labels=labels))
    reference = _vectors(Federation(setup), client)
    found = []
    for one in (setup, other):
        still = replace(one, rule=cast(Rule, Still(one.rule)))
        found.append(_vectors(Federation(still).run(), client))
    for what, start in reference.items():
        off = relative_distance(found[0][what], found[1][what], start)
        if not off <= ONE_BY_ONE:
            raise Failure(
                f"the {what} of client {client} differs by {off:.1e} of its way when the other "
                "clients have other labels, though the server stands still"
            )
    return (
        f"{setup.schedule.rounds} rounds in which the others of client {client} have other labels"
    )


def _vectors(one: Federation, client: int) -> dict[str, Tensor]:
    """What a client has, by what it is called."""
    who = np.array([client])
    found = {f"kept vector {name!r}": one.store.read(name, who)[0] for name in one.store.first}
    found["model"] = one.server.models[0]
    if one.rounds:
        theta, found["kept vector 'private'"] = (rows[client] for rows in _used(one))
        found["model"] = theta
    return found


def _used(one: Federation) -> tuple[Tensor, Tensor]:
    """The models [K, d] and private rows [K, d_p] with which clients were evaluated last."""
    models = one.evaluation.models
    theta = models.models[torch.from_numpy(models.which)]
    return theta, models.kept.read("private", np.arange(len(theta)))


def learns_as_the_mean(trial: Trial) -> str:
    """Warn where clients have learned next to nothing of what the plain mean has taught them."""
    one = trial.whole
    setup = trial.make()
    if setup.sharing.central:
        raise Inapplicable("one place trains on the samples of all")
    everyone = np.arange(setup.num_clients)
    first = setup.first[:1].expand(len(everyone), -1), setup.private.expand(len(everyone), -1)
    plain = replace(
        setup,
        rule=Mean("uniform"),
        state={},
        first=setup.first[:1],
        work=replace(setup.work, terms=()),
    )
    before = _loss(setup, *first)
    found = _loss(setup, *_used(one))
    mean = _loss(setup, *_used(Federation(plain).run()))
    if not found <= mean + (1 - SLOW) * max(0.0, before - mean):
        raise Suspicion(
            f"after {len(one.rounds)} rounds the loss on the clients' training samples is "
            f"{found:.4g}, but {mean:.4g} by the plain mean (before: {before:.4g})"
        )
    return f"a loss of {found:.4g} after {len(one.rounds)} rounds; the plain mean: {mean:.4g}"


def _loss(setup: Setup, theta: Tensor, private: Tensor) -> float:
    """Mean loss of the clients' models [K, d], [K, d_p] on their training samples."""
    return float(mean_losses(setup, setup.data.train, theta, private).mean())


def _require_same(expected: Mapping[str, Any], found: Mapping[str, Any], who: str) -> None:
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            raise Failure(f"{who} has another {name} than the whole run")


TRAINS = "it trains"
ONE = "clients one by one are clients together"
OWN_DATA = "clients see their own data alone"
RUNS_REPEAT = "the same seed gives the same bytes"
METHOD = (
    Property(
        TRAINS,
        trains,
        "a small federation with the defaults of the parameters must work",
        (WORKS, WEIGHTS, STATE, TERM_WORKS, TERM_KEEPS),
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
        (REPEATS, STATE, ONE),
    ),
    Property(
        RUNS_REPEAT,
        runs_repeat,
        "draw random numbers from generators that are seeded by the round, and keep nothing in "
        "modules",
        (REPEATS, STATE, OWN_DATA),
    ),
    Property(
        "resumed, it is the whole run bit for bit",
        resumes,
        "keep what outlives a round in the rule's state, or in vectors that a term `keeps`",
        (REPEATS, STATE, OWN_DATA, RUNS_REPEAT),
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
        (FOLLOWS, OWN_DATA),
    ),
)
