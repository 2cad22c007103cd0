"""Partitions: invariants for any data, golden hashes, files and their faults."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.next_data.benchmark_set import take_benchmark
from fedsdg.next_data.datasets import Column, ImageData, global_test_set
from fedsdg.next_data.partition import (
    GLOBAL_TEST,
    LEFT_OUT,
    TEST,
    TRAIN,
    VAL,
    PartitionSettings,
    partition_clients,
    split_sizes,
)
from fedsdg.next_data.partition_files import read_partition, write_partition
from fedsdg.next_data.reading import load
from fedsdg.next_data.skew import parse_skew
from fedsdg.next_data.sources import built_in

RECORDS = Path(__file__).parents[2] / "results" / "reference"


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

SKEWS = st.sampled_from(["iid", "dirichlet~0.1", "dirichlet~1.0", "quantity~0.5", "classes~2"])


@st.composite
def data_sets(draw):
    counts = draw(st.lists(st.integers(1, 60), min_size=2, max_size=6))
    labels = np.repeat(np.arange(len(counts)), counts)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(len(labels))
    return labelled(labels[order])


@settings(max_examples=150)
@given(
    data_sets(), SKEWS, st.integers(1, 6), st.integers(0, 9), st.sampled_from(["fixed", "by-seed"])
)
def test_every_sample_has_one_place(data, skew, clients, seed, test):
    given = {"min_samples": 6, "min_test": 2, "retries": 20, "test": test}
    try:
        made = partition(data, skew, clients, seed, **given)
    except ValueError as error:
        assert "fewer clients" in str(error) or "numbers of clients" in str(error)
        return
    global_test = made.split == GLOBAL_TEST
    assert ((made.client == -1) == global_test).all() and (made.client < clients).all()
    assert np.array_equal(made.label, data.labels) and not (made.split == LEFT_OUT).any()
    # A fifth is set aside, less what classes of one image cannot give.
    n, single = len(data.labels), (np.bincount(data.labels) == 1).sum()
    assert n / 5 - single - 1 <= global_test.sum() <= n / 5 + 1
    sizes = made.counts(made.split, 3)
    assert sizes.sum() + global_test.sum() == n and sizes.sum(axis=1).min() >= 6
    for k in range(clients):
        held = [made.shards(split)[k] for split in (TRAIN, VAL, TEST)]
        assert sizes[k].tolist() == [len(one) for one in held]
        total = sum(map(len, held))
        assert len(held[2]) == min(max(2, round(0.3 * total)), total - 2)
        assert len(held[0]) >= 1 and len(held[1]) >= 1
        merged = np.concatenate(held)
        assert (made.client[merged] == k).all() and (np.diff(held[0]) > 0).all()
        counts = np.bincount(data.labels[merged], minlength=data.num_classes)
        assert counts.tolist() == made.counts(made.label, data.num_classes)[k].tolist()
    again = partition(data, skew, clients, seed, **given)
    assert again.sha256 == made.sha256 == made.digest()
    other = partition(data, "iid", 1, seed + 1, **given)
    if test == "fixed":
        assert np.array_equal(other.global_test(), made.global_test())
    # The guard: every class is trained on, if exchanging two samples of a client can achieve it.
    exchangeable = (sizes[:, 0] > 1).all()
    if exchangeable and clients == 1:
        assert made.untrained_classes() == []


@settings(max_examples=60)
@given(st.integers(5, 400), st.integers(1, 5))
def test_a_client_always_trains_validates_and_tests(count, min_test):
    if count < min_test + 2:
        return
    test, val = split_sizes(count, min_test)
    assert test >= min_test and val >= 1 and count - test - val >= 1


@pytest.mark.parametrize(
    ("count", "expected"), [(12, (4, 2)), (5, (3, 1)), (100, (30, 20)), (15, (4, 3)), (25, (8, 5))]
)
def test_split_sizes_by_hand(count, expected):
    assert split_sizes(count, 3) == expected


def test_a_class_of_one_image_is_trained_on_by_exchange():
    labels = np.repeat(np.arange(8), [40, 40, 1, 1, 1, 1, 1, 1])
    for seed in range(10):
        for test in ("fixed", "by-seed"):
            made = partition(labelled(labels), "iid", 4, seed, test=test)
            assert set(labels[made.split == TRAIN]) == set(range(8))
            assert set(labels[made.global_test()]) == {0, 1}


def test_the_global_test_set_is_stratified_and_depends_on_the_labels_alone(digits):
    chosen = global_test_set(digits.labels, digits.test)
    assert len(chosen) == 360
    counts = np.bincount(digits.labels)
    shares = np.bincount(digits.labels[chosen]) / counts
    assert np.abs(shares - 0.2).max() < 1 / counts.min()
    for skew, seed in (("iid", 0), ("dirichlet~0.3", 5)):
        assert np.array_equal(partition(digits, skew, seed=seed).global_test(), chosen)
    others = {
        partition(digits, "iid", seed=s, test="by-seed").global_test().tobytes() for s in (0, 1)
    }
    assert len(others) == 2


def test_a_test_split_is_the_global_test_set():
    test = np.arange(100) >= 80
    for kind in ("fixed", "by-seed"):
        made = partition(labelled(np.arange(100) % 3, test=test), "iid", 4, test=kind)
        assert np.array_equal(made.global_test(), np.arange(80, 100))


# --- Golden ---------------------------------------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("skew", sorted({key.split()[0] for key in GOLDEN}))
def test_partitions_are_those_of_the_record(digits, skew):
    for key, sha256 in GOLDEN.items():
        kind, seed, test = key.split()
        if kind == skew:
            assert partition(digits, skew, seed=int(seed), test=test).sha256[:16] == sha256


def test_committed_partitions_are_read_and_made_again_to_the_byte(digits, tmp_path):
    files = sorted(RECORDS.glob("*/partitions/**/*.parquet"))
    for file in files:
        known = read_partition(file)
        facts = known.facts
        if facts["dataset"] == "digits":
            names = ("min_samples", "min_test", "retries")
            given = {name: facts[name] for name in names} | {"test": facts.get("test", "by-seed")}
            made = partition(digits, facts["skew"], known.num_clients, facts["seed"], **given)
            write_partition(made, tmp_path / "made.parquet")
            assert (tmp_path / "made.parquet").read_bytes() == file.read_bytes()
    assert len(files) > 20


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
    for k, code in enumerate((0, 2, 3)):
        mine = data.columns["writer"].codes[made.client == k]
        assert (mine == code).all() and len(mine) == 0.8 * [40, 30, 50][k]
    left = (made.split == LEFT_OUT) & (made.client == -1)
    assert set(data.columns["writer"].codes[left]) == {-1, 1} and not data.test[left].any()


def test_fewer_clients_than_values_are_drawn_by_seed():
    data = written([40] * 8)
    drawn = [
        tuple(partition(data, "column~writer", 3, s).facts["natural"]["names"]) for s in range(6)
    ]
    assert len(set(drawn)) > 1 and all(list(names) == sorted(names) for names in drawn)
    with pytest.raises(ValueError, match="only 8 values"):
        partition(data, "column~writer", 9)
    with pytest.raises(ValueError, match="no column 'author'"):
        partition(data, "column~author", 2)


def test_classes_that_no_client_trains_on_are_named():
    codes = np.repeat([0, 1, 2], [40, 40, 4])
    labels = np.where(codes == 2, 2, np.arange(84) % 2)
    classes = ("cat", "dog", "eel")
    data = labelled(labels, classes=classes, columns={"by": Column(codes, ("x", "y", "z"))})
    assert partition(data, "column~by", 2).untrained_classes() == ["eel"]
    assert partition(data, "column~by", 2).facts["classes"] == list(classes)


# --- Faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "clients", "words"),
    [
        ("iid", 200, "fewer clients"),
        ("dirichlet~0.0001", 20, "best left one with 0"),
        ("quantity~0.001", 20, "less skew"),
        ("classes~11", 20, "cannot share 10 classes"),
        ("classes~2", 4, "cannot share 10 classes"),
    ],
)
def test_what_cannot_be_divided_is_refused(digits, skew, clients, words):
    with pytest.raises(ValueError, match=words):
        partition(digits, skew, clients)


def test_settings_leave_room_for_three_splits():
    with pytest.raises(ValueError, match="at least min_test"):
        PartitionSettings(min_samples=4, min_test=3)


# --- Files ----------------------------------------------------------------------------------------


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
    table = pq.read_table(file).to_pandas()
    assert table["split"].value_counts()["global_test"] == 360
    metadata = json.loads(pq.read_schema(file).metadata[b"fedsdg"])
    assert metadata["sizes"] == made.counts(made.split, 3).tolist()


def altered(file, change):
    """Write the table of a partition again, after a change to its columns or its metadata."""
    table = pq.read_table(file)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    facts = json.loads(table.schema.metadata[b"fedsdg"])
    change(columns, facts)
    found = type(table).from_pydict(columns)
    found = found.replace_schema_metadata({b"fedsdg": json.dumps(facts).encode()})
    pq.write_table(found, file)


def to_client_2(columns, facts):
    sample = columns["split"].index("global_test")
    columns["client"][sample] = 2


CHANGES = {
    "client": lambda columns, facts: columns["client"].__setitem__(5, 3 - columns["client"][5] % 2),
    "label": lambda columns, facts: columns["label"].__setitem__(5, 9 - columns["label"][5]),
    "split": lambda columns, facts: columns["split"].reverse(),
    "null": lambda columns, facts: columns["client"].__setitem__(5, None),
    "seed": lambda columns, facts: facts.update(seed=99),
    "sizes": lambda columns, facts: facts["sizes"][0].reverse(),
    "no hash": lambda columns, facts: facts.pop("sha256"),
    "no column": lambda columns, facts: columns.pop("split"),
    "word": lambda columns, facts: columns["split"].__setitem__(5, "exam"),
    "global test": to_client_2,
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_altered_partition_is_refused(stored, change):
    altered(stored[1], CHANGES[change])
    with pytest.raises(ValueError, match=r"p\.parquet is damaged .*: make it with .* again"):
        read_partition(stored[1])


@pytest.mark.parametrize("keep", [0, 100, -8])
def test_a_truncated_partition_is_refused(stored, keep):
    stored[1].write_bytes(stored[1].read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged"):
        read_partition(stored[1])


def test_a_missing_partition_and_other_data(stored, tmp_path):
    with pytest.raises(FileNotFoundError, match="fedsdg partition"):
        read_partition(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="made for other data"):
        read_partition(stored[1], "0" * 64)


# --- The server's own samples ---------------------------------------------------------------------


@pytest.mark.parametrize(("test", "source"), [("fixed", TRAIN), ("by-seed", GLOBAL_TEST)])
def test_a_benchmark_set_is_stratified_and_taken_out(digits, test, source):
    made = partition(digits, "dirichlet~0.3", test=test)
    chosen, rest = take_benchmark(made, 100, np.random.default_rng(0))
    assert len(chosen) == 100 and (made.split[chosen] == source).all()
    assert (rest.split[chosen] == LEFT_OUT).all() and (rest.client[chosen] == -1).all()
    assert np.abs(np.bincount(digits.labels[chosen]) - 10).max() <= 2
    assert rest.sha256 == made.sha256 and (np.delete(rest.split, chosen) < LEFT_OUT).all()
    assert rest.counts(rest.split, 3)[:, 0].min() >= 1
    for size in (0, 5000):
        with pytest.raises(ValueError, match=f"benchmark_images is {size}"):
            take_benchmark(made, size, np.random.default_rng(0))


def test_a_benchmark_set_leaves_every_client_and_class_an_image_to_train_on():
    made = partition(labelled(np.repeat([0, 1, 2], [40, 40, 4])), "iid", 3)
    size = (made.split == TRAIN).sum() - 3
    _, rest = take_benchmark(made, int(size), np.random.default_rng(0))
    assert rest.untrained_classes() == [] and rest.counts(rest.split, 3)[:, 0].min() >= 1
