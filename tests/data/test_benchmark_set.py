"""The server's set is taken out of the global test set: nobody is judged on what it has seen."""

from dataclasses import replace

import numpy as np
import pytest

from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.datasets import load_dataset
from fedsdg.data.partition import PartitionSpec, parse_skew, partition_clients


@pytest.fixture(scope="module")
def partition():
    return partition_clients(
        load_dataset("digits"),
        num_clients=20,
        skew=parse_skew("dirichlet~0.3"),
        seed=0,
        spec=PartitionSpec(),
        generator=np.random.default_rng(0),
    )


@pytest.mark.parametrize("size", [1, 100, 358])
def test_it_is_disjoint_from_what_is_evaluated_and_from_all_clients(partition, size):
    chosen, left = take_benchmark(partition, size, np.random.default_rng(1))
    assert len(chosen) == size and len(left) == len(partition.global_test()) - size
    assert not np.intersect1d(chosen, left).size
    assert np.array_equal(np.sort(np.concatenate([chosen, left])), partition.global_test())
    assert (partition.client[chosen] == -1).all()
    assert (np.diff(chosen) > 0).all() and (np.diff(left) > 0).all()


def test_classes_are_in_proportion(partition):
    chosen, _ = take_benchmark(partition, 100, np.random.default_rng(1))
    everything = np.bincount(partition.label[partition.global_test()], minlength=10)
    counts = np.bincount(partition.label[chosen], minlength=10)
    assert np.abs(counts - 100 * everything / everything.sum()).max() < 1


def test_it_is_drawn_and_reproducible(partition):
    once, _ = take_benchmark(partition, 100, np.random.default_rng(1))
    again, _ = take_benchmark(partition, 100, np.random.default_rng(1))
    other, _ = take_benchmark(partition, 100, np.random.default_rng(2))
    assert np.array_equal(once, again) and not np.array_equal(once, other)


@pytest.mark.parametrize("size", [359, 1000])
def test_too_large(partition, size):
    with pytest.raises(ValueError, match=f"benchmark_images is {size}, but the global test set of"):
        take_benchmark(partition, size, np.random.default_rng(0))


def test_too_small(partition):
    with pytest.raises(ValueError, match="at least 1"):
        take_benchmark(partition, 0, np.random.default_rng(0))


def test_overlap_with_a_client(partition):
    client = partition.client.copy()
    shared = partition.global_test()[7]
    client[shared] = 3
    with pytest.raises(ValueError, match=f"sample {shared} .* belongs to client 3"):
        take_benchmark(replace(partition, client=client), 100, np.random.default_rng(0))
