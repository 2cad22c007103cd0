"""Domains change how a sample looks, never what it is; and every sample has one for good."""

import os

import numpy as np
import pytest

from fedsdg.data import domains, transforms
from fedsdg.data.datasets import DATASETS, image_data, load_dataset
from fedsdg.data.partition import PartitionSpec, parse_skew, partition_clients

REAL = os.environ.get("FEDSDG_DATA")
PLAIN, ROTATED, THICK, NOISY = range(4)


@pytest.fixture(scope="module")
def pair():
    return load_dataset("digits"), load_dataset("digits_domains")


def test_every_class_is_spread_evenly_over_the_domains(pair):
    plain, shifted = pair
    assert np.array_equal(shifted.labels, plain.labels)
    assert shifted.images.shape == plain.images.shape and shifted.images.dtype == np.uint8
    table = np.zeros((10, 4), dtype=int)
    np.add.at(table, (shifted.labels, shifted.domain), 1)
    assert (table.max(axis=1) - table.min(axis=1) <= 1).all()
    assert len(DATASETS["digits_domains"].domains) == 4


def test_the_plain_domain_is_untouched_and_the_others_are_not(pair):
    plain, shifted = pair
    same = (plain.images == shifted.images).all(axis=(1, 2))
    assert np.array_equal(same, shifted.domain == PLAIN)


def test_it_is_the_same_every_time(pair):
    again = load_dataset("digits_domains")
    # The images that every record of this data set was made with.
    assert again.sha256.startswith("4eb58e776b153a21")
    assert np.array_equal(again.images, pair[1].images) and again.sha256 == pair[1].sha256


def test_strokes_only_gain_ink_beyond_rounding(pair):
    """Where at least half of the sub-pixels had ink, the pen has been."""
    plain, shifted = pair
    at = shifted.domain == THICK
    before, after = plain.images[at].astype(int), shifted.images[at].astype(int)
    assert after.sum() > 1.2 * before.sum()
    assert (after[before == 255] > 200).mean() > 0.99


def test_a_pen_widens_a_line_by_what_it_says():
    """A vertical line of one full pixel: 4 sub-pixels, and 1 more on each side."""
    image = np.zeros((1, 8, 8), dtype=np.uint8)
    image[0, :, 3:5] = 255
    widened = transforms.thick(image)[0].astype(float) / 255
    assert np.abs(widened[:, 2:6].sum(axis=1) - 2.5).max() < 0.01
    assert np.array_equal(widened[:, :2], np.zeros((8, 2)))


def test_rotation_turns_by_its_angle_and_keeps_the_centre():
    """The principal axis of a bar, from second moments."""
    image = np.zeros((1, 32, 32), dtype=np.uint8)
    image[0, 15:17, 6:26] = 255
    turned = transforms.rotated(image, domains.ROTATION)[0].astype(float)
    rows, columns = np.mgrid[:32, :32] - 15.5
    mass = turned.sum()
    assert (turned * rows).sum() / mass == pytest.approx(0, abs=0.1)
    assert (turned * columns).sum() / mass == pytest.approx(0, abs=0.1)
    # Rows count downwards, so counter-clockwise is negative.
    xx, yy = (turned * columns**2).sum(), (turned * rows**2).sum()
    xy = (turned * columns * -rows).sum()
    angle = np.degrees(0.5 * np.arctan2(2 * xy, xx - yy))
    assert angle == pytest.approx(domains.ROTATION, abs=1)


def test_noise_has_its_size(pair):
    """Among pixels of half ink, clipping at 0 and 1 is beyond two standard deviations."""
    plain, shifted = pair
    at = shifted.domain == NOISY
    middle = np.abs(plain.images[at] / 255 - 0.5) < 0.07
    added = (shifted.images[at] / 255.0 - plain.images[at] / 255.0)[middle]
    assert added.std() == pytest.approx(transforms.NOISE, rel=0.1)
    assert added.mean() == pytest.approx(0, abs=5 * transforms.NOISE / np.sqrt(len(added)))


def test_digits_stay_digits_and_domains_differ(pair):
    """A linear model learns each domain; one that learnt upright digits reads no turned ones."""
    from sklearn.linear_model import LogisticRegression

    data = pair[1]
    flat = data.images.reshape(len(data.images), -1) / 255
    half = np.arange(len(flat)) % 2 == 0
    score = np.empty((4, 4))
    for a in range(4):
        own = half & (data.domain == a)
        model = LogisticRegression(max_iter=500).fit(flat[own], data.labels[own])
        for b in range(4):
            others = ~half & (data.domain == b)
            score[a, b] = model.score(flat[others], data.labels[others])
    assert score.diagonal().min() > 0.8
    assert score[PLAIN, ROTATED] < 0.4 and score[ROTATED, PLAIN] < 0.4
    assert score[PLAIN, THICK] < score[PLAIN, PLAIN] and score[PLAIN, NOISY] < score[PLAIN, PLAIN]


def test_clients_of_the_skew_hold_one_domain_each(pair):
    data = pair[1]
    p = partition_clients(
        data,
        num_clients=20,
        skew=parse_skew("domains"),
        seed=0,
        spec=PartitionSpec(),
        generator=np.random.default_rng(0),
    )
    assert np.bincount(p.client_domain).tolist() == [5, 5, 5, 5]
    for k in range(20):
        assert (data.domain[p.client == k] == p.client_domain[k]).all()


def test_hash_covers_domains_and_their_absence():
    images, labels = np.zeros((4, 2, 2), dtype=np.uint8), np.array([0, 1, 2, 3])
    domain = np.array([0, 0, 1, 1])
    hashes = {
        image_data("x", images, labels, 4).sha256,
        image_data("x", images, labels, 4, None, domain).sha256,
        image_data("x", images, labels, 4, None, domain[::-1]).sha256,
        image_data("x", images, labels, 4, None, np.zeros(4, dtype=int)).sha256,
    }
    assert len(hashes) == 4


@pytest.mark.parametrize("domain", [[0, 1], [0, 1, -1, 0]])
def test_domains_must_be_one_per_sample(domain):
    images, labels = np.zeros((4, 2, 2), dtype=np.uint8), np.array([0, 1, 2, 3])
    with pytest.raises(ValueError, match="there must be one per sample, counted from 0"):
        image_data("x", images, labels, 4, None, np.array(domain))


def test_every_set_with_domains_has_a_maker():
    assert set(domains.MAKERS) == {name for name, spec in DATASETS.items() if spec.domains}


def test_without_its_parts_mnist_usps_says_which_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="FEDSDG_DATA"):
        load_dataset("mnist_usps")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="FEDSDG_DATA is not set: no real data sets at hand")
def test_mnist_and_usps_together():
    both, mnist, usps = (load_dataset(name) for name in ("mnist_usps", "mnist", "usps"))
    assert both.images.shape == (79_298, 28, 28)
    train = ~both.official_test
    assert train[:67_291].all() and not train[67_291:].any()
    for d, one in enumerate((mnist, usps)):
        at = both.domain == d
        assert np.array_equal(both.labels[at], one.labels)
        assert np.array_equal(both.official_test[at], one.official_test)
    assert np.array_equal(both.images[both.domain == 0], mnist.images)
    # Enlarging keeps the mean of an image, but for its edges.
    enlarged = both.images[both.domain == 1].mean(axis=(1, 2))
    assert np.abs(enlarged - usps.images.mean(axis=(1, 2))).mean() < 3
