"""What cannot go well is said in one sentence, with the remedy, and nothing is lost by it."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from fedsdg.aggregation.errors import NonFiniteError, RuleFault
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.federation import micro_batches, rounds
from fedsdg.federation.conditions.attack import Attack, Attackers, Corruption, SignFlip
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.difference import FeatureShift, LabelConflict
from fedsdg.federation.conditions.label_noise import LabelNoise
from fedsdg.federation.losses import CrossEntropy
from fedsdg.federation.personalisation import DualPath, OwnHead
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import Proximal
from tests.federation.small import federation, with_shards


def fails(setup, error, match, at=1):
    """A run stops in a round, and leaves what there was before it."""
    server, store = setup.initial()
    steps = rounds.run(setup, server, store)
    for _ in range(1, at):
        server, _ = next(steps)
    counts, models = store.counts, server.models.clone()
    with pytest.raises(error, match=match):
        next(steps)
    assert store.counts is counts and torch.equal(server.models, models)


def test_a_loss_that_is_not_finite_names_round_client_and_step():
    setup = federation()
    setup.samples.images[setup.data.train[2][0]] = torch.nan
    said = r"^round 1, client 2: the loss .* step \d.*learning rates"
    fails(setup, FloatingPointError, said)


def test_memory_that_is_exhausted_with_a_single_client_says_what_to_lower(monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 GB")

    monkeypatch.setattr(micro_batches, "train", full)
    fails(federation(), MemoryError, "round 1.*batch_size")


def test_an_error_that_is_no_lack_of_memory_stays_what_it_is(monkeypatch):
    def broken(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(micro_batches, "train", broken)
    fails(federation(), RuntimeError, "mat1 and mat2")


def test_a_client_without_samples():
    setup = federation()
    shards = [np.empty(0, dtype=np.int64), *setup.data.train[1:]]
    fails(with_shards(setup, shards), ValueError, r"client 0.*no.*sample")


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (Compute(fastest=1, local_seconds=0.5), "local_seconds = 0.5.*at most 0.*raise"),
        (Compute(fastest=2, deadline=0.1), "deadline is 0.1.*soonest.*raise"),
    ],
)
def test_a_clock_by_which_nobody_ever_finishes(compute, said):
    with pytest.raises(ValueError, match=said):
        federation(conditions=[compute])


class WrongShape(Attack):
    """Returns a row too many."""

    def tamper(self, view):
        return torch.zeros(len(view.updates) + 1, view.updates.shape[1])


class Infinite(Attack):
    """Returns what no number is."""

    def tamper(self, view):
        return torch.full_like(view.own, torch.inf)


class Wide(Mean):
    """Returns a step of another width."""

    def __call__(self, uploads, context, state):
        outcome = super().__call__(uploads, context, state)
        return outcome._replace(steps=outcome.steps[:, :-1])


class Odd(Mean):
    """Returns a diagnostic of another length than the cohort."""

    columns: ClassVar = ()

    def __call__(self, uploads, context, state):
        outcome = super().__call__(uploads, context, state)
        return outcome._replace(diagnostics={"alignment": np.ones(2)})


class Single(Odd):
    """Returns one number for a diagnostic of clients."""

    def __call__(self, uploads, context, state):
        return super().__call__(uploads, context, state)._replace(diagnostics={"alignment": 0.5})


class Undefined(Mean):
    """Returns a diagnostic of the round that is no number."""

    def __call__(self, uploads, context, state):
        return super().__call__(uploads, context, state)._replace(diagnostics={"spread": np.nan})


class Crooked(Proximal):
    """Uploads vectors of another width."""

    keeps: ClassVar[tuple[str, ...]] = ("control",)

    def finish(self, rows, steps, rate):
        return {}, {"control": rows.theta[:, :-1]}


@pytest.mark.parametrize(
    ("parts", "error", "said"),
    [
        (
            {"conditions": [Attackers(attack=WrongShape(), share=0.34)]},
            ValueError,
            r"WrongShape.*\[7, 260\]",
        ),
        ({"conditions": [Attackers(attack=Infinite(), share=0.34)]}, NonFiniteError, "client"),
        ({"rule": Wide()}, RuleFault, r"round 1.*Wide.*\[1, 259\].*\[1, 260\]"),
        ({"rule": Odd()}, RuleFault, r"round 1.*Odd.*'alignment'.*\[6\]"),
        ({"rule": Single()}, RuleFault, r"round 1.*Single.*'alignment'.*\[6\]"),
        ({"rule": Undefined()}, RuleFault, r"round 1.*Undefined.*nan.*'spread'"),
        ({"terms": (Crooked(),)}, ValueError, r"Crooked.*'control'"),
    ],
    ids=["attack", "no number", "rule", "diagnostic", "one diagnostic", "number", "term"],
)
def test_a_part_that_returns_what_it_must_not_is_named(parts, error, said):
    fails(federation(**parts), error, said)


def test_a_part_that_ends_the_program_is_named():
    class Ending(Proximal):
        def add_gradient(self, rows):
            raise SystemExit(3)

    fails(federation(terms=(Ending(),)), ValueError, r"Ending.*end the program")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: federation(rule=Focus()), "benchmark_images"),
        (lambda: federation(parts={"global_images": 10**6}), "global_images is 1000000.*lower"),
        (
            lambda: federation(conditions=[Attackers(attack=SignFlip(), share=0.01)]),
            "share is 0.01.*none",
        ),
        (
            lambda: federation(conditions=[Attackers(attack=SignFlip(), share=1.0)]),
            "share is 1.0.*all",
        ),
        (lambda: federation(conditions=[LabelConflict(classes=9)]), "classes is 9.*only 4"),
        (lambda: federation(loss=CrossEntropy(class_weights=(1.0, 2.0))), "2 weights for 4"),
        (lambda: federation(parts={"stopping": Inexactness(gamma_by="speed")}), "equally fast"),
        (lambda: LabelConflict(classes=1), "classes is 1"),
        (lambda: LabelConflict(groups=3), "groups is 3.*per: group"),
        (lambda: FeatureShift(angle=30.0), "angle is 30.*rotate"),
        (lambda: LabelNoise(low=0.5, high=0.2), "low = 0.5.*high = 0.2"),
        (lambda: Compute(slowest=3, fastest=2), "slowest = 3.*exchange"),
        (lambda: Compute(local_seconds=9, deadline=3), "local_seconds = 9.*deadline"),
        (lambda: DualPath(private_norm="residual", private_subspace="shared-a"), "choose one"),
        (lambda: OwnHead(head_epochs=0), "head_epochs is 0"),
        (lambda: Corruption(entries=1.5), "entries is 1.5"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(make, said):
    with pytest.raises(ValueError, match=said):
        make()
