"""The code behind the rules is complete: what a rule's command imports re-runs it, words do not."""

import re
import shutil
from pathlib import Path

import grimp
import pytest

from fedsdg.experiment import reach

ROOT = Path(__file__).resolve().parents[2]


def common() -> dict:
    """The constants of common.smk, which is Python but for its directives."""
    text = (ROOT / "workflow/rules/common.smk").read_text()
    names: dict = {}
    for name in ("CODE", "READ"):
        value = re.findall(rf"^{name} = ([({{].*?[)}}])$", text, re.DOTALL | re.MULTILINE)[0]
        names[name] = eval(value)
    return names


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("fedsdg", cache_dir=None, exclude_type_checking_imports=True)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, which `reach` reads in place of its own."""
    shutil.copytree(
        reach.PACKAGE, tmp_path / "fedsdg", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(reach, "PACKAGE", tmp_path / "fedsdg")
    forget()
    yield tmp_path / "fedsdg"
    monkeypatch.undo()
    forget()


def forget() -> None:
    for found in (reach.closure, reach._file, reach._tree, reach._imports_of, reach._digest):
        found.cache_clear()


@pytest.mark.parametrize("stage", sorted(common()["CODE"]))
def test_a_rule_depends_on_whatever_its_command_imports(stage, imports, package):
    """Directly or not; importing a module also runs the packages around it."""
    doors = common()["CODE"][stage]
    needed, left = set(), [name for door in doors for name in reach._named(door)]
    while left:
        module = left.pop()
        if module not in needed:
            needed.add(module)
            package_of, _, _ = module.rpartition(".")
            left += [package_of] if "." in package_of else []
            left += imports.find_modules_directly_imported_by(module)
    before = reach.code_of(*doors)
    for module in sorted(needed)[:: max(1, len(needed) // 7)]:
        file = reach._file(module)
        text = file.read_text()
        file.write_text(text + "\nEDITED = True\n")
        forget()
        assert reach.code_of(*doors) != before, module
        file.write_text(f"# edited\n{text}")
        forget()
        assert reach.code_of(*doors) == before, module
    outside = sorted(imports.modules - needed - {"fedsdg"})
    (package / "nobody_imports_it.py").write_text("ONE = 1\n")
    for module in outside[:: max(1, len(outside) // 7)]:
        with reach._file(module).open("a") as file:
            file.write("\nEDITED = True\n")
    forget()
    assert reach.code_of(*doors) == before


def test_a_rule_that_reads_what_things_are_called_depends_on_it():
    def reads(doors: list[str]) -> bool:
        modules = [name for door in doors for name in reach._named(door)]
        return any("fedsdg.files.declarations" in reach.closure(name) for name in modules)

    forget()
    reading = {stage for stage, doors in common()["CODE"].items() if reads(doors)}
    assert reading == set(common()["READ"]) >= {"tables", "figures", "claims"}
