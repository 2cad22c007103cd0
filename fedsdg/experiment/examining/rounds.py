"""What holds for every method over the rounds of a federation: see ``Trial``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.experiment.examining.federations import Trial, result_of
from fedsdg.experiment.examining.findings import Failure, Inapplicable, Property, counted
from fedsdg.experiment.examining.rules import REPEATS, STATE, WORKS
from fedsdg.experiment.examining.situations import ADAPTERS, NUMBERS, SERVER
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.messages import serialise
from fedsdg.federation.passes import Passes
from fedsdg.federation.rounds import Federation

#: How far clients that train together may be from clients that train one by one, in float32.
ONE_BY_ONE = 1e-3


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


def _require_same(expected: Mapping[str, Any], found: Mapping[str, Any], who: str) -> None:
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            raise Failure(f"{who} has another {name} than the whole run")


TRAINS = "it trains"
RUNS_REPEAT = "the same seed gives the same bytes"
METHOD = (
    Property(
        TRAINS,
        trains,
        "a small federation with the defaults of the parameters must work",
        (WORKS,),
    ),
    Property(
        RUNS_REPEAT,
        runs_repeat,
        "draw random numbers from generators that are seeded by the round, and keep nothing in "
        "modules",
        (REPEATS, STATE),
    ),
    Property(
        "resumed, it is the whole run bit for bit",
        resumes,
        "keep what outlives a round in the rule's state, or in vectors that a term `keeps`",
        (REPEATS, STATE, RUNS_REPEAT),
    ),
    Property(
        "bytes are as declared",
        bytes_are_as_declared,
        "say in the row's `up` and `down` what a client sends and receives in a round: '2d', '≤ d'",
    ),
    Property(
        "clients one by one are clients together",
        one_by_one,
        "let no term and no loss mix the rows of clients",
    ),
)
