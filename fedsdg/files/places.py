"""Paths of all files of an experiment, relative to the working directory.

Names in braces are wildcards of the workflow; ``filled`` fills them elsewhere. A *setting* is a
skew, or a skew under a scenario: ``iid``, ``iid@half``. Imports nothing heavy, for the workflow
reads it on every call.

Configs, workflow and records of arenas come with the package: a checkout has them in its own
folders, a wheel holds copies that ``setup.py`` puts within the package. ``shipped`` finds either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsdg.files import PACKAGE

CELL_BELOW = "{dataset}/clients~{clients}/{setting}/{method}"
"""A cell of the grid, below the folder of runs."""
RUN_BELOW = f"{CELL_BELOW}/seed~{{seed}}"
"""A run, below the folder of runs."""
ANY_RUN = re.sub(r"{\w+}", "*", RUN_BELOW)
"""Matches every run there."""

BACKBONE = "results/backbones/{backbone}.safetensors"
RUNS = "results/runs/{experiment}"
RUN = f"{RUNS}/{RUN_BELOW}"
SUMMARY = "results/summary/{experiment}"
SEARCH = "results/search/{experiment}.json"
VERIFIED = f"{SUMMARY}/verified.txt"
"""In a summary: that no run failed, written last of all."""
RECORDS = "results/reference"
"""What is committed of experiments."""
RECORD = f"{RECORDS}/{{experiment}}"

ARENAS = ("needs", "label-skew", "views")
"""The experiments that others are compared with: each method is tuned there, by one rule."""

SUMMARY_TABLES = ("runs", "rounds", "clients", "timings")
METHODS = "methods.json"
"""In a summary: the facts on its methods."""
INSIDE = "_shipped"
"""The folder of copies within an installed package; a checkout has none."""


def filled(pattern: str, **names: Any) -> Path:
    """Return a path, with its names in place."""
    return Path(pattern.format_map(names))


def run_below(identity: Mapping[str, Any]) -> str:
    """Return where a run lies below the folder of runs; records call its setting ``skew``."""
    return RUN_BELOW.format_map({**identity, "setting": identity["skew"]})


def shipped(place: str | Path, package: Path = PACKAGE) -> Path:
    """Return a file or folder of a checkout, wherever this package keeps it; to be read alone.

    Args:
        place: Where it lies in a checkout, such as ``config/needs.yaml``.
        package: The package that brings it.

    Raises:
        FileNotFoundError: The package has come without it.
    """
    path = root(package) / place
    if path.exists():
        return path
    raise FileNotFoundError(
        f"there is no {place} in {root(package)}; `git status` says what is gone from a checkout, "
        "an installed package brings less than the repository: install it again, or clone that"
    )


def root(package: Path = PACKAGE) -> Path:
    """Return the checkout in which the package lies, or its copies of what a checkout has."""
    return package / INSIDE if (package / INSIDE).is_dir() else package.parent


def built_of(package: Path = PACKAGE) -> str | None:
    """Return the commit that an installed package was built of; None if it says none."""
    file = package / INSIDE / "COMMIT"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
