"""Turns, ratios, thresholds, and whether the machine was quiet."""

import subprocess
import sys
import time
from types import SimpleNamespace

import yaml

from benchmarks import results, timing
from benchmarks.federations import MODELS
from benchmarks.rules import RULES, least_bytes
from benchmarks.timing import LIMIT, OURS, OtherPrograms, Timings, take_turns


def pedantic(work, setup, rounds):
    """Call as pytest-benchmark does."""
    for _ in range(rounds):
        setup()
        work()


BENCHMARK = SimpleNamespace(pedantic=pedantic)


def test_codes_take_turns_and_a_slow_one_has_a_single_call():
    calls = []
    works = {
        "quick": lambda: calls.append("q"),
        LIMIT: lambda: calls.append("l"),
        "slow": lambda: (calls.append("s"), time.sleep(0.05)),
        OURS: lambda: calls.append("o"),
    }
    timings = take_turns(BENCHMARK, works, 0.05, scale=10.0)
    assert "".join(calls) == "oqlso" + "qlo" * timing.MOST_TURNS
    lengths = {code: len(times) for code, times in timings.seconds.items()}
    assert lengths == {"quick": 25, LIMIT: 25, "slow": 1, OURS: 25}
    assert timings.seconds["slow"][0] >= 0.05


def test_the_limit_is_scaled_and_ours_has_two_turns_at_least():
    works = {LIMIT: lambda: time.sleep(0.002), OURS: lambda: time.sleep(0.01)}
    timings = take_turns(BENCHMARK, works, 0.001, scale=1000.0)
    assert len(timings.seconds[OURS]) == 2
    assert LIMIT in timings.seconds and min(timings.seconds[LIMIT]) >= 2.0


def test_a_ratio_is_the_median_over_the_turns():
    timings = Timings({OURS: [1.0, 2.0, 4.0], "numpy": [3.0, 2.0, 8.0], "slow": [7.0]})
    assert timings.ratio("numpy") == 2.0
    assert timings.ratio("slow") == 7.0


def test_rows_have_the_same_keys_and_facts_by_code():
    timings = Timings({OURS: [1.0, 2.0], "numpy": [3.0, 4.0]}, busy_cores=0.123)
    rows = results.rows_of("files", "4 × 10", "fedsdg", timings, peak_bytes={OURS: 5}, size=9)
    assert rows[1] == {
        "question": "files",
        "setting": "4 × 10",
        "subject": "fedsdg",
        "code": "numpy",
        "seconds": 3.0,
        "ratio": 2.5,
        "busy_cores": 0.12,
        "peak_bytes": None,
        "size": 9,
    }
    assert rows[0]["peak_bytes"] == 5


def test_a_threshold_holds_for_the_rows_that_it_names():
    timings = Timings({OURS: [1.0], "numpy": [0.5], LIMIT: [0.9]})
    rows = results.rows_of("rules", "small", "krum", timings)
    common = {"question": "rules", "reason": "because"}
    ratios = [
        {**common, "code": "numpy", "least": 0.6},
        {**common, "code": LIMIT, "least": 0.85},
        {**common, "subject": "fedsdg", "code": "numpy", "least": 9},
        {**common, "setting": "large", "code": "numpy", "least": 9},
    ]
    (sentence,) = results.missed(rows, ratios)
    assert sentence == (
        "krum, small: numpy takes 0.50 times as long as ours, at least 0.6 is required (because)"
    )


def test_thresholds_name_what_is_measured():
    known = yaml.safe_load(results.THRESHOLDS.read_text())
    subjects = {"rules": RULES, "dictionaries": RULES, "rounds": ("fedsdg", "fedavg")}
    titles = [model.title for model in MODELS.values()]
    for threshold in known["ratios"]:
        assert threshold.get("subject", "fedsdg") in subjects[threshold["question"]]
        assert threshold["code"] in {LIMIT, "numpy", "plain loop"}
        assert threshold.get("setting", titles[0]) in titles
        assert threshold["code"] != LIMIT or threshold["least"] <= 1
    assert 1 < known["compare"]["full"] < known["compare"]["quick"]


def test_bytes_are_reads_of_the_updates_and_the_rows_beside_them():
    assert least_bytes("fedsdg", 10, 1000) == 4 * 1000 * (2 * 10 + 3)
    assert least_bytes("fedavg", 10, 1000) == 4 * 1000 * (10 + 3)
    assert least_bytes("fedavg", 10, 1000, "cuda") == 4 * 1000 * (10 + 2)


def test_another_program_at_work_is_noticed_and_named():
    spin = "import time; end = time.time() + 30\nwhile time.time() < end: pass"
    spinning = subprocess.Popen([sys.executable, "-c", spin])
    try:
        time.sleep(0.3)
        others = OtherPrograms()
        time.sleep(1.0)
        # A whole core if one is free; even among many programs the cores are not idle.
        assert others.cores() > 0.5
    finally:
        spinning.kill()
        spinning.wait()
    count = len(timing.allowed_cores())
    assert results.too_busy(0.09 * count) == ""
    assert results.too_busy(count).startswith(f"other programs used {count:.1f} of {count} cores")
