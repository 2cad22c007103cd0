"""Aggregation over real processes of a torch.distributed group, against the single process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean

from .door_cases import EVERY_RULE, draw, flat, needs
from .world import World
from .world_cases import KINDS, bounds

pytestmark = pytest.mark.slow  # To start two worlds takes some ten seconds.

RULES = [*EVERY_RULE, TrimmedMean(f=2)]
M, D = 7, 41
THETA, CLIENTS = draw(3, M, D)


@pytest.fixture(scope="module", params=[2, 4])
def world(request, tmp_path_factory):
    made = World(request.param, tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def alone(rule, theta, clients, dtype, rounds=1, **options):
    """The single process: vectors of a dtype, the parameters of each round from the last."""
    rows = [row.astype(dtype) for row in clients]
    given = {**needs(rule, len(rows), controls=rows), **options}
    state, params = None, theta.astype(dtype)
    for round_ in range(1, rounds + 1):
        result = aggregate(rule, params, rows, **given, state=state, round=round_)
        state, params = result.state, result.parameters
    return result


def close(found, expected, dtype):
    """Equal up to 1e-12 (float64) or 1e-6 (float32) of the norm."""
    tolerance = {"float64": 1e-12, "float32": 1e-6}[dtype]
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert (np.isnan(found) == np.isnan(expected)).all()
    found, expected = np.nan_to_num(found), np.nan_to_num(expected)
    scale = np.linalg.norm(expected)
    assert np.linalg.norm(found - expected) <= tolerance * max(scale, 1e-3)


def check(outcomes, expected, dtype, *, whole):
    """Numbers that belong to the cohort are the same on all ranks and those of one process."""
    first = outcomes[0]
    for other in outcomes:
        for name in ("weights", "diagnostics", "dropped"):
            assert repr(other[name]) == repr(first[name])
    if expected.weights is None:
        assert first["weights"] is None
    else:
        weights = first["weights"]
        if isinstance(weights, dict):
            weights = [weights[k] for k in range(len(expected.weights))]
        close(weights, expected.weights, dtype)
    assert set(first["diagnostics"]) == set(expected.diagnostics)
    for name, value in expected.diagnostics.items():
        # A residual is what rounding leaves of a difference; iterations stop by it.
        if name not in ("residual", "iterations"):
            close(first["diagnostics"][name], value, dtype)
    parts = [outcome["parameters"] for outcome in outcomes]
    if whole:
        assert all(np.array_equal(part, parts[0]) for part in parts)
        parts = parts[:1]
    close(np.concatenate(parts), flat(expected.parameters), dtype)
    for name, value in expected.state.items():
        states = [outcome["state"][name] for outcome in outcomes]
        if whole or value.shape[0] != D:
            assert all(np.array_equal(state, states[0]) for state in states)
            states = states[:1]
        close(np.concatenate(states), value.numpy(), dtype)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_columns_on_ranks_give_what_one_process_gives(world, rule):
    for kind in KINDS:
        for dtype in ("float64", "float32"):
            expected = alone(rule, THETA, CLIENTS, dtype, rounds=2)
            found = world.results("by_columns", rule, THETA, CLIENTS, kind, dtype, 2)
            check(found, expected, dtype, whole=False)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_clients_on_ranks_give_what_one_process_gives(world, rule):
    for kind in KINDS:
        for dtype in ("float64", "float32"):
            expected = alone(rule, THETA, CLIENTS, dtype, rounds=2)
            found = world.results("by_client", rule, THETA, CLIENTS, kind, dtype, 2)
            check(found, expected, dtype, whole=True)
