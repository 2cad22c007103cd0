"""Partitions: invariants for any data, golden hashes, files and their faults."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.datasets import Column, ImageData, global_test_set
from fedsdg.data.partition import PartitionSettings, partition_clients, split_sizes
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.data.reading import load
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import built_in

TRAIN, VAL, TEST, GLOBAL_TEST, LEFT_OUT = range(5)
RECORDS = Path(__file__).parents[2] / "results" / "reference"
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def labelled(labels, **given):
    labels = np.asarray(labels)
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1)
    return ImageData("any", images, labels, int(labels.max()) + 1, **given)


def partition(data, skew, clients=20, seed=0, **given):
    return partition_clients(data, clients, parse_skew(skew), seed, PartitionSettings(**given))


@pytest.fixture(scope="module")
def digits():
    return load(built_in("digits"))


# --- Invariants -----------------------------------------------------------------------------------

TESTS = st.sampled_from(["fixed", "by-seed"])
SKEWS = st.sampled_from(["iid", "dirichlet~0.1", "dirichlet~1.0", "quantity~0.5", "classes~2"])


DATA = st.lists(st.integers(0, 5), min_size=2, max_size=250).map(labelled)


@settings(max_examples=150)
@given(DATA, SKEWS, st.integers(1, 6), st.integers(0, 9), TESTS)
def test_every_sample_belongs_to_one_split_of_one_client(data, skew, clients, seed, test):
    given = {"min_samples": 6, "min_test": 2, "retries": 20, "test": test}
    try:
        made = partition(data, skew, clients, seed, **given)
    except ValueError as error:
        assert "fewer clients" in str(error) or "numbers of clients" in str(error)
        return
    global_test = made.split == GLOBAL_TEST
    assert ((made.client == -1) == global_test).all() and (made.client < clients).all()
    assert np.array_equal(made.label, data.labels)
    # A fifth is set aside, less what classes of one image cannot give.
    n, single = len(data.labels), (np.bincount(data.labels) == 1).sum()
    assert n / 5 - single - 1 <= global_test.sum() <= n / 5 + 1
    sizes = made.counts(made.split, 3)
    assert sizes.sum() + global_test.sum() == n
    classes = made.counts(made.label, data.num_classes)
    for k in range(clients):
        held = [made.shards(split)[k] for split in (TRAIN, VAL, TEST)]
        total = sum(map(len, held))
        expected = split_sizes(total, 2)
        assert total >= 6 and sizes[k].tolist() == [len(shard) for shard in held]
        assert (len(held[2]), len(held[1])) == expected and (np.diff(held[0]) > 0).all()
        merged = np.concatenate(held)
        assert (made.client[merged] == k).all()
        assert np.array_equal(
            np.bincount(data.labels[merged], minlength=len(classes[k])), classes[k]
        )
    other = partition(data, "iid", 1, seed + 1, **given)
    assert test == "by-seed" or np.array_equal(other.global_test(), made.global_test())
    # A client of several training samples can exchange one, so that it trains on every class.
    assert other.untrained_classes() == [] or (other.split == TRAIN).sum() < data.num_classes


def test_split_sizes_by_hand():
    sizes = [split_sizes(count, 3) for count in (5, 12, 15, 25, 100)]
    assert sizes == [(3, 1), (4, 2), (4, 3), (8, 5), (30, 20)]


@pytest.mark.parametrize("test", ["fixed", "by-seed"])
def test_a_class_of_one_image_is_trained_on_by_exchange(test):
    labels = np.repeat(np.arange(8), [40, 40, 1, 1, 1, 1, 1, 1])
    for seed in range(10):
        made = partition(labelled(labels), "iid", 4, seed, test=test)
        assert made.untrained_classes() == [] and max(labels[made.global_test()]) == 1


def test_the_global_test_set_depends_on_the_labels_alone(digits):
    chosen = global_test_set(digits.labels, digits.test)
    assert len(chosen) == 360
    for skew, seed in (("iid", 0), ("dirichlet~0.3", 5)):
        assert np.array_equal(partition(digits, skew, seed=seed).global_test(), chosen)
    by_seed = [partition(digits, "iid", seed=s, test="by-seed").global_test() for s in (0, 1)]
    assert not np.array_equal(*by_seed)
    own = np.arange(100) >= 80
    for kind in ("fixed", "by-seed"):
        made = partition(labelled(np.arange(100) % 3, test=own), "iid", 4, test=kind)
        assert np.array_equal(made.global_test(), np.arange(80, 100))


@pytest.mark.parametrize("key", GOLDEN)
def test_partitions_are_those_of_the_first_edition(digits, key):
    skew, seed, test = key.split()
    assert partition(digits, skew, seed=int(seed), test=test).sha256[:16] == GOLDEN[key]


def test_committed_partitions_are_read_and_made_again_to_the_byte(digits, tmp_path):
    files = sorted(RECORDS.glob("*/partitions/**/*.parquet"))
    for file in files:
        facts = read_partition(file).facts
        if facts["dataset"] == "digits":
            given = {name: facts[name] for name in ("min_samples", "min_test", "retries")}
            given["test"] = facts.get("test", "by-seed")
            made = partition(digits, facts["skew"], facts["num_clients"], facts["seed"], **given)
            write_partition(made, tmp_path / "made.parquet")
            assert (tmp_path / "made.parquet").read_bytes() == file.read_bytes()
    assert len(files) > 10


# --- Natural clients ------------------------------------------------------------------------------


def written(sizes, empty=0):
    codes = np.repeat(np.arange(-1, len(sizes)), [empty, *sizes])
    names = tuple(f"w{k}" for k in range(len(sizes)))
    test = np.arange(len(codes)) % 5 == 0
    return labelled(np.arange(len(codes)) % 3, test=test, columns={"writer": Column(codes, names)})


def test_values_of_a_column_are_clients_in_their_order():
    data = written([40, 5, 30, 50], empty=20)
    made = partition(data, "column~writer", 3)
    natural = {"names": ["w0", "w2", "w3"], "too_small": 1, "not_drawn": 0, "samples_left_out": 20}
    assert made.facts["natural"] == natural
    codes = data.columns["writer"].codes
    for k, code in enumerate((0, 2, 3)):
        mine = codes[made.client == k]
        assert (mine == code).all() and len(mine) == 0.8 * [40, 30, 50][k]
    left = (made.split == LEFT_OUT) & (made.client == -1)
    assert set(codes[left]) == {-1, 1} and not data.test[left].any()


def test_fewer_clients_than_values_are_drawn_by_seed():
    data = written([40] * 8)
    natural = [partition(data, "column~writer", 3, seed).facts["natural"] for seed in range(6)]
    drawn = {tuple(facts["names"]) for facts in natural}
    assert len(drawn) > 1 and all(list(names) == sorted(names) for names in drawn)
    for column, clients, words in (("writer", 9, "only 8 values"), ("by", 2, "no column 'by'")):
        with pytest.raises(ValueError, match=words):
            partition(data, f"column~{column}", clients)


def test_classes_that_no_client_trains_on_are_named():
    codes = np.repeat([0, 1, 2], [40, 40, 4])
    labels = np.where(codes == 2, 2, np.arange(84) % 2)
    columns = {"by": Column(codes, ("x", "y", "z"))}
    made = partition(
        labelled(labels, classes=("cat", "dog", "eel"), columns=columns), "column~by", 2
    )
    assert made.untrained_classes() == ["eel"]


# --- Faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", ["iid", "dirichlet~0.0001", "quantity~0.001"])
def test_what_cannot_be_divided_is_refused(digits, skew):
    with pytest.raises(ValueError, match="at least 5"):
        PartitionSettings(min_samples=4, min_test=3)
    with pytest.raises(ValueError, match="1437 samples are too few for 130 clients of at least 12"):
        partition(digits, skew, 130)


@pytest.mark.parametrize("skew", ["dirichlet~0.0001", "quantity~0.001"])
def test_draws_that_never_suffice_are_given_up(digits, skew):
    with pytest.raises(ValueError, match="no draw of 201 gave each client 12 samples"):
        partition(digits, skew, 100)


@pytest.fixture
def stored(digits, tmp_path):
    made = partition(digits, "dirichlet~0.3")
    write_partition(made, tmp_path / "p.parquet")
    return made, tmp_path / "p.parquet"


def test_a_partition_is_read_as_it_was_written(stored, digits):
    made, file = stored
    known = read_partition(file, digits.sha256)
    for name in ("client", "split", "label"):
        assert np.array_equal(getattr(known, name), getattr(made, name))
    assert known.facts == made.facts and known.sha256 == made.sha256


CHANGES = {
    "client": lambda columns, facts: columns["client"].__setitem__(5, 3 - columns["client"][5] % 2),
    "split": lambda columns, facts: columns["split"].reverse(),
    "seed": lambda columns, facts: facts.update(seed=99),
    "no hash": lambda columns, facts: facts.pop("sha256"),
    "no column": lambda columns, facts: columns.pop("split"),
    "word": lambda columns, facts: columns["split"].__setitem__(5, "exam"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_altered_partition_is_refused(stored, change):
    table = pq.read_table(stored[1])
    columns = {name: table[name].to_pylist() for name in table.column_names}
    facts = json.loads(table.schema.metadata[b"fedsdg"])
    CHANGES[change](columns, facts)
    changed = type(table).from_pydict(columns)
    changed = changed.replace_schema_metadata({b"fedsdg": json.dumps(facts).encode()})
    pq.write_table(changed, stored[1])
    with pytest.raises(ValueError, match=r"p\.parquet is damaged .*: make it with .* again"):
        read_partition(stored[1])


def test_test_images_of_a_client_a_missing_partition_and_other_data(stored, tmp_path):
    made, file = stored
    made.client[made.global_test()[0]] = 2
    del made.__dict__["sha256"]
    write_partition(made, tmp_path / "leaking.parquet")
    with pytest.raises(ValueError, match="gives a client the global test set"):
        read_partition(tmp_path / "leaking.parquet")
    with pytest.raises(FileNotFoundError, match="fedsdg partition"):
        read_partition(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="made for other data"):
        read_partition(file, "0" * 64)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        read_partition(file)


# --- The server's own samples ---------------------------------------------------------------------


@pytest.mark.parametrize(("test", "source"), [("fixed", TRAIN), ("by-seed", GLOBAL_TEST)])
def test_a_benchmark_set_is_stratified_and_taken_out(digits, test, source):
    made = partition(digits, "dirichlet~0.3", test=test)
    chosen, rest = take_benchmark(made, 100, np.random.default_rng(0))
    assert len(chosen) == 100 and (made.split[chosen] == source).all()
    assert (rest.split[chosen] == LEFT_OUT).all() and (rest.client[chosen] == -1).all()
    assert np.abs(np.bincount(digits.labels[chosen]) - 10).max() <= 2
    for name in ("client", "split"):
        same = np.delete(getattr(rest, name) == getattr(made, name), chosen)
        assert same.all() and getattr(rest, name).dtype == getattr(made, name).dtype
    for size in (0, 5000):
        with pytest.raises(ValueError, match=f"benchmark_images is {size}"):
            take_benchmark(made, size, np.random.default_rng(0))


def test_a_benchmark_set_leaves_every_client_and_class_an_image_to_train_on():
    made = partition(labelled(np.repeat([0, 1, 2], [40, 40, 4])), "iid", 3)
    size = (made.split == TRAIN).sum() - 3
    _, rest = take_benchmark(made, int(size), np.random.default_rng(0))
    assert rest.untrained_classes() == [] and rest.counts(rest.split, 3)[:, 0].min() >= 1
