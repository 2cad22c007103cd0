"""How fast updates are aggregated: against the memory, and against the same rules by others.

    make bench                                    everything, with table, figure and judgement
    pytest benchmarks/bench_aggregation.py        this file alone (-k krum, --short)

Ours runs between two bare reads of 800 MB, as often as the budget allows (`floor.paired`); then it
takes turns with every other code, and the best times of both are compared. Where the updates fit
into the last cache, ours is run once before every timed run, and the ratio to the memory says
nothing. The numbers stand in `extra_info` and, with --measured FILE, in that file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import machine
from benchmarks.allocator import specification_and_ours
from benchmarks.cohorts import Cohort
from benchmarks.floor import paired
from benchmarks.quiet import Watch, refusal
from benchmarks.rivals import works
from benchmarks.rules import RULES, least_bytes, ours
from benchmarks.timing import in_turns, seconds, turns
from fedsdg.aggregation.engines.backends import backend

SHORT = [(10, 130_000), (10, 1_000_000), (100, 150_000)]
SIZES = [*SHORT, (10, 10_000_000), (100, 2_000_000)]
"""(clients, parameters); 1.3e5 is the LoRA vector of ViT-Tiny."""


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def cohort(request, short) -> Iterator[Cohort]:
    if short and request.param not in SHORT:
        pytest.skip("not part of the short form")
    yield Cohort.draw(*request.param)


@pytest.mark.parametrize("rule", RULES)
def test_rule(benchmark, all_cores, memory, budget, record, ours_alone, cohort, rule):
    watch = Watch()
    work = ours(rule, cohort)
    in_cache = cohort.updates.nbytes <= machine.last_level_cache()
    times: list[float] = []

    def read_first() -> None:
        memory.read()
        if in_cache:
            work()

    def timed() -> None:
        times.append(seconds(work))

    work()
    first = seconds(work) + seconds(read_first)
    before = len(memory.rates)
    rounds = turns(first, budget, least=3 if first < budget else 1, most=50)
    benchmark.pedantic(timed, setup=read_first, rounds=rounds)
    memory.read()
    least = least_bytes(rule, cohort.clients, cohort.parameters)
    share = paired(least, times, memory.rates[before:])
    facts = {"suite": "sizes", "rule": rule, "clients": cohort.clients}
    facts |= {"parameters": cohort.parameters, "in_cache": in_cache}
    rows = [{"code": "ours", "seconds": min(times), "floor": share, "least_bytes": least}]

    def reference() -> None:
        with backend("torch"):
            work()

    others = {} if ours_alone else {"reference": reference} | works(rule, cohort)
    for code, other in others.items():
        try:
            theirs, own = (min(spent) for spent in in_turns([other, work], budget))
        except (RuntimeError, MemoryError) as error:
            rows.append({"code": code, "note": str(error).splitlines()[0]})
        else:
            rows.append({"code": code, "seconds": theirs, "ratio": theirs / own})
            benchmark.extra_info[code] = theirs / own
    refused = refusal(watch.others())
    benchmark.extra_info.update(floor=share, refused=refused)
    for row in rows:
        record("timings", **facts, **row, refused=refused)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "default"])
def test_specification_with_and_without_the_allocators_settings(record, budget, short, keep):
    """The specification's code copies, so glibc's allocator decides about half of its time."""
    if short:
        pytest.skip("not part of the short form")
    watch = Watch()
    clients, parameters = 10, 1_000_000
    theirs, own = specification_and_ours(
        clients, parameters, keep=keep, threads=machine.threads(), budget=budget
    )
    refused = refusal(watch.others())
    facts = {"suite": "allocator", "rule": "fedsdg", "clients": clients, "parameters": parameters}
    facts |= {"allocator": "kept" if keep else "default", "refused": refused}
    record("timings", **facts, code="ours", seconds=own)
    record("timings", **facts, code="plain", seconds=theirs, ratio=theirs / own)
