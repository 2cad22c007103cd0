"""How fast is a round of a federation, against the plain loop and Flower's simulation?

    pytest benchmarks/bench_rounds.py [--device cuda]

A round draws the cohort, trains, counts bytes, aggregates and records, but does not evaluate. It is
always the first one, so that all codes do the same work, on one thread. The limit is the time of
all products that the plain loop asks PyTorch for, at the rate of one large product.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import rivals
from benchmarks.federations import MODELS, federation
from benchmarks.floor import product_work
from benchmarks.plain_loop import PlainLoop
from benchmarks.timing import LIMIT, OURS, finished, one_thread, take_turns
from fedsdg.experiment.gpu import repeatable
from fedsdg.federation.clients import draw_cohort


class Round(NamedTuple):
    """A round that is timed."""

    model: str
    method: str
    precision: str = "float32"


ROUNDS = (
    Round("digits", "fedsdg"),
    Round("digits", "fedavg"),
    Round("vit-tiny", "fedsdg"),
    Round("vit-tiny", "fedsdg", "bfloat16"),
)
FLOWER_ROUNDS = 6


@pytest.mark.benchmark(group="rounds")
@pytest.mark.parametrize("timed", ROUNDS, ids="-".join)
def test_round(benchmark, report, short, device, timed):
    """Compare a round with the plain loop, Flower, and the products that it needs."""
    model, method, precision = timed
    small = model == "digits"
    if short and not small:
        pytest.skip("not part of the short form")
    mine = federation(model, method, device, precision=precision)
    by_torch = federation(model, method, device, kernel="torch").setup
    plain = PlainLoop(by_torch, bfloat16=precision == "bfloat16")
    product, operations_of_product = product_work(device, precision)
    works = {
        "plain loop": finished(lambda: plain.round(1), device),
        LIMIT: product,
        OURS: finished(lambda: mine.step(1), device),
    }
    with one_thread(), repeatable(device):
        with FlopCounterMode(display=False) as counter:
            plain.round(1)
        scale = counter.get_total_flops() / operations_of_product
        budget = 1.0 if short else 5.0 if small else 20.0
        timings = take_turns(benchmark, works, budget, scale=scale)
        if small and device == "cpu" and not short and rivals.flower_simulates():
            from benchmarks.flower_simulation import simulate

            # Its actors start in the first round.
            timings.seconds["Flower"] = simulate(model, method, FLOWER_ROUNDS)["seconds"][1:]
    setup = mine.setup
    samples = setup.schedule.epochs * setup.sizes[draw_cohort(setup, 1)].sum()
    setting = MODELS[model].title + (", bfloat16" if precision == "bfloat16" else "")
    report("rounds", setting, method, timings, samples=int(samples))
