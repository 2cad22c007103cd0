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


class Remembered:
    """In place of a cached function of `reach`: it forgets a single module, not the package."""

    def __init__(self, name: str) -> None:
        self._function, self.found = getattr(reach, name).__wrapped__, {}

    def __call__(self, *given):
        if given not in self.found:
            self.found[given] = self._function(*given)
        return self.found[given]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, which `reach` reads in place of its own; (folder, forget)."""
    folder = tmp_path_factory.mktemp("copied") / "fedsdg"
    shutil.copytree(reach.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    of_one = {name: Remembered(name) for name in ("_tree", "_imports_of", "_digest")}
    of_many = {name: Remembered(name) for name in ("closure", "_file")}

    def forget(*modules: str) -> None:
        for remembered in of_many.values():
            remembered.found.clear()
        for remembered in of_one.values():
            for module in modules:
                remembered.found.pop((module,), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "PACKAGE", folder)
        for name, remembered in {**of_one, **of_many}.items():
            patch.setattr(reach, name, remembered)
        yield folder, forget


@pytest.mark.parametrize("stage", sorted(common()["CODE"]))
def test_a_rule_depends_on_whatever_its_command_imports(stage, imports, package):
    """Directly or not; importing a module also runs the packages around it.

    The package as a whole aside: a figure says which version drew it, and another draws the same.
    """
    folder, forget = package
    doors = common()["CODE"][stage]
    needed, left = set(), [name for door in doors for name in reach._named(door)]
    while left:
        module = left.pop()
        if module not in needed and module not in reach.OFFERED:
            needed.add(module)
            package_of, _, _ = module.rpartition(".")
            left += [package_of] if "." in package_of else []
            left += imports.find_modules_directly_imported_by(module)
    before = reach.code_of(*doors)
    for module in sorted(needed)[:: max(1, len(needed) // 7)]:
        file = reach._file(module)
        text = file.read_text()
        for edited, same in ((f"{text}\nEDITED = True\n", False), (f"# edited\n{text}", True)):
            file.write_text(edited)
            forget(module)
            assert (reach.code_of(*doors) == before) == same, module
        file.write_text(text)
        forget(module)
    outside = sorted(imports.modules - needed - {"fedsdg"})
    outside = outside[:: max(1, len(outside) // 7)]
    texts = {reach._file(module): reach._file(module).read_text() for module in outside}
    for file, text in texts.items():
        file.write_text(f"{text}\nEDITED = True\n")
    alone = folder / "nobody_imports_it.py"
    alone.write_text("ONE = 1\n")
    forget(*outside)
    assert reach.code_of(*doors) == before
    alone.unlink()
    for file, text in texts.items():
        file.write_text(text)
    forget(*outside)


def test_a_rule_that_reads_what_things_are_called_depends_on_it(package):
    _, forget = package

    def reads(doors: list[str]) -> bool:
        modules = [name for door in doors for name in reach._named(door)]
        return any("fedsdg.files.declarations" in reach.closure(name) for name in modules)

    forget()
    reading = {stage for stage, doors in common()["CODE"].items() if reads(doors)}
    assert reading == set(common()["READ"]) >= {"tables", "figures", "claims"}
