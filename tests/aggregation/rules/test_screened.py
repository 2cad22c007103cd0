"""Screened: the scores against scipy, and who is blocked when."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import median_abs_deviation

from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened, outlier_scores

MEAN = Mean("uniform")


def honest(size, d, generator):
    """Updates of about equal length in about one direction."""
    return 1 + 0.3 * generator.normal(size=(size, d))


def play(rule, cohort, rounds, federation):
    """The outcomes of rounds of (clients, updates [M, d])."""
    state, outcomes = None, []
    for clients, updates in rounds:
        updates = torch.as_tensor(updates)
        context = cohort(clients=clients, federation=federation)
        if state is None:
            state = rule.init(updates.shape[1], context.client_samples)
        outcomes.append(rule({"update": updates}, context, state))
        state = outcomes[-1].state
    return outcomes


def smoothed_median(x):
    """The geometric median by descent on sqrt(||x - z||^2 + t^2), t -> 0: smooth at the points."""
    z = np.median(x, axis=0)
    for t in 10.0 ** -np.arange(2, 13, 2):
        z = minimize(
            lambda z, t=t: np.sqrt(((x - z) ** 2).sum(1) + t * t).sum(),
            z,
            jac=lambda z, t=t: ((z - x) / np.sqrt(((x - z) ** 2).sum(1) + t * t)[:, None]).sum(0),
            method="L-BFGS-B",
            tol=1e-15,
        ).x
    return z


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_scores_against_their_definition(cohort, seed):
    generator = np.random.default_rng(seed)
    size, d = int(generator.integers(5, 12)), int(generator.integers(2, 5))
    x = generator.normal(size=(size, d)) + 1.5
    x[: size // 4] *= generator.normal(size=(size // 4, 1)) * 5
    centre = smoothed_median(x)
    away = np.linalg.norm(x - centre, axis=1)
    cosine = x @ centre / np.linalg.norm(x, axis=1) / np.linalg.norm(centre)
    scores = [
        (values - np.median(values)) / max(1.4826 * median_abs_deviation(values), least)
        for values, least in ((away, 0.1 * np.median(away)), (-cosine, 0.1))
    ]
    found = outlier_scores(TensorRows(torch.tensor(x)), cohort(size))
    np.testing.assert_allclose(found, np.maximum(*scores), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e200])
def test_scores_do_not_depend_on_scale_or_directions(cohort, scale):
    generator = np.random.default_rng(0)
    x = honest(8, 6, generator)
    x[2] *= -3
    turned, _ = np.linalg.qr(generator.normal(size=(6, 6)))
    one = outlier_scores(TensorRows(torch.tensor(x)), cohort(8))
    two = outlier_scores(TensorRows(torch.tensor(scale * (x @ turned))), cohort(8))
    np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attack", ["far", "turned", "noise", "weak and against"])
def test_a_client_that_stays_an_outlier_is_blocked_in_its_second_round(cohort, attack):
    generator = np.random.default_rng(1)
    sent = []
    for _ in range(5):
        x = honest(8, 100, generator)
        x[5] = {
            "far": 20 * x[5],
            "turned": -x[5],
            "noise": generator.normal(size=100),
            "weak and against": -0.3 * x[:5].mean(0),
        }[attack]
        sent.append(x)
    outcomes = play(Screened(MEAN), cohort, [(np.arange(8), x) for x in sent], 8)
    scores = np.array([outcome.diagnostics["outlier"] for outcome in outcomes])
    assert (scores[:2, 5] > 3.5).all()
    assert np.isnan(scores[2:, 5]).all()
    # The first round counts: watching takes time. From the second on the others are the cohort.
    np.testing.assert_allclose(outcomes[0].steps[0], sent[0].mean(0))
    assert outcomes[0].state["strikes"][5] == 1
    assert not outcomes[0].state["blocked"].any()
    for x, outcome in zip(sent[1:], outcomes[1:], strict=True):
        assert outcome.state["blocked"].tolist() == np.eye(8, dtype=int)[5].tolist()
        assert outcome.diagnostics["blocked"].tolist() == np.eye(8)[5].tolist()
        rest = np.delete(x, 5, axis=0)
        np.testing.assert_allclose(outcome.steps[0], rest.mean(0))
        np.testing.assert_allclose(outcome.weights, np.where(np.arange(8) == 5, 0, 1 / 7))


def test_strikes_are_of_a_clients_own_participations_in_a_row(cohort):
    """Client 9 strikes in two cohorts that are rounds apart; client 8 behaves in between."""
    generator = np.random.default_rng(2)

    def cohort_with(client, turned):
        clients = np.array([0, 1, 2, 3, 4, 5, client])
        x = honest(7, 200, generator)
        x[6] *= -2 if turned else 1
        return clients, x

    rounds = [
        cohort_with(9, True),
        cohort_with(8, True),
        cohort_with(8, False),
        cohort_with(8, True),
        cohort_with(9, True),
    ]
    outcomes = play(Screened(MEAN), cohort, rounds, 10)
    assert [o.state["strikes"][9].item() for o in outcomes] == [1, 1, 1, 1, 2]
    assert [o.state["strikes"][8].item() for o in outcomes] == [0, 1, 0, 1, 1]
    assert [o.state["blocked"][9].item() for o in outcomes] == [0, 0, 0, 0, 1]
    assert not outcomes[-1].state["blocked"][8]


def test_of_many_honest_clients_few_are_struck_and_fewer_blocked(cohort):
    generator = np.random.default_rng(3)
    rounds = [(np.arange(20), honest(20, 50, generator)) for _ in range(20)]
    outcomes = play(Screened(MEAN), cohort, rounds, 20)
    struck = np.mean([np.nanmean(o.diagnostics["outlier"] > 3.5) for o in outcomes])
    assert struck < 0.03
    assert outcomes[-1].state["blocked"].sum() <= 1


def test_equal_updates_are_no_outliers_and_one_that_differs_is(cohort):
    x = np.ones((6, 30), dtype=np.float32)
    scores = outlier_scores(TensorRows(torch.tensor(x)), cohort(6))
    np.testing.assert_allclose(scores, 0, atol=1.0)
    x[4] *= 1.5
    scores = outlier_scores(TensorRows(torch.tensor(x)), cohort(6))
    assert scores[4] > 1e3
    np.testing.assert_allclose(np.delete(scores, 4), 0, atol=1.0)


def test_a_zero_update_is_not_judged_by_its_direction(cohort):
    generator = np.random.default_rng(4)
    x = honest(8, 40, generator)
    x[3] = 0
    found = outlier_scores(TensorRows(torch.tensor(x)), cohort(8))
    away = np.linalg.norm(x - np.delete(x, 3, axis=0).mean(0), axis=1)
    assert found[3] > 3.5  # Of length sqrt(40), where the others are 0.3 sqrt(40) away.
    assert away.argmax() == 3
    assert not outlier_scores(TensorRows(torch.zeros(5, 7)), cohort(5)).any()


@pytest.mark.parametrize("inner", [MEAN, Mean("samples"), Alignment(), Cgsv(), CoordinateMedian()])
def test_without_outliers_the_outcome_is_the_inner_rules(cohort, inner):
    generator = np.random.default_rng(5)
    updates = torch.tensor(honest(7, 30, generator))
    context = cohort(7)
    rule = Screened(inner, threshold=1e6)
    found = rule({"update": updates}, context, rule.init(30, context.client_samples))
    expected = inner({"update": updates}, context, inner.init(30, context.client_samples))
    assert torch.equal(found.steps, expected.steps)
    if expected.weights is None:
        assert found.weights is None
    else:
        np.testing.assert_array_equal(found.weights, expected.weights)
    for name, value in expected.state.items():
        assert torch.equal(found.state[f"inner.{name}"], value)
    for name, value in expected.diagnostics.items():
        np.testing.assert_array_equal(found.diagnostics[name], value)


def blocked_state(rule, d, blocked):
    state = rule.init(d, 10 + 7 * np.arange(len(blocked)))
    return state | {"blocked": torch.tensor(blocked)}


def test_the_inner_rule_sees_the_rest_as_the_cohort(cohort):
    """All that belongs to a client, in uploads, context, state; whatever the blocked one sent."""
    generator = np.random.default_rng(6)
    updates = torch.tensor(honest(6, 12, generator))
    updates[1] = torch.nan
    context = replace(cohort(clients=[4, 0, 5, 2, 7, 3], federation=8), ages=np.array([0] * 6))
    rule = Screened(Cgsv(), threshold=1e6)
    state = blocked_state(rule, 12, [1, 0, 0, 0, 0, 0, 0, 0])
    found = rule({"update": updates}, context, state)
    rest = [0, 2, 3, 4, 5]
    alone = Cgsv()(
        {"update": updates[rest]},
        cohort(clients=context.clients[rest], federation=8),
        Cgsv().init(12, context.client_samples),
    )
    assert torch.equal(found.steps, alone.steps)
    np.testing.assert_array_equal(found.weights[rest], alone.weights)
    assert found.weights[1] == 0
    assert np.isnan(found.diagnostics["alignment"][1])
    np.testing.assert_array_equal(found.diagnostics["gamma"][rest], alone.diagnostics["gamma"])
    assert torch.equal(found.state["inner.r"], alone.state["r"])
    assert found.diagnostics["blocked"].tolist() == [0, 1, 0, 0, 0, 0]


def test_late_updates_keep_their_ages(cohort):
    updates = torch.eye(5, dtype=torch.float64)
    made = cohort(5, samples=np.ones(5, dtype=int))
    context = replace(made, ages=np.array([0, 3, 1, 0, 0]))
    rule = Screened(Compensated(MEAN), threshold=1e6)
    state = blocked_state(rule, 5, [1, 0, 0, 0, 0])
    weights = rule({"update": updates}, context, state).weights
    np.testing.assert_allclose(weights, np.array([0, 1 / 4, 1 / 2, 1, 1]) / 2.75)


def test_broadcasts_and_further_uploads_are_the_inner_rules(cohort):
    rule = Screened(Scaffold(), threshold=1e6)
    state = blocked_state(rule, 3, [0, 0, 1, 0, 0])
    uploads = {"update": torch.eye(5, 3), "control": torch.eye(5, 3)}
    found = rule(uploads, cohort(5), state)
    torch.testing.assert_close(rule.broadcast(found.state)["control"], torch.tensor([0.2, 0.2, 0]))
    torch.testing.assert_close(found.steps[0], torch.tensor([0.25, 0.25, 0]))
    assert rule.models(5) == 1
    assert rule.mixing(found.state, np.arange(5)).tolist() == [[1.0]] * 5


def test_fewer_than_four_are_not_judged(cohort):
    x = np.array([[1.0, 0], [1, 0], [-50, 0]])
    (outcome,) = play(Screened(MEAN, strikes=1), cohort, [(np.arange(3), x)], 3)
    assert np.isnan(outcome.diagnostics["outlier"]).all()
    assert not outcome.state["strikes"].any()
    np.testing.assert_allclose(outcome.steps[0], x.mean(0))


@pytest.mark.parametrize("blocked", [0, 1])
def test_four_are_judged_and_blocked_clients_are_not_among_them(cohort, blocked):
    """Three of four send the same, which is their geometric median; the fourth sends -50 times it.

    The cosines are 1, 1, 1 and -1. Their median deviation is 0, so s = 0.1 and the fourth scores
    20 by its direction; by its distance of 51, where that of the others is 0, it scores more.
    """
    x = np.array([[1.0, 0], [1, 0], [1, 0], [-50, 0]] + [[7.0, 9]] * blocked)
    rule = Screened(MEAN, strikes=1)
    state = blocked_state(rule, 2, [0, 0, 0, 0] + [1] * blocked)
    outcome = rule({"update": torch.tensor(x)}, cohort(len(x)), state)
    scores = outcome.diagnostics["outlier"]
    assert scores[3] >= 20 * (1 - 1e-9)
    assert (scores[:3] < 3.5).all()
    assert np.isnan(scores[4:]).all()
    assert outcome.diagnostics["blocked"].tolist() == [0, 0, 0, 1] + [1] * blocked
    np.testing.assert_allclose(outcome.steps[0], [1, 0])


def test_a_blocked_client_does_not_make_up_four(cohort):
    x = np.array([[1.0, 0], [1, 0], [-50, 0], [1, 0]])
    rule = Screened(MEAN, strikes=1)
    state = blocked_state(rule, 2, [0, 0, 0, 1])
    outcome = rule({"update": torch.tensor(x)}, cohort(4), state)
    assert np.isnan(outcome.diagnostics["outlier"]).all()
    assert outcome.state["blocked"].tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(outcome.steps[0], x[:3].mean(0))


def test_a_round_of_blocked_clients_leaves_the_model(cohort):
    rule = Screened(Cgsv())
    state = blocked_state(rule, 4, [1, 1, 0, 1])
    updates = torch.full((3, 4), torch.nan)
    found = rule({"update": updates}, cohort(clients=[0, 1, 3], federation=4), state)
    assert torch.equal(found.steps, torch.zeros(1, 4))
    assert found.weights is None
    assert torch.equal(found.state["inner.r"], state["inner.r"])
    assert found.diagnostics["blocked"].tolist() == [1, 1, 1]


def test_too_few_for_the_inner_rule_says_how_many_are_blocked(cohort):
    rule = Screened(Krum(1))
    state = blocked_state(rule, 3, [1, 0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"Krum with f=1 .* has 4.*\(1 of 5 clients of the round"):
        rule({"update": torch.randn(5, 3)}, cohort(5), state)
    with pytest.raises(ValueError, match=r"has 4; raise the number[^(]*$"):
        rule({"update": torch.randn(4, 3)}, cohort(4), rule.init(3, np.ones(4)))


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_left_out_at_once_and_blocked_like_other_outliers(cohort, size, value):
    """Also in a cohort that is too small to be judged."""
    generator = np.random.default_rng(7)
    rounds = []
    for _ in range(3):
        x = honest(size, 9, generator)
        x[1, 4] = value
        rounds.append((np.arange(size), x))
    outcomes = play(Screened(MEAN, threshold=1e6), cohort, rounds, size)
    for (_, x), outcome in zip(rounds, outcomes, strict=True):
        np.testing.assert_allclose(outcome.steps[0], np.delete(x, 1, axis=0).mean(0))
        assert outcome.weights[1] == 0
    assert [o.diagnostics["outlier"][1] for o in outcomes[:2]] == [np.inf, np.inf]
    assert [o.diagnostics["blocked"][1] for o in outcomes] == [False, True, True]
    assert not outcomes[-1].state["blocked"][[0, *range(2, size)]].any()


def test_a_round_without_a_single_number_is_an_error(cohort):
    updates = torch.ones(5, 3)
    updates[:, 1] = torch.nan
    rule = Screened(MEAN)
    with pytest.raises(FloatingPointError, match=r"client 0: .* 1 non-finite .*as do 4 other"):
        rule({"update": updates}, cohort(5), rule.init(3, np.ones(5)))


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="is no rule; give one such as"):
        Screened("krum")
    for options in ({"strikes": 0}, {"threshold": 0.0}, {"threshold": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Screened(MEAN, **options)


def test_the_inner_rule_gets_the_uploads_that_it_reads(cohort):
    """Who sends what is decided by `reads`; so alignment may look at adapters alone behind it."""
    inner = Alignment(scope="adapters")
    rule = Screened(inner)
    assert "adapters" in rule.reads
    assert "adapters" in Screened(Compensated(inner)).reads
    update = torch.tensor(np.random.default_rng(0).normal(1.0, 1.0, size=(6, 9)))
    uploads = {"update": update, "adapters": update[:, :4]}
    found = rule(uploads, cohort(6), rule.init(9, np.ones(6)))
    np.testing.assert_allclose(found.weights, inner(uploads, cohort(6), {}).weights)
