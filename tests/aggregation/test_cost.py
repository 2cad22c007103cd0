"""What a rule costs by design, counted exactly: passes, dispatched operations, allocations.

No clock: these counters are the same on every machine and under any load, so a change that reads
the updates once more, or copies them, fails here and at once. Time is judged by `make bench`.
"""

import tracemalloc
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.order_statistics import SORTED_NUMBERS
from fedsdg.aggregation.engines.rows import BlockRows
from fedsdg.aggregation.engines.statistics import BLOCK_BYTES
from fedsdg.aggregation.plans import step_of
from fedsdg.aggregation.rule_table import make_rule

SIZE = 10
RULES = {
    "fedsdg": 2,
    "fedavg": 1,
    "krum": 1 + 1 / SIZE,
    "multikrum": 2,
    "geometric-median": 2,
    "coordinate-median": 1,
    "trimmed-mean": 1,
    "cgsv": 3,
    "scaffold": 2,
}
"""Reads of the updates. Krum reads the winner again. CGSV takes the norms, then the dots with the
mean of the normalised updates, then the sum. SCAFFOLD has two uploads."""


class Counting(TorchDispatchMode):
    """Dispatched operations by name, and the bytes of the largest storage that one made."""

    def __init__(self):
        super().__init__()
        self.operations, self.largest = Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations[str(func)] += 1
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        made = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
        for storage in (tensor.untyped_storage() for tensor in made):
            if storage.data_ptr() not in known:
                self.largest = max(self.largest, storage.nbytes())
        return result


def _flat(result):
    return result if isinstance(result, tuple | list) else (result,)


def prepared(name, cohort, d):
    """A rule with all that it is called with."""
    rule, context = make_rule(name), cohort(SIZE)
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(SIZE, d, generator=generator).add_(0.5)
    uploads = {"update": updates}
    if name == "scaffold":
        uploads["control"] = torch.randn(SIZE, d, generator=generator)
    return rule, uploads, context, rule.init(d, context.client_samples)


@pytest.mark.parametrize("name", RULES)
def test_updates_are_read_as_often_as_the_design_says(cohort, name):
    """Rows that come in blocks count the numbers that they deliver: passes times M d."""
    d, width = 5000, 512
    rule, uploads, context, state = prepared(name, cohort, d)
    delivered = 0

    def blocks_of(rows):
        def blocks():
            nonlocal delivered
            for start in range(0, d, width):
                block = rows[:, start : start + width]
                delivered += block.numel()
                yield slice(start, start + block.shape[1]), block

        return blocks

    rows = {key: BlockRows(blocks_of(rows), (SIZE, d), rows.dtype) for key, rows in uploads.items()}
    step_of(rule.plan(rows, context, state), rows["update"], context)
    # Blocks hold all rows, so the winner's comes with the others.
    passes = {"krum": 2}.get(name, RULES[name])
    assert delivered == passes * SIZE * d


@pytest.mark.parametrize("name", RULES)
def test_the_kernels_work_is_no_matter_of_torch(cohort, name):
    """With kernels, the number of dispatched operations does not depend on d at all."""
    counts = []
    for d in (200_000, 800_000):
        rule, uploads, context, state = prepared(name, cohort, d)
        with backend("numba"):
            rule(uploads, context, state)  # Compiled before anything is counted.
            with Counting() as counting:
                rule(uploads, context, state)
        counts.append(counting.operations)
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) < 100


@pytest.mark.parametrize("name", RULES)
def test_the_references_operations_follow_the_blocks(cohort, name):
    """Twice the columns, at most twice the operations: nothing is done column by column."""
    counts = []
    for d in (200_000, 400_000):
        rule, uploads, context, state = prepared(name, cohort, d)
        with backend("torch"), Counting() as counting:
            rule(uploads, context, state)
        counts.append(sum(counting.operations.values()))
    assert counts[1] <= 2 * counts[0]
    blocks = 400_000 * SIZE * 8 / BLOCK_BYTES + 400_000 * SIZE / SORTED_NUMBERS
    assert counts[1] < 100 + 40 * blocks


@pytest.mark.parametrize("which", ["numba", "torch"])
@pytest.mark.parametrize("name", RULES)
def test_nothing_of_the_size_of_all_updates_is_allocated(cohort, name, which):
    """Beside the inputs: some vectors [d] in float64 and some blocks, never a second [M, d]."""
    d = 500_000
    rule, uploads, context, state = prepared(name, cohort, d)
    with backend(which):
        rule(uploads, context, state)
        tracemalloc.start()
        try:
            with Counting() as counting:
                rule(uploads, context, state)
            _, numpy_peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    limit = max(8 * d, 8 * SORTED_NUMBERS, BLOCK_BYTES)
    assert limit < 4 * SIZE * d / 4  # The limit tells a copy of the updates from a vector.
    assert counting.largest <= limit
    assert numpy_peak <= limit
