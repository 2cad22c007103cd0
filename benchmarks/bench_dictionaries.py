"""How fast are rules on dictionaries of many small arrays, against plain numpy?

pytest benchmarks/bench_dictionaries.py

20 clients with 200 arrays of 1,000 numbers each, one thread, processor time.
"""

from __future__ import annotations

import time

import pytest

from benchmarks.cohorts import in_numpy, ours, small_dictionaries
from benchmarks.rules import RULES
from benchmarks.timing import OURS, one_thread, take_turns

CLIENTS, TENSORS, NUMBERS = 20, 200, 1000


@pytest.fixture(scope="module")
def params():
    """Draw the dictionaries once for all rules."""
    return small_dictionaries(CLIENTS, TENSORS, NUMBERS)


@pytest.mark.benchmark(group="dictionaries")
@pytest.mark.parametrize("rule", RULES)
def test_dictionaries(benchmark, report, short, device, params, rule):
    """Compare a rule with plain numpy."""
    if device != "cpu":
        pytest.skip("measured on the CPU alone")
    works = {"numpy": in_numpy(rule, *params), OURS: ours(rule, *params)}
    with one_thread():
        timings = take_turns(benchmark, works, 0.2 if short else 2.0, clock=time.process_time)
    report("dictionaries", f"{CLIENTS} × {TENSORS} × {NUMBERS:,}", rule, timings)
