"""Which files of a data set belong to which split.

A file belongs to the split that it is named after, ``train.parquet``, to the one of which it is a
shard, ``train-00000-of-00002.parquet``, or to the one whose folder it lies in,
``train/0000.parquet``. Names match whole: ``test_hard.parquet`` is no part of ``test``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsdg.data.own_data import OwnData

# Older files of the hub have a hash behind the number.
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]{16})?")
#: The word train or test, maybe among others: such a name means a split.
_SPLIT_WORD = re.compile(r"(.*[^a-z])?(train|test)(ing)?([^a-z].*)?", re.IGNORECASE)


def names_of(file: Path) -> tuple[str, ...]:
    """Return the splits that a file would belong to: its folders, and its name.

    Args:
        file: the path relative to the data set's folder.
    """
    shard = _SHARD.fullmatch(file.stem)
    return (*file.parts[:-1], shard["split"] if shard else file.stem)


def all_names(files: Iterable[Path]) -> list[str]:
    """Return every name that a split of these files could have; bare numbers are none."""
    names = (name for file in files for name in names_of(file))
    return [name for name in dict.fromkeys(names) if not name.isdecimal()]


def files_by_split(
    folder: Path, files: Sequence[Path], splits: Sequence[str]
) -> dict[str, list[Path]]:
    """Sort files into splits; a file of none of them is in no list.

    Args:
        folder: the data set's folder, in which all files lie.
        files: their paths, in the order in which each split lists them.
        splits: names of splits.

    Returns:
        The files of each split, none where there is no such file.

    Raises:
        ValueError: a file belongs to two of the splits, or two files are the same shard.
        FileNotFoundError: a shard is missing.
    """
    found: dict[str, list[Path]] = {split: [] for split in splits}
    for file in files:
        names = names_of(file.relative_to(folder))
        match = [split for split in splits if split in names]
        if len(match) > 1:
            raise ValueError(
                f"{file} belongs to the splits {match[0]!r} and {match[1]!r}, by its folder and by "
                "its name: rename it, move it, or name other splits"
            )
        for split in match:
            found[split].append(file)
    for part in found.values():
        require_all_shards(part)
    return found


def require_all_shards(files: Iterable[Path]) -> None:
    """Check that every shard of a file is there, once.

    Raises:
        ValueError: two files are the same shard.
        FileNotFoundError: a shard is missing.
    """
    found: dict[tuple[Path, str, int], list[int]] = {}
    for file in files:
        shard = _SHARD.fullmatch(file.stem)
        if shard:
            key = (file.parent, shard["split"], int(shard["total"]))
            found.setdefault(key, []).append(int(shard["number"]))
    for (parent, split, total), numbers in found.items():
        pattern = f"{split}-*-of-{total:05d}*.parquet"
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"{parent} has two versions of a file of {pattern}: remove one")
        if len(numbers) != total:
            raise FileNotFoundError(
                f"{parent} has {len(numbers)} of the {total} files {pattern}: fetch the others"
            )


def listed(names: Sequence[str]) -> str:
    """Return names as part of a sentence: the first twelve, and how many more there are."""
    more = len(names) - 12
    return ", ".join(names[:12]) + (f" and {more} more" if more > 0 else "")


def choose_splits(own: OwnData, there: Sequence[str], where: str, *, pool: bool) -> list[str]:
    """Return the names of the training split and, if there is one, of the test split.

    Args:
        own: the declaration; it may name both splits.
        there: names of the splits that there are.
        where: what has them, for error messages.
        pool: whether everything is for training where no split is named or found; the list is
            then empty.

    Raises:
        ValueError: a split that is named, or needed, is not there; or names that mean a split,
            such as ``test_1``, would be pooled.
    """
    train, test = own.train or "train", own.test or "test"
    known = f"there are {listed(there)}" if there else "there is none"
    remedy = "name them as split: {train: …, test: …}"
    if train not in there:
        if pool and own.train is None and own.test is None and test not in there:
            # A name alone cannot be pooled with another.
            meant = [name for name in there if len(there) > 1 and _SPLIT_WORD.fullmatch(name)]
            if meant:
                raise ValueError(
                    f"data set {own.name!r}: {where} has no split 'train', but {meant[0]!r} reads "
                    f"like one: {remedy}, or, if all of it is for training, move it into a folder "
                    "train"
                )
            return []
        raise ValueError(
            f"data set {own.name!r}: {where} has no split {train!r}, {known}; {remedy}"
        )
    if own.test is not None and test not in there:
        raise ValueError(
            f"data set {own.name!r}: {where} has no split {test!r}, {known}; leave the test split "
            "out, and one is drawn"
        )
    # A single split that is named is all that is wanted.
    wanted = [train] if own.train is not None and own.test is None else [train, test]
    return [name for name in wanted if name in there]
