"""Each rule by its mathematics: worked examples, limits, state from round to round."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate, types
from fedsdg.aggregation.errors import NonFiniteError, RuleFault
from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian, geometric_median
from fedsdg.aggregation.rules.krum import Krum, best_scored, krum_scores
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.multikrum import MultiKrum
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened, outlier_scores
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.aggregation.weights import capped

from . import oracle


def rows(*vectors, dtype=torch.float64):
    return torch.tensor(vectors, dtype=dtype)


# --- alignment ---


def test_leave_one_out_against_the_definition(context):
    updates = np.random.default_rng(0).normal(size=(6, 9)) + 0.3
    made = Alignment(reference="leave_one_out")({"update": torch.tensor(updates)}, context(6), {})
    step, weights = oracle.fedsdg(updates, "leave_one_out")
    assert made.weights == pytest.approx(weights, abs=1e-9)
    assert made.steps[0].numpy() == pytest.approx(step)


def test_the_three_variants_of_the_worked_example(context):
    given = {"update": rows([0.5, 0.3], [0.6, 0.4], [-0.5, -0.2])}
    loo = Alignment(reference="leave_one_out")
    assert loo(given, context(3), {}).weights == pytest.approx([0.6033, 0.3967, 0], abs=1e-4)
    soft = Alignment(reference="leave_one_out", transform="softmax")
    assert soft(given, context(3), {}).weights == pytest.approx([0.9969, 0.0031, 0], abs=1e-4)
    smooth = Alignment(smoothing=0.3)(given, context(3), {}).weights
    plain = Alignment()(given, context(3), {}).weights
    assert smooth == pytest.approx(0.7 * plain + 0.1)


def test_softmax_weights_are_a_softmax_of_cosines(context):
    given = {"update": rows([1.0, 0.0], [1.0, 1.0], [0.0, -1.0])}
    made = Alignment(transform="softmax", temperature=0.5)(given, context(3), {})
    scores = np.exp(made.diagnostics["cosine"] / 0.5)
    assert made.weights == pytest.approx(scores / scores.sum())
    assert made.diagnostics["alignment"] == pytest.approx(made.diagnostics["cosine"])


def test_a_mean_within_rounding_has_no_direction(context):
    given = {"update": rows([1.0, 0.01], [-1.0, 0.01])}
    told = context(2, rounding=lambda norm: 0.01 * norm)
    assert Alignment()(given, told, {}).diagnostics["degenerate"] == 1.0
    assert Alignment()(given, context(2), {}).diagnostics["degenerate"] == 0.0


def test_zero_updates_have_equal_weights(context):
    made = Alignment()({"update": torch.zeros(4, 3)}, context(4), {})
    assert made.weights.tolist() == [0.25] * 4 and made.diagnostics["degenerate"] == 1.0


def test_a_cap_spreads_the_excess_in_proportion():
    assert capped(np.array([0.7, 0.2, 0.1]), 0.5) == pytest.approx([0.5, 1 / 3, 1 / 6])
    assert capped(np.array([1.0, 0.0, 0.0]), 0.4) == pytest.approx([0.4, 0.3, 0.3])
    assert capped(np.array([0.6, 0.39, 0.01]), 0.4) == pytest.approx([0.4, 0.4, 0.2])
    assert capped(np.full(3, 1 / 3), 1 / 3) == pytest.approx([1 / 3] * 3)


# --- means, medians, Krum ---


def test_no_aggregation_leaves_the_model(context):
    made = NoAggregation()({"update": torch.ones(2, 3)}, context(2), {})
    assert made.steps.tolist() == [[0, 0, 0]] and made.weights is None
    unread = NoAggregation()({"update": rows([1.0], [np.nan])}, context(2), {})
    assert unread.steps.tolist() == [[0]]


def test_medians_by_hand(context):
    given = {"update": rows([1.0, 9.0], [2.0, 0.0], [7.0, 1.0], [4.0, 2.0])}
    assert CoordinateMedian()(given, context(4), {}).steps.tolist() == [[3.0, 1.5]]
    assert TrimmedMean(f=1)(given, context(4), {}).steps.tolist() == [[3.0, 1.5]]
    mean = TrimmedMean(f=0)(given, context(4), {}).steps
    assert mean.tolist() == [[3.5, 3.0]]
    with pytest.raises(ValueError, match="needs at least 2f\\+1 = 5 clients per round and has 4"):
        TrimmedMean(f=2)(given, context(4), {})


def test_a_trimmed_value_that_is_not_finite_is_an_error_still(context):
    given = {"update": rows([1.0], [2.0], [np.inf], [3.0])}
    for rule in (TrimmedMean(), CoordinateMedian()):
        with pytest.raises(NonFiniteError, match="client 2: tensor 'update' has 1"):
            rule(given, context(4), {})


def test_scores_and_order_by_hand(context):
    points = np.array([0.0, 1.0, 3.0, 6.0, 100.0])
    squares = (points[:, None] - points[None]) ** 2
    assert krum_scores(squares, f=1).tolist() == [10.0, 5.0, 13.0, 34.0, 94.0**2 + 97.0**2]
    assert best_scored(np.array([2.0, 1.0, 1.0 + 1e-13, 0.5]), 3).tolist() == [3, 1, 2]
    told = context([3, 7, 1, 9, 4], num_clients=10)
    made = Krum()({"update": torch.tensor(points)[:, None]}, told, {})
    assert made.diagnostics["winner"] == 7 and made.steps.tolist() == [[1.0]]
    mean = MultiKrum(m=2)({"update": torch.tensor(points)[:, None]}, told, {})
    assert mean.steps.tolist() == [[0.5]] and mean.weights.tolist() == [0.5, 0.5, 0, 0, 0]
    with pytest.raises(ValueError, match="m=5 must be at most n - f = 4"):
        MultiKrum(m=5)({"update": torch.tensor(points)[:, None]}, told, {})


def test_self_is_excluded_by_index_and_not_by_distance(context):
    points = torch.tensor([[0.0], [0.0], [0.0], [5.0], [6.0]])
    made = Krum()({"update": points}, context(5), {})
    assert made.diagnostics["winner"] == 0 and made.diagnostics["score"][0] == 0


# --- geometric median ---


def test_the_median_of_a_triangle_and_of_points_on_a_line(context):
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    made = GeometricMedian(tolerance=1e-10)({"update": torch.tensor(triangle)}, context(3), {})
    assert made.steps[0].numpy() == pytest.approx([0.5, np.sqrt(3) / 6], abs=1e-8)
    line = torch.tensor([[0.0], [1.0], [5.0], [6.0], [100.0]], dtype=torch.float64)
    assert GeometricMedian()({"update": line}, context(5), {}).steps.item() == pytest.approx(5.0)


def test_optimum_at_or_close_to_a_data_point(context):
    square = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    at = GeometricMedian()({"update": rows(*square, [0.0, 0.0])}, context(5), {})
    assert at.steps.tolist() == [[0.0, 0.0]] and at.diagnostics["residual"] == 0
    # Two of five points at one place: the pull of the others is 2.4, more than 2.
    near = rows([0.0, 0.0], [0.0, 0.0], [3.0, 0.1], [3.0, -0.1], [2.0, 0.4])
    made = GeometricMedian(tolerance=1e-10)({"update": near}, context(5), {})
    best, _ = oracle.geometric_median(near.numpy())
    excess = oracle.objective(near.numpy(), made.steps[0].numpy())
    assert excess <= oracle.objective(near.numpy(), best) * (1 + 1e-9)
    assert np.linalg.norm(made.steps[0].numpy()) > 0.01


def test_two_clients_and_ties_do_not_depend_on_order(context):
    for order in ([0, 1], [1, 0]):
        given = rows([0.0, 0.0], [2.0, 2.0])[order]
        made = GeometricMedian()({"update": given}, context(2), {})
        assert made.steps.tolist() == [[1.0, 1.0]]


def test_median_weights_sum_to_one_and_reach_is_the_distance():
    points = np.random.default_rng(2).normal(size=(9, 30))
    solution = geometric_median(MemoryRows.of_matrix(torch.tensor(points)), 1e-9)
    assert solution.weights.sum() == pytest.approx(1.0) and (solution.weights >= 0).all()
    z = solution.weights @ points
    assert solution.reach == pytest.approx(np.linalg.norm(points - z, axis=1))


# --- rules with a state ---


def test_cgsv_by_its_formulas_over_two_rounds(context):
    updates = np.random.default_rng(1).normal(size=(3, 8)) + 0.5
    told = context([0, 2, 3], num_clients=5)
    rule = Cgsv()
    state = rule.init(8, told.client_samples)
    shares = told.client_samples / told.client_samples.sum()
    assert state["r"].numpy() == pytest.approx(shares)
    made = rule({"update": torch.tensor(updates)}, told, state)
    ids = [0, 2, 3]
    weights = shares[ids] / shares[ids].sum()
    units = np.array([oracle.unit(u) for u in updates])
    aggregate_ = weights @ units
    psi = np.array([oracle.cosine(u, aggregate_) for u in updates])
    r = np.maximum(0.5 * shares[ids] + 0.5 * psi, 1e-3)
    r *= shares[ids].sum() / r.sum()
    assert made.weights == pytest.approx(weights)
    assert made.state["r"].numpy()[ids] == pytest.approx(r)
    assert made.state["r"].sum().item() == pytest.approx(1.0)
    assert made.state["r"].numpy()[[1, 4]] == pytest.approx(shares[[1, 4]])
    step = np.linalg.norm(updates, axis=1).mean() * aggregate_
    assert made.steps[0].numpy() == pytest.approx(step)
    assert Cgsv(step_scale="unit")({"update": torch.tensor(updates)}, told, state).steps[
        0
    ].numpy() == pytest.approx(aggregate_)


def test_the_second_participation_uses_gamma_two(context):
    given = {"update": rows([1.0, 0.0], [0.0, 1.0])}
    rule = Cgsv(gamma0=0.4)
    first = rule(given, context(2), rule.init(2, np.ones(2)))
    second = rule(given, context(2), first.state)
    assert first.diagnostics["gamma"].tolist() == pytest.approx([0.4, 0.4])
    assert second.diagnostics["gamma"].tolist() == pytest.approx([0.7, 0.7])
    assert second.state["participations"].tolist() == [2, 2]


def test_cgsv_without_any_positive_contribution_keeps_r(context):
    given = {"update": rows([1.0], [-1.0])}
    rule = Cgsv()
    state = rule.init(1, np.array([1.0, 1.0]))
    assert rule(given, context(2), state).state["r"].tolist() == [0.5, 0.5]
    zero = rule({"update": torch.zeros(2, 3)}, context(2), state)
    assert zero.diagnostics["alignment"].tolist() == [0, 0] and not zero.steps.any()


def test_cgsv_xu_rewards_contribution_by_the_largest_entries(context):
    updates = np.random.default_rng(3).normal(size=(3, 40)) + np.array([[1.0], [1.0], [-2.0]])
    rule = CgsvXu()
    told = context(3, samples=np.array([1.0, 2.0, 1.0]), models=torch.zeros(3, 40))
    first = rule({"update": torch.tensor(updates)}, told, rule.init(40, told.client_samples))
    weights = np.array([0.25, 0.5, 0.25])
    combined = 0.5 * weights @ np.array([oracle.unit(u) for u in updates])
    psi = np.array([oracle.cosine(u, combined) for u in updates])
    r = np.maximum(0.05 * psi, 1e-3)
    r /= r.sum()
    q = np.floor(40 * np.tanh(r) / np.tanh(r).max() + 1e-9).astype(int)
    assert first.state["r"].numpy() == pytest.approx(r)
    for client in range(3):
        largest = np.argsort(-np.abs(combined), kind="stable")[: q[client]]
        expected = np.zeros(40)
        expected[largest] = combined[largest]
        assert first.steps[client].numpy() == pytest.approx(expected)
    assert rule.partial(first.state, np.arange(3), 40).tolist() == q.tolist()
    assert rule.mixing(first.state, np.array([2])).tolist() == [[0, 0, 1]]
    assert rule.models(3) == 3
    with pytest.raises(ValueError, match="but 2 of the 3 take part"):
        rule({"update": torch.ones(2, 40)}, context(2, 3), first.state)


def test_a_client_against_the_others_falls_to_the_floor(context):
    rule = CgsvXu(floor=0.01)
    told = context(3, samples=np.ones(3), models=torch.zeros(3, 2))
    given = {"update": rows([1.0, 1.0], [1.0, 1.0], [-1.0, -1.0])}
    state = rule.init(2, np.ones(3))
    for _ in range(200):
        state = rule(given, told, state).state
    assert state["r"][2].item() == pytest.approx(0.01 / 1.01, rel=0.05)
    assert state["r"][:2].tolist() == pytest.approx([0.495, 0.495], rel=0.01)


def test_c_is_the_mean_of_all_clients_controls(context):
    rule = Scaffold(server_rate=0.5)
    told = context([1, 3], num_clients=6, held_out=2)
    given = {"update": rows([2.0, 0.0], [0.0, 4.0]), "control": rows([4.0, 4.0], [0.0, 8.0])}
    made = rule(given, told, rule.init(2, told.client_samples))
    assert made.steps.tolist() == [[0.5, 1.0]] and made.weights.tolist() == [0.5, 0.5]
    assert made.state["control"].tolist() == [1.0, 3.0]  # Of 4 clients that can take part.
    later = rule(given, told, made.state)
    assert later.state["control"].tolist() == [2.0, 6.0]
    assert rule.broadcast(later.state)["control"].tolist() == [2.0, 6.0]


def test_fedcurv_sums_over_the_last_cohort(context):
    rule = FedCurv()
    told = context(2, samples=np.array([1.0, 3.0]))
    given = {
        "update": rows([4.0], [8.0]),
        "fisher": rows([1.0], [2.0]),
        "fisher_theta": rows([3.0], [5.0]),
    }
    made = rule(given, told, rule.init(1, told.client_samples))
    assert made.steps.item() == 7.0
    assert made.state["fisher"].item() == 3.0 and made.state["fisher_theta"].item() == 8.0
    again = rule(given, told, made.state)
    assert again.state["fisher"].item() == 3.0 and set(rule.broadcast(again.state)) == {
        "fisher",
        "fisher_theta",
    }


def test_focus_by_its_formula(context):
    losses = np.array([0.2, 1.0, 2.0])
    given = {
        "update": rows([1.0], [2.0], [3.0]),
        "benchmark_loss": torch.tensor(losses / 4)[:, None],
        "global_loss": torch.tensor(3 * losses / 4)[:, None],
    }
    made = Focus()(given, context(3, samples=np.array([1.0, 2.0, 2.0])), {})
    credibility = 1 - np.exp(losses) / np.exp(losses).sum()
    weights = np.array([1, 2, 2]) * credibility
    assert made.weights == pytest.approx(weights / weights.sum())
    assert made.diagnostics["credibility"] == pytest.approx(credibility)
    assert made.diagnostics["mutual_loss"] == pytest.approx(losses)
    given["global_loss"] = torch.tensor([[np.nan], [1.0], [1.0]])
    with pytest.raises(NonFiniteError, match="client 0"):
        Focus()(given, context(3), {})


def test_late_updates_weigh_less(context):
    given = {"update": rows([1.0], [2.0], [4.0])}
    made = Compensated(inner=Mean(weights="uniform"))(
        given, context(3, ages=np.array([0, 1, 3])), {}
    )
    weights = np.array([1.0, 1 / 2, 1 / 4])
    assert made.weights == pytest.approx(weights / weights.sum())
    assert made.steps.item() == pytest.approx((weights / weights.sum()) @ [1.0, 2.0, 4.0])
    on_time = Compensated(inner=Mean(weights="uniform"))(given, context(3), {})
    assert on_time.weights.tolist() == [1 / 3] * 3
    with pytest.raises(ValueError, match="no weighted sum of updates"):
        Compensated(inner=CoordinateMedian())(given, context(3, ages=np.array([0, 1, 0])), {})
    late = context(3, ages=np.array([0, 1, 0]))
    assert not Compensated(inner=NoAggregation())(given, late, {}).steps.any()
    assert Compensated(inner=Cgsv()).needs == "client_samples"
    assert set(Compensated(inner=Scaffold()).init(2, np.ones(2))) == {"control"}


# --- screening ---


def outlier(size=6, at=0, scale=50.0):
    given = torch.tensor(np.random.default_rng(0).normal(size=(size, 10)) + 2)
    given[at] *= scale
    return {"update": given}


def test_an_outlier_is_blocked_for_good_after_its_strikes(context):
    rule = Screened(inner=Mean(weights="uniform"), strikes=2)
    told = context(6)
    state = rule.init(10, told.client_samples)
    first = rule(outlier(), told, state)
    assert first.weights[0] > 0 and not first.diagnostics["blocked"].any()
    second = rule(outlier(), told, first.state)
    assert second.weights.tolist() == [0, *[0.2] * 5] and second.diagnostics["blocked"][0]
    assert second.steps[0].numpy() == pytest.approx(outlier()["update"][1:].mean(0).numpy())
    honest = rule(outlier(scale=1.0), told, second.state)
    assert honest.weights[0] == 0 and np.isnan(honest.diagnostics["outlier"][0])


def test_a_round_below_the_threshold_starts_the_count_anew(context):
    rule = Screened(inner=Mean(weights="uniform"), strikes=2)
    state = rule.init(10, np.ones(6))
    for scale in (50.0, 1.0, 50.0):
        state = rule(outlier(scale=scale), context(6), state).state
    assert state["blocked"].tolist() == [0] * 6 and state["strikes"].tolist() == [1, 0, 0, 0, 0, 0]


def test_four_are_judged_and_blocked_clients_are_not_among_them(context):
    rule = Screened(inner=Mean(weights="uniform"))
    four = rule(outlier(size=4), context(4), rule.init(10, np.ones(4)))
    assert four.diagnostics["outlier"][0] > 3.5
    three = rule(outlier(size=3), context(3), rule.init(10, np.ones(3)))
    assert np.isnan(three.diagnostics["outlier"]).all()
    state = {**rule.init(10, np.ones(4)), "blocked": torch.tensor([1, 0, 0, 0])}
    fewer = rule(outlier(size=4), context(4), state)
    assert np.isnan(fewer.diagnostics["outlier"]).all() and fewer.weights[0] == 0


def test_screening_leaves_nan_out_and_works_with_any_rule(context):
    broken = outlier()
    broken["update"][3, 2] = torch.nan
    for inner in (Mean(weights="uniform"), Krum(), CoordinateMedian(), TrimmedMean(), Alignment()):
        rule = Screened(inner=inner)
        made = rule(broken, context(6), rule.init(10, np.ones(6)))
        assert torch.isfinite(made.steps).all() and made.diagnostics["outlier"][3] == np.inf
        if made.weights is not None:
            assert made.weights[3] == 0 and made.weights.sum() == pytest.approx(1)
    all_broken = {"update": torch.full((4, 3), torch.nan)}
    with pytest.raises(NonFiniteError, match="client 0"):
        Screened(inner=Mean())(all_broken, context(4), Screened(inner=Mean()).init(3, np.ones(4)))
    rule = Screened(inner=Mean(weights="uniform"))
    everyone = {**rule.init(10, np.ones(6)), "blocked": torch.ones(6, dtype=torch.int64)}
    for given in (outlier(), {"update": torch.full((6, 10), torch.nan)}):
        stays = rule(given, context(6), everyone)
        assert stays.weights is None and not stays.steps.any()


class Towards(Rule):
    reads = ("update", "server")

    def plan(self, rows, context, state):
        assert rows["server"].size == 1
        return Plan(Combination(np.full(rows["update"].size, 1 / rows["update"].size)), None, state)


def test_the_servers_own_update_is_no_clients(context):
    given = {**outlier(), "server": torch.zeros(1, 10)}
    told, rule = context(6), Screened(inner=Towards(), strikes=1)
    made = rule(given, told, rule.init(10, told.client_samples))
    assert made.steps[0].numpy() == pytest.approx(given["update"][1:].mean(0).numpy())


def test_a_client_that_points_elsewhere_is_an_outlier():
    given = torch.tensor(np.random.default_rng(5).normal(size=(9, 200)) * 0.05 + 1)
    given[4] = -given[4]
    scores = outlier_scores(MemoryRows.of_matrix(given))
    assert scores[4] > 3.5 and np.delete(scores, 4).max() < 3.5


def test_screened_by_the_doors(tmp_path):
    clients = [np.random.default_rng(k).normal(size=12) + 2 for k in range(6)]
    clients[0] = clients[0] * 50
    state = None
    for _ in range(2):
        made = aggregate(Screened(inner=Krum()), np.zeros(12), clients, num_clients=6, state=state)
        state = made.state
    assert made.weights[0] == 0 and made.diagnostics["blocked"][0]


# --- faults of rules ---


class Faulty(Rule):
    returned: Any

    def plan(self, rows, context, state):
        return self.returned


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (None, "returned None; return a Plan"),
        (Plan(Combination(np.ones(2)), None), "returned the coefficients"),
        (Plan(Combination(np.full(3, np.nan)), None), "returned the coefficients"),
        (Plan(Combination(np.ones(3), torch.ones(3)), None), "an offset .* of 2 numbers"),
        (Plan(Combination(np.ones(3), np.ones(2)), None), "an offset that is no tensor"),
        (Plan(Combination(np.ones(3)), np.array([0.5, 0.5])), "returned the weights"),
        (Plan(Combination(np.ones(3)), np.array([2.0, -0.5, -0.5])), "a weight below 0"),
        (Plan(Combination([0.2, 0.3, 0.5]), None), "the coefficients .* a numpy array of 3"),
        (Plan(Combination(np.ones(1)), None, rows=[3]), "the rows .3. of 3 clients"),
        (Plan(types.TrimmedMean(2), None), "a trim of 2 at both ends of 3"),
        (Plan(types.TrimmedMean(-1), None), "a trim of -1"),
    ],
)
def test_what_a_rule_may_not_return(plan, sentence, context):
    with pytest.raises(RuleFault, match=sentence):
        Faulty(returned=plan)({"update": torch.ones(3, 2)}, context(3), {})


def test_an_upload_that_is_missing_or_of_other_clients(context):
    with pytest.raises(ValueError, match="upload 'control' has 0 rows for 2 clients"):
        Scaffold()({"update": torch.ones(2, 3)}, context(2), {"control": torch.zeros(3)})
    with pytest.raises(ValueError, match="upload 'update' has 3 rows for 2 clients"):
        Mean()({"update": torch.ones(3, 3)}, context(2), {})
    for given in (torch.ones(3), torch.ones(2, 3, dtype=torch.int64), torch.ones(0, 3)):
        with pytest.raises(ValueError, match="upload 'update' is torch"):
            Mean()({"update": given}, context(2), {})
