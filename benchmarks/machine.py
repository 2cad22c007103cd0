"""What has to be known of a machine to read its timings."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import fedsdg
from benchmarks.allocator import SETTINGS
from benchmarks.quiet import cores
from fedsdg.files import provenance, source_hash

VERSIONS = ("numba", "numpy", "torch", "timm", "peft", "byzfl", "flwr", "ray")


def last_level_cache() -> int:
    """Bytes of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = []
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return max(sizes, default=32 << 20)


def threads() -> int:
    """As many as OMP_NUM_THREADS says, else one for each core."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(cores()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """Of the machine, the code and the settings; neither host nor user."""
    known = provenance()
    return {
        **{key: known[key] for key in ("commit", "dirty", "python", "platform", "processor")},
        "package": fedsdg.__version__,
        "source_sha256": source_hash("aggregation", "federation", "models"),
        "versions": {name: _version(name) for name in VERSIONS},
        "cores": len(cores()),
        "threads": threads(),
        "last_level_cache_bytes": last_level_cache(),
        "c_library": " ".join(platform.libc_ver()).strip() or None,
        "allocator": {name: os.environ.get(name) for name in SETTINGS},
        "load_average": list(os.getloadavg()),
    }
