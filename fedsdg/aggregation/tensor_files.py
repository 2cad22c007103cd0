"""Safetensors files whose numbers are read a range at a time.

The library `safetensors` checks the header. Numbers are read with pread into given memory, because
the pages of a memory mapping count as memory of the process; what the system cached of the file is
released.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsdg.aggregation.params import WHOLE

DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Dtypes that are averaged, and those of buffers, by their names in a header."""


class TensorEntry(NamedTuple):
    """A tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    "in bytes from the beginning of the file"

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def is_buffer(self) -> bool:
        """Whether it holds integers or booleans."""
        return self.dtype in WHOLE


class TensorFile:
    """The checked header of a file, and its tensors in the order in which they lie in it.

    Attributes:
        path: The file.
        header: Its bytes up to the first number.
        metadata: Texts by name.
        entries: The tensors by name.

    Raises:
        FileNotFoundError: There is no such file.
        PermissionError: It may not be read.
        ValueError: It is not a whole safetensors file of dense numbers; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb", opener=_open_regular) as file:
                self._facts = _facts(os.fstat(file.fileno()))
                with safe_open(self.path, framework="np"):  # Checks it all and reads no number.
                    pass
                length = int.from_bytes(file.read(8), "little")
                self.header = length.to_bytes(8, "little") + file.read(length)
            entries = json.loads(self.header[8:])
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.path}: there is no such file; correct its name"
            ) from error
        except PermissionError as error:
            raise PermissionError(f"{self.path}: you may not read this file") from error
        except (SafetensorError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.path} is not a whole safetensors file ({_reason(error)}); write it with "
                "safetensors' save_file, or fetch it again"
            ) from error
        self.metadata: dict[str, str] = entries.pop("__metadata__", None) or {}
        self.entries = {
            name: TensorEntry(
                DTYPES.get(entry["dtype"], entry["dtype"]),
                tuple(entry["shape"]),
                length + 8 + entry["data_offsets"][0],
            )
            for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
        }
        for name, entry in self.entries.items():
            if isinstance(entry.dtype, str):
                raise ValueError(
                    f"{self.path}: tensor {name!r} is {entry.dtype}, which cannot be averaged; "
                    "convert it, or leave it out"
                )

    @property
    def identity(self) -> tuple[int, int]:
        """The same for two names of one file."""
        return self._facts[1], self._facts[2]

    def read(self, name: str, start: int, into: Tensor) -> None:
        """Fill a tensor [n] with numbers of a tensor of the file.

        Args:
            name: The tensor of the file.
            start: The first of its numbers.
            into: Of the same dtype.

        Raises:
            ValueError: The file was changed, or can no longer be read.
        """
        view = into.view(torch.uint8).numpy().data
        offset = self.entries[name].offset + start * into.element_size()
        try:
            with open(self.path, "rb", buffering=0, opener=_open_regular) as file:
                unchanged, done = _facts(os.fstat(file.fileno())) == self._facts, 0
                while unchanged and done < len(view):
                    count = os.preadv(file.fileno(), [view[done:]], offset + done)
                    unchanged = count > 0
                    done += count
                os.posix_fadvise(file.fileno(), offset, len(view), os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read ({_reason(error)})") from error
        if not unchanged:
            raise ValueError(
                f"{self.path} was changed while it was being read; aggregate again when its "
                "writer has finished"
            )

    def whole(self, name: str) -> Tensor:
        """Return a tensor of the file; raises as `read`."""
        entry = self.entries[name]
        tensor = torch.empty(entry.numel, dtype=entry.dtype)
        self.read(name, 0, tensor)
        return tensor.view(entry.shape)


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file; any other, such as a pipe, could block for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError("not a regular file, but a folder, a pipe or a device")


def _facts(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("Error while deserializing header: ")
    return getattr(error, "strerror", None) or text
