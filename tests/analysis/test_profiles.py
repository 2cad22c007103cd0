"""Performance profiles over clients: by hand, and how often their band covers the truth."""

from fractions import Fraction

import numpy as np
import pytest

from fedsdg.analysis.profiles import performance_profile

from .coverage import TRIALS, is_nominal, share


def test_a_worked_example() -> None:
    """Runs count alike whatever their clients, and "above" leaves out what is equal."""
    clients = [
        [np.array([0.2, 0.4, 0.6]), np.array([0.5, 0.5, 0.5])],
        [np.array([0.9]), np.array([0.1])],
    ]
    profile = performance_profile(clients, np.array([0.0, 0.4, 0.5, 0.9]))
    expected = [
        Fraction(4, 4),
        (Fraction(1, 3) + 1 + 1 + 0) / 4,
        (Fraction(1, 3) + 0 + 1 + 0) / 4,
        Fraction(0),
    ]
    assert profile.share == pytest.approx([float(value) for value in expected])
    assert (profile.low <= profile.share).all() and (profile.share <= profile.high).all()


def test_a_profile_falls_and_its_area_is_the_mean() -> None:
    """∫ F(τ) dτ over [0, 1] is the mean accuracy: 1000 steps of 1/1000 are off by at most one."""
    rng = np.random.default_rng(2)
    clients = rng.random((3, 4, 20))
    grid = np.linspace(0, 1, 1001)
    profile = performance_profile(list(clients), grid)
    assert (np.diff(profile.share) <= 1e-12).all()
    assert profile.share[:-1].mean() == pytest.approx(clients.mean(), abs=1e-3)


@pytest.mark.parametrize(("tasks", "seeds"), [(3, 10), (6, 5)])
def test_the_band_covers_a_point_as_often_as_it_says(tasks, seeds) -> None:
    """Clients around a middle that their run shares: half of them are above zero."""
    rng = np.random.default_rng(17)
    runs = rng.normal(size=(TRIALS, tasks, seeds, 8)) + rng.normal(size=(TRIALS, tasks, seeds, 1))
    found = (performance_profile(list(one), np.zeros(1), repetitions=500) for one in runs)
    assert is_nominal(share(bool(one.low[0] <= 0.5 <= one.high[0]) for one in found))


def test_one_seed_has_no_band() -> None:
    assert performance_profile([[np.array([0.5])]], np.zeros(1)).low is None


@pytest.mark.parametrize(
    ("clients", "named"),
    [
        ([], "same number of seeds"),
        ([[np.ones(2)], [np.ones(2), np.ones(2)]], "same number of seeds"),
        ([[np.array([])]], "finite accuracies"),
        ([[np.array([0.5, np.nan])]], "finite accuracies"),
    ],
)
def test_what_has_no_profile_is_refused(clients, named) -> None:
    with pytest.raises(ValueError, match=named):
        performance_profile(clients, np.zeros(1))
