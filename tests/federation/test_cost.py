"""What local training costs by design, counted exactly: products, operations, bytes copied.

No clock: these counters are the same on every machine and under any load, so a change that takes a
client more into the step, computes a gradient that nobody wants, or copies the parameters once
more, fails here and at once. Time is judged by `make bench`.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.models import attention
from tests.federation.cohort import train_cohort

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
COPIES = ("cat", "stack", "clone", "copy_", "_to_copy", "index", "index_select", "expand_copy")
TERMS = (GatePenalty(1e-4), PrivatePenalty(1e-4))
BATCH = 3
"""So that no matrix of activations has the shape of a weight."""


class Dispatched(TorchDispatchMode):
    """Names of the operations, shapes of what products give, and bytes that copies write."""

    def __init__(self):
        super().__init__()
        self.operations, self.shapes, self.copied = Counter(), Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.operations[name] += 1
        if name in PRODUCTS:
            self.shapes[tuple(result.shape)] += 1
        if name in COPIES:
            self.copied[name] += result.nbytes
        return result

    @property
    def products(self):
        return sum(self.operations[name] for name in PRODUCTS)


@pytest.fixture(autouse=True)
def _dispatched(monkeypatch):
    """Compiled kernels are not dispatched: torch does the attention, with the same products."""
    monkeypatch.setattr(attention, "COMPILED", 0)


@pytest.fixture
def train(setting):
    """train(sizes, steps): clients k with batches of sizes[k] samples, steps[k] of them."""

    def run(sizes, steps, branch="dual", counting=None):
        s = setting(torch.float32, branch=branch)
        batches = [
            [np.arange(size) + i % 20 for i in range(n)]
            for size, n in zip(sizes, steps, strict=True)
        ]
        m = len(sizes)
        start, private = s.theta.expand(m, -1), s.private.expand(m, -1)
        work = LocalWork(Adam(), 3e-3, 3e-3, 5e-3, 1.0, TERMS if branch == "dual" else ())
        with counting if counting is not None else Dispatched() as counting:
            train_cohort(s.model, s.layout, s.samples, batches, start, private, work)
        return counting

    return run


def of_one_step(train, what, sizes, **more):
    """What a step adds: the difference between a run of three steps and one of two."""
    fewer, many = (what(train(sizes, [steps] * len(sizes), **more)) for steps in (2, 3))
    return many - fewer


def by_design(depth, adapted):
    """Products of one step.

    Forward, per block: qkv, two of attention, the output projection and both feed-forward layers;
    the last block's queries are the class token's alone, a product of their own; one merges the
    adapters of each adapted layer; the head.
    Backward: the slope of each adapted weight and of its two (concatenated) factors; of the head's
    weight and input; per block the inputs of six products, attention having four: but below the
    lowest adapter (the output projection of block 0) there is nothing to be learned.
    """
    forward = depth * (1 + 2 + 1 + 2) + 1 + adapted + 1
    weights = adapted * (1 + 2) + 1
    whole = 1 + 4 + 1 + 2
    inputs = (depth - 1) * whole + 1 + 1 + 2  # …, last block's queries, head, feed-forward of 0
    return forward + weights + inputs


@pytest.mark.parametrize("branch", ["none", "dual"])
@pytest.mark.parametrize("clients", [1, 2, 7, 20])
def test_products_of_a_step_are_those_of_the_design_for_any_number_of_clients(
    setting, train, clients, branch
):
    blocks = len(setting().model.model.blocks)
    counted = of_one_step(train, lambda seen: seen.products, [BATCH] * clients, branch=branch)
    assert counted == by_design(blocks, 2 * blocks)


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_all_operations_of_a_step_are_as_many_for_two_clients_as_for_twenty(train, branch):
    counts = [
        of_one_step(train, lambda seen: seen.operations.total(), [BATCH] * m, branch=branch)
        for m in (2, 20)
    ]
    assert counts[0] == counts[1]


def test_gradients_of_frozen_weights_are_never_computed(setting, train):
    """No product has the shape of one, and the patches' convolution has no way back."""
    model = setting().model.model
    frozen = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}
    assert not any(p.requires_grad for p in model.parameters())
    seen = train([BATCH] * 4, [2] * 4)
    assert frozen
    shapes = set(seen.shapes)
    assert not shapes & (frozen | {shape[::-1] for shape in frozen})
    assert seen.operations["convolution"] == 2
    assert seen.operations["convolution_backward"] == 0
    assert all(p.grad is None for p in model.parameters())


def test_finished_clients_cost_nothing(train):
    """A cohort's products do the arithmetic of its clients one by one, to the last operation."""
    sizes, steps = [4, 1, 3, 4, 2], [1, 7, 2, 4, 1]
    together = train(sizes, steps, counting=FlopCounterMode(display=False)).get_total_flops()
    alone = sum(
        train([size], [n], counting=FlopCounterMode(display=False)).get_total_flops()
        for size, n in zip(sizes, steps, strict=True)
    )
    assert together == alone > 0


def test_unequal_batches_cost_a_product_for_each_run_of_equal_ones_and_no_arithmetic(train):
    """Only adapted layers and the head know whose rows are whose; the frozen ones stay one."""
    equal = of_one_step(train, lambda seen: seen.products, [BATCH] * 4)
    unequal = of_one_step(train, lambda seen: seen.products, [BATCH, BATCH, 2, 2])
    adapted = 2 * 2 + 1  # two layers in each of two blocks, and the head
    forward, slopes, inputs = adapted, adapted, adapted - 1  # the lowest input learns nothing
    assert unequal - equal == forward + slopes + inputs


def test_a_step_copies_the_adapters_once_and_no_other_parameters(setting, train):
    """Copies grow with the samples, but for the factors, which are concatenated once."""
    layout = setting(branch="dual").layout
    specs = (*layout.communicated, *layout.private)
    factors = 4 * sum(spec.size for spec in specs if "lora" in spec.name)

    def copied(clients, size):
        return of_one_step(train, lambda seen: seen.copied.total(), [size] * clients)

    by_sample = copied(1, 3) - copied(1, 2)
    assert copied(6, 4) - copied(6, 2) == 6 * 2 * by_sample
    of_a_client = (copied(6, 2) - copied(1, 2)) / 5 - 2 * by_sample
    assert factors <= of_a_client < factors + 100  # its gates, and its number of steps


def test_a_cohort_is_copied_three_times_beside_its_steps(setting, train):
    """Into the order of their steps, into what is moved, and back into the order of the cohort."""
    layout = setting(branch="dual").layout
    row = 4 * (layout.d + layout.d_private)

    def beside(clients):
        once = train([BATCH] * clients, [1] * clients).copied.total()
        return once - of_one_step(train, lambda seen: seen.copied.total(), [BATCH] * clients)

    assert 3 * row <= (beside(9) - beside(4)) / 5 < 3 * row + 100
