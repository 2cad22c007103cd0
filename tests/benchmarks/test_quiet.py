"""Busy cores are noticed, and told in one sentence."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.quiet import LIMIT, Watch, busy_seconds, cores, refusal

SPIN = "import time; end = time.time() + 30\nwhile time.time() < end: pass"


def test_busy_seconds_are_all_but_idle_and_waiting_on_our_own_cores(tmp_path):
    tick = os.sysconf("SC_CLK_TCK")
    own = min(cores())
    other = max(cores()) + 1
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\n"
        f"cpu{own} {1 * tick} {2 * tick} {3 * tick} 1000000 500000 {4 * tick} {5 * tick} "
        f"{6 * tick} 70 80\n"
        f"cpu{other} 1000 1000 1000 1000 1000 1000 1000 1000 0 0\n"
        "intr 12345 0 0\n"
    )
    assert busy_seconds(stat) == 1 + 2 + 3 + 4 + 5 + 6
    assert busy_seconds(tmp_path / "none") is None


@pytest.mark.skipif(busy_seconds() is None, reason="the system has no /proc/stat")
def test_another_program_at_work_is_noticed():
    spinning = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        time.sleep(0.3)
        watch = Watch()
        time.sleep(1.0)
        # A whole core where one is free; even among crowds the cores are not idle.
        assert watch.others() > 0.5
    finally:
        spinning.kill()
        spinning.wait()


def test_a_refusal_says_who_and_what_to_do():
    count = len(cores())
    assert refusal(0) is None
    assert refusal(0.9 * LIMIT * count) is None
    told = refusal(float(count))
    assert told == (
        f"not judged: other programs took {count:.1f} of {count} cores; close them and run again"
    )
