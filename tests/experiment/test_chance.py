"""Accuracies that may be luck, by the binomial distribution itself."""

from math import comb

import numpy as np
import pytest

from fedsdg.experiment.chance import Chance


def at_least(right, images, share):
    """P(X ≥ right) of a binomial distribution, added up."""
    terms = (
        comb(images, k) * share**k * (1 - share) ** (images - k) for k in range(right, images + 1)
    )
    return sum(terms)


@pytest.mark.parametrize(("images", "largest"), [(56, 8), (359, 37), (10, 9), (20, 10)])
def test_at_chance_is_what_a_guess_reaches_in_one_of_twenty_draws(images, largest):
    chance = Chance(images, largest)
    for right in range(images + 1):
        luck = at_least(right, images, largest / images) > 0.05
        assert bool(chance.remark(right / images)) == luck


def test_the_remark_names_the_share_of_the_most_frequent_class():
    balanced = Chance.of_labels(np.repeat(np.arange(7), 8))
    assert balanced == Chance(56, 8)
    assert balanced.remark(0.1429) == "at chance (1/7)"
    assert balanced.remark(0.5) == ""
    skewed = Chance.of_labels(np.array([0] * 31 + [1] * 69))
    # Better than one of two, but no better than always naming the second class.
    assert skewed.remark(0.7) == "at chance (0.69)" and skewed.remark(0.9) == ""
    assert Chance.of_labels(np.zeros(5, int)).remark(1.0) == "at chance (1/1)"
