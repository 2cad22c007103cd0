"""How fast are rules, against the speed of memory, and against byzfl, Flower and numpy?

    pytest benchmarks/bench_rules.py [-k krum] [--device cuda]

Ours is `aggregate` on dictionaries of 12 tensors, on all allowed threads. The limit is the time
in which memory moves the bytes that have to be moved; it is measured where no cache holds the
updates.
"""

from __future__ import annotations

import pytest

from benchmarks import rivals
from benchmarks.cohorts import Cohort, ours
from benchmarks.rules import RULES, least_bytes
from benchmarks.timing import LIMIT, OURS, finished, take_turns

LORA = (10, 130_000)
"""10 clients with the adapters of a ViT-Tiny."""
SIZES = {
    "cpu": [LORA, (10, 10_000_000), (100, 1_000_000)],
    "cuda": [LORA, (10, 100_000_000), (100, 10_000_000)],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the sizes (clients, parameters) of the device and the form."""
    config = metafunc.config
    short, device = config.getoption("--short"), config.getoption("--device")
    sizes = [LORA] if short else SIZES[device]
    names = [f"{clients}x{parameters}" for clients, parameters in sizes]
    metafunc.parametrize("cohort", sizes, ids=names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def cohort(request, device):
    """Draw the clients once for all rules."""
    clients, parameters = request.param
    return Cohort.draw(clients, parameters, device)


@pytest.mark.benchmark(group="rules")
@pytest.mark.parametrize("rule", RULES)
def test_rule(benchmark, report, memory, device, short, cohort, rule):
    """Compare a rule with the speed of memory and with other codes."""
    clients, parameters = cohort.updates.shape
    works = rivals.works(rule, cohort)
    move, moved_bytes = memory
    scale = 1.0
    if (clients, parameters) != LORA:
        # Last, so that it stands next to ours in every turn.
        works[LIMIT] = move
        scale = least_bytes(rule, clients, parameters, device) / moved_bytes
    works[OURS] = ours(rule, cohort.global_params, cohort.client_params)
    works = {code: finished(work, device) for code, work in works.items()}
    timings = take_turns(benchmark, works, 0.2 if short else 4.0, scale=scale)
    report("rules", f"{clients} × {parameters:,}", rule, timings)
