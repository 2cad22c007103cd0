"""The loop that we are timed against ends where we end: same batches, same parameters."""

from dataclasses import replace

import pytest
import torch

from benchmarks.federations import MEASURED, federation
from benchmarks.plain_loop import PlainLoop, adapt_by_peft, named
from fedsdg.federation.local_work import Samples
from fedsdg.federation.records import Records

ROUNDS = 2


def in_double(made):
    """The same federation computing in float64."""
    return replace(
        made,
        model=made.model.to(torch.float64),
        samples=Samples(made.samples.images.double(), made.samples.labels),
        theta=made.theta.double(),
        private=made.private.double(),
        records=Records(),
    )


def relative(found, expected, start):
    return float((found - expected).norm() / (expected - start).norm())


def flat(state, specs):
    return torch.cat([state[spec.name].flatten() for spec in specs])


@pytest.mark.parametrize(
    "method, way", [("fedsdg", {}), ("fedavg", {}), ("fedavg", {"adapt": adapt_by_peft})]
)
# In float32 Adam makes whole steps of differences in rounding wherever a gradient is about zero.
@pytest.mark.parametrize("double, bound", [(True, 1e-9), (False, 1e-2)], ids=["64", "32"])
def test_the_plain_loop_and_the_engine_end_at_the_same_parameters(method, way, double, bound):
    if way:
        pytest.importorskip("peft")
    by_torch = federation("digits", method, kernel="torch")
    by_torch = in_double(by_torch) if double else by_torch
    ours = by_torch if double else federation("digits", method)
    start, private, layout = ours.theta, ours.private, ours.layout
    theirs = PlainLoop(by_torch, **way)
    for number in range(1, ROUNDS + 1):
        ours.step(number)
        theirs.round(number)
    shared = flat(theirs.shared, layout.communicated)
    assert relative(ours.theta, shared, start) < bound
    assert sorted(theirs.private) == torch.nonzero(ours.bank.trained).flatten().tolist()
    if layout.d_private:
        for client, state in theirs.private.items():
            own = flat(state, layout.private)
            kept = ours.bank.private(torch.tensor([client]))[0]
            assert relative(kept, own, private) < bound


@pytest.mark.parametrize("method", ["fedsdg", "fedavg"])
@pytest.mark.parametrize("name", MEASURED)
def test_both_train_the_same_parameters(name, method):
    ours = federation(name, method, kernel="torch")
    trained = named(PlainLoop(ours).server)
    specs = (*ours.layout.communicated, *ours.layout.private)
    assert {key: tuple(value.shape) for key, value in trained.items()} == {
        spec.name: spec.shape for spec in specs
    }
