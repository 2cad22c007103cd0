"""How much memory and time `fedsdg aggregate` takes for files larger than the memory.

    python benchmarks/files_memory.py                                    # 200 clients x 50 M: 40 GB
    python benchmarks/files_memory.py --clients 50 --parameters 5e6      # 1 GB

Writes the files of a federation into --folder, aggregates them in a process of its own, and removes
them. Prints JSON: the peak of memory of that process, seconds, bytes read per second, and what a
bare read of all files once, without any arithmetic, takes. Exit code 1 when the peak is above
--limit; 0, with "skipped" and the reason, when the disk has too little room. Linux only.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

MEASURED = """
import sys
from fedsdg.cli import main
code = main(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) << 10)
sys.exit(code)
"""


def write_federation(folder: Path, clients: int, parameters: int) -> list[Path]:
    """float32 files: updates with a common part and one of each client's own."""
    theta = torch.from_numpy(np.random.default_rng(0).standard_normal(parameters, np.float32))
    save_file({"w": theta}, folder / "global.safetensors")
    files = []
    for k in range(clients):
        # Chunks of the same numbers in other places are as good as new ones, and cheaper.
        own = theta.roll(7919 * (k + 1)).mul_(0.01).add_(theta, alpha=1.001)
        files.append(folder / f"client-{k}.safetensors")
        save_file({"w": own}, files[-1])
    return files


def bare_read(files: list[Path]) -> float:
    """Seconds that reading all files once takes when nothing is done with the numbers."""
    buffer = memoryview(bytearray(1 << 20))
    began = time.perf_counter()
    for file in files:
        descriptor, offset = os.open(file, os.O_RDONLY), 0
        while count := os.preadv(descriptor, [buffer], offset):
            offset += count
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace) -> dict:
    """The facts of one aggregation."""
    parameters = int(float(arguments.parameters))
    needed = int(4 * parameters * (arguments.clients + 2) * 1.02)
    facts = {"clients": arguments.clients, "parameters": parameters, "rule": arguments.rule}
    free = shutil.disk_usage(arguments.folder).free
    if free < needed:
        return facts | {"skipped": f"{needed} bytes are needed, {free} are free"}
    folder = Path(tempfile.mkdtemp(prefix="fedsdg-files-", dir=arguments.folder))
    try:
        files = write_federation(folder, arguments.clients, parameters)
        os.sync()  # Pages that are not on the disk yet cannot be let go.
        bare = bare_read(files)
        report = folder / "report.json"
        options = {
            "--rule": arguments.rule,
            "--global": folder / "global.safetensors",
            "--out": folder / "new.safetensors",
            "--report": report,
            "--memory": arguments.memory,
        }
        words = [str(word) for option in options.items() for word in option]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, "aggregate", *words, "--clients", *files],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - began
        found = json.loads(report.read_text())
    finally:
        shutil.rmtree(folder)
    peak = int(done.stdout.split()[-1])
    return facts | {
        "bytes_of_clients": 4 * parameters * arguments.clients,
        "peak_bytes": peak,
        "limit_bytes": arguments.limit << 20,
        "within_limit": peak <= arguments.limit << 20,
        "seconds": round(seconds, 2),
        "seconds_of_aggregation": found["seconds"],
        "passes": found["passes"],
        "bytes_read": found["bytes_read"],
        "bytes_per_second": round(found["bytes_read"] / found["seconds"]),
        "bare_read_seconds": round(bare, 2),
        "bare_bytes_per_second": round(4 * parameters * arguments.clients / bare),
    }


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parameters", default="50e6", help="of each client (default: 50e6)")
    parser.add_argument("--rule", default="fedsdg")
    parser.add_argument("--memory", type=int, default=256, help="of the command, in MiB")
    parser.add_argument("--limit", type=int, default=1536, help="MiB that the peak may reach")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk to measure")
    facts = measure(parser.parse_args())
    print(json.dumps(facts, indent=2))
    return 0 if facts.get("within_limit", True) else 1


if __name__ == "__main__":
    sys.exit(main())
