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

from fedsdg.aggregation.engines.kernels.cuda import moments, sums, trimmed_means
from fedsdg.aggregation.engines.kernels.cuda.tables import Rows, TabledRows

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
        if looking:
            command = [CUOBJDUMP, "--dump-sass", file.name]
            code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            facts["wide reads"] = len(re.findall(r"\bLDG\.E\.128", code))
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

SELECTED = [(16, torch.bfloat16, 4096), (31, torch.float64, 1001), (32, torch.float32, 4096)]
"""Medians by a network, of the rows that take the most registers."""

loaded: list[dict] = []
warps: dict[str, int] = {}
looking: list[bool] = []
"""Not empty while reads of 16 bytes are counted."""


def report(case: dict) -> None:
    for facts in loaded:
        print(json.dumps({**case, **facts}), flush=True)
    loaded.clear()


def compile_tables(d: int) -> None:
    """The kernels through a table, of tensors that lie at multiples of 16 where d is one."""
    lists = [[torch.zeros(d), torch.zeros(16)] for _ in range(11)]
    table = TabledRows(lists[1:], lists[0], torch.float32)
    moments.moments(table, np.ones(10), np.float32)
    moments.distances(table, np.float32)
    sums.write_weighted_sums(table, np.ones(10), lists[0], lists[0])
    for size in (10, 40):
        many = TabledRows((lists[1:] * 4)[:size], lists[0], torch.float32)
        trimmed_means.write_trimmed_means(many, 4, lists[0], lists[0])


def compile_others(rows: torch.Tensor, out: torch.Tensor) -> None:
    """Statistics and sums."""
    weights = np.ones(len(rows))
    reals = [np.float64] if rows.dtype == torch.float64 else [np.float32, np.float64]
    for real in reals:
        moments.moments(Rows(rows), weights, real)
        moments.distances(Rows(rows), real)
    moments.moments(Rows(rows, out), weights, reals[0])
    for other in (None, out):
        sums.weighted_sum(Rows(rows, other), weights, out, other)


if __name__ == "__main__":
    compile_for(int(sys.argv[1]))
    for size, dtype, d in CASES + SELECTED:
        rows, out = torch.zeros(size, d, dtype=dtype), torch.zeros(d, dtype=dtype)
        for other in (None, out) if (size, dtype, d) in CASES else (out,):
            trimmed_means.trimmed_mean(Rows(rows, other), (size - 1) // 2, out, other)
        if (size, dtype, d) in CASES:
            compile_others(rows, out)
        report({"size": size, "dtype": str(dtype), "d": d})
    for d in (1001, 1 << 20):
        looking += [True] * (d % 16 == 0)
        compile_tables(d)
        report({"size": 40, "dtype": "torch.float32", "d": d, "table": True})
