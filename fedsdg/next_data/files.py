"""Files of a data set, and the split to which each belongs.

A file belongs to the split in whose folder it lies (``train/0000.parquet``); a parquet file also to
the one it is named after (``train.parquet``, ``train-00000-of-00002.parquet``). Names match whole:
``test_hard.parquet`` does not belong to ``test``.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedsdg.next_data.sources import Source

#: The environment variable that names the folder of data sets.
FOLDER_VARIABLE = "FEDSDG_DATA"
# Older files of the hub have a hash behind the numbers.
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})(?:-[0-9a-f]{16})?")
_LIKE_A_SPLIT = re.compile(r"(.*[^a-z])?(train|test)(ing)?([^a-z].*)?", re.IGNORECASE)


def find_folder(source: Source) -> Path | None:
    """Return the folder or the parquet file of a data set; None: it is only on the hub.

    Built-in sets lie in ``$FEDSDG_DATA``, others there or in the working directory, which is first.

    Raises:
        FileNotFoundError: A declared folder does not exist, or ``$FEDSDG_DATA`` is no folder.
    """
    root = os.environ.get(FOLDER_VARIABLE)
    if root and not Path(root).is_dir():
        raise FileNotFoundError(f"{FOLDER_VARIABLE} is {root!r}, which is no folder; correct it")
    if source.built_in:
        place = Path(root or "", source.name)
        return place if root and place.is_dir() else None
    if source.folder is None:
        return None
    given = Path(source.folder).expanduser()
    place = given if given.exists() or not root else Path(root, given)
    if not place.exists():
        raise FileNotFoundError(f"data set {source.name!r}: there is no {place}; correct 'folder'")
    return place


def files_below(place: Path) -> list[Path]:
    """Return all files below a folder, sorted; links are followed, hidden files left out.

    Args:
        place: A folder, or one file, which is returned alone.
    """
    found = [place] if place.is_file() else []
    for folder, below, names in os.walk(place, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(found)


def listing(source: Source) -> str:
    """Return a hash of the names and sizes of a data set's files; none of them is read.

    Raises:
        FileNotFoundError: A declared folder does not exist.
    """
    place = find_folder(source)
    digest = hashlib.sha256(str(source.hub).encode())
    for file in files_below(place) if place else ():
        digest.update(f"{file.relative_to(place or file)} {file.stat().st_size}\0".encode())
    return digest.hexdigest()


def split_files(source: Source, root: Path, files: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Return the files of the training split, then those of the test split, which are True.

    Args:
        source: The declaration, which may name its splits.
        root: The data set's folder.
        files: Its parquet files or images.

    Returns:
        Files, and whether each is for testing; without any split all are for training.

    Raises:
        ValueError: A declared split does not exist, a name such as ``test_1`` looks like a split
            that nothing declares, or a file of ``-of-00002`` is missing or there twice.
    """
    names = {file: _names(file.relative_to(root)) for file in files}
    splits = choose_splits(source, set().union(*names.values()), str(root))
    if not splits:
        return [(file, False) for file in files]
    used = [(f, split in splits[1:]) for split in splits for f in files if split in names[f]]
    shards = [_SHARD.fullmatch(str(file.with_suffix(""))) for file, _ in used]
    counts = Counter((shard[1], int(shard[2])) for shard in shards if shard)
    for (name, total), count in counts.items():
        if count != total:
            raise ValueError(
                f"there are {count} files {name}-*, not {total}; fetch those that are missing, or "
                "remove the others"
            )
    return used


def _names(file: Path) -> set[str]:
    """Return the splits to which a file can belong."""
    shard = _SHARD.fullmatch(file.stem)
    own = [shard[1] if shard else file.stem] if file.suffix == ".parquet" else []
    return {*file.parts[:-1], *own}


def choose_splits(source: Source, names: Sequence[str] | set[str], where: str) -> tuple[str, ...]:
    """Return the splits to read: training, then the test split if there is one.

    Args:
        source: The declaration, which may name its splits.
        names: All names that could be splits.
        where: The folder or repository, for errors.

    Returns:
        One or two names; none where nothing is a split.

    Raises:
        ValueError: A declared split does not exist, or a name such as ``test_1`` looks like one.
    """
    train = source.train or "train"
    test = source.test or "test"
    # A training split that is declared alone is all that is wanted.
    wanted = [train] if source.train and not source.test else [train, test]
    needed = [train, test] if source.test or source.built_in else [train]
    missing = [split for split in needed if split not in names]
    if not missing:
        return tuple(split for split in wanted if split in names)
    declared = source.train or source.test or source.built_in
    if declared or any(_LIKE_A_SPLIT.fullmatch(name) for name in names):
        there = ", ".join(sorted(names)[:12])
        raise ValueError(
            f"{where} has no split {missing[0]!r}, but {there}; set 'train' and 'test'"
        )
    return ()
