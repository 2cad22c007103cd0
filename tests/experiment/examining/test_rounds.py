"""What a run must hold over its rounds is noticed where it does not: in a federation made wrong."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.experiment.examining.federations import Trial, size_for, trial_of
from fedsdg.experiment.examining.findings import Failure, Inapplicable
from fedsdg.experiment.examining.rounds import (
    bytes_are_as_declared,
    declared_multiple,
    one_by_one,
    resumes,
    runs_repeat,
    trains,
)
from fedsdg.federation.objectives.proximal import Proximal
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

    def make():
        one = usual.make()
        change(one)
        return one

    return Trial(make, usual.row)


def with_rule(make_times):
    def change(one):
        one.rule = Altered(make_times())

    return trial(change)


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


def test_a_record_must_be_what_was_sent():
    one = trial_of("scaffold", None)
    assert "bytes up" in bytes_are_as_declared(one)
    one.whole[0].records.rounds[1]["bytes_up"] += 1
    with pytest.raises(Failure, match=r"in round 2 the rule was given \d+ bytes of uploads, but"):
        bytes_are_as_declared(one)


@pytest.mark.parametrize(("up", "down", "said"), [
    ("2d", "d", r"a client sends 1\.00 d in round 4, but the row says up='2d'"),
    ("d", "0", r"a client receives 1\.00 d in round 4, but the row says down='0'"),
    ("much", "d", r"the row says 'much', which is not of the form '0', '2d'"),
])  # fmt: skip
def test_a_row_must_say_what_is_sent(up, down, said):
    one = trial(lambda one: None)
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

    def change(one):
        one.work = dataclasses.replace(one.work, loss=mixing, clip_norm=1e9)

    usual = one_by_one(trial(lambda one: None))
    assert usual == "4 clients in round 1"
    # Adam moves as far by a gradient of any length, so that the term must be in it.
    with pytest.raises(Failure, match=r"the model of client 0 in round 1 differs by .* of its len"):
        one_by_one(trial(lambda one: (change(one), add_term(one))))


def add_term(one):
    one.work = dataclasses.replace(one.work, terms=(Pull(),))


@part
class Pull(Proximal):
    """Towards 0."""

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta, alpha=0.1)


def test_a_run_must_train():
    def spoil(one):
        one.theta = torch.full_like(one.theta, torch.nan)

    with pytest.raises(FloatingPointError, match="round 1, client"):
        trains(trial(spoil))


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
