"""How fast updates on a GPU are aggregated, against a copy in its memory; skipped without a GPU.

    pytest benchmarks/bench_cuda.py --benchmark-only -s

What the floor is stands in `copying.py`; 0.9 of it is asked for.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.copying import GOAL, SIZES, WORKS, against_a_copy, cohort, draw
from fedsdg.aggregation.engines.backends import kernels_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def updates(request):
    return draw(*request.param, "cuda")


@pytest.mark.parametrize("name", WORKS)
def test_against_a_copy(benchmark, updates, name):
    assert kernels_for(updates) == "triton"
    found = against_a_copy(name, updates)
    benchmark.extra_info.update(found, gpu=torch.cuda.get_device_name())
    share, size, d = found["of_the_floor"], found["clients"], found["parameters"]
    print(f"\n{name:18} {size:4} {d:10} {found['milliseconds']:9.3f} ms  {share:5.2f} of the floor")
    benchmark.pedantic(lambda: WORKS[name].call(updates, cohort(size)), rounds=3)
    if found["goal"]:
        assert share >= GOAL, f"{name} reaches {share:.2f} of the floor, {GOAL} is asked for"
