"""Rows are clients: each has an optimiser of its own, as PyTorch would keep one per client."""

import pytest
import torch

from fedsdg.experiment.examining.choices import OPTIMISER
from fedsdg.experiment.examining.findings import OK, examine
from fedsdg.federation.optimisers.adagrad import Adagrad
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.adamw import AdamW
from fedsdg.federation.optimisers.mover import Mover
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.methods.choices import OPTIMISERS
from fedsdg.methods.plugins import build_choice
from fedsdg.models.rounding import processor_independent
from fedsdg.parts import declared
from tests.pretended_cuda import pretended_cuda

CASES = {
    "adam": (Adam(), lambda p: torch.optim.Adam(p, lr=0.03)),
    "adam, other constants": (
        Adam(0.8, 0.95, 1e-3),
        lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.95), eps=1e-3),
    ),
    "adamw": (AdamW(), lambda p: torch.optim.AdamW(p, lr=0.03)),
    "adamw, much decay": (
        AdamW(0.5, 0.9, 1e-6, 2.5),
        lambda p: torch.optim.AdamW(p, lr=0.03, betas=(0.5, 0.9), eps=1e-6, weight_decay=2.5),
    ),
    "sgd": (Sgd(), lambda p: torch.optim.SGD(p, lr=0.03)),
    "sgd, momentum": (Sgd(0.9), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9)),
    "sgd, nesterov": (
        Sgd(0.7, True, 0.2),
        lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.7, nesterov=True, weight_decay=0.2),
    ),
    "sgd, decay": (Sgd(0.0, False, 0.2), lambda p: torch.optim.SGD(p, lr=0.03, weight_decay=0.2)),
    "adagrad": (Adagrad(), lambda p: torch.optim.Adagrad(p, lr=0.03)),
    "adagrad, epsilon": (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.03, eps=0.1)),
}
BY_TORCH = pytest.mark.parametrize("name", CASES)


def by_torch(make, start, gradients):
    theta = start.clone().requires_grad_()
    optimiser = make([theta])
    for gradient in gradients:
        theta.grad = gradient.clone()
        optimiser.step()
    return theta.detach()


def drawn(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@BY_TORCH
def test_every_client_is_moved_as_by_an_optimiser_of_its_own(name):
    """Client 0 takes seven steps, 1 joins for the last four, 2 for the last two; then 1 leaves,
    the others change places and take two more."""
    optimiser, make = CASES[name]
    start, gradients = drawn(3, 7), drawn(9, 3, 7)
    matrix, mover = start.clone(), Mover(optimiser, start, 0.03)
    own = [[], [], []]
    for step in range(7):
        rows = 1 if step < 3 else 2 if step < 5 else 3
        mover.step(matrix[:rows], gradients[step, :rows])
        for client in range(rows):
            own[client].append(gradients[step, client])
    left = torch.tensor([2, 0])
    mover.keep(left)
    some = matrix[left]
    for step in (7, 8):
        mover.step(some, gradients[step, left])
        for client in left.tolist():
            own[client].append(gradients[step, client])
    assert [len(steps) for steps in own] == [9, 4, 4]
    for client, ours in ((0, some[1]), (1, matrix[1]), (2, some[0])):
        theirs = by_torch(make, start[client], own[client])
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(ours, start[client], rtol=1e-3)


@BY_TORCH
def test_float32_rows_move_as_in_torch_by_what_is_the_same_on_every_processor(name):
    optimiser, make = CASES[name]
    start, gradients = drawn(3, 37), drawn(9, 3, 37)
    matrix = start.float()
    mover = Mover(optimiser, matrix, torch.full((37,), 0.03))
    with processor_independent():
        for gradient in gradients:
            mover.step(matrix, gradient.float())
    theirs = by_torch(make, start, gradients)
    assert torch.allclose(matrix.double(), theirs, rtol=1e-5, atol=1e-6)


@BY_TORCH
def test_all_that_is_asked_of_other_peoples_optimisers(name):
    """A rate is that of its column; what is remembered can be put down and taken up; the rest."""
    optimiser, _ = CASES[name]
    assert {one.outcome for one in examine(name, optimiser, OPTIMISER)} == {OK}
    assert (Mover(optimiser, drawn(2, 5), 0.03).remembered() == {}) == (optimiser.memory == ())


@BY_TORCH
def test_clients_with_unequal_numbers_of_steps_move_together_on_a_gpu(name):
    """After 5, 0, 2 and 1 steps of their own in as many launches as after 3 each; the host waits
    for nothing, also where clients leave, and numbers are those of torch for each."""
    optimiser, make = CASES[name]
    start, gradients = drawn(4, 7), drawn(8, 4, 7)
    launched = []
    for counts in ((5, 0, 2, 1), (3, 3, 3, 3)):
        matrix, remembered = start.clone(), []
        for k, count in enumerate(counts):
            alone = Mover(optimiser, start[k : k + 1], 0.03)
            for step in range(count):
                alone.step(matrix[k : k + 1], gradients[step, k : k + 1])
            remembered.append(alone.remembered())
        kept = {key: torch.cat([one[key] for one in remembered]) for key in remembered[0]}
        with pretended_cuda() as machine:
            there, pulls = matrix.cuda(), gradients.cuda()
            kept = {key: value.cuda() for key, value in kept.items()}
            rows = torch.tensor([0, 2, 3]).cuda()
            mover = Mover(optimiser, there, 0.03)
            before = machine.work.total(), machine.waits.total()
            if kept:
                mover.resume(kept)
            mover.step(there, pulls[5])
            mover.step(there[:3], pulls[6, :3])
            launched.append(machine.work.total() - before[0])
            if kept:
                mover.keep(rows)
                ended = mover.remembered()
                mover.step(there[rows], pulls[7, rows])
                assert machine.waits.total() == before[1]
                steps = ended["steps"].cpu().flatten().tolist()
                assert steps == [counts[0] + 2, counts[2] + 2, counts[3] + 1]
            found = there.cpu()
        for k, count in enumerate(counts):
            own = [*gradients[:count, k], *gradients[5 : 7 if k < 3 else 6, k]]
            torch.testing.assert_close(found[k], by_torch(make, start[k], own), rtol=1e-9, atol=0)
    assert launched[0] == launched[1]


def test_names_stand_for_what_torch_does_by_itself():
    makers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    makers |= {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    assert set(makers) == set(OPTIMISERS)
    start, gradients = drawn(1, 4), drawn(5, 1, 4)
    for name, make in makers.items():
        matrix, mover = start.clone(), Mover(build_choice("optimiser", name, None), start, 0.01)
        for gradient in gradients:
            mover.step(matrix, gradient)
        theirs = by_torch(lambda p, make=make: make(p, lr=0.01), start, gradients)
        assert torch.allclose(matrix, theirs, rtol=1e-9, atol=1e-12)


def test_sgd_is_a_step_down_the_gradient():
    matrix = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    Mover(Sgd(), matrix, 0.25).step(matrix, torch.tensor([[4.0, -8.0]], dtype=torch.float64))
    assert matrix.tolist() == [[0.0, 4.0]]


def test_an_optimiser_says_what_it_takes_and_refuses_the_rest():
    assert list(declared(AdamW)) == [*declared(Adam), "weight_decay"]
    for made, said in (
        (lambda: Adam(beta2=1), "^beta2 is 1, but must be at most 0.999999$"),
        (lambda: AdamW(epsilon=0), "^epsilon is 0, but must be at least 1e-12$"),
        (lambda: AdamW(weight_decay=-1), "^weight_decay is -1, but must be at least 0$"),
        (lambda: Sgd(momentum="0.9"), "^momentum is the text '0.9', but must be a number"),
        (lambda: Sgd(nesterov=1), "^nesterov is 1, but must be true or false$"),
        (lambda: Adagrad(float("nan")), "^epsilon is nan, but must be at least 1e-12$"),
    ):
        with pytest.raises(ValueError, match=said):
            made()
