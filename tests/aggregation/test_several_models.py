"""Rules whose server holds several models: clusters, semi-global models and PENS."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.clusters import Clustered, average_linkage, even_assignment
from fedsdg.aggregation.rules.neighbours import Pens

MODELS = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.0, 4.0]], dtype=torch.float64)


def known(assignment, **options):
    rule = Clustered(assignment="known", **options)
    state = rule.init(2, np.ones(len(assignment)))
    return rule, rule.with_clusters(state, assignment)


def test_each_cluster_averages_its_own_members(context):
    rule, state = known([0, 1, 1, 2])
    told = context(3, 4, samples=np.array([5.0, 1.0, 3.0, 2.0]), models=MODELS)
    updates = torch.tensor([[1.0, 1.0], [4.0, 0.0], [8.0, 0.0]], dtype=torch.float64)
    made = rule({"update": updates}, told, state)
    assert made.steps.tolist() == [[1.0, 1.0], [7.0, 0.0], [0.0, 0.0]]
    assert made.weights == pytest.approx(np.array([5, 1, 3]) / 9)
    assert made.diagnostics["cluster"].tolist() == [0, 1, 1]
    assert rule.mixing(state, np.array([1, 3])).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert rule.models(4) == 3


def test_a_semi_global_model_is_the_start_plus_the_mean_update(context):
    rule, state = known([0, 1, 2], beta=0.5)
    told = context([0], 3, models=MODELS)
    update = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    made = rule({"update": update}, told, state)
    start = 0.5 * MODELS[0] + 0.5 * MODELS.mean(0)
    assert torch.allclose(MODELS[0] + made.steps[0], start + update[0])
    assert not made.steps[1:].any()
    mixed = torch.tensor(rule.mixing(state, np.array([0]))) @ MODELS
    assert torch.allclose(mixed[0], start)


def test_clients_move_to_the_model_of_least_loss(context):
    rule = Clustered(clusters=3)
    state = {"assignment": torch.tensor([0, 1, 2, 0])}
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 5.0], [np.nan] * 3, [np.nan, np.nan, 0.1]])
    told = context(4, models=MODELS)
    made = rule({"update": torch.zeros(4, 2), "scores": scores}, told, state)
    assert made.state["assignment"].tolist() == [1, 1, 2, 2]
    assert state["assignment"].tolist() == [0, 1, 2, 0]
    with pytest.raises(ValueError, match="'scores' has 2 columns; give the loss of each of the 3"):
        rule({"update": torch.zeros(4, 2), "scores": scores[:, :2]}, told, state)


def test_first_assignments_are_even_and_refusals_are_sentences(context):
    assert np.bincount(even_assignment(10, 3)).tolist() == [4, 3, 3]
    rule = Clustered(clusters=3)
    with pytest.raises(ValueError, match="2 clients cannot fill 3 clusters"):
        rule.init(2, np.ones(2))
    rule, state = known([0, 1, 2])
    for clusters, sentence in (([0, 1, 1], "cluster 2 of 3 has no client"),
                               ([0, 1, 3], "must be 3 numbers from 0 to 2"),
                               ([0, 1], "must be 3 numbers")):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            rule.with_clusters(state, clusters)
    unknown = rule.init(2, np.ones(3))
    with pytest.raises(ValueError, match="the cluster of client 0 is not known"):
        rule({"update": torch.zeros(3, 2)}, context(3, models=MODELS), unknown)
    with pytest.raises(ValueError, match="in round 1 have no samples"):
        told = context(3, samples=np.array([1.0, 0.0, 1.0]), models=MODELS)
        rule({"update": torch.zeros(3, 2)}, told, state)
    with pytest.raises(ValueError, match="serves 3 models of 2 parameters"):
        rule({"update": torch.zeros(3, 2)}, context(3), state)
    with pytest.raises(ValueError, match="lower partials or raise clusters"):
        Clustered(clusters=2, partials=3)


def test_partial_aggregates_join_the_nearest_models(context):
    rule, state = known([0, 1, 2], beta=1.0, partials=2)
    assert state["group"].tolist() == [0, 1, 2]
    made = rule({"update": torch.zeros(3, 2)}, context(3, models=MODELS), state)
    assert made.state["group"].tolist() == [0, 1, 1]
    mixing = rule.mixing(made.state, np.arange(3))
    assert mixing.tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]


def test_nearness_by_the_labels_that_clients_hold():
    rule, state = known([0, 1, 2, 2], beta=0.5, partials=2, nearness="labels")
    assert rule.server_prior == ("clusters", "labels")
    labels = np.array([[8, 0], [0, 9], [3, 0], [4, 1]])
    told = rule.with_labels(state, labels)
    assert told["group"].tolist() == [0, 1, 0]  # Shares (1, 0), (0, 1), (7/8, 1/8).
    plain, plain_state = known([0, 1, 2, 2])
    assert "labels" not in plain.with_labels(plain_state, labels)


def test_average_linkage_by_hand():
    points = np.array([0.0, 1.0, 10.0, 12.0, 30.0])
    distances = np.abs(points[:, None] - points[None])
    assert average_linkage(distances, 3).tolist() == [0, 0, 1, 1, 2]
    assert average_linkage(distances, 2).tolist() == [0, 0, 0, 0, 1]
    assert average_linkage(distances, 5).tolist() == [0, 1, 2, 3, 4]


def test_pens_picks_models_of_low_loss_in_phase_one(context):
    rule = Pens(phase_one=2, sample=3, top=1)
    state = rule.init(2, np.ones(4))
    models = torch.arange(8.0).view(4, 2)
    told = context([0, 2], 4, models=models)
    update = torch.ones(2, 2)
    nothing = torch.full((2, 4), torch.nan)
    first = rule({"update": update, "scores": nothing}, told, state)
    assert first.steps.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    assert first.state["trained"].tolist() == [1, 0, 1, 0]
    scores = torch.tensor([[0.0, 0.1, 0.5, np.nan], [0.4, 0.2, 0.1, 0.3]])
    second = rule({"update": update, "scores": scores}, told, first.state)
    # Model 1 and 3 are untrained, and no client picks itself.
    assert second.state["latest"][0].tolist() == [0, 0, 1, 0]
    assert second.state["latest"][2].tolist() == [1, 0, 0, 0]
    assert second.diagnostics["neighbours"].tolist() == [0, 0]  # By chance 1 of 1: not more often.
    assert rule.probes[0].sample == 3 and rule.probes[0].rounds == 2


def test_rounds_in_which_nothing_arrived_count_as_well(context):
    rule = Pens(phase_one=2, sample=3, top=1)
    told = context([0, 2], 4, models=torch.zeros(4, 2), round=3)
    after = rule({"update": torch.ones(2, 2)}, told, rule.init(2, np.ones(4)))
    assert after.state["rounds"].tolist() == [3]


def test_of_infinite_scores_those_that_were_measured_are_picked(context):
    rule = Pens(phase_one=1, top=2)
    state = {**rule.init(1, np.ones(5)), "trained": torch.ones(5, dtype=torch.int64)}
    scores = torch.tensor([[np.nan, np.nan, 0.5, np.inf, np.nan]])
    told = context([4], 5, models=torch.zeros(5, 1))
    made = rule({"update": torch.ones(1, 1), "scores": scores}, told, state)
    assert made.state["latest"][4].tolist() == [0, 0, 1, 1, 0]


def test_of_equal_scores_the_lower_id_is_picked(context):
    rule = Pens(phase_one=1, top=1)
    state = {**rule.init(1, np.ones(4)), "trained": torch.ones(4, dtype=torch.int64)}
    told = context([2], 4, models=torch.zeros(4, 1))
    made = rule({"update": torch.ones(1, 1), "scores": torch.ones(1, 4)}, told, state)
    assert made.state["latest"][2].tolist() == [1, 0, 0, 0]
    assert made.state["expected"][2].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_in_phase_two_clients_average_with_those_picked_more_often_than_by_chance(context):
    rule = Pens(phase_one=1)
    state = {
        **rule.init(1, np.ones(3)),
        "rounds": torch.tensor([1]),
        "picked": torch.tensor([[0, 2, 1], [0, 0, 0], [1, 0, 0]]),
        "expected": torch.tensor([[0.0, 1.0, 1.0], [0.0] * 3, [0.5, 0.5, 0.0]]).double(),
    }
    mixing = rule.mixing(state, np.arange(3))
    assert mixing.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0.5, 0, 0.5]]
    told = context([0], 3, models=torch.tensor([[0.0], [6.0], [9.0]]))
    made = rule({"update": torch.ones(1, 1)}, told, state)
    assert made.steps.tolist() == [[4.0], [0.0], [0.0]]  # The start is 3, and 1 is added.
    with pytest.raises(ValueError, match="upload 'scores' is missing"):
        rule({"update": torch.ones(1, 1)}, told, {**state, "rounds": torch.tensor([0])})
