"""Checkpoints: a federation between two rounds, as files from which it goes on bit for bit.

A checkpoint is a manifest ``round~{n}.json`` and what it names, each with its size and hash:

- ``server``: θ_g, the rule's state and what simulation has to remember (safetensors), a file for
  each checkpoint;
- ``bank``: what clients keep (frames of safetensors: the rows of some clients, later frames
  replace earlier ones), the first bytes of a file that grows;
- ``records``: the tables' rows (frames of JSON), the first bytes of another.

Two checkpoints are kept, and no file belongs to both: wherever the newer one is damaged, the older
one is whole. A new checkpoint takes over the files of the one that it replaces, and writes what has
changed since: rows of clients that trained, new records, and the server's vectors. When more than
half of the bank's file has been replaced, a new one begins with every row in use; over time that
costs at most as much again.

Nothing that a kept manifest names is ever overwritten; all is flushed to the disk before the
manifest is renamed into place, and only then older files are removed. A kill at any moment
therefore leaves the checkpoint before. Optimisers and random streams need no place: the former
start afresh in each round or are clients' rows, the latter are addressed by the round.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsdg import files
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.prefixes import Damaged, Prefix, checked
from fedsdg.federation.rounds import Federation
from fedsdg.files import flush

#: Raise it when a checkpoint of today could not be read any more.
FORMAT = 2
KEPT = 2
TABLES = ("rounds", "clients", "trace", "timings")
#: Bytes of clients' rows in one frame, so that no more of a large bank is in memory at once.
FRAME = 4 << 20
MEMORY = "memory."
_MANIFEST = re.compile(r"round~(\d+)\.json")


class InUse(OSError):
    """Another process is at the same run and keeps its checkpoints."""


@dataclass(frozen=True)
class _Written:
    """What the files of a checkpoint hold, so that the next one can go on behind it."""

    #: Whose rows they are: moments of one bank say nothing about another.
    of: ClientBank
    bank: Prefix
    records: Prefix
    #: Rows in the bank's file, replaced ones included, and when the last of them was written.
    rows: int = 0
    moment: int = 0
    #: Rows of each table.
    lengths: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))


class Checkpoints:
    """The newest checkpoints of one run, in a folder of their own, for one process at a time.

    The folder is held from the first ``save`` or ``restore`` until ``close``.
    ``made_for`` (plain JSON) says all that the run depends on. A checkpoint that was made for
    something else is refused with the difference.
    """

    def __init__(self, folder: Path, made_for: Mapping[str, Any]) -> None:
        self.folder = folder
        self._made_for = json.loads(files.canonical_json(made_for))
        self._lock: int | None = None
        # By the hashes of their manifests, the latest last: a save that is broken off may or may
        # not have come to the renaming, and only the folder can tell.
        self._written: dict[str, _Written] = {}

    def save(self, federation: Federation, facts: Mapping[str, Any]) -> None:
        """Keep the state after the last whole round, and ``facts`` (plain JSON) with it.

        Raises ``OSError`` when it cannot be written; earlier checkpoints are then still there.
        """
        self._own()
        name = f"round~{federation.rounds_done}"
        try:
            before = self._before(f"{name}.json", federation.bank)
            server = _tensors({**_server(federation), **_memory(federation)})
            files.write_bytes(self.folder / f"{name}.server.safetensors", server, durable=True)
            written = self._append(before, federation)
            manifest = {
                "format": FORMAT,
                "round": federation.rounds_done,
                "made_for": self._made_for,
                "facts": dict(facts),
                "parts": {
                    "server": {
                        "file": f"{name}.server.safetensors",
                        "bytes": len(server),
                        "sha256": hashlib.sha256(server).hexdigest(),
                    },
                    "bank": written.bank.entry(),
                    "records": written.records.entry(),
                },
            }
            manifest["sha256"] = files.sha256_json(manifest)
            self._written.pop(manifest["sha256"], None)
            latest = [*self._written.items(), (manifest["sha256"], written)]
            self._written = dict(latest[-KEPT - 1 :])
            text = json.dumps(manifest, sort_keys=True, indent=2) + "\n"
            files.write_bytes(self.folder / f"{name}.json", text.encode(), durable=True)
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

        A damaged one gives way to the one before it, the last one to a new start, and ``say`` gets
        the sentence. Raises ``ValueError`` when a checkpoint was not made for this run.
        """
        if not self.folder.is_dir():
            return None
        self._own()
        manifests = self._manifests(at_most)
        for manifest in manifests:
            try:
                return self._read(manifest, federation)
            except Damaged as error:
                last = manifest is manifests[-1]
                rest = "there is no older one: the run starts anew" if last else "the older is used"
                say(f"the checkpoint {manifest} is damaged ({error}); {rest}")
                with contextlib.suppress(OSError):  # It may be a folder.
                    manifest.unlink()
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._lock is not None:
                return
            # Noted before it is locked: a signal in between must not leave a lock nobody knows.
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the folder of checkpoints {self.folder} cannot be written to "
                f"({error.strerror}); make it writable, or name another in FEDSDG_STORE",
            ) from None
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

    def _before(self, name: str, bank: ClientBank) -> _Written:
        """What the files of the checkpoint hold that ``name`` replaces; new files if unknown."""
        manifests = self._manifests()
        staying = [manifest for manifest in manifests if manifest.name != name][: KEPT - 1]
        taken: set[str] = set()
        for manifest in staying:
            taken |= _named(manifest)
        for manifest in manifests:
            if manifest in staying:
                continue
            with contextlib.suppress(ValueError):
                before = self._written.get(files.sha256_json(_read_manifest(manifest)))
                if before is None or before.of is not bank:
                    continue
                both = (before.bank, before.records)
                if all(part.is_there() and part.file.name not in taken for part in both):
                    return before
        return _Written(bank, self._new("bank"), self._new("records"))

    def _new(self, part: str) -> Prefix:
        """A file that no manifest has ever named."""
        pattern = re.compile(rf"{part}~(\d+)\.frames")
        found = (pattern.fullmatch(file.name) for file in self.folder.iterdir())
        number = 1 + max((int(match[1]) for match in found if match), default=0)
        return Prefix(self.folder / f"{part}~{number}.frames")

    def _append(self, before: _Written, federation: Federation) -> _Written:
        """Write behind ``before`` what has changed since, or the whole bank into a new file."""
        bank, file, rows = federation.bank, before.bank, before.rows
        moment, clients = bank.moment, bank.written_since(before.moment)
        if rows + len(clients) > 2 * bank.rows_in_use():
            file, rows, clients = self._new("bank"), 0, bank.written_since(0)
        tables = {name: getattr(federation.records, name) for name in TABLES}
        new = {name: table[before.lengths[name] :] for name, table in tables.items()}
        return _Written(
            of=bank,
            bank=file.append(_frames(bank, clients)),
            records=before.records.append([json.dumps(new).encode()]),
            rows=rows + len(clients),
            moment=moment,
            lengths={name: len(table) for name, table in tables.items()},
        )

    def _prune(self) -> None:
        """Remove all files but the newest checkpoints, and what a killed process left."""
        with contextlib.suppress(OSError):
            manifests = self._manifests()
            kept = {"lock"}
            for manifest in manifests[:KEPT]:
                kept |= {manifest.name, *_named(manifest)}
            # A manifest goes before what it names, so that none is ever without its files.
            for file in [*manifests[KEPT:], *self.folder.iterdir()]:
                if file.name not in kept:
                    file.unlink(missing_ok=True)

    def _read(self, file: Path, federation: Federation) -> dict[str, Any]:
        manifest = _read_manifest(file)
        if differences := list(files.differences(manifest["made_for"], self._made_for)):
            more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
            raise ValueError(
                f"the checkpoint {file} was not made for this run: {differences[0]}{more}; run "
                f"what it was made for, or delete the folder {self.folder} to start anew"
            )
        parts = {part: checked(self.folder, entry) for part, entry in manifest["parts"].items()}
        try:
            written = _install(federation, **parts)
        except _Misfit as misfit:
            raise ValueError(
                f"the checkpoint {file} does not fit this run: {misfit}; delete the folder "
                f"{self.folder} to start anew"
            ) from None
        self._written = {files.sha256_json(manifest): written}
        return dict(manifest["facts"])


class _Misfit(ValueError):
    """Names or shapes that are not those of the federation."""


def _server(federation: Federation) -> dict[str, Tensor]:
    state = {f"state.{name}": value for name, value in federation.state.items()}
    return {"theta": federation.theta, **state}


def _memory(federation: Federation) -> dict[str, Tensor]:
    """Under names of their own: how much is on its way differs from round to round."""
    return {f"{MEMORY}{name}": value for name, value in federation.memory().items()}


def _frames(bank: ClientBank, clients: Tensor) -> Iterator[bytes]:
    """The rows of these clients, not too many in a frame."""
    for some in clients.split(max(1, FRAME // max(1, bank.bytes_per_client()))):
        private, kept = bank.gather(some)
        rows = {f"kept.{name}": value for name, value in kept.items()}
        yield _tensors({"clients": some, "private": private, **rows})


def _install(federation: Federation, server: Prefix, bank: Prefix, records: Prefix) -> _Written:
    """Put a checkpoint's contents into a federation as built; nothing is changed if they misfit,
    or if they are not what their names say (``Damaged``)."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    try:
        vectors = load(server.file.read_bytes()[: server.length])
        for frame in records.frames():
            for name, table in json.loads(frame).items():
                tables[name] += table
        rows_of_frames = [_shapes(load(frame)) for frame in bank.frames()]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"a part of it is something else ({error})") from None
    remembered = [name for name in vectors if name.startswith(MEMORY)]
    memory = {name.removeprefix(MEMORY): vectors.pop(name) for name in remembered}
    _require(_shapes(vectors), _shapes(_server(federation)))
    widths = federation.bank.widths()
    for shapes in rows_of_frames:
        count = shapes.get("clients", (0,))[0]
        _require(shapes, {"clients": (count,), **{name: (count, w) for name, w in widths.items()}})

    federation.theta = vectors["theta"].to(federation.theta)
    federation.recall(memory)
    federation.state = {name: vectors[f"state.{name}"] for name in federation.state}
    total = 0
    for rows in map(load, bank.frames()):
        clients, private = rows.pop("clients"), rows.pop("private")
        kept = {name.removeprefix("kept."): value for name, value in rows.items()}
        federation.bank.scatter(clients, private, kept)
        total += len(clients)
    for name, table in tables.items():
        getattr(federation.records, name)[:] = table
    lengths = {name: len(table) for name, table in tables.items()}
    return _Written(federation.bank, bank, records, total, federation.bank.moment, lengths)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def _require(found: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if set(found) != set(shapes):
        raise _Misfit(f"it holds {sorted(found)}, but the run keeps {sorted(shapes)}")
    for name, here in shapes.items():
        if (there := found[name]) != here:
            raise _Misfit(f"{name} has the shape {there} in it, but {here} here")


def _tensors(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not valid JSON: {error}") from None
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read ({error})") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"the checkpoint {file} has format {found}, but this version reads format {FORMAT}; "
            f"use the version that wrote it, or delete the folder {file.parent} to start anew"
        )
    if manifest.pop("sha256", None) != files.sha256_json(manifest):
        raise Damaged(f"{file.name} has other contents than were written")
    if not _is_manifest(manifest):
        raise Damaged(f"{file.name} is no manifest of a checkpoint")
    return dict(manifest)


def _named(manifest: Path) -> set[str]:
    """The files that a manifest names; none if it is damaged."""
    try:
        return {entry["file"] for entry in _read_manifest(manifest)["parts"].values()}
    except ValueError:
        return set()


def _is_manifest(found: Mapping[str, Any]) -> bool:
    """Whether it has all that a manifest has; whoever can make a hash can leave something out."""
    kinds = {"round": int, "made_for": dict, "facts": dict, "parts": dict}
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        return False
    if set(found["parts"]) != {"server", "bank", "records"}:
        return False
    whole = {"file": str, "bytes": int, "sha256": str}
    entries = found["parts"].values()
    return all(
        isinstance(entry, dict) and all(isinstance(entry.get(k), kind) for k, kind in whole.items())
        for entry in entries
    ) and all(entry["bytes"] >= 0 for entry in entries)
