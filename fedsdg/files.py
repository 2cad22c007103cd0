"""Schemas of the records, atomic writing, hashes, provenance, and the name that was meant.

Training writes these files and analysis reads them; nothing else passes between the two.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: What evaluation yields for one round; also the keys of ``last`` and ``selected``.
METRICS = (
    "personal_accuracy",
    "personal_std",
    "personal_worst_decile",
    "personal_accuracy_weighted",
    "global_accuracy",
    "global_loss",
    "val_accuracy",
    "expected_accuracy",
    "expected_std",
    "expected_worst_decile",
    "global_val_accuracy",
)

#: Of those, what is reported only where clients differ so: over the clients that agree (a) and
#: that conflict (b), and over those that never train (new).
METRICS_OF_GROUPS = ("expected_accuracy_a", "expected_accuracy_b", "expected_accuracy_new")

ROUNDS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("train_loss", pa.float64()),
        ("gate_penalty", pa.float64()),
        ("private_penalty", pa.float64()),
        ("update_norm_mean", pa.float64()),
        ("update_norm_max", pa.float64()),
        ("drift", pa.float64()),
        ("weight_mean", pa.float64()),
        ("weight_std", pa.float64()),
        ("weight_min", pa.float64()),
        ("weight_max", pa.float64()),
        ("weight_zeros", pa.float64()),
        ("weight_entropy", pa.float64()),
        ("alignment_mean", pa.float64()),
        ("alignment_min", pa.float64()),
        ("alignment_max", pa.float64()),
        ("degenerate", pa.float64()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
        ("local_steps", pa.int64()),
        ("samples_processed", pa.int64()),
        ("evaluated", pa.bool_()),
        *((name, pa.float64()) for name in METRICS),
    ]
)

CLIENTS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("participated", pa.bool_()),
        ("weight", pa.float64()),
        ("alignment", pa.float64()),
        ("update_norm", pa.float64()),
        ("train_loss", pa.float64()),
        ("local_steps", pa.int64()),
        ("samples_processed", pa.int64()),
        ("val_accuracy", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("n_train", pa.int32()),
        ("n_val", pa.int32()),
        ("n_test", pa.int32()),
        ("gates", pa.list_(pa.float64())),
        ("expected_accuracy", pa.float64()),
        ("drawn", pa.bool_()),
        ("steps", pa.int64()),
    ]
)

#: Columns of rounds and clients that a file has only where they say something.
ROUNDS_MORE = pa.schema(
    [
        ("attackers", pa.int32()),
        ("honest_distance", pa.float64()),
        ("dropped", pa.int32()),
        ("simulated_seconds", pa.float64()),
        ("idle_seconds", pa.float64()),
        ("arrived", pa.int32()),
        ("late", pa.int32()),
        ("discarded", pa.int32()),
        ("passed_over", pa.int32()),
        ("model_x", pa.float64()),
        ("model_y", pa.float64()),
        ("plane_share", pa.float64()),
        *((name, pa.float64()) for name in METRICS_OF_GROUPS),
    ]
)

CLIENTS_MORE = pa.schema(
    [
        ("attacker", pa.bool_()),
        ("weak", pa.bool_()),
        ("blocked", pa.bool_()),
        ("noise_rate", pa.float64()),
        ("conflicts", pa.bool_()),
        ("relabelled", pa.float64()),
        ("group", pa.int32()),
        ("held_out", pa.bool_()),
        ("domain", pa.int32()),
        ("speed", pa.float64()),
        ("gamma", pa.float64()),
        ("age", pa.int32()),
        ("cluster", pa.int32()),
        ("credibility", pa.float64()),
        ("contribution", pa.float64()),
        ("shapley", pa.float64()),
        ("shapley_estimate", pa.float64()),
        ("disclosed", pa.float64()),
        ("path_x", pa.list_(pa.float64())),
        ("path_y", pa.list_(pa.float64())),
        ("gate_penalty", pa.float64()),
        ("private_penalty", pa.float64()),
        ("private_shares", pa.list_(pa.float64())),
        ("private_ratio", pa.float64()),
    ]
)

TRACE_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("step", pa.int32()),
        ("task_loss", pa.float64()),
        ("gate_penalty", pa.float64()),
        ("private_penalty", pa.float64()),
        ("gate_min", pa.float64()),
        ("gate_mean", pa.float64()),
        ("gate_max", pa.float64()),
    ]
)

TIMINGS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("train_seconds", pa.float64()),
        ("aggregate_seconds", pa.float64()),
        ("evaluate_seconds", pa.float64()),
    ]
)


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its name only if the block succeeds."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


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
    """Read a JSON file; a damaged one raises ``ValueError`` naming it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run again") from error


def write_parquet(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    schema: pa.Schema,
    more: pa.Schema | None = None,
) -> None:
    """Write records (a list of rows, or a mapping of columns) with ``schema``, atomically.

    Columns of ``more`` follow where at least one row has a value there.
    """
    said = [rows] if isinstance(rows, Mapping) else rows
    for column in more or ():
        if any(row.get(column.name) is not None for row in said):
            schema = schema.append(column)
    if isinstance(rows, Mapping):
        table = pa.Table.from_pydict(dict(rows), schema=schema)
    else:
        known = set(schema.names)
        for row in rows:
            if unknown := set(row) - known:
                raise ValueError(f"{path}: columns {sorted(unknown)} are not in the schema")
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def hint(word: str, known: Iterable[str]) -> str:
    """The end of an error's sentence: the known name closest to a word, else all of them."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.4)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if names else "; there are none"


def source_hash(*relative_paths: str, package: Path = Path(__file__).parent) -> str:
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


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments],
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
    versions = {}
    for name in ("fedsdg-bench", "torch", "timm", "peft", "numpy", "scipy", "pyarrow", "pandas"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        # Sources that were copied without their history have it from whoever copied them.
        "commit": _git("rev-parse", "HEAD") or os.environ.get("FEDSDG_COMMIT"),
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
