"""Clusters: federations side by side, what beta mixes, and who finds whom."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from fedsdg.aggregation.rules.clusters import Clustered, dealt, nearest_groups
from fedsdg.aggregation.rules.mean import Mean

SAMPLES = 10 + 7 * np.arange(9)


def context_of(cohort, clients, models, federation=9):
    made = cohort(clients=clients, federation=federation)
    return replace(made, models=torch.as_tensor(models))


def known(rule, clusters, d):
    return rule.with_clusters(rule.init(d, np.ones(len(clusters))), clusters)


def drawn(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def test_a_cohort_of_one_cluster_is_fedavg(cohort):
    updates, models = drawn(5, 8), drawn(2, 8, seed=1)
    context = context_of(cohort, [0, 2, 3, 5, 8], models)
    rule = Clustered(clusters=2, assignment="known")
    aggregate = rule({"update": updates}, context, known(rule, [0, 1, 0, 0, 1, 0, 1, 1, 0], 8))
    mean = Mean("samples")({"update": updates}, context, {})
    assert torch.equal(aggregate.steps[0], mean.steps[0]) and not aggregate.steps[1].any()
    np.testing.assert_allclose(aggregate.weights, mean.weights, rtol=1e-15)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_cluster_becomes_the_mean_of_its_members_models(cohort, beta):
    """theta_k = start_k + Delta_k, start_k = ((1 - beta) e_c + beta / C) models, written out."""
    clusters = np.array([0, 2, 1, 1, 0, 2, 2, 0, 1])
    models, updates = drawn(3, 6, seed=2), drawn(5, 6, seed=3)
    clients = np.array([7, 1, 4, 5, 0])  # No one of cluster 1.
    rule = Clustered(clusters=3, assignment="known", beta=beta)
    state = known(rule, clusters, 6)
    rows = rule.mixing(state, clients)
    np.testing.assert_allclose(rows.sum(1), 1)
    aggregate = rule({"update": updates}, context_of(cohort, clients, models), state)
    moved = (models + aggregate.steps).numpy()
    theta = np.zeros((5, 6))
    for k, client in enumerate(clients):
        own, mean = models[clusters[client]].numpy(), models.numpy().mean(0)
        start = (1 - beta) * own + beta * mean
        np.testing.assert_allclose(rows[k] @ models.numpy(), start, atol=1e-12)
        theta[k] = start + updates[k].numpy()
    n = SAMPLES[clients]
    for cluster in (0, 2):
        members = clusters[clients] == cluster
        expected = n[members] @ theta[members] / n[members].sum()
        np.testing.assert_allclose(moved[cluster], expected, atol=1e-12)
    assert not aggregate.steps[1].any()
    np.testing.assert_allclose(aggregate.weights, n / n.sum())
    assert aggregate.diagnostics["cluster"].tolist() == clusters[clients].tolist()
    assert torch.equal(aggregate.state["assignment"], state["assignment"])


def test_known_clusters_are_federations_that_never_meet(cohort):
    """Two groups in one federation, against each group alone, over rounds of sampled cohorts."""
    clusters, target = np.array([0, 1, 1, 0, 1, 0]), drawn(6, 4, seed=4)
    generator = np.random.default_rng(5)
    rule = Clustered(clusters=2, assignment="known")
    state = known(rule, clusters, 4)
    models = drawn(2, 4, seed=6)
    alone = models.clone()
    for _ in range(8):
        clients = generator.choice(6, 4, replace=False)
        start = torch.as_tensor(rule.mixing(state, clients)) @ models
        updates = 0.3 * (target[clients] - start)
        context = context_of(cohort, clients, models, federation=6)
        aggregate = rule({"update": updates}, context, state)
        models, state = models + aggregate.steps, aggregate.state
        for cluster in (0, 1):
            own = clients[clusters[clients] == cluster]
            if len(own):
                mine = {"update": 0.3 * (target[own] - alone[cluster])}
                step = Mean("samples")(mine, cohort(clients=own, federation=6), {}).steps
                alone[cluster] = alone[cluster] + step[0]
    torch.testing.assert_close(models, alone)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_no_cluster_starts_empty(count):
    for seed in range(20):
        assignment = dealt(8, count, seed)
        sizes = np.bincount(assignment, minlength=count)
        assert sizes.min() >= 1
        assert sizes.max() - sizes.min() <= 1
        assert dealt(8, count, seed).tolist() == assignment.tolist()
    assert len({tuple(dealt(8, 3, seed)) for seed in range(9)}) > 5
    if count > 1:
        begun = Clustered(clusters=count).init(4, np.ones(8))["assignment"]
        assert begun.tolist() == dealt(8, count).tolist()


def test_scores_reassign_those_who_sent_them(cohort):
    nan, inf = np.nan, np.inf
    rule = Clustered(clusters=3)
    state = {"assignment": torch.tensor([0, 0, 1, 2, 1, 2, 0, 1, 2])}
    scores = {
        0: [2.0, 1.0, 3.0],  # to 1
        2: [5.0, 5.0, 5.0],  # as low where it is
        3: [1.0, 1.0, 2.0],  # of equal ones the first
        4: [nan, nan, nan],  # none
        5: [3.0, nan, nan],  # its own was not scored
        7: [inf, inf, inf],
        8: [4.0, 3.0, inf],
    }
    clients = np.array(list(scores))
    uploads = {"update": drawn(7, 5), "scores": torch.tensor(list(scores.values()))}
    models = drawn(3, 5, seed=1)
    aggregate = rule(uploads, context_of(cohort, clients, models), state)
    assert aggregate.state["assignment"].tolist() == [1, 0, 1, 0, 1, 0, 0, 1, 1]
    assert aggregate.diagnostics["cluster"].tolist() == [1, 1, 0, 1, 0, 1, 1]
    # This round's updates count for the clusters in which they began.
    before = rule(
        {**uploads, "scores": torch.zeros(7, 3)}, context_of(cohort, clients, models), state
    )
    assert torch.equal(before.steps, aggregate.steps)
    assert torch.equal(before.state["assignment"], state["assignment"])


def losses_of(models, targets):
    return ((models[None] - targets[:, None]) ** 2).sum(2) / 2


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_found_by_loss(cohort, seed):
    """Clients with quadratic losses around three far points; the server's models start apart.

    Assignments become the groups, up to names, and the models their targets' means. Each model
    starts nearer to another group's point: as in the paper, the start must tell the groups apart.
    """
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.arange(12) % 3)
    points = 10 * np.eye(3, 5)
    targets = torch.tensor(points[groups] + 0.1 * generator.normal(size=(12, 5)))
    models = torch.tensor(points + 3 * generator.normal(size=(3, 5)))
    rule = Clustered(clusters=3)
    state = rule.with_clusters(rule.init(5, np.ones(12)), dealt(12, 3, seed))
    for _ in range(60):
        clients = generator.choice(12, 6, replace=False)
        start = torch.as_tensor(rule.mixing(state, clients)) @ models
        uploads = {
            "update": 0.5 * (targets[clients] - start),
            "scores": losses_of(models, targets[clients]),
        }
        made = cohort(clients=clients, federation=12, samples=np.ones(12, dtype=int))
        aggregate = rule(uploads, replace(made, models=models), state)
        models, state = models + aggregate.steps, aggregate.state
    found = state["assignment"].numpy()
    named = {group: set(found[groups == group]) for group in range(3)}
    assert all(len(names) == 1 for names in named.values())
    assert len(set.union(*named.values())) == 3
    for group, (name,) in named.items():
        np.testing.assert_allclose(models[name], points[group], atol=0.2)


def test_equal_models_leave_the_first_assignment_until_they_differ(cohort):
    rule = Clustered(clusters=3)
    state = rule.init(4, np.ones(9))
    models, targets = torch.zeros(3, 4).double(), drawn(9, 4)
    uploads = {"update": 0.5 * targets, "scores": losses_of(models, targets)}
    aggregate = rule(uploads, context_of(cohort, np.arange(9), models), state)
    assert torch.equal(aggregate.state["assignment"], state["assignment"])
    assert len(np.unique(aggregate.steps.numpy(), axis=0)) == 3


def test_a_cluster_left_empty_is_an_error_or_was_never_one():
    rule = Clustered(clusters=3, assignment="known")
    state = rule.init(4, np.ones(5))
    with pytest.raises(ValueError, match="cluster 1 of 3 has no client; lower clusters"):
        rule.with_clusters(state, [0, 0, 2, 2, 0])
    with pytest.raises(ValueError, match="2 clients cannot fill 3 clusters"):
        rule.init(4, np.ones(2))
    for clusters in ([0, 1, 2], [0, 1, 2, 3, 0], [0, 1, 2, 0.5, 1], [-1, 0, 1, 2, 0]):
        with pytest.raises(ValueError, match="must be 5 numbers from 0 to 2"):
            rule.with_clusters(state, clusters)


def test_clusters_that_are_not_known_are_asked_for(cohort):
    rule = Clustered(clusters=2, assignment="known")
    state = rule.init(4, np.ones(9))
    with pytest.raises(ValueError, match="the cluster of client 3 is not known; give the clust"):
        rule.mixing(state, np.array([3, 1]))
    with pytest.raises(ValueError, match="the cluster of client 0 is not known"):
        rule({"update": torch.zeros(2, 4)}, context_of(cohort, [0, 1], torch.zeros(2, 4)), state)


def test_what_is_missing_is_named(cohort):
    rule = Clustered(clusters=2)
    state, update = rule.init(4, np.ones(9)), {"update": torch.zeros(2, 4)}
    made = context_of(cohort, [0, 1], torch.zeros(2, 4))
    with pytest.raises(ValueError, match="upload 'scores' is missing"):
        rule(update, made, state)
    with pytest.raises(ValueError, match=r"'scores' has shape \[2, 3\]; expected one score for ea"):
        rule({**update, "scores": torch.zeros(2, 3)}, made, state)
    with pytest.raises(ValueError, match=r"holds no models, but the rule serves \[2, 4\]"):
        rule(update, replace(made, models=None), state)
    with pytest.raises(ValueError, match=r"holds models of shape \[1, 4\], but"):
        rule(update, replace(made, models=torch.zeros(1, 4)), state)
    empty, scores = replace(made, num_samples=np.zeros(2)), {"scores": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match="cannot weigh by samples: the counts"):
        rule({**update, **scores}, empty, state)
    apart, one = {"assignment": torch.tensor([0, 1] * 5)[:9]}, np.array([0, 5])
    with pytest.raises(ValueError, match="the clients of cluster 0 in round 1 have no samples"):
        rule({**update, **scores}, replace(made, num_samples=one), apart)


def test_impossible_options_are_refused():
    for options in ({"clusters": 1}, {"assignment": "loos"}, {"beta": -0.1}, {"beta": 1.1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Clustered(**options)


# --- Partial aggregates ---------------------------------------------------------------------------


@pytest.mark.parametrize("size, count", [(2, 1), (4, 2), (6, 6), (12, 3), (12, 4), (20, 5)])
def test_groups_are_those_of_scipys_average_linkage(size, count):
    points = np.random.default_rng(10 * size + count).standard_normal((size, 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    tree = linkage(squareform(distances), "average")
    theirs = cut_tree(tree, n_clusters=count)[:, 0]
    ours = nearest_groups(distances, count)
    assert len(set(ours.tolist())) == count
    same = [groups[:, None] == groups[None] for groups in (ours, theirs)]
    assert np.array_equal(*same)
    firsts = [int(np.flatnonzero(ours == group)[0]) for group in range(count)]
    assert firsts == sorted(firsts)


def test_equally_near_things_are_joined_in_their_order():
    assert nearest_groups(1 - np.eye(4), 3).tolist() == [0, 0, 1, 2]
    assert nearest_groups(np.zeros((3, 3)), 1).tolist() == [0, 0, 0]


def rounds(cohort, rule, models, update, labels=None, clusters=(0, 1, 2, 3)):
    """One round of a client for each cluster; (aggregate, the models after it)."""
    state = rule.with_clusters(rule.init(models.shape[1], np.ones(len(clusters))), clusters)
    if labels is not None:
        state = rule.with_labels(state, labels)
    members = np.arange(len(clusters))
    aggregate = rule({"update": update}, context_of(cohort, members, models), state)
    return state, aggregate, models + aggregate.steps


PAIRS = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0], [10.0, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_clusters_with_near_models_share_a_partial_aggregate(cohort, beta):
    """0 and 2 are near, 1 and 3: from the second round on each starts towards its pair's mean."""
    rule = Clustered(clusters=4, assignment="known", beta=beta, partials=2)
    state, aggregate, models = rounds(cohort, rule, PAIRS, torch.zeros_like(PAIRS))
    members = np.arange(4)
    assert np.array_equal(rule.mixing(state, members), np.eye(4)), "nothing is known of it yet"
    assert torch.equal(models, PAIRS)
    starts = torch.from_numpy(rule.mixing(aggregate.state, members)) @ models
    means = torch.tensor([[0.0, 0.5], [10.0, 1.0]] * 2, dtype=torch.float64)
    assert torch.allclose(starts, (1 - beta) * PAIRS + beta * means)
    if beta == 1:
        assert len(torch.unique(starts, dim=0)) == 2, "as many models are left as aggregates"
    # What a client sends is counted from where it started: theta_c = s_c + its update.
    update = torch.arange(8.0, dtype=torch.float64).view(4, 2)
    made = context_of(cohort, members, models)
    after = rule({"update": update}, made, aggregate.state)
    assert torch.allclose(models + after.steps, starts + update)


def test_groups_follow_the_models_of_the_last_round(cohort):
    """The updates carry cluster 2 from the side of 0 to that of 1 and 3."""
    rule = Clustered(clusters=4, assignment="known", beta=1.0, partials=2)
    update = torch.zeros_like(PAIRS)
    update[2] = torch.tensor([10.0, 0.0])
    _, aggregate, _ = rounds(cohort, rule, PAIRS, update)
    assert aggregate.state["group"].tolist() == [0, 1, 1, 1]


def test_clusters_whose_clients_hold_alike_labels_share_a_partial_aggregate(cohort):
    """By hand: shares (1, 0), (.9, .1), (0, 1), (.2, .8), whatever the models and the sizes are."""
    labels = np.array([[7, 0], [90, 10], [0, 3], [1, 4]])
    rule = Clustered(clusters=4, assignment="known", beta=1.0, partials=2, nearness="labels")
    state, aggregate, _ = rounds(cohort, rule, PAIRS, torch.zeros_like(PAIRS), labels)
    for known in (state, aggregate.state):
        assert known["group"].tolist() == [0, 0, 1, 1]
    starts = rule.mixing(state, np.arange(4))
    assert starts.tolist() == [[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2


def test_clients_that_move_take_their_labels_with_them(cohort):
    """Clusters 0 and 1 hold other classes until client 1, whose loss is lowest there, joins 2."""
    rule = Clustered(clusters=3, partials=2, nearness="labels", beta=1.0)
    state = {**rule.init(2, np.ones(4)), "assignment": torch.tensor([0, 1, 2, 1])}
    state = rule.with_labels(state, np.array([[9, 0], [0, 18], [0, 9], [9, 0]]))
    before = state["group"].tolist()
    scores = torch.tensor([[1.0, 2, 2], [2, 2, 1.0], [2, 2, 1.0], [2, 1.0, 2]])
    models = torch.zeros(3, 2)
    made = context_of(cohort, [0, 1, 2, 3], models)
    after = rule({"update": torch.zeros(4, 2), "scores": scores}, made, state).state
    assert after["assignment"].tolist() == [0, 2, 2, 1]
    # First (1, 0), (1/3, 2/3), (0, 1), where 1 is nearer to 2; then (1, 0), (1, 0), (0, 1).
    assert (before, after["group"].tolist()) == ([0, 1, 1], [0, 0, 1])
    # A cluster without clients is as far from the others as can be; they are (1, 0), (1/4, 3/4).
    apart = rule._label_distances({**state, "assignment": torch.tensor([0, 2, 2, 2])})
    assert apart[1].tolist() == [1.0, 0.0, 1.0] and apart[0, 2] == pytest.approx(0.75)


def test_one_partial_aggregate_is_the_mixture_and_one_for_each_cluster_plain_clusters(cohort):
    update = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    members = np.arange(4)

    def twice(**options):
        rule = Clustered(clusters=4, assignment="known", **options)
        _, first, models = rounds(cohort, rule, PAIRS, update)
        second = rule({"update": update}, context_of(cohort, members, models), first.state)
        return models + second.steps

    assert torch.equal(twice(beta=0.3), twice(beta=0.3, partials=1, nearness="labels"))
    assert torch.equal(twice(beta=0.0), twice(beta=0.7, partials=4))
    assert not torch.equal(twice(beta=0.3), twice(beta=0.3, partials=2))


def test_partial_aggregates_that_cannot_be_are_refused(cohort):
    with pytest.raises(ValueError, match="partials is 5, but must be at most clusters = 4; lower"):
        Clustered(clusters=4, partials=5)
    with pytest.raises(ValueError, match="nearness is 'label', but must be one of models, labels"):
        Clustered(nearness="label")
    rule = Clustered(clusters=4, assignment="known", partials=2, nearness="labels")
    with pytest.raises(ValueError, match="the labels that clients hold are not known; give them"):
        rounds(cohort, rule, PAIRS, torch.zeros_like(PAIRS))
