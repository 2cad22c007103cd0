"""Files as everybody here writes them: whole or not at all, with their hashes and where from.

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
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
#: Beside files that must not change: their SHA-256, as ``sha256sum --check`` reads them.
HASHES = "SHA256SUMS"


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its name only if the block succeeds.

    Where the disk is full, or a file may not become so large, the ``OSError`` names ``path``.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, target)
    except OSError as error:
        # With a cause it is of another file, written within the block.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.__cause__:
            raise
        why = os.strerror(error.errno)
        sentence = f"{target} cannot be written ({why}); make room, and give the command again"
        raise OSError(error.errno, sentence) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file, atomically; ``durable``: it has its name only with its bytes on the disk."""
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


def canonical_json(obj: Any) -> str:
    """JSON with sorted keys and no spare spaces; NaN is refused, since it is not JSON."""
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_json(path: str | Path, obj: Any) -> None:
    """Write ``obj`` as sorted, indented JSON, atomically."""
    text = json.dumps(obj, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a damaged or changed one raises ``ValueError`` naming it."""
    require_unchanged(path)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run again") from error


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashes(folder: Path, names: Iterable[str]) -> None:
    """Write the SHA-256 of these files of a folder into its ``SHA256SUMS``."""
    lines = [f"{sha256_file(folder / name)}  {name}\n" for name in sorted(names)]
    write_bytes(folder / HASHES, "".join(lines).encode())


def changed_file(folder: Path) -> str | None:
    """Compare a folder with its ``SHA256SUMS``.

    Returns:
        The first difference as a sentence; None where every listed file is as it was written.
    """
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
    hashes = file.with_name(HASHES)
    if not (hashes.is_file() and file.is_file()):
        return
    digest = _hashes(hashes).get(file.name)
    at = file.stat()
    if digest not in (None, _sha256_at(file.absolute(), at.st_ino, at.st_mtime_ns, at.st_size)):
        raise ValueError(
            f"{file} is damaged or was edited (its SHA-256 is not the one in {HASHES} beside it); "
            f"restore it, or delete {file.parent} and make it again"
        )


@functools.lru_cache(maxsize=1024)
def _sha256_at(file: Path, *_: int) -> str:
    return sha256_file(file)


def _hashes(file: Path) -> dict[str, str]:
    """File name -> SHA-256; a damaged line names a file that there is not."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def sha256_json(obj: Any) -> str:
    """SHA-256 of the canonical JSON of ``obj``, in hex."""
    return hashlib.sha256(canonical_json(obj).encode()).hexdigest()


def differences(there: Any, here: Any, place: str = "") -> Iterator[str]:
    """Where two trees of plain JSON differ, one sentence a value: what stands in a file, and here.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    ['a.b is 1 in it, but 3 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            inner = f"{place}.{key}" if place else key
            yield from differences(there.get(key), here.get(key), inner)
    elif there != here:
        yield f"{place} is {there!r} in it, but {here!r} here"


def markdown_escape(text: str) -> str:
    """Text that GitHub shows as it is, on one line: Markdown's own characters are escaped.

    Of brackets only those that would make a link; intervals keep theirs.
    """
    text = re.sub(r"\s*[\n\r]\s*", " ", text)
    return re.sub(r"([\\`*_|~<>$]|\](?=[(\[:]))", r"\\\1", text)


def source_hash(*relative_paths: str, package: Path = PACKAGE) -> str:
    """SHA-256 over Python sources of a package, this one's own or another's.

    ``relative_paths``: files or folders, relative to the folder ``package``. Contents and names
    count, times do not.
    """
    files: list[Path] = []
    for relative in relative_paths:
        place = package / relative
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0")
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def git(*arguments: str) -> str | None:
    """What git says of the checkout that the package lies in; None where there is none."""
    # The sources of a checkout lie right below it. A repository further up is somebody else's, in
    # which an environment lies that the package is installed in.
    ours = {"GIT_CEILING_DIRECTORIES": str(PACKAGE.parents[1])}
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments],
            env=os.environ | ours,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def provenance() -> dict[str, Any]:
    """Where and with what a result is made: commit, versions, machine. Differs between runs."""
    from fedsdg.files.places import built_of

    versions = {}
    for name in ("fedsdg-bench", "torch", "timm", "peft", "numpy", "scipy", "pyarrow", "pandas"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        # Sources that were copied without their history have it from whoever copied them.
        "commit": git("rev-parse", "HEAD") or built_of() or os.environ.get("FEDSDG_COMMIT"),
        "dirty": None if status is None else bool(status),
        "python": sys.version.split()[0],
        "versions": versions,
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
