"""Files that appear whole or not at all, their hashes, and where results come from.

The schemas of the records, which take pyarrow, are in `records.py`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
HASHES = "SHA256SUMS"
"""Beside files that must not change: their SHA-256, as ``sha256sum --check`` reads them."""
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make its folder writable"),
}
_LIBRARIES = ("fedsdg-bench", "torch", "timm", "peft", "numpy", "scipy", "pyarrow", "pandas")


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield an empty file beside ``path`` that takes its name only if the block succeeds.

    The mode of the file follows the umask, and its group a setgid folder.

    Raises:
        OSError: It cannot be written; if the disk is full or the folder read-only, one sentence
            names ``path`` and the remedy.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file")
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex[:12]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        # With a cause it is of another file, written within the block.
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None or error.__cause__:
            raise
        why = f"{target} cannot be written ({os.strerror(error.errno or 0)})"
        raise OSError(error.errno, f"{why}; {remedy}, and give the command again") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def put_back(folder: Path) -> Path:
    """Give a folder its name again that a killed process was about to replace.

    Returns:
        The place where ``appearing`` lays it aside.
    """
    replaced = folder.with_name(f".{folder.name}.replaced")
    if replaced.is_dir() and not folder.exists():
        os.replace(replaced, folder)
    return replaced


@contextlib.contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` that takes its place only if the block succeeds.

    If the process is killed, the folder is as before or new, at the latest after ``put_back``.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    replaced = put_back(folder)
    for left_by_killed in (replaced, *folder.parent.glob(f".{folder.name}.[0-9]*")):
        shutil.rmtree(left_by_killed, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.is_dir():
            os.replace(folder, replaced)
        os.replace(temporary, folder)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file, atomically.

    Args:
        path: The file.
        content: Its bytes.
        durable: It takes its name only after its bytes are on the disk.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
        if durable:
            flush(temporary)


def flush(path: Path) -> None:
    """Wait until a file's contents, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Wait until a folder of files is on the disk, with its own name."""
    for path in (*folder.iterdir(), folder, folder.parent):
        flush(path)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spare spaces, the form that is hashed; NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_json(path: str | Path, value: Any) -> None:
    """Write sorted, indented JSON, atomically.

    Args:
        path: The file.
        value: In JSON's types.
    """
    text = json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    write_bytes(path, f"{text}\n".encode())


def read_json(path: str | Path) -> Any:
    """Return what a file of JSON holds.

    Raises:
        ValueError: It is damaged, or not the file that was written.
    """
    require_unchanged(path)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run again") from error


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a value, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def write_hashes(folder: Path, names: Iterable[str]) -> None:
    """Write the SHA-256 of files of a folder into its ``SHA256SUMS``.

    Args:
        folder: The folder.
        names: Of the files.
    """
    lines = [f"{sha256_file(folder / name)}  {name}\n" for name in sorted(names)]
    write_bytes(folder / HASHES, "".join(lines).encode())


def changed_file(folder: Path) -> str | None:
    """Return the first difference of a folder from its ``SHA256SUMS`` as a sentence, or None."""
    if not (folder / HASHES).is_file():
        return f"{folder} has no {HASHES}"
    for name, digest in _hashes(folder / HASHES).items():
        if not (folder / name).is_file():
            return f"{folder} lacks {name}"
        if sha256_file(folder / name) != digest:
            return f"{folder / name} has changed (its SHA-256 is not the one in {HASHES})"
    return None


def require_unchanged(path: str | Path) -> None:
    """Compare a file with the ``SHA256SUMS`` beside it, if that lists the file.

    A process hashes a file once, and again only after it was written.

    Raises:
        ValueError: The file is not the one that was written.
    """
    file = Path(path)
    digest = _hashes(file.with_name(HASHES)).get(file.name)
    if digest is None or not file.is_file():
        return
    stat = file.stat()
    if digest != _sha256_once(file.absolute(), stat.st_ino, stat.st_mtime_ns, stat.st_size):
        raise ValueError(
            f"{file} is damaged or was edited (its SHA-256 is not the one in {HASHES} beside it); "
            f"restore it, or delete {file.parent} and make it again"
        )


@functools.lru_cache(maxsize=1024)
def _sha256_once(file: Path, *_: int) -> str:
    return sha256_file(file)


def _hashes(file: Path) -> dict[str, str]:
    """Return SHA-256 by file name; a damaged line names a file that does not exist."""
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def differences(recorded: Any, current: Any, place: str = "") -> Iterator[str]:
    """Yield a sentence for each value in which two trees of plain JSON differ.

    Args:
        recorded: What a file holds.
        current: What is here.
        place: The keys to both, joined by dots.

    Example:
        >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
        ['a.b is 1 in it, but 3 here']
    """
    if isinstance(recorded, dict) and isinstance(current, dict):
        for key in sorted({*recorded, *current}):
            inner = f"{place}.{key}".lstrip(".")
            yield from differences(recorded.get(key), current.get(key), inner)
    elif recorded != current:
        yield f"{place} is {recorded!r} in it, but {current!r} here"


def markdown_escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line.

    Brackets are escaped only if they would make a link; intervals keep theirs.
    """
    text = re.sub(r"\s*[\n\r]\s*", " ", text)
    return re.sub(r"([\\`*_|~<>$]|\](?=[(\[:]))", r"\\\1", text)


def git(*arguments: str) -> str | None:
    """Return what git prints in the checkout that the package lies in; None without a checkout."""
    # A repository further up is somebody else's, in which the environment lies.
    ours = {"GIT_CEILING_DIRECTORIES": str(PACKAGE.parents[1])}
    command = ["git", "-C", str(PACKAGE), *arguments]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, env=os.environ | ours, stderr=subprocess.DEVNULL, text=True, timeout=20
        ).strip()
    return None


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of libraries as far as they are installed; none is imported."""
    installed = {}
    for name in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def provenance() -> dict[str, Any]:
    """Return where and with what a result is made: commit (dirty: with changes), versions, machine.

    Changes of what is made, such as the records that `make record` writes one by one, do not count.
    """
    from fedsdg.files.places import built_of

    made = (f":(top,exclude){folder}" for folder in ("results", "paper_figures"))
    status = git("status", "--porcelain", "--untracked-files=no", "--", ":/", *made)
    return {
        "commit": git("rev-parse", "HEAD") or built_of(),
        "dirty": None if status is None else bool(status),
        "python": sys.version.split()[0],
        "versions": versions(_LIBRARIES),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "host": platform.node(),
        "cpu_count": os.cpu_count(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
