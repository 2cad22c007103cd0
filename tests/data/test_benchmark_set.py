"""The server's set: nobody is judged on what it has seen, and no client trains on it."""

from dataclasses import replace

import numpy as np
import pytest

from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.datasets import load_dataset
from fedsdg.data.partition import (
    LEFT_OUT,
    TEST,
    TRAIN,
    VAL,
    PartitionSpec,
    parse_skew,
    partition_clients,
)

CLIENTS = 20


def make(test):
    return partition_clients(
        load_dataset("digits"),
        num_clients=CLIENTS,
        skew=parse_skew("dirichlet~0.3"),
        seed=0,
        spec=PartitionSpec(test=test),
        generator=np.random.default_rng(0),
    )


@pytest.fixture(scope="module")
def fixed():
    return make("fixed")


@pytest.fixture(scope="module")
def by_seed():
    return make("by-seed")


def spare(partition):
    """How many training samples clients can give away, each keeping one."""
    return int(partition.sizes()[:, TRAIN].sum()) - CLIENTS


def check_taken(before, chosen, after, size):
    """The set is nobody's any more; every other sample is where it was."""
    assert len(chosen) == size and (np.diff(chosen) > 0).all()
    assert (after.client[chosen] == -1).all() and (after.split[chosen] == LEFT_OUT).all()
    others = np.delete(np.arange(len(before.client)), chosen)
    assert np.array_equal(after.client[others], before.client[others])
    assert np.array_equal(after.split[others], before.split[others])


@pytest.mark.parametrize("size", [1, 100, None])
def test_fixed_it_comes_from_training_samples(fixed, size):
    size = size or spare(fixed)
    chosen, left = take_benchmark(fixed, size, np.random.default_rng(1))
    check_taken(fixed, chosen, left, size)
    assert (fixed.split[chosen] == TRAIN).all()
    assert np.array_equal(left.global_test(), fixed.global_test()), "the test set stays whole"
    for split in (TRAIN, VAL, TEST):
        shards = left.shards(split)
        assert not np.intersect1d(np.concatenate(shards), chosen).size
        assert min(map(len, shards)) >= 1
    assert left.shards(TRAIN)[3].tolist() == [
        i for i in fixed.shards(TRAIN)[3] if i not in set(chosen.tolist())
    ]


@pytest.mark.parametrize("size", [1, 100, 358])
def test_by_seed_it_comes_from_the_global_test_set(by_seed, size):
    chosen, left = take_benchmark(by_seed, size, np.random.default_rng(1))
    check_taken(by_seed, chosen, left, size)
    together = np.concatenate([chosen, left.global_test()])
    assert np.array_equal(np.sort(together), by_seed.global_test())


def test_classes_are_in_proportion(fixed, by_seed):
    for partition, pool, most in (
        # A client keeps one sample, of which ten classes differ by at most 20 of 718.
        (fixed, np.flatnonzero(fixed.split == TRAIN), 1 + 100 * CLIENTS / 718),
        (by_seed, by_seed.global_test(), 1),
    ):
        chosen, _ = take_benchmark(partition, 100, np.random.default_rng(1))
        everything = np.bincount(partition.label[pool], minlength=10)
        counts = np.bincount(partition.label[chosen], minlength=10)
        assert np.abs(counts - 100 * everything / everything.sum()).max() < most


def test_it_is_drawn_and_reproducible(fixed):
    once, _ = take_benchmark(fixed, 100, np.random.default_rng(1))
    again, _ = take_benchmark(fixed, 100, np.random.default_rng(1))
    other, _ = take_benchmark(fixed, 100, np.random.default_rng(2))
    assert np.array_equal(once, again) and not np.array_equal(once, other)


def test_too_large_for_the_clients(fixed):
    least = spare(fixed)
    with pytest.raises(
        ValueError, match=f"is {least + 1}, but the clients of digits can give away {least} "
    ):
        take_benchmark(fixed, least + 1, np.random.default_rng(0))


@pytest.mark.parametrize("size", [359, 1000])
def test_too_large_for_the_test_set(by_seed, size):
    with pytest.raises(ValueError, match=f"benchmark_images is {size}, but the global test set of"):
        take_benchmark(by_seed, size, np.random.default_rng(0))


def test_too_small(fixed):
    with pytest.raises(ValueError, match="at least 1"):
        take_benchmark(fixed, 0, np.random.default_rng(0))


def test_overlap_with_a_client(by_seed):
    client = by_seed.client.copy()
    shared = by_seed.global_test()[7]
    client[shared] = 3
    with pytest.raises(ValueError, match=f"sample {shared} .* belongs to client 3"):
        take_benchmark(replace(by_seed, client=client), 100, np.random.default_rng(0))
