"""The real thing, on the smallest of sizes: measured, written, read again, drawn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsdg.analysis.speed import Measurements, write_kernels

ROOT = Path(__file__).parents[2]
SUITES = [f"benchmarks/bench_{name}.py" for name in ("accuracy", "aggregation", "growth")]
CHOSEN = "10x130000-fedsdg or 10x130000-krum or (krum and independent) or with_parameters-0"


@pytest.mark.slow
def test_measurements_become_a_table_and_a_figure(tmp_path):
    file = tmp_path / "measured.json"
    command = [sys.executable, "-m", "pytest", *SUITES, "--short", "--measured", str(file)]
    command += ["-k", CHOSEN, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    measured = Measurements.read(file)
    assert measured.machine["threads"] == 1
    assert measured.machine["read_gigabytes_per_second"]["median"] > 0.1
    assert "host" not in measured.machine
    assert {row["rule"] for row in measured.ours("sizes")} == {"fedsdg", "krum"}
    for row in measured.suite("sizes"):
        assert row["seconds"] > 0
        assert row["code"] == "ours" or row["ratio"] > 0
    assert {row["code"] for row in measured.suite("sizes")} >= {"ours", "reference", "plain"}
    assert {aim["against"] for aim in measured.aims} == {"milliseconds"}
    (krum,) = (row for row in measured.accuracy if row["code"] == "ours")
    assert krum["value"] == 1
    assert all(p.is_file() for p in write_kernels(file, tmp_path / "k", tmp_path / "r"))
