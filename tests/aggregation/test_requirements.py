"""What a rule asks for: so many clients, what they measure, what it is told of them beforehand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.aggregation.types import Ask, Rule, StatelessRule

CLIENTS = 12
#: Of each rule, how many of 12 clients it needs at least in a round.
LEAST = [
    (Mean(), 1),
    (Alignment(), 1),
    (Alignment(max_weight=0.25), 4),
    (Alignment(max_weight=1 / 3), 3),
    (Alignment(transform="softmax", max_weight=0.1), 10),
    (Cgsv(), 1),
    (CgsvXu(), CLIENTS),
    (Clustered(clusters=4), 1),
    (FedCurv(), 1),
    (Focus(), 1),
    (GeometricMedian(), 1),
    (CoordinateMedian(), 1),
    (NoAggregation(), 1),
    (Pens(), 1),
    (Scaffold(), 1),
    (Krum(0), 3),
    (Krum(1), 5),
    (Krum(4), 11),
    (MultiKrum(2), 7),
    (MultiKrum(1, m=4), 5),
    (MultiKrum(1, m=8), 9),
    (TrimmedMean(0), 1),
    (TrimmedMean(3), 7),
    (Screened(Krum(2)), 7),
    (Screened(Compensated(MultiKrum(1, m=8))), 9),
    (Compensated(Krum(2)), 7),
    (Compensated(Mean()), 1),
]
WHOSE = [repr(rule) for rule, _ in LEAST]


def aggregated(rule, cohort, size):
    """A round of so many of the 12 clients, with all that any rule reads."""
    generator = torch.Generator().manual_seed(size)
    count = rule.models(CLIENTS)
    update = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    flat = {name: update[:, :1].abs() for name in ("benchmark_loss", "global_loss")}
    same = {name: update.abs() for name in ("control", "fisher", "fisher_theta")}
    scores = torch.full((size, count), torch.nan, dtype=torch.float64)
    context = replace(
        cohort(clients=np.arange(size), federation=CLIENTS),
        models=torch.zeros(count, 5, dtype=torch.float64),
    )
    state = rule.init(5, context.client_samples)
    return rule({"update": update, **flat, **same, "scores": scores}, context, state)


@pytest.mark.parametrize(("rule", "least"), LEAST, ids=WHOSE)
def test_a_rule_works_with_the_cohorts_that_it_requires_and_no_others(rule, least, cohort):
    for size in range(1, CLIENTS + 1):
        if size >= least:
            rule.require(size, CLIENTS)
            aggregated(rule, cohort, size)
            continue
        with pytest.raises(ValueError) as required:
            rule.require(size, CLIENTS)
        with pytest.raises(ValueError) as called:
            aggregated(rule, cohort, size)
        assert str(called.value) == str(required.value)


@pytest.mark.parametrize(
    ("rule", "cohort", "clients", "said"),
    [
        (Krum(2), 6, 20, r"^Krum with f=2 needs at least 2f\+3 = 7 .* has 6; raise .* at most 1$"),
        (MultiKrum(1, m=9), 9, 20, "^m=9 must be at most n - f = 8; lower m or f$"),
        (TrimmedMean(2), 4, 20, r"f=2 needs at least 2f\+1 = 5 .* and has 4; raise .* at most 1$"),
        (Alignment(max_weight=0.1), 9, 20, "^max_weight=0.1 is below 1/9: .* use at least 0.1111"),
        (CgsvXu(), 19, 20, "^cgsv-xu weighs all clients .* but 19 of the 20 take part; set clie"),
        (Clustered(clusters=5), 4, 4, "^4 clients cannot fill 5 clusters: .* clusters to at most"),
    ],
)
def test_a_bound_is_a_sentence_with_its_remedy(rule, cohort, clients, said):
    for one in (rule, Screened(rule)):
        with pytest.raises(ValueError, match=said):
            one.require(cohort, clients)


def test_clusters_need_clients_to_fill_them_and_not_a_cohort():
    Clustered(clusters=4).require(1, 4)
    with pytest.raises(ValueError, match="3 clients cannot fill 4 clusters"):
        Clustered(clusters=4).require(3, 3)
    with pytest.raises(ValueError, match="3 clients cannot fill 4 clusters"):
        Clustered(clusters=4).init(5, np.ones(3))


#: What each rule has clients measure.
ASKED = [
    (FedCurv(), (Ask("fisher"),)),
    (Focus(), (Ask("losses"),)),
    (Clustered(), (Ask("scores"),)),
    (Clustered(assignment="known"), ()),
    (Pens(), (Ask("scores", sample=5, rounds=10),)),
    (Pens(phase_one=3, sample=7), (Ask("scores", sample=7, rounds=3),)),
    *((rule, ()) for rule, _ in LEAST if not isinstance(rule, FedCurv | Focus | Clustered | Pens)),
]
UPLOADS = {
    "fisher": ("fisher", "fisher_theta"),
    "losses": ("benchmark_loss", "global_loss"),
    "scores": ("scores",),
}


@pytest.mark.parametrize(("rule", "asked"), ASKED, ids=[repr(rule) for rule, _ in ASKED])
def test_a_rule_says_what_clients_are_to_measure(rule, asked, cohort):
    assert rule.probes == asked
    assert Screened(rule).probes == asked
    if isinstance(rule, FedCurv | Focus):
        assert rule.reads == ("update", *(name for ask in asked for name in UPLOADS[ask.kind]))
        assert Compensated(rule).probes == asked


def test_what_a_rule_asks_for_it_cannot_do_without(cohort):
    """And where its options ask for nothing it does without."""
    for rule, asked in ASKED:
        if not isinstance(rule, FedCurv | Focus | Clustered | Pens):
            continue
        context = replace(
            cohort(clients=[0, 1, 2], federation=4),
            models=torch.zeros(rule.models(4), 5, dtype=torch.float64),
        )
        state = rule.init(5, context.client_samples)
        if rule.knowledge:
            state = rule.with_clusters(state, [0, 1, 2, 0])
        alone = {"update": torch.ones(3, 5, dtype=torch.float64)}
        if asked:
            with pytest.raises(ValueError, match=f"upload '({'|'.join(UPLOADS[asked[0].kind])})'"):
                rule(alone, context, state)
        else:
            rule(alone, context, state)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ()),
        ({"assignment": "known"}, ("clusters",)),
        ({"partials": 2, "nearness": "labels"}, ("labels",)),
        ({"partials": 2, "nearness": "labels", "assignment": "known"}, ("clusters", "labels")),
        ({"nearness": "labels"}, ()),
        ({"partials": 2}, ()),
    ],
)
def test_clusters_say_what_they_are_told_beforehand(options, told):
    """And in their state nothing else is missing, and nothing else is kept."""
    rule = Clustered(clusters=3, **options)
    assert rule.knowledge == told
    fresh = rule.init(4, np.ones(5))
    assert ("labels" in rule.with_labels(fresh, np.eye(5, 3))) == ("labels" in told)
    assert ((fresh["assignment"] < 0).all()) == ("clusters" in told)


def test_most_rules_are_told_nothing():
    for rule, _ in LEAST:
        assert rule.knowledge == (), rule


def test_a_rule_of_ones_own_asks_for_nothing_unless_it_says_so():
    class Own(StatelessRule):
        def __call__(self, uploads, context, state):
            raise NotImplementedError

    assert isinstance(Own(), Rule)
    assert (Own().probes, Own().knowledge) == ((), ())
    Own().require(1, 1)
