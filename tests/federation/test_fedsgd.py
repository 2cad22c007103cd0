"""FedSGD is FedAvg with one full batch: one step down the gradient of the pooled cohort."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Context
from fedsdg.federation.cohorts import cohort_batches
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.models.parameters import views
from tests.federation.cohort import train_cohort

SIZES = [3, 17, 8, 1, 16]
SGD = Sgd()


def shards():
    starts = np.cumsum([0, *SIZES])
    return [np.arange(starts[k], starts[k + 1]) for k in range(len(SIZES))]


def batches(batch_size, epochs=1):
    return cohort_batches(
        shards(), range(len(SIZES)), purpose="batches", seed=3, round_=2,
        batch_size=batch_size, epochs=epochs,
    )  # fmt: skip


def one_round(s, drawn, optimiser=SGD, clip=1e9):
    work = LocalWork(optimiser, 0.3, 0.0, 0.0, clip)
    m = len(SIZES)
    local = train_cohort(
        s.model, s.layout, s.samples, drawn, s.theta.expand(m, -1), s.private.expand(m, -1), work
    )
    sizes = np.array(SIZES)
    context = Context(1, np.arange(m), m, sizes, sum(SIZES), np.ones(m), sizes)
    return s.theta + Mean("samples")({"update": local.theta - s.theta}, context, {}).steps[0]


def test_a_whole_shard_is_one_batch():
    for own, shard in zip(batches(None), shards(), strict=True):
        assert len(own) == 1 and sorted(own[0].tolist()) == shard.tolist()


def test_fedsgd_is_one_step_down_the_gradient_of_the_pooled_cohort(setting):
    """Σ_k (n_k / n) ∇F_k is the gradient of the mean loss over all samples of the cohort."""
    s = setting()
    theta = s.theta[None].clone().requires_grad_()
    pooled = np.concatenate(shards())
    logits = s.model.logits(
        s.samples.images[pooled], [len(pooled)], views(theta, s.layout.communicated)
    )
    cross_entropy(logits, s.samples.labels[pooled]).backward()
    expected = s.theta - 0.3 * theta.grad[0]
    found = one_round(s, batches(None))
    assert float((found - expected).norm()) < 1e-9 * float((expected - s.theta).norm())


@pytest.mark.parametrize("clip", [1e9, 0.1])
def test_fedsgd_equals_fedavg_with_one_full_batch_sgd_step(setting, clip):
    """Bit for bit: FedAvg whose batches happen to hold a whole shard, clipped or not."""
    s = setting()
    assert torch.equal(one_round(s, batches(None), clip=clip), one_round(s, batches(17), clip=clip))
    several = one_round(s, batches(4), clip=clip)
    assert not torch.allclose(one_round(s, batches(None), clip=clip), several, rtol=1e-3)
