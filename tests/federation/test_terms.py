"""Every term's gradient is the derivative of its value; the penalties have their closed forms."""

import pytest
import torch

from fedsdg.experiment.examining.findings import FAILED, OK, examine
from fedsdg.experiment.examining.terms import TERM, Placed
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.curvature import Curvature
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.step_rows import PrivateColumns, Rows

TERMS = [
    GatePenalty(0.3),
    PrivatePenalty(0.2),
    PrivatePenalty(0.2, "residual"),
    PrivatePenalty(0.2, "b-only"),
    Proximal(0.7),
    Curvature(0.4),
    ControlVariates(),
]
RECEIVED = ("control", "fisher", "fisher_theta")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GatePenalty(-1), "lambda1 is -1, but must be at least 0"),
        (lambda: PrivatePenalty(-1), "lambda2 is -1, but must be at least 0"),
        (lambda: PrivatePenalty(1, "b"), "private_norm is 'b', but must be one of factors, resid"),
        (lambda: Proximal(float("nan")), "mu is nan, but must be at least 0"),
        (lambda: Curvature(-1), "strength is -1, but must be at least 0"),
    ],
)
def test_a_value_out_of_range_is_refused(make, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make()


def random_rows(s, clients=3):
    generator = torch.Generator().manual_seed(5)

    def draw(width):
        return torch.randn(clients, width, generator=generator, dtype=torch.float64)

    theta, private = draw(s.layout.d), draw(s.layout.d_private)
    return Rows(
        theta, torch.zeros_like(theta), draw(s.layout.d), private, torch.zeros_like(private),
        PrivateColumns.of(s.layout), {}, {},
    )  # fmt: skip


@pytest.mark.parametrize("term", TERMS, ids=str)
def test_all_that_is_asked_of_other_peoples_terms(setting, term):
    """Its gradient is the derivative of its value, and the rest."""
    layout = setting(branch="dual").layout
    found = list(examine("term", Placed(term, layout, RECEIVED), TERM))
    assert not [one for one in found if one.outcome == FAILED]
    gradient = {one.property: one.outcome for one in found}[TERM[1].claim]
    assert (gradient == OK) == (term != ControlVariates())


def test_penalty_gradients_have_the_specified_closed_forms(setting):
    """λ₁ sign(m) m (1 − m) at the logits, 2 λ₂ θ_p at the private factors, nothing elsewhere."""
    rows = random_rows(setting(branch="dual"))
    GatePenalty(0.3).add_gradient(rows)
    PrivatePenalty(0.2).add_gradient(rows)
    m = torch.sigmoid(rows.private[:, rows.columns.gates])
    expected = torch.where(rows.columns.factors, 2 * 0.2 * rows.private, 0.0)
    expected[:, rows.columns.gates] = 0.3 * torch.sign(m) * m * (1 - m)
    assert torch.allclose(rows.private_grad, expected, rtol=1e-12, atol=0)
    assert not rows.theta_grad.any()


def test_fedprox_objective_with_the_task_loss(setting):
    """The whole FedProx gradient equals the finite difference of cross-entropy + μ/2 ‖θ − θ_t‖²."""
    from torch.nn.functional import cross_entropy

    from fedsdg.models.parameters import leaves, views

    s = setting()
    mu, batch = 0.9, torch.arange(12)
    theta = s.theta[None] + 0.05 * torch.randn(1, s.layout.d, dtype=torch.float64)
    gradient = torch.zeros_like(theta)
    logits = s.model.logits(
        s.samples.images[batch], [12], leaves(theta, gradient, s.layout.communicated)
    )
    cross_entropy(logits, s.samples.labels[batch]).backward()
    empty = theta.new_zeros(1, 0)
    columns = PrivateColumns.of(s.layout)
    Proximal(mu).add_gradient(Rows(theta, gradient, s.theta[None], empty, empty, columns, {}, {}))

    def objective(flat):
        logits = s.model.logits(s.samples.images[batch], [12], views(flat, s.layout.communicated))
        task = cross_entropy(logits, s.samples.labels[batch])
        return float(task + mu / 2 * (flat - s.theta).square().sum())

    for column in range(0, s.layout.d, s.layout.d // 25):
        shift = torch.zeros_like(theta)
        shift[0, column] = 1e-6
        slope = (objective(theta + shift) - objective(theta - shift)) / 2e-6
        assert float(gradient[0, column]) == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_control_variates_follow_option_two():
    theta = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    start = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    c, own = (
        torch.tensor([0.5, -0.5], dtype=torch.float64),
        torch.tensor([[0.2, 0.1]], dtype=torch.float64),
    )
    empty = theta.new_zeros(1, 0)
    rows = Rows(
        theta, torch.zeros_like(theta), start, empty, empty, None, {"control": own}, {"control": c}
    )  # type: ignore[arg-type]
    ControlVariates().correct(rows)
    assert torch.allclose(rows.theta_grad, c - own)  # y <- y - η (g + c − c_i)
    sent, kept = ControlVariates().finish(rows, torch.tensor([4]), 0.1)
    expected = own - c + (start - theta) / (4 * 0.1)
    assert torch.allclose(kept["control"], expected)
    assert torch.allclose(sent["control"], expected - own)
