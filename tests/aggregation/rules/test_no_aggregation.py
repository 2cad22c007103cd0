"""No aggregation moves nothing."""

import torch

from fedsdg.aggregation.rules.no_aggregation import NoAggregation


def test_the_step_is_zero(cohort):
    for uploads, d in [
        ({"update": torch.ones(3, 4)}, 4),
        ({"update": torch.ones(3, 0)}, 0),
        ({}, 0),
    ]:
        aggregate = NoAggregation()(uploads, cohort(3), {})
        assert torch.equal(aggregate.steps, torch.zeros(1, d))
        assert aggregate.weights is None
