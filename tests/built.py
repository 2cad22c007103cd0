"""An sdist and a wheel of this checkout, built once, and the wheel as an installer unpacks it.

Fixtures for the folders whose `conftest.py` imports them.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Beside hidden folders; what the checkout has made takes no part in a build.
LEFT_OUT = ("__pycache__", "*.egg-info", "build", "dist", "paper_figures", "docs", "tests")


#: Gives the commands in its arguments, and prints exit code, output and errors of each.
ONE_BY_ONE = """
import contextlib, io, json, shlex, sys
from fedsdg.cli import main
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main(shlex.split(line))
    print(json.dumps([code, out.getvalue(), errors.getvalue()]))
"""


@dataclass(frozen=True)
class Built:
    """What was built, of which sources, and their commit."""

    sdist: Path
    wheel: Path
    sources: Path
    commit: str

    def files(self) -> dict[str, bytes]:
        """Path -> bytes of all that the wheel holds."""
        with zipfile.ZipFile(self.wheel) as packed:
            return {name: packed.read(name) for name in packed.namelist()}


@dataclass(frozen=True)
class Installation:
    """A wheel that was installed without its dependencies into a folder of its own."""

    site: Path

    @property
    def package(self) -> Path:
        return self.site / "fedsdg"

    @property
    def environment(self) -> dict[str, str]:
        """What a shell in which the wheel is installed has, and nothing that leads elsewhere."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FEDSDG_")}
        return kept | {"PYTHONPATH": str(self.site)}

    def python(
        self, *arguments: str, cwd: Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Call Python in a folder."""
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=cwd,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def commands(self, *lines: str, cwd: Path) -> list[subprocess.CompletedProcess[str]]:
        """Give several commands in a folder, all in one process; what came of each."""
        done = self.python("-c", ONE_BY_ONE, *lines, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return [
            subprocess.CompletedProcess(line, *json.loads(said))
            for line, said in zip(lines, done.stdout.splitlines(), strict=True)
        ]

    def __call__(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Call the command in a folder."""
        return self.python("-m", "fedsdg", *arguments, cwd=cwd)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    """Of a copy of the checkout, for a build leaves folders beside its sources."""
    folder = tmp_path_factory.mktemp("packaging")
    sources, out = folder / "sources", folder / "dist"
    shutil.copytree(
        ROOT, sources, ignore=lambda at, names: _left_out(Path(at), names), symlinks=True
    )
    commit = "c" * 40
    (sources / "COMMIT").write_text(f"{commit}\n")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel, sources, commit)


def _left_out(folder: Path, names: list[str]) -> set[str]:
    found = set(shutil.ignore_patterns(*LEFT_OUT)(str(folder), names)) if folder == ROOT else set()
    hidden = {name for name in names if name.startswith(".") or name == "__pycache__"}
    made = set(names) - {"reference"} if folder == ROOT / "results" else set()
    return found | hidden | made


@pytest.fixture(scope="session")
def installed(built, tmp_path_factory) -> Installation:
    """Nobody may change it: others use it too."""
    site = tmp_path_factory.mktemp("installed") / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--no-index", "--target", str(site), str(built.wheel)], check=True)
    keep_compiled(site / "fedsdg")
    return Installation(site)


def keep_compiled(package: Path) -> None:
    """Put numba's kernels beside the same sources, which it knows by their time and size."""
    for kept in (ROOT / "fedsdg").glob("**/__pycache__/*.nb?"):
        there = package / kept.relative_to(ROOT / "fedsdg")
        there.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process puts a newer one there
            shutil.copy2(kept, there)
        source = kept.parents[1] / f"{kept.name.partition('.')[0]}.py"
        copy = there.parents[1] / source.name
        if source.is_file() and source.read_bytes() == copy.read_bytes():
            at = source.stat()
            os.utime(copy, ns=(at.st_atime_ns, at.st_mtime_ns))
