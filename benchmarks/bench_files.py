"""How much memory does `fedsdg aggregate` need for 4 GB of files?

    pytest benchmarks/bench_files.py        (files go where temporary files go: TMPDIR)

40 clients of 25 million parameters, each code in a process of its own. The limit is the time of a
bare read, as often as the files have to be read; numpy loads all of them into memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import results
from benchmarks.rules import RULES
from benchmarks.timing import LIMIT, OURS, Work, take_turns

RULE = "fedsdg"
CLIENTS, PARAMETERS = 40, 25_000_000
BLOCKS_MIB = 256
"""Memory for blocks that the command is given."""
IN_OURS = """
import sys
from fedsdg.cli import main
code = main(sys.argv[1:])
"""
IN_NUMPY = """
import sys
import numpy as np
from safetensors.numpy import load_file, save_file
from benchmarks.rules import RULES
rule, origin, out, *clients = sys.argv[1:]
theta = load_file(origin)["w"]
updates = np.stack([load_file(client)["w"] for client in clients]) - theta
save_file({"w": theta + RULES[rule].step(updates, 1)}, out)
code = 0
"""
PEAK = """
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) * 1024)
sys.exit(code)
"""


def write_clients(folder: Path, clients: int, parameters: int) -> list[Path]:
    """Write float32 files: of clients whose updates share a direction, and the global one first."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(parameters, generator=generator)
    files = [folder / "global.safetensors"]
    save_file({"w": theta}, files[0])
    for k in range(clients):
        # The same numbers at other places are as good as new ones, and cheaper to make.
        shifted = theta.roll(7919 * (k + 1)).mul_(0.01).add_(theta, alpha=1.001)
        files.append(folder / f"client-{k}.safetensors")
        save_file({"w": shifted}, files[-1])
    return files


def read_bare(files: Sequence[Path]) -> None:
    """Read files and do nothing with the bytes."""
    buffer = memoryview(bytearray(1 << 20))
    for file in files:
        with file.open("rb", buffering=0) as source:
            while source.readinto(buffer):
                pass


def peak_bytes(code: str, words: Sequence[str | Path]) -> int:
    """Run code in a process of its own and return the most memory that it had."""
    command = [sys.executable, "-c", code + PEAK, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.benchmark(group="files")
def test_files(benchmark, report, short, device, tmp_path):
    """Compare the command with numpy and a bare read, and judge its peak of memory."""
    if device != "cpu" or sys.platform != "linux":
        pytest.skip("measured on the CPU and on Linux alone, which tells the peak of memory")
    clients, parameters = (4, 1_000_000) if short else (CLIENTS, PARAMETERS)
    wanted = 4 * parameters * (clients + 3)
    if shutil.disk_usage(tmp_path).free < wanted:
        pytest.skip(f"{wanted} bytes of disk are needed; set TMPDIR to a folder on a larger disk")
    files = write_clients(tmp_path, clients, parameters)
    os.sync()  # Memory that is not on the disk yet cannot be freed.
    out = tmp_path / "new.safetensors"
    options = ["--rule", RULE, "--global", files[0], "--out", out, "--overwrite"]
    options += ["--memory", BLOCKS_MIB, "--clients", *files[1:]]
    peaks = {}

    def ours() -> None:
        peaks[OURS] = peak_bytes(IN_OURS, ["aggregate", *options])

    def in_numpy() -> None:
        peaks["numpy"] = peak_bytes(IN_NUMPY, [RULE, files[0], out, *files[1:]])

    works: dict[str, Work] = {"numpy": in_numpy, LIMIT: lambda: read_bare(files), OURS: ours}
    passes = RULES[RULE].passes
    timings = take_turns(benchmark, works, 1.0 if short else 20.0, scale=passes)
    shutil.rmtree(tmp_path)
    most = results.thresholds()["files"]["most_mib"]
    setting = f"{clients} × {parameters:,}"
    report("files", setting, RULE, timings, peak_bytes=peaks)
    assert peaks[OURS] <= most << 20, f"peak of {peaks[OURS]} bytes, {most} MiB are allowed"
