"""Compiles every CUDA kernel for a GPU that is not there, and says what it takes of one.

    python cuda_compiler.py CAPABILITY      (90 for an H100)

The kernels are called as ever; only the driver, which would load and start what was compiled, is
left out. So types, alignments and tile sizes are those of a real call. Prints a line of JSON for
each kernel.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fedsdg.aggregation.kernels.cuda import order_statistics, statistics, sums
from fedsdg.aggregation.kernels.cuda.rows import Rows

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class NoLaunch:
    """In place of the launcher: notes what was compiled and starts nothing."""

    def __init__(self, source, metadata):
        warps[metadata.name] = metadata.num_warps

    def __call__(self, *args, **kwargs):
        pass


def load_binary(name, binary, shared, device):
    """As the driver's, without a device: (module, function, registers, spills, threads)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    facts = {key: int(n) for key, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    loaded.append({"kernel": name, "shared": shared, "threads": 32 * warps[name], **facts})
    return object(), object(), facts["REG"], facts["LOCAL"], 1024


def compile_for(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    utils = SimpleNamespace(
        load_binary=load_binary,
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            launcher_cls=NoLaunch,
            utils=utils,
        )
    )


CASES = [
    (10, torch.float32, 1 << 20),
    (10, torch.bfloat16, 1001),
    (100, torch.float32, 1001),
    (100, torch.float64, 4096),
    (1000, torch.float16, 4096),
]
"""(M, dtype, d); kernels differ where all is a multiple of 16."""

loaded: list[dict] = []
warps: dict[str, int] = {}

if __name__ == "__main__":
    compile_for(int(sys.argv[1]))
    for size, dtype, d in CASES:
        rows, out = torch.zeros(size, d, dtype=dtype), torch.zeros(d, dtype=dtype)
        weights = np.ones(size)
        reals = [np.float64] if dtype == torch.float64 else [np.float32, np.float64]
        for real in reals:
            statistics.moments(Rows(rows), weights, real)
            statistics.distances(Rows(rows), real)
        statistics.moments(Rows(rows, out), weights, reals[0])
        for other in (None, out):
            sums.weighted_sum(Rows(rows, other), weights, out, other)
            order_statistics.trimmed_mean(Rows(rows, other), (size - 1) // 2, out, other)
        for facts in loaded:
            print(json.dumps({"size": size, "dtype": str(dtype), "d": d, **facts}), flush=True)
        loaded.clear()
