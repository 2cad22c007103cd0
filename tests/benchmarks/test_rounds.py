"""The loops that are compared with end where the engine ends."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import rivals
from benchmarks.federations import MODELS, Federation, digest, federation
from benchmarks.plain_loop import PlainLoop, trainable
from fedsdg.federation.tasks import Samples
from fedsdg.models import CohortModel

ROUNDS = 2


def in_double(made):
    """Return the same federation in float64."""
    setup = made.setup
    old = setup.model
    setup = replace(
        setup,
        model=CohortModel(old.backbone, old.config, old.num_classes, dtype=torch.float64),
        samples=Samples(setup.samples.images.double(), setup.samples.labels),
        first=setup.first.double(),
        private=setup.private.double(),
    )
    return Federation(setup, *setup.initial())


def relative(result, expected, start):
    return float((result - expected).norm() / (expected - start).norm())


def flat(state, specs):
    return torch.cat([state[spec.name].flatten() for spec in specs])


@pytest.mark.parametrize("method", ["fedsdg", "fedavg"])
# In float32 Adam takes whole steps along gradients that are rounding noise.
@pytest.mark.parametrize("double, bound", [(True, 1e-9), (False, 1e-2)], ids=["64", "32"])
def test_the_plain_loop_and_the_engine_end_at_the_same_parameters(method, double, bound):
    by_torch = federation("digits", method, kernel="torch")
    by_torch = in_double(by_torch) if double else by_torch
    engine = by_torch if double else federation("digits", method)
    setup, store = engine.setup, engine.store
    plain = PlainLoop(by_torch.setup)
    for number in range(1, ROUNDS + 1):
        record = engine.step(number).round
        plain.round(number)
    assert not record["evaluated"] and record["bytes_up"] > 0
    expected = flat(plain.shared, setup.layout.communicated)
    assert relative(engine.server.models[0], expected, setup.first[0]) < bound
    assert sorted(plain.private) == np.flatnonzero(store.counts.trained).tolist()
    if setup.layout.d_private:
        for client, state in plain.private.items():
            kept = store.read("private", np.array([client]))[0]
            assert relative(kept, flat(state, setup.layout.private), setup.private) < bound


@pytest.mark.parametrize("name", MODELS)
def test_both_train_the_same_parameters(name):
    setup = federation(name, "fedsdg", kernel="torch").setup
    shapes = {key: tuple(p.shape) for key, p in trainable(PlainLoop(setup).server).items()}
    specs = (*setup.layout.communicated, *setup.layout.private)
    assert shapes == {spec.name: spec.shape for spec in specs}


def test_the_same_rounds_have_the_same_digest():
    assert digest("digits", "cpu", 1) == digest("digits", "cpu", 1) != digest("digits", "cpu", 2)


@pytest.mark.slow
@pytest.mark.skipif(not rivals.flower_simulates(), reason="flwr or ray is not installed")
@pytest.mark.parametrize("method", ["fedsdg", "fedavg"])
def test_flowers_simulation_ends_where_the_plain_loop_ends(method):
    from benchmarks.flower_simulation import simulate

    plain = PlainLoop(federation("digits", method, kernel="torch").setup)
    start = torch.cat([value.flatten() for value in plain.shared.values()])
    for number in range(1, 4):
        plain.round(number)
    expected = torch.cat([value.flatten() for value in plain.shared.values()])
    result = simulate("digits", method, 3, same_round=False)
    assert len(result["seconds"]) == 3
    assert relative(torch.tensor(result["parameters"]), expected, start) < 1e-3
