"""A partition is a partition, whatever is asked; and it is the same one every time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.data.datasets import image_data, load_dataset
from fedsdg.data.partition import (
    GLOBAL_TEST,
    TEST,
    TRAIN,
    VAL,
    PartitionSpec,
    parse_skew,
    partition_clients,
    read_partition,
)
from fedsdg.data.partition import Partition as Partition
from fedsdg.data.partition_record import Partition as Record
from fedsdg.experiment.material import make_partition

RECORDS = Path(__file__).parents[2] / "results/reference"


def blank(labels, num_classes=10, official_test=None, name="blank"):
    labels = np.asarray(labels)
    images = np.zeros((len(labels), 2, 2), dtype=np.uint8)
    return image_data(name, images, labels, num_classes, official_test)


def make(data, clients, skew, seed=0, **spec):
    return partition_clients(
        data,
        num_clients=clients,
        skew=parse_skew(skew),
        seed=seed,
        spec=PartitionSpec(**spec),
        generator=np.random.default_rng(seed),
    )


def check_invariants(p, data):
    """Every sample in exactly one place, minima met, tables consistent with the indices."""
    places = [p.indices(k, s) for k in range(p.num_clients) for s in (TRAIN, VAL, TEST)]
    everywhere = np.concatenate([*places, p.global_test()])
    assert np.array_equal(np.sort(everywhere), np.arange(len(data.labels)))
    assert all(np.all(np.diff(part) > 0) for part in places)
    assert np.array_equal(p.client == -1, p.split == GLOBAL_TEST)
    assert p.client.dtype == np.int32 and p.split.dtype == np.int8
    sizes = p.sizes()
    assert sizes.tolist() == [
        [len(p.indices(k, s)) for s in (TRAIN, VAL, TEST)] for k in range(p.num_clients)
    ]
    assert sizes.sum(axis=1).min() >= p.spec.min_samples
    assert sizes[:, TEST].min() >= p.spec.min_test
    assert sizes[:, :2].min() >= 1
    for k, row in enumerate(p.class_counts()):
        mine = data.labels[p.client == k]
        assert row.tolist() == [int((mine == c).sum()) for c in range(data.num_classes)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 8),
    skew=st.sampled_from(
        ["dirichlet~0.5", "dirichlet~5.0", "mixed~0.5~0.5", "quantity~5.0", "classes~3", "iid"]
    ),
    scheme=st.sampled_from(["per-class", "per-client"]),
    classes=st.integers(3, 6),
    n=st.integers(200, 400),
    official=st.booleans(),
    min_test=st.integers(1, 5),
)
def test_partition_is_a_partition(seed, clients, skew, scheme, classes, n, official, min_test):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    flags = rng.random(n) < 0.3 if official else None
    data = blank(labels, classes, flags)
    if skew.startswith("classes") and clients * 3 < classes:
        skew = "iid"
    p = make(data, clients, skew, seed, scheme=scheme, min_samples=7, min_test=min_test)
    check_invariants(p, data)
    if flags is not None:
        assert np.array_equal(p.global_test(), np.flatnonzero(flags))


@pytest.mark.parametrize(
    "skew", ["dirichlet~0.1", "dirichlet~1.0", "mixed~0.5~0.1", "classes~2", "iid"]
)
@pytest.mark.parametrize("scheme", ["per-class", "per-client"])
def test_digits(skew, scheme):
    data = load_dataset("digits")
    p = make(data, 20, skew, scheme=scheme)
    check_invariants(p, data)
    assert 1 <= p.attempts <= 201
    assert (p.dataset, p.dataset_sha256, p.skew, p.num_clients) == (
        "digits",
        data.sha256,
        skew,
        20,
    )
    if skew == "classes~2":
        assert np.all((p.class_counts() > 0).sum(axis=1) == 2)
    assert p.client_domain is None
    if skew == "iid":
        totals = p.sizes().sum(axis=1)
        assert totals.max() - totals.min() <= 1


#: Requests that differ in everything but the data set.
DIGITS = (
    (20, "iid", 0, "per-class"),
    (20, "dirichlet~0.1", 1, "per-class"),
    (7, "classes~2", 2, "per-class"),
    (10, "dirichlet~0.3", 3, "per-client"),
    (5, "quantity~5.0", 101, "per-class"),
)


def test_fixed_test_set_of_the_digits():
    """360 images, the same for every seed, skew and number of clients, and in no client's shard."""
    data = load_dataset("digits")
    made = [make(data, k, skew, seed, scheme=scheme) for k, skew, seed, scheme in DIGITS]
    chosen = made[0].global_test()
    assert len(chosen) == len(set(chosen.tolist())) == 360
    counts = np.bincount(data.labels, minlength=10)
    assert np.abs(np.bincount(data.labels[chosen], minlength=10) - 360 * counts / 1797).max() < 1
    for p in made:
        check_invariants(p, data)
        assert np.array_equal(p.global_test(), chosen)
        shards = np.concatenate([p.indices(k, s) for k in range(p.num_clients) for s in range(3)])
        assert not np.intersect1d(shards, chosen).size
    assert not np.array_equal(made[0].client, make(data, 20, "iid", 1).client)


def test_fixed_test_set_follows_from_labels_and_domains_alone():
    labels, domain = np.arange(1003) % 7, np.arange(1003) % 3
    images = np.zeros((1003, 2, 2), dtype=np.uint8)
    one = image_data("one", images, labels, 7, None, domain)
    other = image_data("other", images + 1, labels, 7, None, domain)
    chosen = make(one, 5, "iid").global_test()
    assert np.array_equal(chosen, make(other, 6, "domains", 3).global_test())
    assert len(chosen) == 201, "a fifth of 1003 is 200.6, rounded up"
    assert not np.array_equal(chosen, make(blank(labels, 7), 5, "iid").global_test())
    both = domain * 7 + labels
    counts = np.bincount(both)
    assert np.abs(np.bincount(both[chosen]) - 201 * counts / 1003).max() < 1


def test_a_test_set_of_its_own_is_the_same_either_way():
    flags = np.arange(300) % 3 == 0
    data = blank(np.arange(300) % 10, official_test=flags)
    fixed, drawn = (make(data, 4, "iid", test=test) for test in ("fixed", "by-seed"))
    assert np.array_equal(fixed.global_test(), np.flatnonzero(flags))
    assert np.array_equal(fixed.client, drawn.client)
    assert np.array_equal(fixed.split, drawn.split)
    assert fixed.sha256 != drawn.sha256, "the hash says which test set was asked for"


def test_partitions_of_the_records_come_out_again():
    """Those from before there was a choice are by seed, bit for bit."""
    files = sorted(RECORDS.glob("*/partitions/digits*/**/*.parquet"))
    recorded = {one.sha256: one for one in map(read_partition, files)}
    for sha256, there in recorded.items():
        here = make_partition(there.dataset, there.skew, there.seed, there.num_clients, there.spec)
        assert here.sha256 == sha256, (there.dataset, there.skew, there.seed, there.num_clients)
    assert "by-seed" in {there.spec.test for there in recorded.values()}


def test_global_test_by_seed_is_a_stratified_fifth():
    data = load_dataset("digits")
    p = make(data, 5, "iid", test="by-seed")
    chosen = p.global_test()
    assert len(chosen) == round(0.2 * 1797)
    counts = np.bincount(data.labels, minlength=10)
    assert np.abs(np.bincount(data.labels[chosen], minlength=10) - 0.2 * counts).max() < 1
    # Counts per class follow from the data alone; the samples do not.
    other = make(data, 5, "iid", seed=1, test="by-seed").global_test()
    assert np.array_equal(np.bincount(data.labels[other]), np.bincount(data.labels[chosen]))
    assert not np.array_equal(other, chosen)


def test_largest_remainder_by_hand():
    """A quarter of 7, 7 and 6: quotas 1.75, 1.75 and 1.5, so the first two round up."""
    data = blank([0] * 7 + [1] * 7 + [2] * 6)
    p = make(data, 1, "iid", global_test=0.25)
    assert np.bincount(data.labels[p.global_test()]).tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (100, (50, 20, 30)),
        (12, (6, 2, 4)),
        (13, (6, 3, 4)),
        (1000, (500, 200, 300)),
        (5, (1, 1, 3)),
        (8, (3, 2, 3)),
    ],
)
def test_split_sizes_by_hand(count, expected):
    p = make(
        blank([0] * count + [0], official_test=np.arange(count + 1) == count),
        1,
        "iid",
        min_samples=5,
    )
    assert tuple(p.sizes()[0]) == expected


def test_other_fractions():
    data = blank([0] * 101, official_test=np.arange(101) == 0)
    assert tuple(make(data, 1, "iid", fractions=(0.6, 0.3, 0.1)).sizes()[0]) == (60, 30, 10)


@pytest.mark.parametrize(
    ("fractions", "count", "expected"),
    [
        ((0.65, 0.05, 0.3), 8, (4, 1, 3)),  # 0.4 of a validation sample
        ((0.05, 0.65, 0.3), 5, (1, 1, 3)),  # validation would take the last training sample
        ((0.05, 0.05, 0.9), 10, (1, 1, 8)),  # test would take both
    ],
)
def test_no_split_is_empty(fractions, count, expected):
    data = blank([0] * (count + 1), official_test=np.arange(count + 1) == 0)
    p = make(data, 1, "iid", fractions=fractions, min_samples=5)
    assert tuple(p.sizes()[0]) == expected


def test_splits_are_shuffled():
    data = blank(np.repeat(np.arange(10), 100), official_test=np.arange(1000) < 10)
    p = make(data, 1, "iid")
    # 495 training samples of 990: their mean index is 504.5 ± 13 in a random half.
    assert abs(p.indices(0, TRAIN).mean() - 504.5) < 70


def test_same_seed_same_partition_other_seed_another():
    data = load_dataset("digits")
    a, b, c = (make(data, 10, "dirichlet~0.3", seed) for seed in (0, 0, 1))
    assert a.sha256 == b.sha256 and np.array_equal(a.client, b.client)
    assert np.array_equal(a.split, b.split)
    assert a.sha256 != c.sha256 and not np.array_equal(a.client, c.client)


def test_digest_covers_every_field():
    import dataclasses

    p = make(blank(np.arange(300) % 10), 3, "iid")
    assert p.digest() == p.sha256
    moved = p.client.copy()
    moved[np.flatnonzero(moved == 0)[0]] = 1
    resplit = p.split.copy()
    resplit[np.flatnonzero(resplit == TRAIN)[0]] = VAL
    for change in (
        {"client": moved},
        {"split": resplit},
        {"label": p.label[::-1]},
        {"dataset": "other"},
        {"dataset_sha256": "0" * 64},
        {"skew": "classes~10"},
        {"num_clients": 4},
        {"seed": 9},
        {"attempts": 2},
        {"num_classes": 11},
        {"spec": PartitionSpec(retries=1)},
        {"spec": PartitionSpec(scheme="per-client")},
        {"spec": PartitionSpec(global_test=0.21)},
    ):
        assert dataclasses.replace(p, **change).digest() != p.sha256, change


def test_attempts_are_counted_and_bounded():
    data = load_dataset("digits")
    attempts = [make(data, 20, "dirichlet~0.1", seed).attempts for seed in range(5)]
    assert max(attempts) > 1
    seed = int(np.argmax(attempts))
    again = make(data, 20, "dirichlet~0.1", seed, retries=max(attempts) - 1)
    assert again.attempts == max(attempts)
    with pytest.raises(ValueError, match=rf"no draw of {max(attempts) - 1} gave"):
        make(data, 20, "dirichlet~0.1", seed, retries=max(attempts) - 2)


def test_hopeless_skew_says_what_to_change():
    with pytest.raises(ValueError, match=r"fewer clients, a larger α.*smaller min_samples"):
        make(load_dataset("digits"), 50, "dirichlet~0.05", retries=20)


def test_too_many_clients_is_said_at_once():
    """1437 samples are shared: 119 clients of 12 fit, 120 do not."""
    data = load_dataset("digits")
    check_invariants(make(data, 119, "iid"), data)
    with pytest.raises(ValueError, match="at most 119 clients"):
        make(data, 120, "iid")
    with pytest.raises(ValueError, match="at most 119 clients"):
        make(data, 120, "dirichlet~0.1")
    with pytest.raises(ValueError, match="at least 1"):
        make(data, 0, "iid")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "per-shard"}, "scheme is .*per-class, per-client"),
        ({"min_samples": 4}, "min_samples = 4 is too small"),
        ({"min_test": 0}, "min_test"),
        ({"retries": -1}, "retries"),
        ({"fractions": (0.5, 0.5, 0.5)}, "fractions"),
        ({"fractions": (0.7, 0.3, 0.0)}, "fractions"),
        ({"fractions": (0.5, 0.5)}, "fractions"),
        ({"global_test": 0.0}, "global_test"),
        ({"global_test": 1.0}, "global_test"),
    ],
)
def test_impossible_specifications(change, message):
    with pytest.raises(ValueError, match=message):
        PartitionSpec(**change)


def test_unknown_client():
    p = make(blank(np.arange(300) % 10), 3, "iid")
    with pytest.raises(ValueError, match="client 3 does not exist"):
        p.indices(3, TRAIN)
    with pytest.raises(ValueError, match="client -1 does not exist"):
        p.indices(-1, GLOBAL_TEST)


def test_schemes_differ():
    data = load_dataset("digits")
    a, b = (
        make(data, 10, "dirichlet~0.3", scheme=scheme) for scheme in ("per-class", "per-client")
    )
    totals = b.sizes().sum(axis=1)
    assert totals.max() - totals.min() <= 1
    assert np.ptp(a.sizes().sum(axis=1)) > 1


def test_one_door():
    assert Partition is Record


def with_domains(counts, classes=4, seed=0):
    """Samples in random order: ``counts[d]`` of domain d, classes in turn."""
    rng = np.random.default_rng(seed)
    domain = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    labels = rng.integers(classes, size=len(domain))
    images = np.zeros((len(labels), 2, 2), dtype=np.uint8)
    return image_data("blank", images, labels, classes, None, domain)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(3, 9))
def test_domains_are_disjoint_and_recorded(seed, clients):
    data = with_domains([150, 200, 400], seed=seed)
    p = make(data, clients, "domains", seed)
    check_invariants(p, data)
    assert p.client_domain.dtype == np.int64
    for k, d in enumerate(p.client_domain):
        assert set(data.domain[p.client == k].tolist()) == {d}
    counts = np.bincount(p.client_domain, minlength=3)
    assert counts.max() - counts.min() <= 1


def test_global_test_has_every_domain_and_class_in_proportion():
    data = with_domains([200, 200, 400])
    chosen = make(data, 6, "domains").global_test()
    cells = data.domain * 4 + data.labels
    counts = np.bincount(cells[chosen], minlength=12)
    assert np.abs(counts - 0.2 * np.bincount(cells, minlength=12)).max() < 1


def test_other_skews_mix_domains_and_record_none():
    data = with_domains([200, 200, 400])
    p = make(data, 6, "iid")
    check_invariants(p, data)
    assert p.client_domain is None
    assert "client_domain" not in p.facts()
    assert all(len(np.unique(data.domain[p.client == k])) == 3 for k in range(6))


def test_data_without_domains():
    with pytest.raises(ValueError, match="'blank' has no domains; use digits_domains"):
        make(blank(np.arange(200) % 4), 4, "domains")


def test_quantity_that_leaves_a_client_short_says_what_helps():
    with pytest.raises(ValueError, match=r"quantity~0\.1: no draw of 4 .*a larger β"):
        make(blank(np.arange(300) % 4), 20, "quantity~0.1", retries=3)


def test_a_mixed_skew_draws_again_until_everybody_has_enough_or_says_what_helps():
    labels = np.arange(600) % 3
    with pytest.raises(ValueError, match=r"mixed~0\.1~0\.1: no draw of 1 .*a larger share or α"):
        make(blank(labels), 20, "mixed~0.1~0.1", retries=0)
    found = [make(blank(labels), 20, "mixed~0.3~0.5", seed) for seed in range(6)]
    assert max(one.attempts for one in found) > 1
    for one in found:
        check_invariants(one, blank(labels))
