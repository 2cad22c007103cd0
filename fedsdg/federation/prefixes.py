"""Files that only grow, each state of which is known by the file's first bytes.

To write down what is new, it is appended; what stands there is never written again. Whoever
remembers how long a file was, and the hash of so much of it, still finds that state in it when
more follows, be it whole, half-written or cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Bytes read at a time for a hash.
_CHUNK = 1 << 20
#: Bytes of a frame's length, little-endian.
_LENGTH = 8


class Damaged(ValueError):
    """A file that is not what was written."""


@dataclass(frozen=True)
class Prefix:
    """The first ``length`` bytes of ``file``: frames, each its length and so many bytes."""

    file: Path
    length: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def entry(self) -> dict[str, Any]:
        """Name, bytes and hash, as plain JSON."""
        return {"file": self.file.name, "bytes": self.length, "sha256": self.digest.hexdigest()}

    def is_there(self) -> bool:
        """Whether the file is still at least as long; its contents are not looked at."""
        return self.file.is_file() and self.file.stat().st_size >= self.length

    def append(self, frames: Iterable[bytes]) -> Prefix:
        """The prefix with these frames behind it, on the disk; the file is made if need be.

        What stood behind the prefix is cut off. When that fails, with ``OSError`` or anything
        else, the file is cut back to the prefix, and at worst there is more behind it.
        """
        length, digest = self.length, self.digest.copy()
        try:
            with open(self.file, "r+b" if self.length else "wb") as stream:
                stream.truncate(self.length)
                stream.seek(self.length)
                for frame in frames:
                    for piece in (len(frame).to_bytes(_LENGTH, "little"), frame):
                        stream.write(piece)
                        digest.update(piece)
                        length += len(piece)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.truncate(self.file, self.length)
            raise
        return Prefix(self.file, length, digest)

    def frames(self) -> Iterator[bytes]:
        """The frames in order, one in memory at a time."""
        with open(self.file, "rb") as stream:
            while stream.tell() < self.length:
                size = int.from_bytes(stream.read(_LENGTH), "little")
                yield stream.read(size)


def checked(folder: Path, entry: Mapping[str, Any]) -> Prefix:
    """The prefix that ``entry`` describes; ``Damaged`` if its bytes are not there any more."""
    file, length, digest = folder / entry["file"], entry["bytes"], hashlib.sha256()
    try:
        with open(file, "rb") as stream:
            left = length
            while left and (chunk := stream.read(min(left, _CHUNK))):
                digest.update(chunk)
                left -= len(chunk)
    except FileNotFoundError:
        raise Damaged(f"{file.name} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{file.name} cannot be read ({error})") from None
    if left:
        raise Damaged(f"{file.name} has {length - left} bytes instead of {length}")
    if digest.hexdigest() != entry["sha256"]:
        raise Damaged(f"{file.name} has other contents than were written")
    return Prefix(file, length, digest)
