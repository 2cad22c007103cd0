"""The lock pins what the package needs, for the Pythons that CI runs it on."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_pins_what_the_package_needs_and_within_its_bounds():
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    pins = {pin.name.lower().replace("_", "-"): pin for pin in map(Requirement, lines)}
    assert len(pins) > 150
    for need in map(Requirement, PROJECT["dependencies"]):
        version = str(pins[need.name.lower()].specifier).removeprefix("==")
        assert need.specifier.contains(version), need


def test_the_classifiers_name_the_python_that_tests_run_on():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert named == ["3.11"] and all(map(allowed.contains, (*named, "3.12", "3.13")))
