"""The game of clients: its 2^n utilities against one model at a time, its values by the axioms."""

import numpy as np
import pytest
import torch

from fedsdg.federation import shapley
from fedsdg.federation.contribution import coalition_values, coalitions, truncated_monte_carlo
from fedsdg.federation.evaluation import global_metrics
from fedsdg.models.small_cnn import CnnArchitecture, SmallCnn, initial_values, make_layout


@pytest.fixture
def game(setting):
    """Five clients' updates, long enough to change what the model answers."""
    place = setting()
    generator = torch.Generator().manual_seed(3)
    updates = torch.randn(5, len(place.theta), generator=generator, dtype=torch.float64)
    return place, updates, np.arange(20, 97)


def exact(*game):
    return shapley.client_contributions(*game, np.random.default_rng(0))["shapley"]


def test_models_are_means_of_the_coalitions(game):
    place, updates, _ = game
    masks = coalitions(5)
    models = shapley.coalition_models(place.theta, updates, masks)
    assert torch.equal(models[0], place.theta)
    for mask, model in zip(masks[1:], models[1:], strict=True):
        expected = place.theta + updates[torch.from_numpy(mask)].mean(dim=0)
        torch.testing.assert_close(model, expected, rtol=0, atol=1e-12)
    halves = shapley.coalition_models(place.theta.float(), updates.float(), masks)
    assert halves.dtype == torch.float32


def test_utilities_are_global_accuracies_model_by_model(game, monkeypatch):
    place, updates, index = game
    arguments = (place.model, place.layout, place.samples, index)
    expected = [
        global_metrics(
            *arguments, place.theta + (updates[mask].mean(0) if mask.any() else 0), place.private
        )[0]
        for mask in map(torch.from_numpy, coalitions(5))
    ]
    assert len(set(expected)) > 5, "the game is about something"
    values = shapley.coalition_accuracies(*arguments, place.theta, updates, place.private)
    np.testing.assert_array_equal(values, expected)
    monkeypatch.setattr(shapley, "CLIENTS_PER_PASS", 3)
    monkeypatch.setattr(shapley, "CHUNK", 7)
    again = shapley.coalition_accuracies(*arguments, place.theta, updates, place.private)
    np.testing.assert_array_equal(again, expected)


def test_contributions_share_out_the_gain_and_treat_equals_equally(game):
    place, updates, index = game
    updates[3] = updates[1]
    arguments = (place.model, place.layout, place.samples, index)
    phi = exact(*arguments, place.theta, updates, place.private)
    after = place.theta + updates.mean(dim=0)
    gain = (
        global_metrics(*arguments, after, place.private)[0]
        - global_metrics(*arguments, place.theta, place.private)[0]
    )
    assert phi.sum() == pytest.approx(gain)
    assert phi[1] == pytest.approx(phi[3], abs=1e-12)


def test_clients_who_send_nothing_new_get_equal_shares_of_nothing(game):
    place, updates, index = game
    arguments = (place.model, place.layout, place.samples, index)
    zeros = torch.zeros_like(updates)
    draw = np.random.default_rng(0)
    found = shapley.client_contributions(*arguments, place.theta, zeros, place.private, draw)
    np.testing.assert_array_equal(found["shapley"], 0)
    np.testing.assert_array_equal(found["shapley_estimate"], 0)


def test_too_many_clients_and_no_data_are_refused(game):
    place, updates, index = game
    arguments = (place.model, place.layout, place.samples)
    with pytest.raises(ValueError, match="1 to 10 players, got 15"):
        shapley.coalition_accuracies(
            *arguments, index, place.theta, updates.repeat(3, 1), place.private
        )
    with pytest.raises(ValueError, match="need validation data"):
        shapley.coalition_accuracies(*arguments, index[:0], place.theta, updates, place.private)


def test_an_estimate_plays_the_same_game(game):
    place, updates, index = game
    arguments = (place.model, place.layout, place.samples, index)
    utility = shapley.coalition_utility(*arguments, place.theta, updates, place.private)
    values = shapley.coalition_accuracies(*arguments, place.theta, updates, place.private)
    np.testing.assert_array_equal(coalition_values(5, utility), values)
    phi = exact(*arguments, place.theta, updates, place.private)
    estimate = truncated_monte_carlo(5, utility, 200, np.random.default_rng(0))
    assert np.all(np.abs(estimate.values - phi) < 4 * estimate.standard_errors)
    assert estimate.calls <= 32


def test_alone_or_beside_the_exact_values_the_estimate_is_the_same(game):
    place, updates, index = game
    arguments = (place.model, place.layout, place.samples, index)
    both, alone = (
        shapley.client_contributions(
            *arguments,
            place.theta,
            updates,
            place.private,
            np.random.default_rng(2),
            exactly=exactly,
        )
        for exactly in (True, False)
    )
    assert list(alone) == ["shapley_estimate"]
    np.testing.assert_array_equal(alone["shapley_estimate"], both["shapley_estimate"])
    # Every order that was cut short misses less than the tolerance of the whole.
    gap = alone["shapley_estimate"].sum() - both["shapley"].sum()
    assert abs(gap) < shapley.TOLERANCE
    # 50 orders of accuracies that differ by at most 1 each: no mean errs by half.
    np.testing.assert_allclose(alone["shapley_estimate"], both["shapley"], atol=0.1)
    with pytest.raises(ValueError, match="need validation data"):
        shapley.client_contributions(
            *arguments[:-1],
            index[:0],
            place.theta,
            updates,
            place.private,
            np.random.default_rng(2),
            exactly=False,
        )


def test_a_model_trained_in_full_plays_too(setting):
    """The small CNN is another model on the same axis; nothing of the game knows which it is."""
    samples = setting(dtype=torch.float32).samples
    layout = make_layout(CnnArchitecture(8, 1), 4)
    theta, private = initial_values(layout, np.random.default_rng(0))
    updates = 0.2 * torch.randn(3, len(theta), generator=torch.Generator().manual_seed(1))
    arguments = (SmallCnn(layout), layout, samples, np.arange(60))
    values = shapley.coalition_accuracies(*arguments, theta, updates, private)
    models = shapley.coalition_models(theta, updates, coalitions(3))
    expected = [global_metrics(*arguments, model, private)[0] for model in models]
    np.testing.assert_array_equal(values, expected)
    assert len(set(expected)) > 3
