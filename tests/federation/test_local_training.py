"""Training a cohort at once is training its clients one at a time; optimisers, clipping, gates."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation.branches import gate_penalty, private_penalty
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.step_rows import PrivateColumns
from fedsdg.models.parameters import views
from tests.federation.cohort import train_cohort

SIZES = [3, 17, 8, 1, 16]
WORK = LocalWork(Adam(), 3e-3, 3e-3, 5e-3, 1.0)
DUAL_TERMS = (GatePenalty(1e-2), PrivatePenalty(1e-2), Proximal(0.1))


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@pytest.mark.parametrize("branch", ["none", "dual"])
@pytest.mark.parametrize("optimiser", [Adam(), Sgd()])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_cohort_equals_one_at_a_time(setting, batches_of, branch, optimiser, dtype, bound):
    s = setting(dtype, branch=branch)
    work = LocalWork(optimiser, 3e-3, 3e-3, 5e-3, 1.0, DUAL_TERMS)
    batches = batches_of(SIZES)
    m = len(SIZES)
    start = s.theta.expand(m, -1)
    private = s.private.expand(m, -1)
    together = train_cohort(s.model, s.layout, s.samples, batches, start, private, work)
    for k in range(m):
        alone = train_cohort(
            s.model, s.layout, s.samples, [batches[k]], start[k : k + 1], private[k : k + 1], work
        )
        assert relative(together.theta[k] - s.theta, alone.theta[0] - s.theta) < bound
        if s.layout.d_private:
            moved = alone.private[0] - s.private
            assert relative(together.private[k] - s.private, moved) < bound
        assert together.loss[k] == pytest.approx(alone.loss[0], rel=1e-4)


def test_no_client_gets_a_step_or_a_sample_it_should_not(setting, batches_of):
    s = setting()
    m = len(SIZES)
    result = train_cohort(
        s.model, s.layout, s.samples, batches_of(SIZES, batch_size=4, epochs=3),
        s.theta.expand(m, -1), s.private.expand(m, -1), WORK,
    )  # fmt: skip
    assert result.steps.tolist() == [3 * -(-n // 4) for n in SIZES]
    assert result.samples.tolist() == [3 * n for n in SIZES]


def test_batches_hold_every_sample_once_an_epoch(batches_of):
    for own, size, start in zip(batches_of([10, 7]), [10, 7], [0, 10], strict=True):
        per_epoch = len(own) // 2
        for epoch in range(2):
            seen = np.concatenate(own[epoch * per_epoch : (epoch + 1) * per_epoch])
            assert sorted(seen.tolist()) == list(range(start, start + size))


def test_one_client_equals_pytorch_adam_and_clipping(setting, batches_of):
    """The oracle is torch: Adam, clip_grad_norm_ and autograd of the whole of Eq. 5."""
    s = setting(branch="dual")
    lambda1, lambda2 = 0.02, 0.03
    work = LocalWork(Adam(), 3e-3, 2e-3, 5e-3, 0.1, (GatePenalty(lambda1), PrivatePenalty(lambda2)))
    batches = batches_of([11])
    ours = train_cohort(s.model, s.layout, s.samples, batches, s.theta[None], s.private[None], work)
    shared = {
        n: v.clone().requires_grad_()
        for n, v in views(s.theta[None], s.layout.communicated).items()
    }
    private = {
        n: v.clone().requires_grad_() for n, v in views(s.private[None], s.layout.private).items()
    }
    rates = {spec.name: {"private": 2e-3, "gate": 5e-3}[spec.group] for spec in s.layout.private}
    groups = [{"params": list(shared.values()), "lr": 3e-3}]
    groups += [{"params": [value], "lr": rates[name]} for name, value in private.items()]
    adam = torch.optim.Adam(groups)
    for batch in batches[0]:
        adam.zero_grad()
        logits = s.model.logits(s.samples.images[batch], [len(batch)], {**shared, **private})
        loss = cross_entropy(logits, s.samples.labels[batch])
        for name, value in private.items():
            if name.endswith("lambda_k_logit"):
                loss = loss + lambda1 * torch.sigmoid(value).abs().sum()
            if "_private" in name:
                loss = loss + lambda2 * value.square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*shared.values(), *private.values()], 0.1)
        adam.step()
    theirs = torch.cat([v.detach().flatten() for v in shared.values()])
    assert relative(ours.theta[0] - s.theta, theirs - s.theta) < 1e-6
    theirs = torch.cat([v.detach().flatten() for v in private.values()])
    assert relative(ours.private[0] - s.private, theirs - s.private) < 1e-6


def test_inputs_are_not_modified(setting, batches_of):
    s = setting(branch="dual")
    theta, private = s.theta.clone(), s.private.clone()
    train_cohort(
        s.model, s.layout, s.samples, batches_of([5, 9]),
        s.theta.expand(2, -1), s.private.expand(2, -1), WORK,
    )  # fmt: skip
    assert torch.equal(theta, s.theta) and torch.equal(private, s.private)


def test_specification_start_values(setting, batches_of):
    """gate_penalty = L/2 and private_penalty < 0.01 before the first step, as traced."""
    s = setting(branch="dual")
    work = LocalWork(Adam(), 3e-3, 3e-3, 5e-3, 1.0, trace_every=2)
    result = train_cohort(
        s.model, s.layout, s.samples, batches_of([9]), s.theta[None], s.private[None], work
    )
    first = result.trace[0]
    blocks = len(s.model.model.blocks)
    assert first["gate_penalty"] == pytest.approx(blocks / 2, abs=1e-12)
    assert 0 < first["private_penalty"] < 0.01
    assert first["gate_min"] == first["gate_max"] == 0.5
    assert [row["step"] for row in result.trace] == [0, 2, 4]


def test_gates_learn_from_the_second_step_without_penalty(setting, batches_of):
    """B_p starts at 0, so the gate's first gradient is 0 and its second is not."""
    s = setting(branch="dual")
    columns = PrivateColumns.of(s.layout)
    batches = batches_of([8], batch_size=4, epochs=1)[0]
    assert len(batches) == 2
    states = []
    for steps in (1, 2):
        result = train_cohort(
            s.model, s.layout, s.samples, [batches[:steps]], s.theta[None], s.private[None], WORK
        )
        states.append(result.private[0, columns.gates])
    assert torch.all(states[0] == 0)
    assert torch.all(states[1] != 0)


def test_closed_penalties_in_parameters(setting):
    s = setting(branch="dual")
    columns = PrivateColumns.of(s.layout)
    private = torch.randn(3, s.layout.d_private, dtype=torch.float64)
    named = views(private, s.layout.private)
    expected = sum(v.flatten(1).square().sum(1) for n, v in named.items() if "_private" in n)
    assert torch.allclose(private_penalty(private, columns), expected, rtol=1e-12)
    expected = sum(torch.sigmoid(v) for n, v in named.items() if "lambda_k_logit" in n)
    assert torch.allclose(gate_penalty(private, columns), expected, rtol=1e-12)


def test_a_loss_that_is_not_finite_names_the_client(setting, batches_of):
    s = setting()
    images = s.samples.images.clone()
    images[5] = float("nan")  # belongs to the second client
    with pytest.raises(
        FloatingPointError, match=r"client 42: the loss is not finite at local step"
    ):
        train_cohort(
            s.model, s.layout, Samples(images, s.samples.labels), batches_of([4, 4]),
            s.theta.expand(2, -1), s.private.expand(2, -1), WORK,
            name=lambda k: f"client {[7, 42][k]}",
        )  # fmt: skip


def test_a_client_without_samples_is_an_error(setting):
    s = setting()
    with pytest.raises(ValueError, match="row 0 has no training batch"):
        train_cohort(s.model, s.layout, s.samples, [[]], s.theta[None], s.private[None], WORK)


def test_clipping_bounds_the_whole_gradient(setting, batches_of):
    """With SGD at rate 1, one step moves a client by its clipped gradient: at most the limit."""
    s = setting(branch="dual")
    limit = 1e-3
    work = LocalWork(Sgd(), 1.0, 1.0, 1.0, limit)
    result = train_cohort(
        s.model, s.layout, s.samples, [own[:1] for own in batches_of([4, 4])],
        s.theta.expand(2, -1), s.private.expand(2, -1), work,
    )  # fmt: skip
    for k in range(2):
        moved = torch.cat([result.theta[k] - s.theta, result.private[k] - s.private]).norm()
        assert float(moved) == pytest.approx(limit, rel=1e-2)
        assert float(moved) <= limit
