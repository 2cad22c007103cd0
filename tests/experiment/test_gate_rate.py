"""The least rate with which gates can move, against cases that are counted by hand."""

import numpy as np
import pytest

from fedsdg.config.search import Interval
from fedsdg.experiment.points import bounded, median_steps, rounded_up
from tests.experiment.conftest import tiny


def run(**federation):
    """Return a run of 60 rounds, 2 epochs and batches of 16."""
    first = next(tiny("training.batch_size=16", "training.epochs=2").runs())
    return first.replaced(federation=first.federation.replaced(rounds=60, **federation))


def test_steps_of_a_median_client(folder):
    everyone = run(clients=3, clients_per_round=3)
    assert median_steps(np.array([16, 17, 48]), everyone) == 60 * 2 * 2
    half = run(clients=4, clients_per_round=2)
    assert median_steps(np.array([16, 17, 32, 48]), half) == 30 * 2 * 2
    whole = everyone.replaced(training=everyone.training.replaced(batch_size=None))
    assert median_steps(np.array([16, 17, 48]), whole) == 60 * 2
    new = run(clients=6, clients_per_round=2, held_out=1 / 3)
    assert median_steps(np.array([16] * 6), new) == 60 * 2 / 4 * 2


def test_the_bound_is_the_largest_of_the_cells_and_rounded_up(folder):
    everyone = run(clients=3, clients_per_round=3)
    cells = {"few": (everyone, np.array([16] * 3)), "many": (everyone, np.array([112] * 3))}
    axis = Interval(None, 1.0, True)
    assert bounded(axis, cells) == Interval(0.025, 1.0, True)
    assert bounded(axis, {"many": cells["many"]}).low == rounded_up(3 / 840)
    with pytest.raises(ValueError, match="eta_m ends at 0.02, but gates need 0.025 .*few"):
        bounded(Interval(None, 0.02, True), cells)


@pytest.mark.parametrize(("value", "expected"), [(3 / 840, 0.003572), (0.5, 0.5), (1234.1, 1235)])
def test_a_bound_has_four_digits_and_is_not_below(value, expected):
    assert rounded_up(value) == expected
