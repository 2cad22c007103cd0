"""All compared codes do the same: ours, plain numpy, byzfl and Flower."""

import numpy as np
import pytest
import torch

from benchmarks import floor, rivals
from benchmarks.cohorts import (
    TENSORS,
    Cohort,
    in_numpy,
    ours,
    small_dictionaries,
)
from benchmarks.rules import RULES

# byzfl's Krum counts one neighbour more, and its geometric median takes three steps.
DIFFERENT = {("krum", "byzfl"), ("multikrum", "byzfl"), ("geometric-median", "byzfl")}


def vector(result):
    if isinstance(result, dict):
        return torch.cat([torch.as_tensor(part) for part in result.values()])
    if isinstance(result, list):
        return torch.from_numpy(np.concatenate(result))
    return torch.as_tensor(result)


@pytest.mark.parametrize("clients", [10, 11])
@pytest.mark.parametrize("rule", RULES)
def test_other_codes_give_our_result(rule, clients):
    cohort = Cohort.draw(clients, 2000)
    expected = vector(ours(rule, cohort.global_params, cohort.client_params)())
    codes = rivals.works(rule, cohort)
    assert "numpy" in codes
    for code, work in codes.items():
        if (rule, code) not in DIFFERENT:
            # Weiszfeld's iteration stops when the objective, not the point, is right.
            atol = 1e-3 if rule == "geometric-median" else 1e-5
            torch.testing.assert_close(vector(work()).float(), expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("rule", RULES)
def test_numpy_on_dictionaries_gives_our_result(rule):
    params = small_dictionaries(9, 7, 40)
    expected, result = ours(rule, *params)(), in_numpy(rule, *params)()
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=5e-5)


def test_a_model_is_cut_into_tensors_that_share_its_memory():
    cohort = Cohort.draw(3, 1000)
    tensors = cohort.client_params[1]
    assert len(tensors) == TENSORS
    assert torch.equal(torch.cat(list(tensors.values())), cohort.updates[1])
    assert tensors["layer0"].data_ptr() == cohort.updates[1].data_ptr()


def test_a_bare_read_covers_the_whole_buffer():
    size = 4 * (3 * floor._PIECE + 5)
    work, moved = floor.memory_work("cpu", size)
    assert moved == size
    assert sum(work()) == pytest.approx(size // 4)


def test_a_product_has_two_operations_for_each_triple():
    work, operations = floor.product_work("cpu", "bfloat16")
    work()
    assert operations == 2 * 1024**3
