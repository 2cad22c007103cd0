"""One process, one GPU: on a machine with several, no two of them train on the same one.

``FEDSDG_DEVICES=0,1`` names the devices, as ``CUDA_VISIBLE_DEVICES`` would. A process that is
about to train takes the first that no other holds and sees no other; it waits where all are taken.
What it holds is the lock of a file, which the kernel gives back when the process ends, however it
ends. Without the variable nothing is locked: there is one device, or a scheduler has chosen.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TextIO

VARIABLE = "FEDSDG_DEVICES"
#: What cuBLAS reads when it starts: a workspace of a fixed size, without which its sums differ.
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_SECONDS_BETWEEN_LOOKS = 1.0


def named_devices() -> tuple[str, ...]:
    """The devices that ``FEDSDG_DEVICES`` names, none where it is not set.

    Raises ``ValueError`` where it names nothing, or one device twice.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(
            f"{VARIABLE} is {text!r}; write the devices to be used, each once: {VARIABLE}=0,1"
        )
    return names


def devices_of(device: str, jobs: int | None = None) -> tuple[str, ...]:
    """The devices of which each run takes one.

    Args:
        device: of the config's training; runs on a CPU take none.
        jobs: how many runs are done side by side.

    Returns:
        Their names; none where runs are on a CPU, or share a device.

    Raises:
        ValueError: There are fewer devices than jobs, so that some would wait for ever.
    """
    devices = named_devices() if device == "cuda" else ()
    if jobs is not None and 0 < len(devices) < jobs:
        raise ValueError(
            f"--jobs is {jobs}, but FEDSDG_DEVICES names {len(devices)} device(s), and no two runs "
            "share one; lower --jobs, or unset FEDSDG_DEVICES to let runs share the first device"
        )
    return devices


def take_device() -> str | None:
    """Take a device for the rest of this process: ``CUDA_VISIBLE_DEVICES`` then names it alone.

    To be called before CUDA is first used; later calls return the same device. None where
    ``FEDSDG_DEVICES`` is not set. Raises ``ValueError`` where it is not as it should be.
    """
    devices = named_devices()
    return _take(devices)[0] if devices else None


@lru_cache(maxsize=1)
def _take(devices: tuple[str, ...]) -> tuple[str, TextIO]:
    """The device, and the open file that holds its lock: kept by the cache until the end."""
    # On the machine itself: a file system shared by several has devices of the same names.
    folder = Path(tempfile.gettempdir(), f"fedsdg-devices-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    told = False
    while True:
        for device in devices:
            if lock := _lock(folder / f"{device}.lock"):
                os.environ["CUDA_VISIBLE_DEVICES"] = device
                return device, lock
        if not told:
            print(f"waiting for one of the devices {', '.join(devices)}", file=sys.stderr)
            told = True
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _lock(path: Path) -> TextIO | None:
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
