"""A file that is there as a whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

O_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class NewFile:
    """A file that is being written under a temporary name. Made by `new_file`."""

    def __init__(self, target: Path, descriptor: int) -> None:
        self.target, self.descriptor = target, descriptor

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises ValueError, naming the file, when they cannot be written."""
        view = memoryview(data)
        with _failures_of(self.target):
            while len(view):
                view = view[os.write(self.descriptor, view) :]

    def restart(self, data: bytes) -> None:
        """Forget what was written, and write this."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self.write(data)

    def sync(self) -> None:
        """Return when all bytes are on the disk."""
        with _failures_of(self.target):
            os.fsync(self.descriptor)


@contextlib.contextmanager
def new_file(path: str | Path, size: int = 0, *, overwrite: bool = False) -> Iterator[NewFile]:
    """A file to write, which takes the name `path` at the end of the block, with its bytes on disk.

    Until then it has a temporary name in the same folder. When the block raises it is removed, and
    what had the name before is still there. size: bytes that are set aside at once, so that a full
    disk shows before the work and not after it; 0 if unknown.

    Raises FileExistsError when there is such a file already, unless overwrite; FileNotFoundError
    for a missing folder; PermissionError or ValueError when it cannot be written.
    """
    check_target(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))  # A link stays one.
    try:
        descriptor, name = _temporary(target)
    except PermissionError as error:
        raise PermissionError(f"{path}: you may not write to the folder {target.parent}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror})") from error
    file = NewFile(Path(path), descriptor)
    try:
        _set_aside(file, size)
        yield file
        file.sync()
        check_target(path, overwrite=overwrite)
        with _failures_of(file.target):
            with contextlib.suppress(FileNotFoundError):  # What is overwritten keeps its mode.
                os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(name, target)
        _sync_folder(target.parent)
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


def check_target(path: str | Path, *, overwrite: bool) -> None:
    """FileExistsError, FileNotFoundError or ValueError where `new_file` would raise them."""
    target = Path(os.path.realpath(path))
    try:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"{path}: there is no folder {target.parent}; make it first")
        if not target.exists():
            return
        mode = target.stat().st_mode
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise PermissionError(f"{path}: you may not look into {target.parent}") from error
    except (OSError, ValueError) as error:  # A name that is too long, or holds a null.
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be written ({reason}); choose another name") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file; choose another name")
    if not overwrite:
        raise FileExistsError(f"{path} exists; choose another name, or ask to overwrite it")


def _temporary(target: Path) -> tuple[int, str]:
    """A descriptor and the name of a new file beside the target, with the mode of any new file."""
    while True:
        # Names may be no longer than the target's, which may be the longest there can be.
        name = target.parent / f".{target.name[:40]}.{secrets.token_hex(4)}.part"
        with contextlib.suppress(FileExistsError):
            return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o666), str(name)


def _set_aside(file: NewFile, size: int) -> None:
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # Not every file system can.
            raise _unwritable(file.target, error, f"; it needs {size} bytes") from error


@contextlib.contextmanager
def _failures_of(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError, needs: str = "") -> ValueError:
    return ValueError(
        f"{target} cannot be written ({error.strerror}){needs}; nothing was: make room or choose "
        f"another folder"
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Not every file system can; the file itself is on the disk.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
