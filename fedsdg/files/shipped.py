"""Files beside the code that come with the package: configs, workflow, schema, records of arenas.

A checkout has them once, in its own folders; a wheel holds copies within the package, which
``setup.py`` puts there when it is built. Whoever needs one asks here and never says which it is.
Light: imports nothing else.
"""

from __future__ import annotations

from pathlib import Path

from fedsdg.files import PACKAGE

#: The folder of copies within an installed package; a checkout has none.
INSIDE = "_shipped"


def shipped(place: str | Path, package: Path = PACKAGE) -> Path:
    """The file or folder that lies at ``place`` in a checkout, wherever this package keeps it.

    ``place`` is relative to the root of a checkout: ``config/needs.yaml``, ``workflow/Snakefile``,
    ``results/reference/needs``. Read it and never write there. Raises ``FileNotFoundError`` where
    the package has come without it.
    """
    found = root(package) / place
    if not found.exists():
        raise FileNotFoundError(_lack(place, package))
    return found


def root(package: Path = PACKAGE) -> Path:
    """The checkout in which the package lies, or its copies of what a checkout has."""
    return package / INSIDE if (package / INSIDE).is_dir() else package.parent


def is_checkout(package: Path = PACKAGE) -> bool:
    """Whether the package lies among its sources, tests and all."""
    return not (package / INSIDE).is_dir() and (package.parent / "pyproject.toml").is_file()


def built_of(package: Path = PACKAGE) -> str | None:
    """The commit that an installed package was built of; None where it says none."""
    file = package / INSIDE / "COMMIT"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _lack(place: str | Path, package: Path) -> str:
    if is_checkout(package):
        return (
            f"there is no {place} in the checkout {package.parent}; `git status` says what is gone"
        )
    if (package / INSIDE).is_dir():
        return (
            f"there is no {place} in the installed package {package}, which brings less than the "
            "repository has; clone the repository for the rest"
        )
    return (
        f"the package {package} was installed without its data, so there is no {place}; install it "
        "again from its wheel, or from a clone of the repository"
    )
