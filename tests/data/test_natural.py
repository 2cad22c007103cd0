"""Natural clients: every value of a column is a client, and whoever is too small is counted."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedsdg.data.datasets import Column, image_data, load_dataset
from fedsdg.data.partition import (
    GLOBAL_TEST,
    LEFT_OUT,
    PartitionSpec,
    parse_skew,
    partition_clients,
    read_partition,
    write_partition,
)
from fedsdg.rng import stream

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data():
    """600 samples of 19 writers, of whom some have few and one just enough; a fifth is the test."""
    generator = np.random.default_rng(0)
    counts = [70, 60, 50, 45, 40, 35, 30, 28, 25, 20, 15, 13, 12, 11, 9, 8, 4, 3, 1]
    training = generator.permutation([*np.repeat(np.arange(19), counts), -1])
    writer = np.concatenate([training, generator.integers(0, 19, 120)])
    test = np.arange(600) >= 480
    return image_data(
        "letters",
        generator.integers(0, 256, (600, 4, 4), dtype=np.uint8),
        generator.integers(0, 5, 600),
        5,
        test,
        classes=tuple("abcde"),
        columns={"writer": Column(writer, tuple(f"w{i:02d}" for i in range(24)))},
    )


def divided(data, clients, seed=0, least=12, skew="column~writer"):
    return partition_clients(
        data,
        num_clients=clients,
        skew=parse_skew(skew),
        seed=seed,
        spec=PartitionSpec(min_samples=least),
        generator=stream("partition", seed),
    )


def held(data):
    """Writer -> training samples, counted one by one."""
    column = data.columns["writer"]
    shared = zip(column.codes, data.official_test, strict=True)
    return Counter(column.names[code] for code, test in shared if not test and code >= 0)


def test_every_large_enough_writer_is_a_client_and_the_others_are_counted(data):
    counts = held(data)
    able = sorted(name for name, count in counts.items() if count >= 12)
    assert 3 < len(able) < len(counts), "the test would show nothing"
    made = divided(data, len(able))
    assert made.natural.names == tuple(able)
    assert made.sizes().sum(1).tolist() == [counts[name] for name in able]
    column = data.columns["writer"]
    for sample in range(600):
        name = column.names[column.codes[sample]] if column.codes[sample] >= 0 else None
        if data.official_test[sample]:
            assert made.client[sample] == -1 and made.split[sample] == GLOBAL_TEST
        elif name in able:
            assert made.natural.names[made.client[sample]] == name
            assert made.split[sample] < GLOBAL_TEST
        else:
            assert made.client[sample] == -1 and made.split[sample] == LEFT_OUT
    assert made.natural.too_small == len(counts) - len(able)
    assert made.natural.not_drawn == 0
    assert made.natural.samples_left_out == (made.split == LEFT_OUT).sum()
    small = sum(count for count in counts.values() if count < 12)
    assert made.natural.samples_left_out == small + 1, "and the sample without a writer"
    assert np.array_equal(made.global_test(), np.flatnonzero(data.official_test))
    # Whose client a writer is does not depend on the seed, what it trains on does.
    other = divided(data, len(able), seed=1)
    assert np.array_equal(other.client, made.client) and (other.split != made.split).any()


def test_fewer_clients_than_there_are_get_drawn(data):
    able = sorted(name for name, count in held(data).items() if count >= 12)
    made = divided(data, 4)
    assert len(made.natural.names) == 4 and set(made.natural.names) < set(able)
    assert list(made.natural.names) == sorted(made.natural.names)
    assert made.natural.not_drawn == len(able) - 4
    drawn = Counter(name for seed in range(60) for name in divided(data, 4, seed).natural.names)
    assert set(drawn) == set(able)
    # Each with probability 4/len(able), 60 times: five standard deviations at most.
    p = 4 / len(able)
    assert all(abs(n - 60 * p) < 5 * np.sqrt(60 * p * (1 - p)) for n in drawn.values())


def test_the_record_holds_clients_classes_and_what_was_left_out(data, tmp_path):
    made = divided(data, 4)
    file = tmp_path / "p.parquet"
    write_partition(made, file)
    again = read_partition(file)
    assert again.natural == made.natural and again.classes == tuple("abcde")
    assert np.array_equal(again.split, made.split) and again.sha256 == made.sha256
    assert set(pq.read_table(file).column("split").to_pylist()) == {
        "train",
        "val",
        "test",
        "global_test",
        "left_out",
    }


def test_what_cannot_be_divided_is_refused(data):
    able = sum(count >= 12 for count in held(data).values())
    with pytest.raises(ValueError, match=rf"only {able} of .* set federation.clients to all"):
        divided(data, able + 1)
    with pytest.raises(ValueError, match="no column 'writers'.*its columns are 'writer'"):
        divided(data, 4, skew="column~writers")
    with pytest.raises(ValueError, match="'digits' has no column 'writer'.*columns are none"):
        divided(load_dataset("digits"), 4)
    for text in ("column~", "column~a b", "column~a/b", "column~a@b"):
        with pytest.raises(ValueError, match=r"rename the column|unknown skew"):
            parse_skew(text)
    assert parse_skew("column~writer_id.2").value == "writer_id.2"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "results/reference").glob("*/partitions/digits*/*/*/*.parquet"))
)
def test_partitions_of_the_record_keep_their_bytes(file, tmp_path):
    """What came for data of one's own changes no partition that was published."""
    published = read_partition(file)
    made = partition_clients(
        load_dataset(published.dataset),
        num_clients=published.num_clients,
        skew=parse_skew(published.skew),
        seed=published.seed,
        spec=published.spec,
        generator=stream("partition", published.seed),
    )
    assert made.sha256 == published.sha256
    write_partition(made, tmp_path / "p.parquet")
    with pq.ParquetFile(file) as one, pq.ParquetFile(tmp_path / "p.parquet") as other:
        same_library = one.metadata.created_by == other.metadata.created_by
    assert not same_library or os.path.getsize(file) == os.path.getsize(tmp_path / "p.parquet")
    assert not same_library or file.read_bytes() == (tmp_path / "p.parquet").read_bytes()
