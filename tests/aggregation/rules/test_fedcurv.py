"""FedCurv's server: the two sums are all that a client needs of the others' penalties."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.mean import Mean

RULE = FedCurv()


def uploads_of(theta, start, fisher):
    """What clients with models theta [M, d] and information fisher [M, d] send."""
    rows = {"update": theta - start, "fisher": fisher, "fisher_theta": fisher * theta}
    return {name: torch.as_tensor(value) for name, value in rows.items()}


def drawn(size, d, seed=0):
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(size, d))
    return theta, generator.normal(size=d), generator.uniform(0, 2, size=(size, d))


def test_the_step_is_fedavgs_and_the_sums_are_of_this_cohort(cohort):
    theta, start, fisher = drawn(4, 6)
    context = cohort(clients=[1, 4, 5, 7], federation=9)
    state = {name: torch.full((6,), 1e3) for name in ("fisher", "fisher_theta")}
    aggregate = RULE(uploads_of(theta, start, fisher), context, state)
    mean = Mean("samples")({"update": torch.as_tensor(theta - start)}, context, {})
    assert torch.equal(aggregate.steps, mean.steps)
    np.testing.assert_array_equal(aggregate.weights, mean.weights)
    np.testing.assert_allclose(aggregate.state["fisher"], fisher.sum(0))
    np.testing.assert_allclose(aggregate.state["fisher_theta"], (fisher * theta).sum(0))
    assert RULE.broadcast(aggregate.state) == aggregate.state


def test_nothing_is_known_before_the_first_round():
    state = RULE.init(5, np.ones(3))
    assert {name: value.tolist() for name, value in state.items()} == {
        "fisher": [0.0] * 5,
        "fisher_theta": [0.0] * 5,
    }


def test_the_sums_less_a_clients_own_terms_give_the_gradient_of_its_penalty(cohort):
    """Against autograd of sum_{j != k} (theta - theta_j)' diag(I_j) (theta - theta_j)."""
    theta, start, fisher = drawn(5, 7, seed=1)
    state = RULE(uploads_of(theta, start, fisher), cohort(5), {}).state
    others, information = torch.as_tensor(theta), torch.as_tensor(fisher)
    for k in range(5):
        point = torch.as_tensor(start).clone().requires_grad_()
        penalty = sum(((point - others[j]) ** 2 * information[j]).sum() for j in range(5) if j != k)
        penalty.backward()
        own = information[k], information[k] * others[k]
        s, t = state["fisher"] - own[0], state["fisher_theta"] - own[1]
        torch.testing.assert_close(2 * (s * point.detach() - t), point.grad)


def test_quadratic_clients_reach_the_solution_of_their_linear_system(cohort):
    """F_k = (theta - b_k)' diag(a_k) (theta - b_k) / 2, whose Fisher information is a_k.

    Each round every client goes to the minimum of F_k + lambda times its penalty, built from what
    the rule broadcasts. Where that stands still, (a_k + 2 lambda sum_{j != k} a_j) theta_k =
    a_k b_k + 2 lambda sum_{j != k} a_j theta_j for all k: one linear system for each parameter.
    """
    size, d, strength = 4, 3, 0.3
    generator = np.random.default_rng(2)
    a = generator.uniform(0.5, 3, size=(size, d))
    b = generator.normal(size=(size, d))
    state = RULE.init(d, np.ones(size))
    model, theta = np.zeros(d), None
    for round_ in range(200):
        sums = {name: value.double().numpy() for name, value in RULE.broadcast(state).items()}
        in_the_last = round_ > 0
        s = sums["fisher"] - a * in_the_last
        t = sums["fisher_theta"] - (a * theta if in_the_last else 0.0)
        theta = (a * b + 2 * strength * t) / (a + 2 * strength * s)
        aggregate = RULE(uploads_of(theta, model, a), cohort(size, samples=np.ones(size)), state)
        model, state = model + aggregate.steps[0].numpy(), aggregate.state
    for i in range(d):
        system = np.full((size, size), -2 * strength) * a[:, i]
        np.fill_diagonal(system, a[:, i] + 2 * strength * (a[:, i].sum() - a[:, i]))
        expected = np.linalg.solve(system, a[:, i] * b[:, i])
        np.testing.assert_allclose(theta[:, i], expected, rtol=1e-6)
    np.testing.assert_allclose(model, theta.mean(0), rtol=1e-9)


def test_uploads_that_do_not_fit_are_refused(cohort):
    theta, start, fisher = drawn(3, 4)
    good = uploads_of(theta, start, fisher)
    for name in ("fisher", "fisher_theta"):
        with pytest.raises(ValueError, match=f"upload '{name}' is missing"):
            RULE({key: good[key] for key in good if key != name}, cohort(3), {})
        with pytest.raises(ValueError, match=f"upload '{name}' has shape .*one entry per para"):
            RULE({**good, name: good[name][:, :2]}, cohort(3), {})
        bad = good[name].clone()
        bad[2, 1] = torch.inf
        with pytest.raises(FloatingPointError, match=f"client 2: upload '{name}' has 1 non-fin"):
            RULE({**good, name: bad}, cohort(3), {})
