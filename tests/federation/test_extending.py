"""A condition, an attack, a personalisation, a metric, a loss term: each is one class more."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import Field

from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.conditions.attack import Attack, Attackers
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.personalisation import Personalisation
from fedsdg.federation.phases import PRIVATE, SHARED, Phase
from fedsdg.federation.terms import Term
from fedsdg.files.columns import Column
from fedsdg.parts import Share
from fedsdg.rng import stream
from tests.federation.small import federation, run, vit


class Radio(Condition):
    """A share of the clients hear nothing in every second round, and of all numbers some arrive."""

    share: Share = 0.5
    "share of the numbers of an update that arrive"

    columns: ClassVar = (
        Column("rounds", "unheard", "int32", "clients out of reach"),
        Column("clients", "far", "bool", "whether it is out of reach now and then"),
    )

    def prepare(self, data):
        order = stream("radio", data.seed).permutation(data.num_clients)
        return data.with_facts(far=order < data.num_clients // 2)

    def select_participants(self, setup, t, participation):
        far = setup.data.facts["far"][participation.present] & (t % 2 == 0)
        row = {**participation.row, "unheard": int(far.sum())}
        return replace(participation, present=participation.present[~far], row=row)

    def transform_upload(self, setup, t, sent, tasks):
        arrives = torch.arange(setup.layout.d) < self.share * setup.layout.d
        return replace(sent, rows={**sent.rows, "update": sent.update * arrives})


def test_a_condition():
    done = run(federation(conditions=[Radio()], rounds=4))
    assert [row["unheard"] for row in done.rounds] == [0, 3, 0, 3]
    assert {row["far"] for row in done.clients} == {False, True}
    assert not done.theta[130:].any() and done.theta[:130].any()


class Echo(Attack):
    """What the first honest client sends, and wrong labels."""

    loudness: Annotated[float, Field(ge=0)] = 2.0
    "how many times as long"

    def tamper(self, view):
        return self.loudness * view.honest[0]

    def labels(self, labels, num_classes):
        return np.zeros_like(labels)


def test_an_attack():
    done = run(federation(conditions=[Attackers(attack=Echo(loudness=3.0), share=0.34)], rounds=1))
    attackers = done.setup.data.facts["attacker"]
    norms = [row["update_norm"] for row in done.clients]
    assert set(np.round(np.array(norms)[attackers], 9)) == {round(3 * norms[attackers.argmin()], 9)}
    train = np.concatenate([done.setup.data.train[k] for k in np.flatnonzero(attackers)])
    assert not done.setup.samples.labels[torch.from_numpy(train)].any()


class HeadLast(Personalisation):
    """A client trains the adapters alone, then its own head alone, held to where it was."""

    adapters: ClassVar[Mapping[str, Any]] = {"head": "private"}

    def phases(self, epochs):
        return (
            Phase(epochs, turns=(SHARED,)),
            Phase(1, first=epochs, turns=(PRIVATE,), terms=(Damped(strength=0.5),)),
        )


class Damped(Term):
    """λ/2 ‖ψ‖² of the private row, which also counts how often a client has trained."""

    strength: Annotated[float, Field(ge=0)] = 1.0
    "λ"
    keeps: ClassVar[tuple[str, ...]] = ("visits",)

    def value(self, rows):
        return 0.5 * self.strength * rows.private.square().sum(1)

    def add_gradient(self, rows):
        rows.private_grad.add_(rows.private, alpha=self.strength)

    def finish(self, rows, steps, rate):
        return {}, {"visits": rows.kept["visits"] + 1}


def test_a_personalisation_and_a_term():
    model, first, private = vit(head="private")
    parts = {"personalisation": HeadLast(), "terms": (Damped(),), "rounds": 2, "cohort": 4}
    done = run(federation(model, first, private, **parts))
    trained = done.store.counts.trained > 0
    moved = (done.private != private).any(1).numpy()
    assert (moved == trained).all() and "accuracy_shared" not in done.rounds[-1]
    visits = done.store.read("visits", np.arange(6))[:, 0]
    drawn = [sum(r["client"] == k and r["participated"] for r in done.clients) for k in range(6)]
    assert visits.tolist() == drawn


class Confidence(Observer):
    """The mean length of the clients' updates so far, and each client's share of it."""

    columns: ClassVar = (
        Column("rounds", "way", "float64", "mean length of all updates so far"),
        Column("clients", "share_of_way", "float64", "its update, as a part of that"),
    )

    def observe(self, view):
        lengths = view.arrived.update.norm(dim=1)
        before = self.state.get("lengths", lengths[:0])
        self.state = {"lengths": torch.cat([before, lengths])}
        view.row["way"] = float(self.state["lengths"].mean())
        for client, length in zip(view.arrived.clients.tolist(), lengths.tolist(), strict=True):
            view.clients[client]["share_of_way"] = length / view.row["way"]


def test_a_metric_whose_memory_is_part_of_checkpoints(tmp_path):
    done = run(federation(observers=[Confidence()], rounds=3))
    norms = [row["update_norm"] for row in done.clients]
    assert done.rounds[-1]["way"] == pytest.approx(np.mean(norms))
    assert done.clients[0]["share_of_way"] == pytest.approx(norms[0] / np.mean(norms[:6]))
    half = run(federation(observers=[Confidence()], rounds=3), 2)
    Checkpoints(tmp_path, {}).save(2, half.setup, half.server, half.store, {})
    setup = federation(observers=[Confidence()], rounds=3)
    server, store = setup.initial()
    _, server, _ = Checkpoints(tmp_path, {}).restore(setup, server, store)
    (_, record), *_ = rounds.run(setup, server, store, 2)
    assert record.round == done.rounds[-1]


class Forgetful(Confidence):
    """Declares nothing."""

    columns: ClassVar = ()


def test_a_column_that_nobody_declares_stops_the_first_round_before_anything_is_kept():
    setup = federation(observers=[Forgetful()])
    server, store = setup.initial()
    with pytest.raises(ValueError, match=r"'way'.*declared"):
        next(rounds.run(setup, server, store))
    assert not store.counts.trained.any()
