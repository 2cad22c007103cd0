"""The deals against the closed forms of the Dirichlet and of an even deal."""

import numpy as np
import pytest

from fedsdg.data.allocation import (
    deal_classes,
    deal_dirichlet_per_class,
    deal_dirichlet_per_client,
    deal_domains,
    deal_iid,
    deal_quantity,
    mix,
)


def shares_of_one_class(num_clients, alpha, draws, size=1000, seed=0):
    """[draws, K] parts of a single class; its deal is one Dirichlet draw."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(size, dtype=np.int64)
    dealt = [deal_dirichlet_per_class(labels, num_clients, alpha, generator) for _ in range(draws)]
    return np.stack([np.bincount(d, minlength=num_clients) for d in dealt]) / size


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_per_class_has_the_moments_of_the_dirichlet(alpha):
    """E p = 1/K; Var p = (1/K)(1 − 1/K)/(Kα + 1); Cov = −Var/(K − 1)."""
    K, draws = 5, 2000
    shares = shares_of_one_class(K, alpha, draws)
    variance = (1 / K) * (1 - 1 / K) / (K * alpha + 1)
    # 5 standard errors for each client's mean; rounding to 1/1000 is far below.
    assert np.abs(shares.mean(axis=0) - 1 / K).max() < 5 * np.sqrt(variance / draws)
    # The standard error of a sample variance comes from the fourth moment; pooled over clients.
    deviations = (shares - 1 / K) ** 2
    error = deviations.std() / np.sqrt(draws)
    assert abs(deviations.mean() - variance) < 5 * error
    covariance = np.cov(shares.T)
    off_diagonal = covariance[~np.eye(K, dtype=bool)].mean()
    assert off_diagonal == pytest.approx(-variance / (K - 1), rel=0.15)


def test_larger_alpha_is_more_even():
    spread = [shares_of_one_class(10, alpha, 200).std() for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.01


def test_per_class_rounding_favours_no_client():
    """Even shares of few samples: every client expects n/K, wherever the cuts are rounded.

    A class of 27 gives each of 20 clients 1 or 2 samples (standard deviation 0.48), so the mean of
    40 sums over 10 classes has a standard deviation of 0.24.
    """
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 27)
    sizes = np.zeros(20)
    for _ in range(40):
        sizes += np.bincount(deal_dirichlet_per_class(labels, 20, 1e6, generator), minlength=20)
    assert np.abs(sizes / 40 - 13.5).max() < 1.2


def test_per_class_deals_classes_independently():
    labels = np.repeat([0, 1], 5000)
    generator = np.random.default_rng(1)
    products = []
    for _ in range(500):
        dealt = deal_dirichlet_per_class(labels, 4, 0.5, generator)
        a, b = (np.bincount(dealt[labels == c], minlength=4) / 5000 - 0.25 for c in (0, 1))
        products.append(a * b)
    mean, deviation = np.mean(products), np.std(products)
    assert abs(mean) < 5 * deviation / np.sqrt(np.size(products))


def test_tiny_alpha_gives_each_class_to_one_client():
    dealt = deal_dirichlet_per_class(
        np.repeat(np.arange(50), 20), 10, 1e-9, np.random.default_rng(0)
    )
    assert all(len(set(part)) == 1 for part in dealt.reshape(50, 20))


def test_per_client_sizes_are_equal_and_first_client_follows_the_dirichlet():
    """Pools are deep for one client: Var of its class shares = Dirichlet + multinomial noise."""
    C, per_class, alpha, draws = 4, 500, 0.5, 800
    labels = np.repeat(np.arange(C), per_class)
    generator = np.random.default_rng(0)
    # With K = 4 every client gets 500 = the depth of a pool, so the first one dealt is never
    # short of anything. Which one it is, is drawn; it is the one that determines the rest, so
    # read the order off a copy of the generator.
    first = []
    for _ in range(draws):
        probe = np.random.default_rng(0)
        probe.bit_generator.state = generator.bit_generator.state
        for c in range(C):
            probe.permutation(np.flatnonzero(labels == c))
        order = probe.permutation(4)
        dealt = deal_dirichlet_per_client(labels, 4, alpha, generator)
        assert np.array_equal(np.bincount(dealt), [500] * 4)
        first.append(np.bincount(labels[dealt == order[0]], minlength=C) / 500)
    shares = np.array(first)
    dirichlet = (1 / C) * (1 - 1 / C) / (C * alpha + 1)
    second = dirichlet + 1 / C**2
    variance = dirichlet + (1 / C - second) / 500
    deviations = (shares - 1 / C) ** 2
    assert abs(deviations.mean() - variance) < 5 * deviations.std() / np.sqrt(draws)


def test_per_client_uneven_sizes_differ_by_at_most_one():
    dealt = deal_dirichlet_per_client(np.arange(103) % 7, 10, 0.01, np.random.default_rng(0))
    sizes = np.bincount(dealt, minlength=10)
    assert sizes.sum() == 103
    assert sizes.max() - sizes.min() == 1


@pytest.mark.parametrize("n", [100, 103, 109])
def test_iid_sizes_differ_by_at_most_one(n):
    sizes = np.bincount(deal_iid(np.zeros(n), 10, np.random.default_rng(0)), minlength=10)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


def test_iid_ignores_the_order_of_samples():
    """Sorted labels, K = 10: a deal without shuffling would give every client one class."""
    labels = np.repeat(np.arange(10), 100)
    dealt = deal_iid(labels, 10, np.random.default_rng(0))
    table = np.zeros((10, 10))
    np.add.at(table, (dealt, labels), 1)
    # Hypergeometric: mean 10, standard deviation about 2.85.
    assert np.abs(table - 10).max() < 15


@pytest.mark.parametrize(("clients", "per_client"), [(10, 2), (7, 3), (20, 1), (13, 9), (4, 10)])
def test_classes_gives_exactly_that_many_and_shares_evenly(clients, per_client):
    labels = np.random.default_rng(3).permutation(np.arange(1003) % 10)
    dealt = deal_classes(labels, clients, per_client, np.random.default_rng(0))
    table = np.zeros((clients, 10), dtype=int)
    np.add.at(table, (dealt, labels), 1)
    assert table.sum() == 1003
    assert np.all((table > 0).sum(axis=1) == per_client)
    holders = (table > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for c in range(10):
        held = table[table[:, c] > 0, c]
        assert held.max() - held.min() <= 1


def test_classes_are_drawn():
    labels = np.arange(1000) % 10
    tables = [
        tuple(sorted(set(labels[deal_classes(labels, 10, 2, np.random.default_rng(s)) == 0])))
        for s in range(20)
    ]
    assert len(set(tables)) > 5


@pytest.mark.parametrize(
    ("clients", "per_client", "message"),
    [
        (10, 11, "only 10 classes"),
        (4, 2, "would be left over"),
        (600, 2, "fewer clients"),
    ],
)
def test_impossible_classes(clients, per_client, message):
    with pytest.raises(ValueError, match=message):
        deal_classes(np.arange(1000) % 10, clients, per_client, np.random.default_rng(0))


@pytest.mark.parametrize("beta", [0.1, 0.5, 2.0])
def test_quantity_has_the_moments_of_the_dirichlet(beta):
    """Sizes: E q = 1/K, Var q = (1/K)(1 − 1/K)/(Kβ + 1)."""
    K, draws, size = 5, 2000, 1000
    generator = np.random.default_rng(0)
    labels = np.zeros(size, dtype=np.int64)
    dealt = [deal_quantity(labels, K, beta, generator) for _ in range(draws)]
    shares = np.stack([np.bincount(d, minlength=K) for d in dealt]) / size
    variance = (1 / K) * (1 - 1 / K) / (K * beta + 1)
    assert np.abs(shares.mean(axis=0) - 1 / K).max() < 5 * np.sqrt(variance / draws)
    deviations = (shares - 1 / K) ** 2
    error = deviations.std() / np.sqrt(draws)
    assert abs(deviations.mean() - variance) < 5 * error


def test_quantity_leaves_classes_iid():
    """Per client and class χ² against the overall shares; it is about its degrees of freedom."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), [200, 400, 600, 800, 1000, 1000, 800, 600, 400, 200])
    expected = np.bincount(labels) / len(labels)
    found = []
    for _ in range(20):
        client = deal_quantity(labels, 6, 1.0, generator)
        for k in range(6):
            counts = np.bincount(labels[client == k], minlength=10)
            if counts.sum() >= 100:
                mean = expected * counts.sum()
                # Drawn without replacement: the variance is smaller by (1 − share).
                spread = mean * (1 - counts.sum() / len(labels))
                found.append(((counts - mean) ** 2 / spread).sum())
    assert np.mean(found) == pytest.approx(9, abs=5 * np.sqrt(2 * 9 / len(found)))


@pytest.mark.parametrize(("clients", "domains"), [(4, 4), (10, 4), (20, 3), (7, 1), (5, 2)])
def test_every_client_holds_one_domain_and_domains_have_equally_many_clients(clients, domains):
    generator = np.random.default_rng(1)
    domain = generator.permutation(np.repeat(np.arange(domains), 100 * np.arange(1, domains + 1)))
    client = deal_domains(domain, clients, generator)
    held = [np.unique(domain[client == k]) for k in range(clients)]
    assert [len(one) for one in held] == [1] * clients
    holders = np.bincount(np.concatenate(held), minlength=domains)
    assert holders.sum() == clients and holders.max() - holders.min() <= 1
    for d in range(domains):
        sizes = np.bincount(client[domain == d], minlength=clients)
        sizes = sizes[sizes > 0]
        assert len(sizes) == holders[d] and sizes.max() - sizes.min() <= 1


def test_which_client_gets_which_domain_is_drawn():
    domain = np.repeat([0, 1, 2], 50)
    first, extra = set(), set()
    for seed in range(20):
        client = deal_domains(domain, 4, np.random.default_rng(seed))
        first.add(int(domain[client == 0][0]))
        holders = [len(np.unique(client[domain == d])) for d in range(3)]
        extra.add(holders.index(2))
    assert first == extra == {0, 1, 2}


def test_fewer_clients_than_domains():
    with pytest.raises(ValueError, match="2 clients cannot hold 3 domains"):
        deal_domains(np.repeat([0, 1, 2], 50), 2, np.random.default_rng(0))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_mixed_deal_is_even_in_part_and_dirichlet_in_the_rest(share):
    """A client's part of a class is share/K + (1 − share) p_k, p ~ Dir(α): its moments follow."""
    K, draws, alpha, size = 5, 2000, 0.5, 1000
    generator = np.random.default_rng(2)
    labels = np.zeros(size, dtype=np.int64)

    def deal(others):
        assert len(others) == size - round(share * size)
        return deal_dirichlet_per_class(others, K, alpha, generator)

    dealt = [mix(labels, K, share, deal, generator) for _ in range(draws)]
    parts = np.stack([np.bincount(one, minlength=K) for one in dealt]) / size
    assert parts.min() >= share / K - 1 / size
    variance = (1 - share) ** 2 * (1 / K) * (1 - 1 / K) / (K * alpha + 1)
    assert np.abs(parts.mean(axis=0) - 1 / K).max() < 5 * np.sqrt(variance / draws)
    deviations = (parts - 1 / K) ** 2
    assert abs(deviations.mean() - variance) < 5 * deviations.std() / np.sqrt(draws)


def test_what_a_mixed_deal_gives_evenly_is_a_share_of_every_class():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    seen = []
    dealt = mix(
        labels,
        4,
        0.3,
        lambda others: seen.append(np.bincount(others).tolist()) or np.full(len(others), 9),
        np.random.default_rng(0),
    )
    assert seen == [[420, 210, 70]]
    even = np.bincount(dealt, minlength=10)
    assert even.tolist() == [75, 75, 75, 75, 0, 0, 0, 0, 0, 700]
