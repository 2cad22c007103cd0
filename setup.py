"""What a wheel holds beside the code: copies of a checkout's own files, made when it is built.

Everything else is said in ``pyproject.toml``; ``fedsdg/files/places.py`` finds the copies.
"""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
#: Where the copies lie within the package; the checkout has no such folder.
INSIDE = "fedsdg/_shipped"
#: The arenas whose published runs newcomers are compared with, and what that takes.
ARENAS = ("needs", "label-skew", "views")
OF_ARENA = (
    "runs.parquet",
    "rounds.parquet",
    "clients.parquet",
    "timings.parquet",
    "*.json",
    "tuned.yaml",
    "SHA256SUMS",
    "partitions/**/*.parquet",
    "backbones/*",
)
#: Patterns of files, relative to the root of a checkout.
SHIPPED = (
    "config/**/*.yaml",
    "profiles/*/config.yaml",
    "workflow/Snakefile",
    *(f"results/reference/{arena}/{files}" for arena in ARENAS for files in OF_ARENA),
    "results/reference/backbones/*",
)
#: The commit that all of it is of, in what is made of a clean checkout.
COMMIT = "COMMIT"


def shipped():
    """The files that go along, relative to the checkout."""
    found = {file for pattern in SHIPPED for file in ROOT.glob(pattern) if file.is_file()}
    return sorted(file.relative_to(ROOT) for file in found)


def commit():
    """The commit of a checkout without changes, or of the sdist; None where nobody knows."""
    if (ROOT / COMMIT).is_file():
        return (ROOT / COMMIT).read_text()
    if not (ROOT / ".git").exists():
        return None
    git = ["git", "-C", str(ROOT)]
    try:
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True)
        said = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if changed.stdout else said.stdout.decode()


#: Asked before anything is built, for the build itself puts a folder into the checkout.
KNOWN = commit()


class BuildWithData(build_py):
    """Puts the copies beside the code; an editable package finds the checkout's own files."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for file in shipped():
            copy = Path(self.build_lib, INSIDE, file)
            self.mkpath(str(copy.parent))
            self.copy_file(str(ROOT / file), str(copy), preserve_mode=False)
        if KNOWN is not None:
            Path(self.build_lib, INSIDE, COMMIT).write_text(KNOWN)

    def get_source_files(self):
        """So that an sdist has them, of which a wheel is built."""
        return [*super().get_source_files(), *map(str, shipped())]

    def get_outputs(self, include_bytecode=True):
        copies = (
            [] if self.editable_mode else [str(Path(self.build_lib, INSIDE, f)) for f in shipped()]
        )
        return [*super().get_outputs(include_bytecode), *copies]


class SdistWithCommit(sdist):
    """Says which commit the sources are of, for they come without their history."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if KNOWN is not None:
            Path(base_dir, COMMIT).write_text(KNOWN)


setup(cmdclass={"build_py": BuildWithData, "sdist": SdistWithCommit})
