"""Files of partitions: what is written is read, byte for byte, or refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.data.datasets import image_data
from fedsdg.data.partition import (
    PartitionSpec,
    parse_skew,
    partition_clients,
    read_partition,
    write_partition,
)


@pytest.fixture
def partition():
    return make(0)


def make(seed, n=400, test="fixed"):
    labels = np.arange(n) % 10
    data = image_data("blank", np.zeros((n, 2, 2), dtype=np.uint8), labels, 10)
    return partition_clients(
        data,
        num_clients=5,
        skew=parse_skew("dirichlet~1.0"),
        seed=seed,
        spec=PartitionSpec(test=test),
        generator=np.random.default_rng(seed),
    )


@pytest.mark.parametrize("test", ["fixed", "by-seed"])
def test_round_trip(test, tmp_path):
    partition = make(0, test=test)
    path = tmp_path / "clients~5" / "dirichlet~1.0" / "seed=0.parquet"
    write_partition(partition, path)
    back = read_partition(path, expect_dataset_sha256=partition.dataset_sha256)
    for name in ("client", "split", "label"):
        ours, theirs = getattr(partition, name), getattr(back, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    assert back.facts() == partition.facts()
    assert back.spec == partition.spec and back.sha256 == partition.sha256
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_bytes_are_equal_for_equal_partitions_only(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_partition(make(seed), tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_others_can_read_it(partition, tmp_path):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    table = pq.read_table(path)
    assert table.column_names == ["sample", "label", "client", "split"]
    frame = table.to_pandas()
    assert set(frame["split"]) == {"train", "val", "test", "global_test"}
    facts = json.loads(table.schema.metadata[b"fedsdg"])
    assert facts["scheme"] == "per-class" and facts["retries"] == 200
    assert facts["attempts"] == partition.attempts and facts["fractions"] == [0.5, 0.2, 0.3]
    held = frame[frame["client"] >= 0]
    counted = held.groupby(["client", "split"], observed=False).size().unstack(fill_value=0)
    assert counted[["train", "val", "test"]].to_numpy().tolist() == facts["sizes"]
    by_class = held.groupby(["client", "label"]).size().unstack(fill_value=0)
    assert by_class.to_numpy().tolist() == facts["class_counts"]
    assert facts["sha256"] == partition.sha256


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="fedsdg partition"):
        read_partition(tmp_path / "no.parquet")


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1])
def test_truncated(partition, tmp_path, keep):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="truncated"):
        read_partition(path)


def test_any_flipped_byte_is_noticed_or_harmless(partition, tmp_path):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    content = bytearray(path.read_bytes())
    refused = 0
    positions = range(4, len(content), 37)
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            back = read_partition(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:  # padding, statistics and the like
            assert back.digest() == partition.digest()
    assert refused > len(positions) / 2


def rewrite(path, *, column=None, **facts):
    """Write a file of the right form with other content."""
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[b"fedsdg"]) | facts
    if column is not None:
        name, values = column
        table = table.set_column(table.column_names.index(name), name, values)
    table = table.replace_schema_metadata({b"fedsdg": json.dumps(metadata).encode()})
    pq.write_table(table, path)


def test_altered_client(partition, tmp_path):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    client = partition.client.copy()
    a, b = np.flatnonzero(client == 0)[0], np.flatnonzero(client == 1)[0]
    client[[a, b]] = client[[b, a]]
    rewrite(path, column=("client", pa.array(client)))
    with pytest.raises(ValueError, match="was altered"):
        read_partition(path)


@pytest.mark.parametrize(
    "facts",
    [{"seed": 7}, {"skew": "iid"}, {"sizes": []}, {"class_counts": []}, {"sha256": "0" * 64}],
)
def test_altered_facts(partition, tmp_path, facts):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    rewrite(path)
    read_partition(path)
    rewrite(path, **facts)
    with pytest.raises(ValueError, match="was altered"):
        read_partition(path)


def test_unordered_samples(partition, tmp_path):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    rewrite(path, column=("sample", pa.array(np.arange(400)[::-1].copy())))
    with pytest.raises(ValueError, match="not in order"):
        read_partition(path)


def test_other_data_set(partition, tmp_path):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    with pytest.raises(ValueError, match="made for another data set"):
        read_partition(path, expect_dataset_sha256="0" * 64)


def test_other_parquet(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ValueError, match="no partition"):
        read_partition(path)


def test_failed_write_leaves_the_old_file(partition, tmp_path, monkeypatch):
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    before = path.read_bytes()

    def break_off(table, where, **options):
        where.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", break_off)
    with pytest.raises(OSError, match="disk full"):
        write_partition(make(1), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_domains_of_clients_are_kept(tmp_path):
    domain = np.arange(400) % 3
    images, labels = np.zeros((400, 2, 2), dtype=np.uint8), np.arange(400) % 10
    data = image_data("blank", images, labels, 10, None, domain)
    generator = np.random.default_rng(0)
    partition = partition_clients(
        data,
        num_clients=5,
        skew=parse_skew("domains"),
        seed=0,
        spec=PartitionSpec(),
        generator=generator,
    )
    path = tmp_path / "p.parquet"
    write_partition(partition, path)
    back = read_partition(path)
    assert np.array_equal(back.client_domain, partition.client_domain)
    assert back.client_domain.dtype == partition.client_domain.dtype
    assert back.sha256 == back.digest()
    rewrite(path, client_domain=partition.client_domain[::-1].tolist())
    with pytest.raises(ValueError, match="was altered"):
        read_partition(path)


def test_a_partition_without_domains_keeps_the_hash_it_always_had():
    """Written down before there were domains or a fixed test set: old files are read, and old runs
    found."""
    partition = make(0, test="by-seed")
    assert not {"client_domain", "test"} & set(partition.facts())
    assert partition.sha256 == "0935637f976b8ec5f5d596b5312c25d2c9dff2660e81a7d66dc94a8ea2f56908"


@pytest.mark.parametrize("test", ["fixed", "by-seed"])
def test_an_image_of_the_global_test_set_belongs_to_no_client(test, tmp_path):
    """Of a file whose hash fits: it was not altered, but made so."""
    whole = make(0, test=test)
    client, sample = whole.client.copy(), whole.global_test()[3]
    client[sample] = 2
    path = tmp_path / "held.parquet"
    write_partition(whole, path)
    digest = replace(whole, client=client).digest()
    rewrite(path, column=("client", pa.array(client)), sha256=digest)
    with pytest.raises(ValueError, match=f"held.parquet gives sample {sample} .* client 2: delete"):
        read_partition(path)
