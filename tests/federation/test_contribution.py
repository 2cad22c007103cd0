"""Shapley values against the axioms that define them and against games solved on paper."""

from itertools import permutations

import numpy as np
import pytest

from fedsdg.federation.contribution import (
    MAX_PLAYERS,
    coalition_values,
    coalitions,
    shapley_values,
    truncated_monte_carlo,
)


def by_orders(players, utility):
    """The definition word for word: mean marginal gain over all n! orders."""
    phi, orders = np.zeros(players), list(permutations(range(players)))
    for order in orders:
        mask = np.zeros(players, bool)
        for player in order:
            before = utility(mask)
            mask[player] = True
            phi[player] += utility(mask) - before
    return phi / len(orders)


def exact(players, utility):
    return shapley_values(coalition_values(players, utility))


def random_game(players, seed):
    return np.random.default_rng(seed).normal(size=2**players)


def as_utility(values):
    return lambda mask: values[int((mask * 2 ** np.arange(len(mask))).sum())]


def glove(mask):
    """Players 0 and 1 own a left glove each, player 2 a right one; a pair is worth 1."""
    return float(min(mask[:2].sum(), mask[2]))


@pytest.mark.parametrize("players", [1, 2, 3, 6])
def test_equals_the_mean_over_all_orders(players):
    game = random_game(players, players)
    np.testing.assert_allclose(
        shapley_values(game), by_orders(players, as_utility(game)), atol=1e-12
    )


def test_coalitions_are_all_subsets_once():
    masks = coalitions(4)
    assert masks.shape == (16, 4) and len(np.unique(masks, axis=0)) == 16
    assert not masks[0].any() and masks[15].all()
    assert masks[0b0101].tolist() == [True, False, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_efficiency(seed):
    """The values share out what all are worth beyond nobody, whatever nobody is worth."""
    game = random_game(7, seed)
    assert game[0] != 0
    assert shapley_values(game).sum() == pytest.approx(game[-1] - game[0])


def test_symmetry():
    """Players whose exchange changes no utility get the same."""
    game = random_game(5, 1)
    masks = coalitions(5)
    exchanged = masks[:, [0, 3, 2, 1, 4]]
    mirror = (exchanged * 2 ** np.arange(5)).sum(axis=1)
    phi = shapley_values(game + game[mirror])
    assert phi[1] == pytest.approx(phi[3], abs=1e-12)
    assert abs(phi[0] - phi[2]) > 1e-3


def test_a_null_player_gets_nothing():
    smaller = as_utility(random_game(4, 2))
    phi = exact(5, lambda mask: smaller(np.delete(mask, 2)))
    assert phi[2] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(np.delete(phi, 2), exact(4, smaller), atol=1e-12)


def test_additivity():
    one, two = random_game(6, 3), random_game(6, 4)
    combined = shapley_values(2.0 * one - 0.5 * two)
    np.testing.assert_allclose(
        combined, 2.0 * shapley_values(one) - 0.5 * shapley_values(two), atol=1e-12
    )


def test_an_additive_game_gives_everybody_his_own():
    worth = np.array([0.5, -1.0, 2.0, 0.0])
    np.testing.assert_allclose(exact(4, lambda mask: 3.0 + mask @ worth), worth, atol=1e-12)


def test_a_unanimity_game_is_shared_by_those_needed():
    needed = np.array([True, False, True, True, False])
    phi = exact(5, lambda mask: float(mask[needed].all()))
    np.testing.assert_allclose(phi, needed / 3, atol=1e-12)


def test_the_glove_game():
    np.testing.assert_allclose(exact(3, glove), [1 / 6, 1 / 6, 4 / 6], atol=1e-12)


def test_the_airport_game():
    """A runway as long as its longest user needs: each stretch is shared by those who use it
    (Littlechild and Owen 1973)."""
    costs = np.array([1.0, 2.0, 4.0, 7.0])
    phi = exact(4, lambda mask: (costs * mask).max())
    np.testing.assert_allclose(
        phi, [1 / 4, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3 + 2 / 2, 1 / 4 + 1 / 3 + 2 / 2 + 3], atol=1e-12
    )


def test_ten_players_are_the_most():
    costs = np.arange(1.0, MAX_PLAYERS + 1)
    phi = exact(MAX_PLAYERS, lambda mask: (costs * mask).max())
    shares = np.cumsum(1 / np.arange(MAX_PLAYERS, 0, -1))
    np.testing.assert_allclose(phi, shares, atol=1e-12)
    for players in (0, 11):
        with pytest.raises(ValueError, match=rf"1 to 10 players, got {players}"):
            coalitions(players)
    with pytest.raises(ValueError, match="got 11"):
        shapley_values(np.zeros(2**11))


def test_bad_utilities_are_named():
    with pytest.raises(ValueError, match=r"2\^n utilities, got an array of shape \(6,\)"):
        shapley_values(np.zeros(6))
    with pytest.raises(ValueError, match=r"shape \(4, 2\)"):
        shapley_values(np.zeros((4, 2)))
    values = np.zeros(8)
    values[0b101] = np.nan
    with pytest.raises(ValueError, match=r"coalition \[0, 2\] is nan"):
        shapley_values(values)


class Counted:
    """A utility that counts its calls and refuses to be asked twice."""

    def __init__(self, utility):
        self.utility, self.seen = utility, set()

    def __call__(self, mask):
        assert tuple(mask) not in self.seen
        self.seen.add(tuple(mask))
        return self.utility(mask)


def test_permutations_converge_within_their_stated_error():
    game = random_game(6, 5)
    estimate = truncated_monte_carlo(6, as_utility(game), 4000, np.random.default_rng(0))
    z = (estimate.values - shapley_values(game)) / estimate.standard_errors
    assert np.abs(z).max() < 4
    # 95 % intervals hold the exact value about 95 % of the time: 40 estimates of 6 players each.
    inside = []
    for seed in range(40):
        rough = truncated_monte_carlo(6, as_utility(game), 60, np.random.default_rng(seed))
        inside += list(np.abs(rough.values - shapley_values(game)) < 1.96 * rough.standard_errors)
    assert 0.89 < np.mean(inside) < 0.99


def test_without_truncation_the_estimate_is_unbiased():
    """The mean of many short estimates is the exact value, far closer than any one of them."""
    game = random_game(4, 6)
    runs = [
        truncated_monte_carlo(4, as_utility(game), 2, np.random.default_rng(seed)).values
        for seed in range(3000)
    ]
    error = np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
    assert np.all(np.abs(np.mean(runs, axis=0) - shapley_values(game)) < 4 * error)


def test_every_order_is_efficient_without_truncation():
    game = random_game(5, 7)
    estimate = truncated_monte_carlo(5, as_utility(game), 7, np.random.default_rng(1))
    assert estimate.values.sum() == pytest.approx(game[-1] - game[0])


def saturating(mask):
    """Accuracy that a few clients bring near its top: 1 − 0.3^|S|."""
    return 1 - 0.3 ** mask.sum()


def test_who_must_join_first_is_never_cut_off():
    """A zero-sum game: v(all) = v(nobody), and truncation before the first would say 0 of all."""
    worth = np.array([1.0, -1.0, 2.0, -2.0])

    def value(mask):
        return float(mask @ worth)

    def rough(at_least):
        draw = np.random.default_rng(0)
        return truncated_monte_carlo(4, value, 50, draw, 0.5, at_least)

    np.testing.assert_array_equal(rough(0).values, 0)
    np.testing.assert_allclose(rough(4).values, worth, atol=1e-12)
    draw = np.random.default_rng(0)
    orders = [draw.permutation(4) for _ in range(50)]
    # With two of four, an order is cut where the first two cancel: nobody else is credited then.
    cut = [abs(worth[order[:2]].sum()) < 0.5 for order in orders]
    expected = np.zeros(4)
    for order, ends in zip(orders, cut, strict=True):
        credited = order[:2] if ends else order
        expected[credited] += worth[credited] / 50
    assert 0 < sum(cut) < 50
    three = [abs(worth[o[:3]].sum()) < 0.5 for o, c in zip(orders, cut, strict=True) if not c]
    assert not any(three), "after three of four the value is that of the last, never 0"
    np.testing.assert_allclose(rough(2).values, expected, atol=1e-12)


def test_truncation_spares_calls_and_states_what_it_costs():
    players, tolerance = 12, 0.02
    exact_value = saturating(np.ones(players)) / players  # symmetric: equal shares
    full, short = Counted(saturating), Counted(saturating)
    untruncated = truncated_monte_carlo(players, full, 50, np.random.default_rng(2))
    truncated = truncated_monte_carlo(players, short, 50, np.random.default_rng(2), tolerance)
    assert truncated.calls == len(short.seen) < len(full.seen) == untruncated.calls
    assert truncated.calls < 2**players / 10
    lost = untruncated.values.sum() - truncated.values.sum()
    assert 0 < lost < tolerance
    np.testing.assert_allclose(
        truncated.values, exact_value, atol=4 * truncated.standard_errors.max() + tolerance
    )


def test_a_utility_may_keep_or_change_its_mask():
    def careless(mask):
        total = float(mask.sum())
        mask[:] = False
        return total

    estimate = truncated_monte_carlo(3, careless, 4, np.random.default_rng(0))
    np.testing.assert_allclose(estimate.values, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 2), "at least one player"), ((3, 1), "two permutations"), ((3, 2, -0.1), "0 or more")],
)
def test_bad_requests_are_named(arguments, message):
    players, orders, *tolerance = arguments
    with pytest.raises(ValueError, match=message):
        truncated_monte_carlo(players, np.sum, orders, np.random.default_rng(0), *tolerance)
