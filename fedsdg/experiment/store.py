"""Finished runs, addressed by what they depend on, so that nothing is computed twice.

Snakemake deletes the outputs of a job before it runs it; the store is no job's output. A run is
kept under the hash of its config, its partition, its backbone, the code that it can reach, and the
versions of the libraries that compute with it. The hashes of its files lie beside them, and are
compared whenever the run is used: one that has changed is made again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from fedsdg.files import changed_file, sha256_json, write_hashes

#: In the folder of a run that keeps its models.
MODELS = "models.safetensors"
#: The environment variable that names the folder of the store and of checkpoints.
STORE = "FEDSDG_STORE"
#: Another version of these may round differently.
LIBRARIES = ("torch", "numpy", "numba", "timm")


def store_folder(named: str | Path | None = None) -> Path:
    """Return the folder of finished runs, beside which checkpoints lie.

    Args:
        named: the folder; None: ``runs`` below ``$FEDSDG_STORE``, or below ``.fedsdg`` without it.

    Raises:
        NotADirectoryError: The folder, or one above it, is a file.
    """
    folder = Path(os.environ.get(STORE) or ".fedsdg") / "runs" if named is None else Path(named)
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(
                f"the store of finished runs cannot be {folder}, because {place} is a file; name a "
                f"folder{f' in the environment variable {STORE}' if named is None else ''}"
            )
    return folder


@cache
def libraries() -> dict[str, str]:
    """The versions of ``LIBRARIES`` as far as they are installed; none is imported."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Address:
    """What a run depends on; the names are those of ``result.json``."""

    config_hash: str
    partition_hash: str
    #: None where all parameters are trained.
    backbone_hash: str | None
    #: Of the code that the run can reach (``fedsdg.experiment.reach``).
    source_hash: str

    @property
    def key(self) -> str:
        """The run's folder in the store: SHA-256 over all four and the libraries' versions."""
        return sha256_json(
            {
                "config": self.config_hash,
                "partition": self.partition_hash,
                "backbone": self.backbone_hash,
                "sources": self.source_hash,
                "libraries": libraries(),
            }
        )


def require_writable(store: Path) -> None:
    """Raise ``PermissionError`` at once where a run would compute for hours and then be lost."""
    store.mkdir(parents=True, exist_ok=True)
    if not os.access(store, os.W_OK):
        raise PermissionError(
            f"the store {store} cannot be written to; make it writable, or name another folder "
            "in the environment variable FEDSDG_STORE"
        )


def checkpoints_of(store: Path, key: str) -> Path:
    """The folder of an unfinished run's checkpoints, beside the store, under the same address."""
    return store.parent / "checkpoints" / key


def is_kept(store: Path, key: str) -> bool:
    """Whether the finished run ``key`` is in the store, each file as it was written.

    A run that has changed, or that was kept without hashes, is removed, which is said in one line.
    """
    folder = store / key
    if not folder.is_dir():
        return False
    fault = changed_file(folder)
    if fault is None:
        return True
    require_writable(store)
    print(f"fedsdg: {fault}; the run is made again", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    return False


def keep_or_reuse(store: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder of the finished run ``key``: made by ``make(folder)`` unless it is kept.

    The folder takes its name only once ``make`` has returned, so a killed run leaves nothing
    that looks finished.
    """
    target = store / key
    if is_kept(store, key):
        return target
    store.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{key[:12]}.", dir=store))
    try:
        make(temporary)
        write_hashes(temporary, [file.name for file in temporary.iterdir()])
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.is_dir():  # somebody else finished the same run meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
