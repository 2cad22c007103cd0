"""Copies of the package that take what this checkout has compiled, instead of compiling again."""

import contextlib
import os
import shutil
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedsdg"


def keep_compiled(package: Path) -> None:
    """Put numba's kernels beside the same sources elsewhere.

    numba knows a source by its time and size, so that edited ones are compiled.
    """
    for kept in PACKAGE.glob("**/__pycache__/*.nb?"):
        there = package / kept.relative_to(PACKAGE)
        there.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process puts a newer one there
            shutil.copy2(kept, there)
        source = kept.parents[1] / f"{kept.name.partition('.')[0]}.py"
        copy = there.parents[1] / source.name
        if source.is_file() and source.read_bytes() == copy.read_bytes():
            at = source.stat()
            os.utime(copy, ns=(at.st_atime_ns, at.st_mtime_ns))
