"""SCAFFOLD on quadratics, where everything is known: optimum, invariant, and equality to FedAvg.

Client i has the loss a_i/2 (w − b_i)²; the global optimum is Σ a_i b_i / Σ a_i.
"""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.types import Context
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.models.parameters import Layout, ParameterSpec
from tests.federation.cohort import train_cohort

LAYOUT = Layout((ParameterSpec("w", (1,), "shared"),), ())


class Identity:
    """Predicts its parameter for every sample: the loss makes it a quadratic."""

    def logits(self, images, counts, parameters):
        return parameters["w"][:, 0].repeat_interleave(torch.tensor(counts))


def quadratics(curvature, centre):
    a, b = torch.tensor(curvature).double(), torch.tensor(centre).double()

    def loss(prediction, label, reduction):
        return a[label] / 2 * (prediction - b[label]) ** 2

    return Samples(torch.zeros(len(a), 1), torch.arange(len(a))), loss


def run(curvature, centre, *, scaffold, rounds, steps=5, rate=0.05, cohort_size=None, seed=0):
    """Rounds of `steps` full-batch SGD steps; returns (w, server control, client controls)."""
    samples, loss = quadratics(curvature, centre)
    clients = len(curvature)
    rule = Scaffold() if scaffold else Mean("uniform")
    terms = (ControlVariates(),) if scaffold else ()
    work = LocalWork(Sgd(), rate, rate, rate, 1e9, terms, loss=loss)
    state = {k: v.double() for k, v in rule.init(1, np.ones(clients)).items()}
    bank = ClientBank(clients, torch.zeros(0).double(), [n for t in terms for n in t.keeps], 1)
    generator = np.random.default_rng(seed)
    w = torch.tensor([0.7], dtype=torch.float64)
    for round_ in range(1, rounds + 1):
        cohort = np.sort(generator.choice(clients, cohort_size or clients, replace=False))
        private, kept = bank.gather(torch.from_numpy(cohort))
        local = train_cohort(
            Identity(), LAYOUT, samples, [[np.array([k])] * steps for k in cohort],
            w.expand(len(cohort), -1), private, work, state=kept, received=rule.broadcast(state),
        )  # fmt: skip
        ones = np.ones(len(cohort))
        context = Context(round_, cohort, clients, ones, clients, ones, np.ones(clients))
        outcome = rule({"update": local.theta - w, **local.uploads}, context, state)
        w, state = w + outcome.steps[0], outcome.state
        bank.scatter(torch.from_numpy(cohort), local.private, local.state)
        if scaffold:
            mean = bank.kept("control", torch.arange(clients)).mean(0)
            assert torch.allclose(state["control"], mean, atol=1e-10), "c is the mean of all c_i"
    return float(w)


def test_reaches_the_optimum_where_fedavg_does_not():
    curvature, centre = [1.0, 4.0], [1.0, -0.5]
    optimum = (1.0 * 1.0 + 4.0 * -0.5) / 5.0
    assert optimum == pytest.approx(-0.2)
    assert run(curvature, centre, scaffold=True, rounds=400) == pytest.approx(optimum, abs=1e-6)
    # FedAvg's fixed point in closed form: clients contract to b_i by r_i = (1 − η a_i)^K.
    shrink = [(1 - 0.05 * a) ** 5 for a in curvature]
    fixed = sum((1 - r) * b for r, b in zip(shrink, centre, strict=True)) / sum(
        1 - r for r in shrink
    )
    assert run(curvature, centre, scaffold=False, rounds=400) == pytest.approx(fixed, abs=1e-6)
    assert abs(fixed - optimum) > 0.02


def test_invariant_and_optimum_under_partial_participation():
    curvature, centre = [1.0, 2.0, 0.5, 4.0, 1.5, 3.0], [1.0, -2.0, 0.3, 0.8, -1.0, 2.0]
    optimum = np.dot(curvature, centre) / np.sum(curvature)
    reached = run(curvature, centre, scaffold=True, rounds=900, cohort_size=2)
    assert reached == pytest.approx(optimum, abs=1e-5)


def test_identical_clients_make_scaffold_equal_fedavg():
    for rounds in (1, 2, 7):
        same = {"curvature": [2.0] * 3, "centre": [0.4] * 3, "rounds": rounds}
        assert run(scaffold=True, **same) == pytest.approx(run(scaffold=False, **same), abs=1e-12)
