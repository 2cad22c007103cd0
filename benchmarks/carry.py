"""Data and backbones in parts small enough to be carried to a machine that takes small files only.

    python3 -m benchmarks.carry FOLDER TARGET [--mib 29]

Parquet files are cut by rows, in their order, so that the images and their hash stay the same;
weights are cut anywhere, and ``joined`` puts them together again.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from fedsdg.files import atomic_path

MOST_MIB = 29.0
_CUT = re.compile(r"(?P<name>.+\.safetensors)-\d{5}-of-(?P<total>\d{5})")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}")


def cut(folder: Path, target: Path, most: int) -> list[Path]:
    """Copy a folder, its files in parts of at most ``most`` bytes; returns what was written.

    ``ValueError`` where a single row is too large, or a file that is neither parquet nor weights.
    """
    written: list[Path] = []
    splits: dict[tuple[Path, str], list[Path]] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = target / file.relative_to(folder)
        if file.suffix == ".parquet":
            match = _SHARD.fullmatch(file.stem)
            splits.setdefault((place.parent, match["stem"] if match else file.stem), []).append(
                file
            )
        elif file.stat().st_size <= most:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
            written.append(place)
        elif file.suffix == ".safetensors":
            content = file.read_bytes()
            total = -(-len(content) // most)
            for number in range(total):
                part = place.with_name(f"{place.name}-{number:05d}-of-{total:05d}")
                with atomic_path(part) as temporary:
                    temporary.write_bytes(content[number * most : (number + 1) * most])
                written.append(part)
        else:
            raise ValueError(f"{file} is larger than a part and no parquet file; leave it out")
    for (parent, stem), files in splits.items():
        written += _cut_rows(files, parent, stem, most)
    return written


def _cut_rows(files: list[Path], parent: Path, stem: str, most: int) -> list[Path]:
    """The rows of all shards of a split, in their order, in as few equal parts as fit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    total = max(1, -(-sum(file.stat().st_size for file in files) // most))
    while True:
        parts = []
        for number in range(total):
            begin, end = (len(table) * k // total for k in (number, number + 1))
            part = parent / f"{stem}-{number:05d}-of-{total:05d}.parquet"
            with atomic_path(part) as temporary:
                pq.write_table(table.slice(begin, end - begin), temporary)
            parts.append(part)
        if all(part.stat().st_size <= most for part in parts):
            return parts
        for part in parts:
            part.unlink()
        if total >= len(table):
            raise ValueError(f"{files[0]}: a row of it is larger than a part; allow larger ones")
        total = min(total + 1, len(table))


def joined(folder: Path, target: Path) -> list[Path]:
    """Copy the backbones of a folder (.safetensors, .json), and put together those that are cut.

    ``FileNotFoundError`` where the folder, or a part of a file, is missing.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of backbones; name one that is there")
    target.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if match := _CUT.fullmatch(file.name):
            pieces.setdefault(match["name"], []).append(file)
        elif file.suffix in (".safetensors", ".json"):
            pieces[file.name] = [file]
    for name, files in pieces.items():
        match = _CUT.fullmatch(files[0].name)
        if match and len(files) != int(match["total"]):
            raise FileNotFoundError(
                f"{folder} has {len(files)} of the {int(match['total'])} parts of {name}; bring "
                "the others"
            )
        with atomic_path(target / name) as temporary, temporary.open("wb") as whole:
            for file in files:
                whole.write(file.read_bytes())
    return [target / name for name in pieces]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mib", type=float, default=MOST_MIB, help="of a part, at most")
    given = parser.parse_args()
    written = cut(given.folder, given.target, int(given.mib * 1024**2))
    print(f"{len(written)} files in {given.target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
