"""The folder of a data set, and the files below it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedsdg.data.own_data import OwnData

_FOLDER_VARIABLE = "FEDSDG_DATA"


def find_folder(own: OwnData) -> Path:
    """Return the folder, relative to the working directory, or else to $FEDSDG_DATA.

    Raises:
        FileNotFoundError: neither place has it.
    """
    assert own.folder is not None
    given = Path(own.folder).expanduser()
    places = [given, *(Path(root) / given for root in [os.environ.get(_FOLDER_VARIABLE)] if root)]
    for place in places:
        if place.is_dir() or (place.suffix == ".parquet" and place.is_file()):
            return place
    tried = " nor ".join(map(str, places))
    raise FileNotFoundError(
        f"data set {own.name!r}: there is no folder {tried}; name it in datasets as folder: PATH"
    )


def files_below(place: Path) -> list[Path]:
    """Return the files below a folder, sorted by path; links are followed, hidden files left out.

    Raises:
        ValueError: a link leads nowhere or back to a folder above it, or a name is not UTF-8.
        OSError: a folder cannot be read.
    """
    return sorted(_walk(place, ()))


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above:
        raise ValueError(
            f"{folder} is a link to {real}, a folder that it lies in itself: remove the link"
        )
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            _require_utf8(path)
            link = entry.is_symlink()
            if os.path.isdir(path) if link else entry.is_dir():
                yield from _walk(path, (*above, real))
            elif os.path.isfile(path) if link else entry.is_file():
                yield path
            elif link:
                raise ValueError(
                    f"{path} is a link to {os.readlink(path)}, which is not there: bring it back, "
                    "or remove the link"
                )


def _require_utf8(path: Path) -> None:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        # The bytes that are no UTF-8, as \xe9.
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise ValueError(f"the name of {shown} is not UTF-8: rename it") from None


def listing(own: OwnData) -> str:
    """Return a hash of which files there are and of their sizes, without reading them.

    For a set of the hub it is the hash of its name.
    """
    digest = hashlib.sha256(str(own.hub).encode())
    if own.hub is None:
        place = find_folder(own)
        for file in [place] if place.is_file() else files_below(place):
            digest.update(f"{file.relative_to(place)} {file.stat().st_size}\0".encode())
    return digest.hexdigest()
