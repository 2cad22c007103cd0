"""Finished runs, addressed by what they depend on, so that nothing is computed twice.

Snakemake deletes the outputs of a job before it runs it; the store is no job's output. A run is
kept under the hash of its config, its partition, its backbone, the code that it can reach, and the
versions of the libraries that compute with it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from fedsdg.files import sha256_json

#: In the folder of a run that keeps its models.
MODELS = "models.safetensors"
#: Another version of these may round differently.
LIBRARIES = ("torch", "numpy", "numba", "timm")


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


def together_key(key: str, seeds: Sequence[int]) -> str:
    """The address of a run that was trained in one pass with others: ``seeds`` names all of them.

    Such a run differs in rounding from one made alone, and from one made in other company.
    """
    return key if len(seeds) == 1 else f"{key}.seeds~{'-'.join(map(str, seeds))}"


def made_otherwise(store: Path, key: str, seeds: Sequence[int]) -> str | None:
    """The address at which the run ``key`` is kept as made alone or in other company, or None."""
    if (store / key).is_dir():
        return key
    others = sorted(place.name for place in store.glob(f"{key}.seeds~*"))
    return next((name for name in others if name != together_key(key, seeds)), None)


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


def keep_or_reuse(store: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder of the finished run ``key``: made by ``make(folder)`` unless it exists.

    The folder takes its name only once ``make`` has returned, so a killed run leaves nothing
    that looks finished.
    """
    target = store / key
    if target.is_dir():
        return target
    store.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{key[:12]}.", dir=store))
    try:
        make(temporary)
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.is_dir():  # somebody else finished the same run meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
