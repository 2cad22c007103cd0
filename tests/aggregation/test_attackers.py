"""Breakdown: robust rules under attackers of lengths from 1e3 to 1e30."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.multikrum import MultiKrum
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean

from .cohorts import backend

D = 60
LENGTHS = (1e3, 1e6, 1e12, 1e20, 1e30)


def attacked(size, attackers, length, kind, seed=0):
    """Updates [size, D], the first ones of attackers: alike, apart, or of all sizes."""
    g = np.random.default_rng(seed)
    updates = 0.5 + 0.1 * g.normal(size=(size, D))
    directions = g.normal(size=(attackers, D))
    if kind == "alike":
        directions = np.repeat(directions[:1], attackers, axis=0)
    sizes = np.full(attackers, length)
    if kind == "of all sizes":
        sizes = np.logspace(0, np.log10(length), attackers)
    updates[:attackers] = sizes[:, None] * directions
    return updates


def result(rule, updates, dtype):
    rows = torch.tensor(updates, dtype=dtype)
    made = aggregate(rule, torch.zeros(D, dtype=dtype), rows)
    return made.parameters.double().numpy(), made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["alike", "apart", "of all sizes"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("rule", "size", "attackers"),
    [
        (Krum(f=3), 9, 3),
        (MultiKrum(f=3, m=4), 9, 3),
        (CoordinateMedian(), 9, 4),
        (TrimmedMean(f=4), 9, 4),
        (GeometricMedian(), 9, 4),
    ],
)
@pytest.mark.parametrize("name", ["torch", "numba"])
def test_a_minority_does_not_move_a_robust_rule(name, rule, size, attackers, length, kind, dtype):
    updates = attacked(size, attackers, length, kind)
    with backend(name):
        step, made = result(rule, updates, dtype)
    honest = updates[attackers:]
    spread = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(step - honest.mean(axis=0)) <= 4 * spread
    if made.weights is not None and isinstance(rule, Krum) and kind != "of all sizes":
        assert sum(made.weights[:attackers]) == 0


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", ["alike", "apart", "of all sizes"])
@pytest.mark.parametrize("name", ["torch", "numba"])
def test_the_geometric_median_is_the_minimum_for_the_honest_scale(name, kind, length):
    updates = attacked(20, 9, length, kind, seed=9).astype(np.float32)
    with backend(name):
        made = aggregate(GeometricMedian(tolerance=1e-9), torch.zeros(D), torch.tensor(updates))
    # The subgradient at z = sum w x in 80-bit arithmetic, by unit vectors.
    wide = updates.astype(np.longdouble)
    z = np.array(made.weights, dtype=np.longdouble) @ wide
    away = wide - z
    lengths = np.sqrt((away**2).sum(axis=1))
    at = lengths < 1e-12
    pull = np.linalg.norm((away[~at] / lengths[~at, None]).sum(axis=0).astype(float))
    assert max(pull - at.sum(), 0) / len(updates) <= 2e-6


def test_f_attackers_of_any_size_stay_within_the_honest():
    updates = attacked(7, 2, 1e30, "apart")
    step, _ = result(TrimmedMean(f=2), updates, torch.float64)
    assert (step >= updates[2:].min(axis=0)).all() and (step <= updates[2:].max(axis=0)).all()


def test_fedsdg_gives_no_weight_to_a_client_that_points_the_other_way():
    updates = attacked(6, 0, 1, "apart")
    updates[0] = -updates[0]
    _, made = result("fedsdg", updates, torch.float32)
    assert made.weights[0] == 0.0 and min(made.weights[1:]) > 0.19
