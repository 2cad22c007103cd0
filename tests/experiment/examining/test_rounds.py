"""What a run must hold over its rounds is noticed where it does not: in a federation made wrong."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.experiment.examining.federations import Trial, size_for, trial_of
from fedsdg.experiment.examining.findings import Failure, Inapplicable, Suspicion
from fedsdg.experiment.examining.rounds import (
    bytes_are_as_declared,
    declared_multiple,
    learns_as_the_mean,
    one_by_one,
    resumes,
    runs_repeat,
    trains,
)
from fedsdg.federation.terms import Proximal
from fedsdg.parts import part


class Altered:
    """The mean, times what ``times(round)`` says."""

    def __init__(self, times):
        self.times, self.rule = times, Mean("uniform")

    def __getattr__(self, name):
        return getattr(self.rule, name)

    def __call__(self, uploads, context, state):
        found = self.rule(uploads, context, state)
        return found._replace(steps=found.steps * self.times(context.round))


def trial(change):
    """FedAvg, each federation changed before its first round."""
    usual = trial_of("fedavg", None)

    return Trial(lambda: dataclasses.replace(usual.make(), **change(usual.make())), usual.row)


def with_rule(make_times):
    return trial(lambda setup: {"rule": Altered(make_times())})


def counting():
    """1.1 to the power of the calls so far."""
    calls = []

    def times(round_):
        calls.append(round_)
        return 1.1 ** len(calls)

    return times


def test_what_is_not_in_a_checkpoint_is_missed_in_the_first_round_after_it():
    with pytest.raises(Failure, match="run taken up after round 1 has another record of round 2"):
        resumes(with_rule(counting))
    assert runs_repeat(with_rule(counting)), "by itself each run is the same"


def test_numbers_from_nowhere_are_no_second_run():
    def chance():
        draw = np.random.default_rng()
        return lambda round_: 1 + draw.random()

    with pytest.raises(Failure, match="a second run with the same seed has another record of rou"):
        runs_repeat(with_rule(chance))


def test_a_server_that_stands_still_learns_nothing():
    with pytest.raises(Suspicion, match="after 4 rounds the loss on the clients' training samples"):
        learns_as_the_mean(with_rule(lambda: lambda round_: 0.0))


@pytest.mark.parametrize(("up", "down", "said"), [
    ("2d", "d", r"a client sends 1\.00 d in round 4, but the row says up='2d'"),
    ("d", "0", r"a client receives 1\.00 d in round 4, but the row says down='0'"),
    ("much", "d", r"the row says 'much', which is not of the form '0', '2d'"),
])  # fmt: skip
def test_a_row_must_say_what_is_sent(up, down, said):
    one = trial(lambda setup: {})
    one.row = dataclasses.replace(one.row, up=up, down=down)
    with pytest.raises(Failure, match=said):
        bytes_are_as_declared(one)


def test_multiples_of_the_model():
    assert declared_multiple("≤ 2d + …") == (True, 2)
    assert declared_multiple("d") == (False, 1) and declared_multiple("0") == (False, 0)


def test_a_loss_that_looks_at_the_other_clients_is_noticed():
    def mixing(logits, labels, reduction="none"):
        each = cross_entropy(logits, labels, reduction="none")
        return each / len(each)

    def work(setup, **changed):
        return {"work": dataclasses.replace(setup.work, **changed)}

    assert one_by_one(trial(lambda setup: {})) == "4 clients in round 1"
    # Adam moves as far by a gradient of any length, so that the term must be in it.
    broken = {"loss": mixing, "clip_norm": 1e9, "terms": (Pull(),)}
    with pytest.raises(Failure, match=r"the model of client 0 in round 1 differs by .* of its len"):
        one_by_one(trial(lambda setup: work(setup, **broken)))


@part
class Pull(Proximal):
    """Towards 0."""

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta, alpha=0.1)


def test_a_run_must_train():
    with pytest.raises(FloatingPointError, match="round 1, client"):
        trains(trial(lambda setup: {"first": torch.full_like(setup.first, torch.nan)}))


def test_a_rule_that_asks_for_more_than_can_be_tried():
    class Many(Altered):
        def require(self, cohort, clients):
            if cohort < 10:
                raise ValueError("ten at least")

    assert size_for(Many(None)) == (12, 12)
    Many.require = Refuses.require
    with pytest.raises(Inapplicable, match="refuses every federation that was tried .never"):
        size_for(Many(None))


class Refuses:
    def require(self, cohort, clients):
        raise ValueError("never")
