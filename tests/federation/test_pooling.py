"""Shared samples are shared with all; the pool is gone through evenly, as a cohort would."""

from itertools import pairwise

import numpy as np
import pytest

from fedsdg.federation.cohorts import Shards, draw_cohort
from fedsdg.federation.pooling import Central, Pooling, SharedSamples, pooled_batches

SIZES = (7, 20, 13, 40)
STARTS = np.cumsum([0, *SIZES])
TRAIN = [np.arange(a, b) for a, b in pairwise(STARTS)]
SHARDS = Shards(TRAIN, TRAIN, TRAIN, np.arange(3))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_everybody_trains_on_its_own_samples_and_on_what_all_have_given(share):
    got = SharedSamples(share).shards(SHARDS, np.random.default_rng(0))
    pool = set.intersection(*(set(own.tolist()) for own in got.train)) if share else set()
    for own, before in zip(got.train, TRAIN, strict=True):
        assert set(own.tolist()) == set(before.tolist()) | pool
        assert len(pool & set(before.tolist())) == np.ceil(share * len(before))
    assert got.val is SHARDS.val and got.test is SHARDS.test


def test_what_is_given_away_is_known_beforehand():
    sizes, share = np.array(SIZES), 0.1
    told = SharedSamples(share).disclosed(sizes)
    got = SharedSamples(share).shards(SHARDS, np.random.default_rng(0))
    pool = set.intersection(*(set(own.tolist()) for own in got.train))
    given = [len(pool & set(own.tolist())) / len(own) for own in TRAIN]
    np.testing.assert_allclose(told, given)
    assert Pooling().disclosed(sizes) is None
    np.testing.assert_array_equal(Central().disclosed(sizes), 1)


def test_a_share_outside_0_and_1_is_refused():
    with pytest.raises(ValueError, match="^share is 1.5, but must be at most 1$"):
        SharedSamples(1.5)


@pytest.mark.parametrize("epochs, batch", [(1, 8), (3, 16), (2, None)])
def test_the_pool_is_gone_through_evenly_and_as_fast_as_a_cohort_would(epochs, batch):
    options = {"seed": 5, "clients_per_round": 2, "epochs": epochs, "batch_size": batch}
    taken = []
    for round_ in range(1, 12):
        batches = pooled_batches(TRAIN, round_=round_, **options)
        cohort = draw_cohort(5, round_, 4, 2)
        assert sum(map(len, batches)) == epochs * sum(SIZES[k] for k in cohort)
        assert all(len(one) == batch for one in batches[:-1])
        taken += np.concatenate(batches).tolist()
        counts = np.bincount(taken, minlength=sum(SIZES))
        assert counts.max() - counts.min() <= 1
    assert taken[: sum(SIZES)] != taken[sum(SIZES) : 2 * sum(SIZES)], "each time in a new order"
