"""Where every file of an experiment lies, relative to the working directory: said here alone.

Names in braces are wildcards of the workflow, and are filled in by :func:`filled` elsewhere. A
*setting* is a skew, or a skew under a scenario: ``iid``, ``iid@half``. Imports nothing heavy, for
the workflow reads it on every call.

Also where those files lie that come with the package beside its code: configs, workflow, records of
arenas. A checkout has them once, in its own folders; a wheel holds copies within the package, which
``setup.py`` puts there when it is built. Whoever needs one asks ``shipped``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsdg.files import HASHES, PACKAGE

#: The partitions of all seeds, and one of them, below the folder of partitions; they are the same
#: in all scenarios.
DIVISIONS = "{dataset}/clients~{clients}/{skew}"
DIVISION = f"{DIVISIONS}/seed~{{seed}}.parquet"
#: A cell of the grid, and a run of it, below the folder of runs.
CELL_BELOW = "{dataset}/clients~{clients}/{setting}/{method}"
RUN_BELOW = f"{CELL_BELOW}/seed~{{seed}}"
#: What matches every run there.
ANY_RUN = re.sub(r"{\w+}", "*", RUN_BELOW)

PARTITION = f"results/partitions/{DIVISION}"
BACKBONE = "results/backbones/{backbone}.safetensors"
RUNS = "results/runs/{experiment}"
RUN = f"{RUNS}/{RUN_BELOW}"
SUMMARY = "results/summary/{experiment}"
TABLE = "results/tables/{experiment}/{table}"
FIGURE = "results/figures/{experiment}/{figure}"
SEARCH = "results/search/{experiment}.json"
#: In a summary: that no run failed, written last of all.
VERIFIED = f"{SUMMARY}/verified.txt"

#: What is committed of an experiment, and the figures that are drawn of it.
RECORDS = "results/reference"
RECORD = f"{RECORDS}/{{experiment}}"
PAPER_FIGURE = "paper_figures/{experiment}/{figure}"

ARENAS = {"needs": "cross-needs", "label-skew": "cross-label-skew", "views": "views"}
"""The arenas, experiments with a record that others are compared with: the config and record of
each, by the name that documents use."""
CROSS = ("cross-needs", "cross-label-skew")
"""Those in which every method is tuned for itself."""

#: The files of a run, the hashes of the others last of all.
RUN_FILES = (
    "rounds.parquet",
    "clients.parquet",
    "result.json",
    "provenance.json",
    "timings.parquet",
    HASHES,
)
#: The tables of a summary, and the facts on its methods.
SUMMARY_TABLES = ("runs", "rounds", "clients", "timings")
METHODS = "methods.json"
FIGURE_FORMATS = ("pdf", "svg", "png", "csv", "json")


def filled(pattern: str, **names: Any) -> Path:
    """A path, with its names in place."""
    return Path(pattern.format_map(names))


def split_setting(setting: str) -> tuple[str, str]:
    """The skew of a setting, and its scenario or ""."""
    skew, _, scenario = setting.partition("@")
    return skew, scenario


def joined_setting(skew: str, scenario: str) -> str:
    """A skew under a scenario; the skew alone where that is ""."""
    return f"{skew}@{scenario}" if scenario else skew


def partition_of(dataset: str, clients: int, setting: str, seed: int) -> Path:
    """The partition that a run needs."""
    skew, _ = split_setting(setting)
    return filled(PARTITION, dataset=dataset, clients=clients, skew=skew, seed=seed)


def run_below(identity: Mapping[str, Any]) -> str:
    """Where a run lies below the folder of runs; a row of records calls its setting ``skew``."""
    return RUN_BELOW.format_map({**identity, "setting": identity["skew"]})


# --- What comes with the package ------------------------------------------------------------------

#: The folder of copies within an installed package; a checkout has none.
INSIDE = "_shipped"


def shipped(place: str | Path, package: Path = PACKAGE) -> Path:
    """Return a file or folder of a checkout, wherever this package keeps it; to be read alone.

    Args:
        place: Where it lies in a checkout, such as ``config/cross-needs.yaml``.
        package: The package that brings it.

    Raises:
        FileNotFoundError: The package has come without it.
    """
    found = root(package) / place
    if found.exists():
        return found
    if (package / INSIDE).is_dir():
        lack = f"in the installed package {package}, which brings less than the repository has"
        remedy = "clone the repository for the rest"
    elif (package.parent / "pyproject.toml").is_file():
        lack, remedy = f"in the checkout {package.parent}", "`git status` says what is gone"
    else:
        lack = f"beside the package {package}, which was installed without its data"
        remedy = "install it again from its wheel, or from a clone of the repository"
    raise FileNotFoundError(f"there is no {place} {lack}; {remedy}")


def root(package: Path = PACKAGE) -> Path:
    """The checkout in which the package lies, or its copies of what a checkout has."""
    return package / INSIDE if (package / INSIDE).is_dir() else package.parent


def built_of(package: Path = PACKAGE) -> str | None:
    """The commit that an installed package was built of; None where it says none."""
    file = package / INSIDE / "COMMIT"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
