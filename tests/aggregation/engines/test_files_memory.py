"""Memory does not grow with the number of clients: measured, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc"),
]

PARAMETERS = 2_000_000
"""float32: 8 MB a client, 160 MB of 20 and 640 MB of 80."""
ALLOWED = 50 << 10
"""KiB between the peaks."""
FILES = """
from fedsdg.cli import main
assert main(["aggregate", "--rule", rule, "--global", origin, "--clients", *clients, "--out", out,
             "--report", out + ".json", "--memory", "64"]) == 0
"""
IN_MEMORY = """
from safetensors.torch import load_file
from fedsdg.aggregation import aggregate
aggregate(rule, load_file(origin), [load_file(client) for client in clients])
"""
PEAK = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Files of 80 clients."""
    folder = tmp_path_factory.mktemp("federation")
    theta = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(0))
    save_file({"w": theta}, folder / "global.safetensors")
    files = []
    for k in range(80):
        shift = 0.1 * theta.roll(k // 2 + 1) + 0.05
        files.append(folder / f"client-{k}.safetensors")
        save_file({"w": theta + shift}, files[-1])
    yield folder, files
    for file in files:
        file.unlink()


def peak(code, rule, federation, size):
    """KiB of memory of a process that aggregates the first clients."""
    folder, files = federation
    names = {
        "rule": rule,
        "origin": str(folder / "global.safetensors"),
        "clients": [str(file) for file in files[:size]],
        "out": str(folder / f"{rule}-{size}.safetensors"),
    }
    head = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    done = subprocess.run(
        [sys.executable, "-c", head + code + PEAK], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("rule", ["fedsdg", "geometric-median", "coordinate-median"])
def test_the_peak_does_not_grow_with_the_clients(rule, federation):
    few, many = (peak(FILES, rule, federation, size) for size in (20, 80))
    assert abs(many - few) < ALLOWED


def test_in_memory_it_does(federation):
    """So the test above would see it."""
    few, many = (peak(IN_MEMORY, "fedsdg", federation, size) for size in (20, 80))
    assert many - few > 4 * ALLOWED
