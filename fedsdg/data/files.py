"""Files of a data set, and the split to which each belongs."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from fedsdg.data.sources import Source
from fedsdg.files import sha256_json

#: The environment variable that names the folder of data sets.
FOLDER_VARIABLE = "FEDSDG_DATA"
_LIKE_A_SPLIT = re.compile(r"(.*[^a-z])?(train|test)(ing)?([^a-z].*)?", re.IGNORECASE)


def find_folder(source: Source) -> Path | None:
    """Return the folder or the parquet file of a data set; None: it is only on the hub.

    ``source.folder`` is looked up in the working directory, then in ``$FEDSDG_DATA``; a data set
    without one lies in ``$FEDSDG_DATA/NAME``.

    Raises:
        FileNotFoundError: There is no folder and no name on the hub, or ``$FEDSDG_DATA`` is no
            folder.
    """
    root = os.environ.get(FOLDER_VARIABLE)
    if root and not Path(root).is_dir():
        raise FileNotFoundError(f"{FOLDER_VARIABLE} is {root!r}, which is no folder; correct it")
    candidates = [Path(source.folder).expanduser()] if source.folder else []
    if root:
        candidates.append(Path(root, source.folder or source.name))
    for path in candidates:
        if path.exists():
            return path
    if source.hub is None:
        raise FileNotFoundError(
            f"data set {source.name!r}: there is no {source.folder or source.name!r} here or in "
            f"${FOLDER_VARIABLE} ({root or 'not set'}); correct 'folder', or put the files there"
        )
    return None


def files_below(root: Path) -> list[Path]:
    """Return all files below a folder, sorted, without hidden ones; links are followed.

    Args:
        root: A folder, or a file, which is returned alone.
    """
    files = [root] if root.is_file() else []
    for folder, subfolders, names in os.walk(root, followlinks=True):
        # A link to a folder above would never end.
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".")
            and not Path(folder).resolve().is_relative_to(Path(folder, name).resolve())
        ]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    # A broken link is a file that is missing; pipes and devices are no files.
    return sorted(path for path in files if path.is_file() or not path.exists())


def listing(source: Source) -> str:
    """Return a hash of the names, sizes and times of a data set's files; none of them is read.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    root = find_folder(source)
    files = files_below(root) if root else []
    stats = [file.stat() if file.exists() else None for file in files]
    states = [stat and [stat.st_size, stat.st_mtime_ns] for stat in stats]
    names = [str(file.relative_to(root or file)) for file in files]
    return sha256_json([source.hub, names, states])


def choose_splits(source: Source, names: Collection[str], where: str) -> list[str]:
    """Return the splits to read: training, then the test split if there is one.

    Args:
        source: The declaration, which may name its splits.
        names: Names of folders and files, or of splits on the hub.
        where: The folder or repository, for errors.

    Returns:
        One or two names; none if nothing is a split.

    Raises:
        ValueError: A declared split does not exist, there is a test split only, or a name such as
            ``test_1`` looks like a split while nothing is declared.
    """
    usual = {"train", "test"}
    declared = usual if source.built_in else {source.train, source.test} - usual
    splits = [split for split in (source.train, source.test) if split in names]
    needed = {*declared, source.train} if splits else declared
    unclear = any(_LIKE_A_SPLIT.fullmatch(name) for name in set(names) - set(splits))
    if needed - set(splits) or (unclear and not declared and len(splits) < 2):
        raise ValueError(
            f"{where} needs the splits {source.train!r} and {source.test!r}, but has "
            f"{', '.join(sorted(names)[:12])}; set 'train' and 'test' to two of them"
        )
    return splits
