"""The lock stands for Pythons that are not at hand: what is compiled has a wheel for them."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging import tags
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
#: Beside the one that all tests run on; the classifiers name that one alone.
OTHERS = ("3.12", "3.13")
#: Of hundreds of megabytes, which pip would fetch to look into: asked for by their versions alone.
HEAVY = ("torch", "triton")
#: How pip says that nobody answers, as opposed to that there is nothing.
NO_NETWORK = "NewConnectionError|NameResolutionError|ConnectTimeoutError|ProxyError|Max retries"


def pinned() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def wanted(version: str) -> list[Requirement]:
    """What the lock pins for a version of Python on this system.

    Looked up here, for pip asks conditions of the Python that it runs on itself.
    """
    named = {"python_version": version, "python_full_version": f"{version}.0"}
    environment = {**default_environment(), **named}
    return [one for one in pinned() if one.marker is None or one.marker.evaluate(environment)]


def serves(pin: Requirement, version: str) -> bool:
    """Whether the very wheel that is installed here would do for another Python."""
    try:
        installed = metadata.distribution(pin.name)
    except metadata.PackageNotFoundError:
        return False
    said = re.findall(r"^Tag: (.*)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    python = tuple(map(int, version.split(".")))
    known = {*tags.cpython_tags(python), *tags.compatible_tags(python)}
    own = {tag for one in said for tag in tags.parse_tag(one)}
    return pin.specifier.contains(installed.version) and not own.isdisjoint(known)


def pip(*arguments: str) -> str:
    """Its answer; the test is skipped where there is no network."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            *arguments,
            "--only-binary=:all:",
            "--ignore-requires-python",
        ],
        env=os.environ
        | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and re.search(NO_NETWORK, done.stdout + done.stderr):
        pytest.skip("no network: whether the lock has wheels for other Pythons was not asked")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_pin_has_a_wheel_for_the_newest_python(tmp_path):
    """So have those between it and the one that tests run on; CI installs the lock on each."""
    version = OTHERS[-1]
    pins = wanted(version)
    assert len(pins) > 150 and len(pins) == len({one.name for one in pins})
    asked = [one for one in pins if not serves(one, version)]
    assert {"numpy", "pyarrow", "torch"} <= {one.name for one in asked}
    light = [f"{one.name}{one.specifier}" for one in asked if one.name not in HEAVY]
    for one in asked:
        if one.name in HEAVY:
            known = pip("index", "versions", one.name, "--python-version", version)
            listed = re.search(r"^Available versions: (.*)$", known, re.MULTILINE)
            assert listed and any(map(one.specifier.contains, listed[1].split(", "))), one
    target = ["--python-version", version, "--target", str(tmp_path / "site")]
    pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", *target, *light)


def test_the_lock_pins_what_the_package_needs_and_within_its_bounds():
    pins = {one.name.lower().replace("_", "-"): str(one.specifier) for one in pinned()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        need = Requirement(line)
        version = pins[need.name.lower()].removeprefix("==")
        assert need.specifier.contains(version), line


def test_the_classifiers_name_the_python_that_tests_run_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert said == ["3.11"]
    allowed = SpecifierSet(project["requires-python"])
    assert all(allowed.contains(version) for version in (*said, *OTHERS))
