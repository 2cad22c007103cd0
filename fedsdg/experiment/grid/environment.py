"""What the processes of a grid find in their environment."""

from __future__ import annotations

from fedsdg.experiment.config import Config
from fedsdg.experiment.machine.devices import WORKSPACE

#: As in workflow/rules/jobs.smk, which says why; threads are those of a process.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def surroundings(config: Config, jobs: int, apart: bool) -> dict[str, str]:
    """What the processes that train find in their environment; ``apart``: each has its own GPU."""
    found = {**ALLOCATOR, **{name: str(config.training.threads) for name in THREADS}}
    if config.training.device == "cuda":
        found |= WORKSPACE
        if not apart:
            found["FEDSDG_SHARING"] = str(jobs)  # read in federation/passes.py
    return found
