"""Finished runs by their address, so that nothing is computed twice; unfinished ones beside them.

The store is ``$FEDSDG_STORE`` or ``.fedsdg``:

- ``runs/KEY``: the files of a finished run and their hashes, which are compared when it is used
- ``checkpoints/KEY``: the state of an unfinished run, held by the process that is at work on it

Folders of results hold copies. Snakemake deletes the outputs of a job before it runs it; the store
is no job's output.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedsdg import files
from fedsdg.errors import remark

STORE = "FEDSDG_STORE"
"""The environment variable that names the folder of the store."""
LIBRARIES = ("torch", "numpy", "numba", "timm")
"""Another version of these may round differently."""
MODELS = "models.safetensors"
"""In the folder of a run that keeps its models."""
EXPORTED = "models"
"""In the folder of a run, the models that were exported."""
RESULT = "result.json"
RECORDS = ("rounds.parquet", "clients.parquet", "timings.parquet", "provenance.json", RESULT)
"""The files of every run, beside their hashes."""


def store_folder(kind: Literal["runs", "checkpoints"]) -> Path:
    """Return the folder of finished runs or of checkpoints."""
    return Path(os.environ.get(STORE) or ".fedsdg") / kind


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of ``LIBRARIES`` as far as they are installed; none is imported."""
    return files.versions(LIBRARIES)


def require_writable(*places: str | Path) -> None:
    """Refuse files or folders that cannot be written, before anything is computed.

    Args:
        places: Files or folders, which need not be there yet.

    Raises:
        OSError: One sentence with the remedy.
    """
    for place in map(Path, places):
        above = place.absolute().parents
        for file in filter(Path.is_file, above):
            raise NotADirectoryError(
                f"{place} cannot be written: {file} is a file; rename one of them"
            )
        folder = next(folder for folder in (place.absolute(), *above) if folder.is_dir())
        if not os.access(folder, os.W_OK):
            raise PermissionError(
                f"{place} cannot be written: change the permissions of {folder}, or name another "
                f"place with --output; that of finished runs is {STORE}"
            )


def get_or_run(key: str, run: Callable[[Path], None]) -> Path:
    """Return the folder of a finished run; ``run(folder)`` makes its files unless they are stored.

    The folder takes its name when its files and their hashes are on the disk, so what a killed
    process leaves never looks finished. A stored run with a changed file is made again. Of several
    processes that need the same run, one makes it and the others wait.

    Args:
        key: The address of the run.
        run: Writes the files of the run into an empty folder.

    Raises:
        OSError: The store cannot be written to.
    """
    target = store_folder("runs") / key
    checkpoints = store_folder("checkpoints") / key
    # A process that was killed just before it could delete them has left checkpoints.
    if stored_run(key) and not checkpoints.is_dir():
        return target
    for folder in (target.parent, checkpoints.parent):
        require_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    with _held(key):
        if not stored_run(key):
            _make(target, run)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return target


def _make(target: Path, run: Callable[[Path], None]) -> None:
    """Make the folder of a run, on the disk before it has its name."""
    if target.is_dir():
        remark(f"{files.changed_file(target)}; the run is made again")
    with files.appearing(target) as temporary:
        run(temporary)
        files.write_hashes(temporary, [file.name for file in temporary.iterdir()])
        files.flush_folder(temporary)
    files.flush(target.parent)


def stored_run(key: str) -> Path | None:
    """Return the folder of a stored run whose files are as they were written, else None."""
    folder = store_folder("runs") / key
    return folder if folder.is_dir() and files.changed_file(folder) is None else None


@contextlib.contextmanager
def _held(key: str) -> Iterator[None]:
    """Hold a run within the block; wait while another process holds it.

    A run is a byte of one file, which is locked. The kernel gives a lock back when its process
    ends, however it ends. On a file system without locks it is the user's care that one process
    does a run.
    """
    place = zlib.crc32(key.encode())
    with open(store_folder("runs").parent / "lock", "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            remark(f"another process is at the run {key[:12]}; waiting")
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
        yield


def copy_to_results(key: str, folder: Path, facts: Mapping[str, Any]) -> None:
    """Copy the files of a stored run into a folder of results, their hashes last of all.

    Args:
        key: The address of the run.
        folder: The folder of results.
        facts: What ``result.json`` says there besides: the config and the names of the run.
    """
    stored = store_folder("runs") / key
    clear(folder)
    if (folder / EXPORTED).is_dir():
        remark(f"{folder / EXPORTED} was exported before this run; delete it and export again")
    names = sorted(file.name for file in stored.iterdir() if file.name != files.HASHES)
    for name in names:
        if name != RESULT:
            with files.atomic_path(folder / name) as temporary:
                shutil.copyfile(stored / name, temporary)
    outcome = files.read_json(stored / RESULT)
    result = {**facts, "address": key, "status": "ok", "error": None, **outcome}
    files.write_json(folder / RESULT, result)
    files.write_hashes(folder, names)


def clear(folder: Path) -> None:
    """Remove the hashes of a folder of results, and models, which not every run has."""
    for name in (files.HASHES, MODELS):
        (folder / name).unlink(missing_ok=True)


def is_current(key: str, folder: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether a folder of results holds this very run, each file as it was written.

    A changed file is mentioned on standard error.

    Args:
        key: The address of the run.
        folder: The folder of results.
        facts: As for ``copy_to_results``.
    """
    if not (folder / files.HASHES).is_file():
        return False
    fault = files.changed_file(folder)
    if fault is not None:
        remark(f"{fault}; it is copied or made again")
        return False
    expected = {**facts, "address": key, "status": "ok"}
    return expected.items() <= files.read_json(folder / RESULT).items()
