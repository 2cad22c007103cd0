"""How the cost grows: with the clients at a fixed size of all updates, and with the parameters.

    pytest benchmarks/bench_growth.py [--short]

A cost that is linear in d is a flat line of seconds per parameter; rules that compare every pair of
clients cost M times as much per number as those that do not, and the curve in M shows from where.
"""

from __future__ import annotations

import pytest

from benchmarks import machine
from benchmarks.cohorts import Cohort
from benchmarks.floor import paired
from benchmarks.quiet import Watch, refusal
from benchmarks.rules import RULES, least_bytes, ours
from benchmarks.timing import seconds, turns

DRAWN = ("fedsdg", "fedavg", "krum", "geometric-median", "coordinate-median", "trimmed-mean")
NUMBERS = {"short": 10_000_000, "full": 100_000_000}
"""M d along the curve in M."""
CLIENTS = {"short": (2, 10, 100, 1000), "full": (2, 5, 10, 20, 50, 100, 200, 500, 1000)}
PARAMETERS = {
    "short": (10_000, 100_000, 1_000_000),
    "full": (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000),
}


def measure(rule, cohort, memory, budget) -> dict[str, object]:
    work = ours(rule, cohort)
    in_cache = cohort.updates.nbytes <= machine.last_level_cache()
    watch = Watch()
    work()
    first = seconds(work)
    times, start = [], len(memory.rates)
    memory.read()
    for _ in range(turns(first + memory.buffer.nbytes / memory.rates[-1], budget, least=3)):
        if in_cache:
            work()
        times.append(seconds(work))
        memory.read()
    least = least_bytes(rule, cohort.clients, cohort.parameters)
    return {
        "rule": rule,
        "code": "ours",
        "clients": cohort.clients,
        "parameters": cohort.parameters,
        "seconds": min(times),
        "floor": paired(least, times, memory.rates[start:]),
        "least_bytes": least,
        "in_cache": in_cache,
        "refused": refusal(watch.others()),
    }


def form(short: bool) -> str:
    return "short" if short else "full"


@pytest.mark.parametrize("place", range(len(CLIENTS["full"])))
def test_with_clients(all_cores, memory, budget, record, short, place):
    if place >= len(CLIENTS[form(short)]):
        pytest.skip("not part of the short form")
    clients = CLIENTS[form(short)][place]
    cohort = Cohort.draw(clients, NUMBERS[form(short)] // clients)
    for rule in DRAWN:
        if rule in RULES and clients >= RULES[rule].least_clients:
            record("timings", suite="clients", **measure(rule, cohort, memory, budget / 2))


@pytest.mark.parametrize("place", range(len(PARAMETERS["full"])))
def test_with_parameters(all_cores, memory, budget, record, short, place):
    if place >= len(PARAMETERS[form(short)]):
        pytest.skip("not part of the short form")
    cohort = Cohort.draw(10, PARAMETERS[form(short)][place])
    for rule in DRAWN:
        if rule in RULES:
            record("timings", suite="parameters", **measure(rule, cohort, memory, budget / 2))
