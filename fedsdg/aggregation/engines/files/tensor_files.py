"""Safetensors files as vectors of numbers, of which a range of columns is read at a time.

The library `safetensors` checks the header. It would hand out the numbers from a mapping of the
file, whose pages count as memory of the process as they are touched; so they are read with pread
into memory given by the caller, and the pages that the system cached for it are let go.
"""

import bisect
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from fedsdg.aggregation.engines.memory.checks import StateDict

DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Those that can be averaged, by their names in a header."""

READ_BYTES = 1 << 20
"""Read at a time, so that what is done to numbers just read finds them in the cache."""


@dataclass(frozen=True)
class Run:
    """Columns whose numbers lie side by side in the file."""

    start: int
    """The first column."""
    stop: int
    dtype: torch.dtype
    offset: int
    """Of the first number, in bytes from the end of the header."""


class Place(NamedTuple):
    """Where a tensor lies in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """In bytes from the end of the header."""

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def opened(path: str | Path, flags: int) -> int:
    """A descriptor of a regular file; OSError for any other, such as a pipe that would wait for a
    writer for ever."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is not a regular file")


class TensorFile:
    """The header of a file, checked, and its tensors in the order in which they lie in it.

    Raises ValueError, naming the file, when it is not a whole safetensors file of floating tensors;
    FileNotFoundError and PermissionError when it cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb", opener=opened) as file:
                self._facts = _facts(os.fstat(file.fileno()))
                with safe_open(self.path, framework="np"):  # Checks it all and reads no number.
                    pass
                length = int.from_bytes(file.read(8), "little")
                self.header = length.to_bytes(8, "little") + file.read(length)
            entries = json.loads(self.header[8:], object_pairs_hook=_distinct)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.path}: there is no such file") from error
        except PermissionError as error:
            raise PermissionError(f"{self.path}: you may not read this file") from error
        except (SafetensorError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.path} is not a whole safetensors file ({_reason(error)}); write or fetch "
                f"it again"
            ) from error
        self.metadata: dict[str, str] = entries.pop("__metadata__", None) or {}
        self.places = self._places(entries)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._facts[0]

    @property
    def identity(self) -> tuple[int, int]:
        """The same for two names of one file."""
        return self._facts[1], self._facts[2]

    def stand_ins(self) -> StateDict:
        """Tensors by name with the shapes and dtypes of those in the file, taking no memory."""
        return {
            name: torch.zeros((), dtype=place.dtype).expand(place.shape)
            for name, place in self.places.items()
        }

    def open(self) -> int:
        """A descriptor of the file. Raises ValueError when it is no longer as it was."""
        try:
            descriptor = opened(self.path, os.O_RDONLY)
        except OSError as error:
            raise ValueError(f"{self.path} can no longer be read ({_reason(error)})") from error
        if _facts(os.fstat(descriptor)) != self._facts:
            os.close(descriptor)
            raise ValueError(
                f"{self.path} was changed while it was being read; aggregate again when its "
                f"writer has finished"
            )
        return descriptor

    def _places(self, entries: dict) -> dict[str, Place]:
        places = {}
        for name, entry in sorted(entries.items(), key=lambda e: tuple(e[1]["data_offsets"])):
            if entry["dtype"] not in DTYPES:
                raise ValueError(
                    f"{self.path}: tensor {name!r} is {entry['dtype']}; only "
                    f"{', '.join(DTYPES)} can be averaged: convert it, or leave it out "
                    f"(counters, masks)"
                )
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            places[name] = Place(dtype, shape, entry["data_offsets"][0])
        return places


class FileVector:
    """The tensors `names` of a file, flattened one after another: a vector of d numbers."""

    def __init__(
        self, file: TensorFile, names: Sequence[str], like: "FileVector | None" = None
    ) -> None:
        """like: a vector of the same names, which saves work if it lies in its file just so."""
        self.file, self.names = file, list(names)
        self.runs: list[Run]
        self.ends: list[int]
        if like is not None and file.places == like.file.places:
            self.runs, self.ends = like.runs, like.ends
        else:
            self.runs, self.ends = _runs([file.places[name] for name in names])

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name_of(self, column: int) -> str:
        """The tensor that a column belongs to."""
        return self.names[bisect.bisect_right(self.ends, column)]

    def parts(self, start: int, stop: int) -> Iterator[tuple[slice, torch.dtype]]:
        """Columns start … stop - 1 in pieces of one run each, with their dtypes in the file."""
        for run in self._within(start, stop):
            yield slice(max(start, run.start), min(stop, run.stop)), run.dtype

    def read(self, start: int, into: torch.Tensor) -> Iterator[tuple[slice, torch.dtype]]:
        """Fill `into` with columns start, …, converted to its dtype, piece by piece.

        Yields, for every piece once it is there, its place in `into` and its dtype in the file.
        """
        stop = start + len(into)
        descriptor = self.file.open()
        try:
            for run in self._within(start, stop):
                step = READ_BYTES // run.dtype.itemsize
                first, end = max(start, run.start), min(stop, run.stop)
                for begin in range(first, end, step):
                    place = slice(begin - start, min(begin + step, end) - start)
                    offset = run.offset + (begin - run.start) * run.dtype.itemsize
                    self._fill(descriptor, into[place], run.dtype, offset)
                    yield place, run.dtype
        finally:
            os.close(descriptor)

    def _within(self, start: int, stop: int) -> list[Run]:
        first = bisect.bisect_right(self.runs, start, key=lambda run: run.stop)
        end = bisect.bisect_left(self.runs, stop, key=lambda run: run.start)
        return self.runs[first:end]

    def _fill(self, descriptor: int, part: torch.Tensor, dtype: torch.dtype, offset: int) -> None:
        offset += len(self.file.header)
        raw = part if part.dtype == dtype else torch.empty(len(part), dtype=dtype)
        view = raw.view(torch.uint8).numpy().data
        done = 0
        while done < len(view):
            try:
                count = os.preadv(descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise ValueError(
                    f"{self.file.path} cannot be read at byte {offset + done} ({_reason(error)})"
                ) from error
            if count == 0:
                raise ValueError(f"{self.file.path} was cut short while it was being read")
            done += count
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, len(view), os.POSIX_FADV_DONTNEED)
        if raw is not part:
            part.copy_(raw)


def _runs(places: Sequence[Place]) -> tuple[list[Run], list[int]]:
    """The runs of tensors one after another, and the column after each tensor's last."""
    runs: list[Run] = []
    ends = []
    column = 0
    for place in places:
        end = column + place.numel
        ends.append(end)
        last = runs[-1] if runs else None
        beside = last and last.offset + (last.stop - last.start) * last.dtype.itemsize
        if last and last.dtype == place.dtype and beside == place.offset:
            runs[-1] = Run(last.start, end, last.dtype, last.offset)
        elif end > column:
            runs.append(Run(column, end, place.dtype, place.offset))
        column = end
    return runs, ends


def _distinct(pairs: list) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is twice in the header")
    return found


def _facts(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).removeprefix("Error while deserializing header: ")
