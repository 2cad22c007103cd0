"""How fast a round of a federation is: ours, the plain loop, Flower's simulation; of the peak.

    pytest benchmarks/bench_training.py [--short] [--device cuda]

One round of the real thing, drawing, training, counting bytes, aggregating and recording, but not
evaluating; always the first, so that all codes do the same work. One thread each. All take turns,
a bare product of two matrices in each precision among them, and the best times count. Operations
are counted in one round more. What pytest-benchmark keeps and compares is our round in float32; the
others stand in its ``extra_info``. Flower runs in a process of its own between turns of ours.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import rivals
from benchmarks.arithmetic import operations, product
from benchmarks.federations import MEASURED, federation, precisions
from benchmarks.gate import one_thread
from benchmarks.plain_loop import PlainLoop, adapt_by_peft
from benchmarks.quiet import Watch, refusal
from benchmarks.timing import Work, finished, in_turns
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.federation.cohorts import draw_cohort
from fedsdg.models.interface import HasLosses

METHODS = ("fedsdg", "fedavg")
FLOWER_ROUNDS = 6


@pytest.fixture
def device(request) -> str:
    return str(request.config.getoption("--device"))


def works(model: str, method: str, device: str) -> dict[tuple[str, str], Work]:
    """(code, precision) -> its first round, again and again."""
    found: dict[tuple[str, str], Work] = {}
    for precision in MEASURED[model].precisions:
        if precision in precisions():
            own = federation(model, method, device, precision=precision)
            found["ours", precision] = lambda own=own: own.step(1)
        plain = PlainLoop(
            federation(model, method, device=device, kernel="torch"),
            bfloat16=precision == "bfloat16",
        )
        found["plain", precision] = lambda plain=plain: plain.round(1)
    if method == "fedavg" and importlib.util.find_spec("peft") is not None:
        by_torch = federation(model, method, device=device, kernel="torch")
        with_peft = PlainLoop(by_torch, adapt=adapt_by_peft)
        found["peft", "float32"] = lambda: with_peft.round(1)
    return found


def facts(model: str, method: str, device: str) -> dict[str, object]:
    """What is done in a round; operations are those that PyTorch is asked for."""
    made = federation(model, method, device=device, kernel="torch")
    schedule = made.schedule
    cohort = draw_cohort(made.seed, 1, made.num_clients, schedule.clients_per_round)
    return {
        "model": model,
        "method": method,
        "device": device,
        "clients": schedule.clients_per_round,
        "batch_size": schedule.batch_size,
        "epochs": schedule.epochs,
        "samples": int(schedule.epochs * made.train_sizes[cohort].sum()),
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MEASURED)
def test_round(benchmark, record, short, ours_alone, device, model, method):
    measured = MEASURED[model]
    if short and model != "digits":
        pytest.skip("not part of the short form")
    seconds = measured.seconds / 10 if short else measured.seconds
    codes = works(model, method, device)
    if ours_alone:
        codes = {key: work for key, work in codes.items() if key[0] == "ours"}
    bare = {precision: product(precision, device) for precision in measured.precisions}
    with one_thread(), repeatable(device):
        counts: dict[tuple[str, str], int | None] = {}
        for key, work in codes.items():
            # What is compiled is no operation of PyTorch's, and cannot be counted so.
            compiled = key == ("ours", "float32") and isinstance(
                federation(model, method, device).model, HasLosses
            )
            counts[key] = None if compiled else operations(work)
        watch = Watch()
        turns = [*codes.values(), *(work for work, _ in bare.values())]
        times = in_turns([finished(work, device) for work in turns], seconds, benchmark)
        refused = refusal(watch.others())
        best = dict(zip([*codes, *bare], map(min, times), strict=True))
        rows = [
            {
                "code": code,
                "precision": precision,
                "seconds": best[code, precision],
                "operations": counts[code, precision],
                "peak": bare[precision][1] / best[precision],
            }
            for code, precision in codes
        ]
        if model == "digits" and device == "cpu" and not ours_alone and rivals.flower_simulates():
            for code, more in (("flower", []), ("flower-fresh", ["--fresh"])):
                rows.append({"code": code, "precision": "float32", **flower(model, method, *more)})
            watch = Watch()
            (again,) = in_turns([codes["ours", "float32"]], seconds / 10)
            rows[0]["seconds"] = min(rows[0]["seconds"], *again)
            refused = refused or refusal(watch.others())
        for code, precision in codes:
            benchmark.extra_info[f"{code} {precision}"] = best[code, precision]
    benchmark.extra_info["refused"] = refused
    for row in rows:
        record("rounds", **facts(model, method, device), **row, refused=refused)


def flower(model: str, method: str, *more: str) -> dict[str, float]:
    """Seconds of the best round in Flower's simulation, and of starting it.

    Actors start in the first round, which therefore counts as start as far as it takes longer.
    """
    command = [sys.executable, "-m", "benchmarks.flower_simulation", model, method]
    done = subprocess.run(
        [*command, "--rounds", str(FLOWER_ROUNDS), *more],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    best = min(told["seconds"])
    return {"seconds": best, "start_seconds": told["other_seconds"] + told["seconds"][0] - best}
