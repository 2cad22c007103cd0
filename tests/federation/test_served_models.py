"""Rules with several models, and rules that need losses, in a real federation with real probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.evaluation import losses as losses_of
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.messages import serialise, serialise_entries
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.probes import CrossLosses, ModelScores
from fedsdg.federation.rounds import Federation
from fedsdg.federation.schedule import Schedule

SIZES = (8, 12, 6, 9, 10, 7)


@pytest.fixture
def federation(setting) -> Callable[..., Federation]:
    def make(rule, probes=(), clients_per_round=4, rounds=4, theta=None) -> Federation:
        made = setting(samples=120)
        edges = np.cumsum([0, *SIZES])
        train = [np.arange(a, b) for a, b in pairwise(edges)]
        others = np.arange(edges[-1], 120)
        shards = Shards(
            train=train,
            val=[others[:4]] * len(SIZES),
            test=[others[4:8]] * len(SIZES),
            global_test=others[20:],
            benchmark=others[8:20],
        )
        return Federation(
            model=made.model,
            layout=made.layout,
            samples=made.samples,
            shards=shards,
            rule=rule,
            work=LocalWork(Adam(), 0.01, 0.01, 0.01, 1.0),
            schedule=Schedule(rounds, clients_per_round, 1, 4, rounds),
            seed=0,
            theta=made.theta if theta is None else theta(made.theta),
            private=made.private,
            probes=probes,
        )

    return make


def trained(federation: Federation, round_: int):
    """(clients, θ [M, d]) that the round will bring back: training is deterministic."""
    cohort = federation.cohort(round_)
    asked = federation.clients(round_, cohort)
    local = federation.passes.train(
        federation.model, federation.layout, federation.samples, asked, federation.work
    )
    return cohort, local.theta


def apart(count):
    """Models that start apart by a little noise."""
    noise = torch.Generator().manual_seed(5)
    return lambda theta: (
        theta + 0.05 * torch.randn(count, len(theta), generator=noise, dtype=theta.dtype)
    )


def test_pens_keeps_what_each_client_came_back_with(federation):
    made = federation(Pens(phase_one=3, top=1), [ModelScores(sample=3)], rounds=5)
    for round_ in range(1, 6):
        before = made.models.clone()
        cohort, theta = trained(made, round_)
        made.step(round_)
        torch.testing.assert_close(made.models[cohort], theta, rtol=1e-9, atol=1e-12)
        idle = np.setdiff1d(np.arange(len(SIZES)), cohort)
        assert torch.equal(made.models[idle], before[idle])
    assert made.state["picked"].sum() > 0
    np.testing.assert_allclose(made.state["picked"].sum(1), made.state["expected"].sum(1))


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_cluster_is_the_mean_of_the_models_that_its_clients_trained(federation, beta):
    made = federation(Clustered(clusters=2, beta=beta), [ModelScores()], theta=apart(2))
    for round_ in range(1, 5):
        before = made.models.clone()
        members = made.state["assignment"].numpy().copy()
        cohort, theta = trained(made, round_)
        start = made.downloads(cohort)
        expected = (1 - beta) * before[members[cohort]] + beta * before.mean(0)
        torch.testing.assert_close(start, expected)
        made.step(round_)
        for cluster in (0, 1):
            mine = members[cohort] == cluster
            if mine.any():
                n = torch.tensor([SIZES[k] for k in cohort[mine]], dtype=theta.dtype)
                mean = (n[:, None] * theta[mine]).sum(0) / n.sum()
                torch.testing.assert_close(made.models[cluster], mean, rtol=1e-9, atol=1e-12)
            else:
                assert torch.equal(made.models[cluster], before[cluster])


def test_scores_send_clients_to_the_model_of_lowest_loss(federation):
    made = federation(Clustered(clusters=3), [ModelScores()], theta=apart(3))
    cohort, before = made.cohort(1), made.models.clone()
    private = made.private.expand(3, -1)
    made.step(1)
    for client in cohort:
        shard = np.arange(*np.cumsum([0, *SIZES])[[client, client + 1]])
        losses = []
        for model in range(3):
            found = losses_of(
                made.model, made.layout, made.samples, [shard], before[[model]], private[[model]],
                made.work.loss,
            )  # fmt: skip
            losses.append(float(found))
        assert made.state["assignment"][client] == int(np.argmin(losses))


def test_with_full_altruism_all_models_of_cgsv_stay_one(federation):
    made = federation(CgsvXu(gamma=0.1, beta=1e7), clients_per_round=6)
    for round_ in range(1, 4):
        before = made.models.clone()
        cohort, theta = trained(made, round_)
        made.step(round_)
        assert torch.equal(made.models, made.models[:1].expand(6, -1))
        # At most Gamma long: a mean of vectors of that length.
        assert torch.linalg.vector_norm(made.models[0] - before[0]) <= 0.1 * (1 + 1e-9)
        assert len(theta) == len(cohort) == 6


def bytes_down(made, rounds):
    for round_ in range(1, rounds + 1):
        made.step(round_)
    return [row["bytes_down"] for row in made.records.rounds]


def test_models_are_downloaded_for_scores_only_where_scores_are_asked_for(federation):
    """One model to start from, and in phase 1 three to try, or both of two clusters."""
    scoring = ModelScores(sample=3, rounds=2)
    sent = bytes_down(federation(Pens(phase_one=2, top=1), [scoring]), 4)
    assert sent[0] == sent[1] == 4 * sent[2] == 4 * sent[3]
    by_loss = federation(Clustered(clusters=2), [ModelScores()], theta=apart(2))
    known = Clustered(clusters=2, assignment="known")
    told = federation(known, [], theta=apart(2))
    told.state = known.with_clusters(told.state, [0, 1, 0, 1, 0, 1])
    assert bytes_down(by_loss, 1)[0] == 3 * bytes_down(told, 1)[0] == 3 * sent[2]


def test_rewards_of_cgsv_are_downloaded_as_a_bit_for_each_entry_and_values(federation):
    made = federation(CgsvXu(beta=0.5), clients_per_round=6, rounds=3)
    sparse = []
    for round_ in (1, 2, 3):
        before = made.models.clone()
        record = made.step(round_)
        whole = len(serialise({"": before[0]}, made.layout))
        if round_ == 1:
            assert record["bytes_down"] == 6 * whole, "the first model is new to everybody"
        else:
            assert record["bytes_down"] == sum(sparse)
            assert record["bytes_down"] < 6 * whole
        steps = made.models - before
        sparse = []
        for step in steps:
            message = serialise_entries(step, step != 0)
            sparse.append(whole if bool((step != 0).all()) else min(whole, len(message)))
            read = load(message)
            bits = np.unpackbits(read["entries"].numpy(), count=made.layout.d)
            again = torch.zeros_like(step)
            again[torch.from_numpy(bits.astype(bool))] = read["values"]
            assert torch.equal(again, step), "what a client needs is in the message"


def test_a_screened_rule_sends_what_the_rule_inside_would(federation):
    rule = CgsvXu(beta=0.5)
    state = rule.init(50, np.ones(6))
    everybody = np.arange(6)
    assert Screened(Mean()).partial({}, everybody, 50) is None
    np.testing.assert_array_equal(Screened(rule).partial(state, everybody, 50), 50)


def test_cgsv_asks_for_everybody_in_a_round(federation):
    with pytest.raises(ValueError, match="4 of the 6 take part; set clients_per_round"):
        federation(CgsvXu()).step(1)


def test_focus_weighs_by_the_losses_that_were_measured(federation):
    made = federation(Focus(temperature=2.0), [CrossLosses()])
    made.step(1)
    rows = {row["client"]: row for row in made.records.clients if row["participated"]}
    n = np.array([SIZES[k] for k in rows])
    weights = np.array([row["weight"] for row in rows.values()])
    credibility = np.array([row["credibility"] for row in rows.values()])
    np.testing.assert_allclose(weights, n * credibility / (n @ credibility), rtol=1e-12)
    assert credibility.sum() == pytest.approx(3)


@pytest.mark.parametrize("wrapped", [Screened(Mean("samples")), Compensated(Mean("samples"))])
def test_a_wrapper_changes_nothing_where_nothing_is_wrong(federation, wrapped):
    if isinstance(wrapped, Screened):
        wrapped = replace(wrapped, threshold=1e9)
    plain, other = federation(Mean("samples")), federation(wrapped)
    plain.run()
    other.run()
    assert torch.equal(plain.theta, other.theta)


@pytest.mark.parametrize(
    ("rule", "probes", "count"),
    [
        (Clustered(clusters=2), [ModelScores()], 2),
        (Pens(phase_one=2), [ModelScores(sample=3)], None),
        (Screened(Mean("samples")), [], None),
    ],
    ids=["clusters", "neighbours", "screened"],
)
def test_a_state_that_was_on_disk_goes_on_alike(federation, rule, probes, count):
    theta = None if count is None else apart(count)
    one, two = (federation(rule, probes, theta=theta) for _ in range(2))
    two.theta = one.theta.clone()
    for round_ in (1, 2):
        one.step(round_)
        two.step(round_)
    two.state = load(save({name: value.contiguous() for name, value in two.state.items()}))
    for round_ in (3, 4):
        one.step(round_)
        two.step(round_)
    assert torch.equal(one.theta, two.theta)
    for name, value in one.state.items():
        assert torch.equal(two.state[name], value)
