"""SCAFFOLD's server: the invariant of the control variates, and the fixed point of a quadratic."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold


def test_c_is_the_mean_of_all_clients_controls(cohort):
    """Under sampling, after every round, c = (1/K) sum c_i over all K clients."""
    generator = np.random.default_rng(0)
    rule, d, total = Scaffold(), 12, 7
    context = cohort(total)
    controls = torch.zeros(total, d, dtype=torch.float64)
    state = rule.init(d, context.client_samples)
    for _ in range(10):
        clients = generator.choice(total, size=3, replace=False)
        change = torch.tensor(generator.normal(size=(3, d)))
        uploads = {"update": torch.zeros(3, d, dtype=torch.float64), "control": change}
        state = rule(uploads, cohort(clients=clients, federation=total), state).state
        controls[clients] += change
        torch.testing.assert_close(state["control"], controls.mean(0))
        assert rule.broadcast(state)["control"] is state["control"]


def test_the_step_is_the_scaled_mean_update(cohort):
    updates = torch.randn(4, 9)
    uploads = {"update": updates, "control": torch.zeros(4, 9)}
    aggregate = Scaffold(server_rate=0.5)(uploads, cohort(4), {"control": torch.zeros(9)})
    torch.testing.assert_close(aggregate.steps[0], 0.5 * updates.mean(0))
    np.testing.assert_array_equal(aggregate.weights, np.full(4, 0.25))


@pytest.mark.parametrize("participants", [2, 1])
def test_quadratic_optimum(participants, cohort):
    """f_i = a_i (x - b_i)^2 / 2 with unequal a_i: SCAFFOLD reaches the optimum, FedAvg does not."""
    a, b = np.array([1.0, 4.0]), np.array([1.0, -0.5])
    optimum = (a * b).sum() / a.sum()
    rate, steps = 0.05, 10
    generator = np.random.default_rng(0)

    def train(rule, corrected):
        x, state = 3.0, rule.init(1, np.ones(2))
        controls = np.zeros(2)
        for _ in range(600):
            clients = generator.choice(2, size=participants, replace=False)
            c = float(rule.broadcast(state)["control"]) if corrected else 0.0
            update, change = [], []
            for i in clients:
                y = x
                for _ in range(steps):
                    y -= rate * (a[i] * (y - b[i]) + (c - controls[i] if corrected else 0.0))
                renewed = controls[i] - c + (x - y) / (steps * rate)
                update.append([y - x])
                change.append([renewed - controls[i]])
                controls[i] = renewed
            uploads = {"update": torch.tensor(update), "control": torch.tensor(change)}
            uploads = {name: rows.double() for name, rows in uploads.items()}
            aggregate = rule(uploads, cohort(clients=clients, federation=2), state)
            x, state = x + float(aggregate.steps), aggregate.state
        return x

    assert train(Scaffold(), True) == pytest.approx(optimum, abs=1e-4)
    assert abs(train(Mean("uniform"), False) - optimum) > 0.02


def test_control_must_match_the_update(cohort):
    rule = Scaffold()
    with pytest.raises(ValueError, match="upload 'control' is missing"):
        rule({"update": torch.zeros(2, 3)}, cohort(2), rule.init(3, np.ones(2)))
    uploads = {"update": torch.zeros(2, 3), "control": torch.zeros(2, 4)}
    with pytest.raises(ValueError, match="'control' has shape"):
        rule(uploads, cohort(2), rule.init(3, np.ones(2)))
    uploads = {"update": torch.zeros(2, 3), "control": torch.full((2, 3), torch.nan)}
    with pytest.raises(FloatingPointError, match="client 0: upload 'control'"):
        rule(uploads, cohort(2), rule.init(3, np.ones(2)))
    with pytest.raises(ValueError, match="server_rate"):
        Scaffold(0.0)
