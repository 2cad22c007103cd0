"""Checkpoints: a federation between two rounds, as files from which it goes on bit for bit.

A checkpoint is a manifest ``round~{n}.json`` and the files it names, each with its size and hash:

- ``server``: θ_g and the rule's state (safetensors);
- ``bank``: what clients keep, the rows of those that ever took part (safetensors);
- ``rounds``, ``clients``, ``trace``, ``timings``: the records (parquet).

Each of these may be several files, read in order: rows of the bank replace earlier ones, records
are appended. (They are written whole today; a large bank may one day write what has changed.)

Files are written under a temporary name, flushed to the disk and renamed, the manifest last; only
then older ones are removed. A kill at any moment therefore leaves the checkpoint before. Two are
kept. Optimisers and random streams need no place: the former start afresh in each round, the
latter are addressed by the round's number.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedsdg import results
from fedsdg.federation.rounds import Federation
from fedsdg.federation.store import flush

#: Raise it when a checkpoint of today could not be read any more.
FORMAT = 1
KEPT = 2
TABLES = {
    "rounds": results.ROUNDS_SCHEMA,
    "clients": results.CLIENTS_SCHEMA,
    "trace": results.TRACE_SCHEMA,
    "timings": results.TIMINGS_SCHEMA,
}
_MANIFEST = re.compile(r"round~(\d+)\.json")


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


class InUse(OSError):
    """Another process is at the same run and keeps its checkpoints."""


class Checkpoints:
    """The newest checkpoints of one run, in a folder of their own, for one process at a time.

    The folder is held from the first ``save`` or ``restore`` until ``close``.
    ``made_for`` (plain JSON) says all that the run depends on. A checkpoint that was made for
    something else is refused with the difference.
    """

    def __init__(self, folder: Path, made_for: Mapping[str, Any]) -> None:
        self.folder = folder
        self._made_for = json.loads(results.canonical_json(made_for))
        self._lock: int | None = None

    def save(self, federation: Federation, facts: Mapping[str, Any]) -> None:
        """Keep the state after the last whole round, and ``facts`` (plain JSON) with it.

        Raises ``OSError`` when it cannot be written; earlier checkpoints are then still there.
        """
        self._own()
        name = f"round~{federation.rounds_done}"
        try:
            parts = {}
            for part, suffix, content in _contents(federation):
                file = self.folder / f"{name}.{part}.{suffix}"
                _write(file, content)
                parts[part] = [{"file": file.name, **_identity(content)}]
            manifest = {
                "format": FORMAT,
                "round": federation.rounds_done,
                "made_for": self._made_for,
                "facts": dict(facts),
                "parts": parts,
            }
            manifest["sha256"] = results.sha256_json(manifest)
            text = json.dumps(manifest, sort_keys=True, indent=2) + "\n"
            _write(self.folder / f"{name}.json", text.encode())
            flush(self.folder)
        finally:
            self._prune()

    def restore(
        self,
        federation: Federation,
        say: Callable[[str], None] = lambda _: None,
        at_most: int | None = None,
    ) -> dict[str, Any] | None:
        """Bring ``federation``, as built, to the newest checkpoint; returns its facts, or None.

        ``at_most`` leaves out those of later rounds.

        A damaged one gives way to the one before it, and ``say`` gets the sentence. Raises
        ``ValueError`` when none is left, or when a checkpoint was not made for this run.
        """
        if not self.folder.is_dir():
            return None
        self._own()
        damaged: list[tuple[Path, str]] = []
        for manifest in self._manifests(at_most):
            try:
                facts = self._read(manifest, federation)
            except Damaged as error:
                damaged.append((manifest, str(error)))
                continue
            for file, why in damaged:
                say(f"the checkpoint {file} is damaged ({why}); the one before it is used")
                file.unlink()
            return facts
        if damaged:
            file, why = damaged[0]
            raise ValueError(
                f"the checkpoint {file} is damaged ({why}), and there is no older one; delete the "
                f"folder {self.folder} to start the run anew"
            )
        return None

    def remove(self) -> None:
        """Delete all checkpoints of the run, unless another process is at it."""
        if not self.folder.is_dir():
            return
        with contextlib.suppress(OSError):
            self._own()
            # Manifests first: files that no manifest names are nothing.
            for manifest in self._manifests():
                manifest.unlink()
            shutil.rmtree(self.folder)
        self.close()

    def close(self) -> None:
        """Let another process have the folder; the end of the process does the same."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _own(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._lock is not None:
            return
        # Noted before it is locked: a signal in between must not leave a lock that nobody knows.
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InUse(f"another process is at the same run and holds {self.folder}") from None
        except OSError:
            pass  # a file system without locks: one process a run is then the user's care

    def _manifests(self, at_most: int | None = None) -> list[Path]:
        """Newest first; none of a round after ``at_most``."""
        found = {}
        for file in self.folder.iterdir():
            if match := _MANIFEST.fullmatch(file.name):
                found[int(match[1])] = file
        rounds = [n for n in sorted(found, reverse=True) if at_most is None or n <= at_most]
        return [found[round_] for round_ in rounds]

    def _prune(self) -> None:
        """Remove all files but the newest checkpoints, and what a killed process left."""
        with contextlib.suppress(OSError):
            manifests = self._manifests()
            kept = {"lock"}
            for manifest in manifests[:KEPT]:
                kept.add(manifest.name)
                with contextlib.suppress(ValueError):
                    parts = _read_manifest(manifest)["parts"]
                    kept |= {entry["file"] for entries in parts.values() for entry in entries}
            # A manifest goes before what it names, so that none is ever without its files.
            for file in [*manifests[KEPT:], *self.folder.iterdir()]:
                if file.name not in kept:
                    file.unlink(missing_ok=True)

    def _read(self, file: Path, federation: Federation) -> dict[str, Any]:
        manifest = _read_manifest(file)
        if differences := list(_differences(manifest["made_for"], self._made_for)):
            more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
            raise ValueError(
                f"the checkpoint {file} was not made for this run: {differences[0]}{more}; run "
                f"what it was made for, or delete the folder {self.folder} to start anew"
            )
        parts = {
            part: [self._part(entry) for entry in entries]
            for part, entries in manifest["parts"].items()
        }
        try:
            _install(federation, parts)
        except _Misfit as misfit:
            raise ValueError(
                f"the checkpoint {file} does not fit this run: {misfit}; delete the folder "
                f"{self.folder} to start anew"
            ) from None
        return dict(manifest["facts"])

    def _part(self, entry: Mapping[str, Any]) -> bytes:
        try:
            content = (self.folder / entry["file"]).read_bytes()
        except FileNotFoundError:
            raise Damaged(f"{entry['file']} is missing") from None
        if len(content) != entry["bytes"]:
            raise Damaged(f"{entry['file']} has {len(content)} bytes instead of {entry['bytes']}")
        if _identity(content)["sha256"] != entry["sha256"]:
            raise Damaged(f"{entry['file']} has other contents than were written")
        return content


class _Misfit(ValueError):
    """Names or shapes that are not those of the federation."""


def _contents(federation: Federation) -> Iterator[tuple[str, str, bytes]]:
    """(part, suffix of its file, contents), one after another."""
    state = {f"state.{name}": value for name, value in federation.state.items()}
    yield "server", "safetensors", _tensors({"theta": federation.theta, **state})
    bank = federation.bank
    clients = torch.nonzero(bank.trained).flatten()
    private, kept = bank.gather(clients)
    rows = {f"kept.{name}": value for name, value in kept.items()}
    yield "bank", "safetensors", _tensors({"clients": clients, "private": private, **rows})
    for name, schema in TABLES.items():
        yield name, "parquet", _table(getattr(federation.records, name), schema)


def _install(federation: Federation, parts: Mapping[str, Sequence[bytes]]) -> None:
    """Put a checkpoint's contents into a federation as built; nothing is changed if they misfit."""
    server: dict[str, Tensor] = {}
    for content in parts["server"]:
        server |= load(content)
    bank, names = federation.bank, list(federation.bank.kept)
    state = {f"state.{name}": value for name, value in federation.state.items()}
    _require(server, {"theta": federation.theta, **state})
    banks = [load(content) for content in parts["bank"]]
    for rows in banks:
        clients = rows.get("clients", torch.empty(0, dtype=torch.int64))
        private, kept = bank.gather(clients)
        wanted = {f"kept.{name}": kept[name] for name in names}
        _require(rows, {"clients": clients, "private": private, **wanted})

    federation.theta = server["theta"].to(federation.theta)
    federation.state = {name: server[f"state.{name}"] for name in federation.state}
    for rows in banks:
        kept = {name: rows[f"kept.{name}"].to(bank.kept[name]) for name in names}
        bank.scatter(rows["clients"], rows["private"].to(bank.private), kept)
    for name in TABLES:
        table = [row for content in parts[name] for row in _rows(content)]
        getattr(federation.records, name)[:] = table


def _require(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    if set(found) != set(wanted):
        raise _Misfit(f"it holds {sorted(found)}, but the run keeps {sorted(wanted)}")
    for name, value in wanted.items():
        there, here = tuple(found[name].shape), tuple(value.shape)
        if there != here:
            raise _Misfit(f"{name} has the shape {there} in it, but {here} here")


def _tensors(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), sink)
    return sink.getvalue().to_pybytes()


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    """The records as they were: what a row did not have is null in the table."""
    for row in pq.read_table(pa.BufferReader(content)).to_pylist():
        yield {name: value for name, value in row.items() if value is not None}


def _identity(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_bytes())
    except ValueError as error:
        raise Damaged(f"not valid JSON: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"the checkpoint {file} has format {found}, but this version reads format {FORMAT}; "
            f"use the version that wrote it, or delete the folder {file.parent} to start anew"
        )
    if manifest.pop("sha256", None) != results.sha256_json(manifest):
        raise Damaged(f"{file.name} has other contents than were written")
    return dict(manifest)


def _differences(there: Any, here: Any, place: str = "") -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            inner = f"{place}.{key}" if place else key
            yield from _differences(there.get(key), here.get(key), inner)
    elif there != here:
        yield f"{place} is {there!r} in it, but {here!r} here"


def _write(file: Path, content: bytes) -> None:
    """Write a file so that it has its name only with its whole contents on the disk."""
    temporary = file.with_name(f".{file.name}")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
