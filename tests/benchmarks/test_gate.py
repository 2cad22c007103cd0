"""The bar does what it is for: a slowed kernel misses it, a sound one clears it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gate
from benchmarks.bench_bars import BARS
from benchmarks.cohorts import Cohort
from benchmarks.gate import Bar, Verdict, judge, one_thread
from benchmarks.rules import RULES, ours
from fedsdg.aggregation.engines.backends import backend

ROOT = Path(__file__).parents[2]
FEDSDG = next(bar for bar in BARS if bar.rule == "fedsdg")

# A defect in the kernels, put into them from outside: every pass is made six times.
SLOWING = """
from fedsdg.aggregation.engines.kernels import moments, sums

def often(kernel):
    def slowed(*arguments, **more):
        return [kernel(*arguments, **more) for _ in range(6)][-1]
    return slowed

moments.moments = often(moments.moments)
sums.weighted_sum = often(sums.weighted_sum)
"""


def sleeping(seconds: float):
    return lambda: time.sleep(seconds)


def test_the_ratio_is_that_of_the_times():
    verdict = judge(sleeping(0.002), sleeping(0.02), least=4, budget=0.2)
    assert verdict.passed
    assert 4 < verdict.ratio <= 10.1


def test_a_miss_is_measured_again_before_it_counts(monkeypatch):
    spans = iter([0.02, 0.02, 0.02])  # The first attempt is disturbed, the second is not.
    monkeypatch.setattr(gate, "in_turns", lambda *_, **__: ([next(spans, 0.002)], [0.02]))
    verdict = judge(sleeping(0), sleeping(0), least=4, budget=0.1)
    assert not verdict.passed
    assert verdict.ratio == 1
    spans = iter([0.02, 0.002])
    assert judge(sleeping(0), sleeping(0), least=4, budget=0.1).passed


def test_on_busy_cores_a_miss_is_refused_and_no_pass(monkeypatch):
    monkeypatch.setattr(gate, "refusal", lambda others: "not judged: others are at work")
    verdict = judge(sleeping(0.002), sleeping(0.002), least=4, budget=0.02)
    assert not verdict.passed
    assert verdict.refused == "not judged: others are at work"
    assert verdict.refused in verdict.sentence(FEDSDG)


def test_the_sentence_names_rule_size_ratio_and_reason():
    bar = Bar("krum", 10, 1_000_000, 6, "distances in one pass")
    told = Verdict(2.5, False, None).sentence(bar)
    assert told == (
        "krum at 10 x 1,000,000: 2.50 times the reference in the best of 3 attempts, but 6 is "
        "asked: distances in one pass"
    )


def test_every_bar_concerns_a_measured_rule_and_has_a_reason():
    for bar in BARS:
        assert bar.rule in RULES
        assert bar.least > 1
        assert len(bar.reason.split()) > 2


def test_a_kernel_run_three_times_misses_a_bar_that_it_cleared(monkeypatch):
    """On the ratio alone: whether the cores are quiet is another test's business."""
    monkeypatch.setattr(gate, "refusal", lambda others: None)
    work = ours("fedsdg", Cohort.draw(FEDSDG.clients, FEDSDG.parameters))

    def reference() -> None:
        with backend("torch"):
            work()

    with one_thread():
        work()
        sound = judge(work, reference, least=1, budget=0.5)
        bar = 2 / 3 * sound.ratio  # As the committed bars stand to what a quiet machine measured.
        slowed = judge(lambda: [work(), work(), work()], reference, bar, budget=0.3)
    assert sound.passed
    assert not slowed.passed


@pytest.mark.slow
def test_a_slowed_kernel_fails_the_benchmark(tmp_path):
    (tmp_path / "slowing.py").write_text(SLOWING)
    program = "import sys, pytest, slowing; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["benchmarks/bench_bars.py", "-k", "fedsdg", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", program, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert f"but {FEDSDG.least:g} is asked" in done.stdout or "not judged" in done.stdout
