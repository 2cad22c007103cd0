"""One budget of local steps: how it is divided, and that training keeps to it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.federation.budget import Stage, round_stages, shares
from fedsdg.federation.clients import Clients
from fedsdg.federation.environment.timing import Clock
from fedsdg.federation.fisher import FisherInformation
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.own_models.ditto import Ditto
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.probes import CrossLosses, ModelScores
from fedsdg.federation.stopping import Inexactness

SIZES = [3, 17, 8, 1, 16]


def local_work(**how):
    return LocalWork(Adam(), 3e-3, 3e-3, 3e-3, 1.0, **how)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.data())
def test_shares_use_no_step_twice_and_fall_nowhere(nominal, data):
    total = sum(nominal)
    n = data.draw(st.integers(len(nominal), total + 5))
    divided, more = shares(nominal, n), shares(nominal, n + 1)
    assert sum(divided) <= n
    assert all(1 <= own <= most for own, most in zip(divided, nominal, strict=True))
    assert all(own <= later for own, later in zip(divided, more, strict=True))
    assert shares(nominal, total) == list(nominal)
    proportional = [max(1, n * one // total) for one in nominal]
    if n <= total and sum(proportional) <= n:
        assert divided == proportional


def test_shares_of_the_methods_in_figures():
    assert shares([6, 3], 3) == [2, 1], "FedRep: two epochs of the head, one of the rest"
    assert shares([3, 3], 5) == [2, 2], "Ditto and APFL: the fifth step is dropped"
    assert shares([1, 1, 100], 3) == [1, 1, 1]
    with pytest.raises(ValueError, match="1 steps are too few for 2 parts"):
        shares([4, 4], 1)


@pytest.mark.parametrize(
    "work, probes, own, expected",
    [
        (local_work(), (), OwnModel(), (Stage(4),)),
        (local_work(private_first=2), (), OwnModel(), (Stage(2, True), Stage(4))),
        (local_work(interleaved=True), (), OwnModel(), (Stage(4, True), Stage(4))),
        (local_work(), (), Ditto(), (Stage(4), Stage(4, True))),
        (local_work(), (FisherInformation(),), OwnModel(), (Stage(4), Stage(1))),
        # Forward passes take no gradient.
        (local_work(), (ModelScores(), CrossLosses()), OwnModel(), (Stage(4),)),
        # A pass that measures before each of its epochs.
        (
            local_work(stopping=Inexactness(most_epochs=7)),
            (),
            OwnModel(),
            (Stage(14, least=3),),
        ),
        (
            local_work(private_first=2),
            (FisherInformation(),),
            Ditto(),
            (Stage(2, True), Stage(4), Stage(1), Stage(2, True), Stage(4, True)),
        ),
    ],
)
def test_stages_of_a_round_stand_in_the_order_of_the_work(work, probes, own, expected):
    assert round_stages(work, 4, probes, own).all == expected


def test_a_client_with_fewer_steps_than_stages_has_private_ones_alone():
    plan = round_stages(local_work(private_first=2), 1, (), Ditto()).plan
    fit, batches = np.array([0, 1, 2, 3, 4, 100]), np.full(6, 3)
    found = plan(fit, batches, most_epochs=2)
    assert found[:4].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert (found[4:] > 0).all() and found.sum(1).tolist()[-1] <= 6, "two epochs of three batches"
    alone = round_stages(local_work(), 1, (FisherInformation(),), OwnModel()).plan
    assert alone(np.array([1]), np.array([3]), 1).tolist() == [[0, 0]]


@given(st.floats(1e-3, 1e3), st.floats(1e-2, 1e3), st.floats(0, 1e6))
def test_what_fits_into_a_time_never_misses_a_deadline_as_long(speed, seconds, now):
    clock = Clock(np.array([speed]), deadline=seconds, local_seconds=seconds)
    who = np.zeros(1, dtype=np.int64)
    steps = clock.steps_that_fit(who)
    assert steps[0] <= seconds * speed * (1 + 1e-8) < steps[0] + 1 + 1e-6 * seconds * speed
    assert now + clock.seconds(who, steps)[0] <= now + seconds


def test_a_step_that_fits_exactly_is_not_lost_to_rounding():
    clock = Clock(np.array([3.0, 1.0, 0.1]), local_seconds=0.1 * 3 / 0.3)
    assert clock.steps_that_fit(np.arange(3)).tolist() == [3, 1, 0]
    assert Clock(np.ones(3)).steps_that_fit(np.arange(3)) is None


# --- Training keeps to it -----------------------------------------------------------------------

BATCHES = [3, 15, 6, 3, 12]  # of three epochs, with four samples a batch


def train(setting, batches_of, plan, **how):
    s = setting(branch="dual")
    clients = Clients(
        batches_of(SIZES, epochs=3), s.theta.expand(5, -1), s.private.expand(5, -1), budget=plan
    )
    return s, clients, train_clients(s.model, s.layout, s.samples, clients, local_work(**how))


@pytest.mark.parametrize(
    "how, plan, steps",
    [
        ({}, [[1], [4], [2], [0], [99]], [1, 4, 2, 0, 12]),
        # An epoch of the private row, which is a third of the batches, then two of the shared one.
        ({"private_first": 1}, [[1, 2], [4, 4], [2, 0], [0, 0], [99, 1]], [3, 8, 2, 0, 5]),
        ({"interleaved": True}, [[1, 1], [4, 4], [2, 0], [0, 0], [99, 99]], [2, 8, 2, 0, 24]),
    ],
)
def test_each_stage_takes_its_steps_and_no_more(setting, batches_of, how, plan, steps):
    s, clients, result = train(setting, batches_of, np.array(plan), **how)
    assert [len(own) for own in clients.batches] == BATCHES
    assert result.steps.tolist() == result.gradients.tolist() == steps
    # The fourth client has no step at all: it comes back as it went, without a loss.
    assert torch.equal(result.theta[3], s.theta) and torch.equal(result.private[3], s.private)
    assert np.isnan(result.loss).tolist() == [False, False, False, True, False]
    if how:  # the third one trains in private alone
        assert torch.equal(result.theta[2], s.theta)
        assert not torch.equal(result.private[2], s.private)


@pytest.mark.parametrize("how", [{"private_first": 1}, {"interleaved": True}, {}])
def test_a_budget_that_limits_nothing_changes_nothing(setting, batches_of, how):
    plenty = np.full((5, 2), 99)
    limited, free = (train(setting, batches_of, plan, **how)[2] for plan in (plenty, None))
    assert torch.equal(limited.theta, free.theta) and torch.equal(limited.private, free.private)
    assert limited.steps.tolist() == free.steps.tolist()
    assert limited.loss.tolist() == free.loss.tolist()


@pytest.mark.parametrize("first", [{"private_first": 1}, {"interleaved": True}])
def test_a_limited_stage_is_the_beginning_of_a_whole_one(setting, batches_of, first):
    """The private row of a client that has no time for more is that of plain private steps."""
    _, clients, result = train(setting, batches_of, np.array([[2, 0]] * 5), **first)
    s = setting(branch="dual")
    few = [own[:2] for own in clients.batches]
    if first == {"private_first": 1}:
        few = [own[: min(2, n // 3)] for own, n in zip(clients.batches, BATCHES, strict=True)]
    plain = Clients(few, clients.start, clients.private)
    work = local_work(moves=("private",))
    expected = train_clients(s.model, s.layout, s.samples, plain, work)
    assert torch.equal(result.private, expected.private)
    assert torch.equal(result.theta, clients.start)
