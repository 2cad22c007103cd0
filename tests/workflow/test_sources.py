"""The code behind the rules is complete: what a rule's command imports re-runs it, words do not."""

import ast
import importlib
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


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, which `reach` reads in place of its own; (folder, forget)."""
    folder = tmp_path_factory.mktemp("copied") / "fedsdg"
    shutil.copytree(reach.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))

    def forget() -> None:
        reach._files.cache_clear()
        reach._sources.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "PACKAGE", folder)
        forget()
        yield folder, forget
    forget()


def edited(text: str) -> str:
    """A module whose functions and classes have one more statement each."""
    tree = ast.parse(text)
    for one in tree.body:
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.body += ast.parse("edited = True").body
    return ast.unparse(tree)


@pytest.mark.parametrize("stage", sorted(common()["CODE"]))
def test_a_rule_depends_on_what_its_command_uses(stage, imports, package):
    """Directly or not, and on no module that it does not import.

    The package as a whole aside: a figure says which version drew it, and another draws the same.
    """
    _, forget = package
    doors = common()["CODE"][stage]
    forget()
    before = reach.code_of(*doors)
    roots = [tuple(door.split(":")) for door in doors]
    used = reach.used_by(roots, reach.OFFERED)
    classes = {module for module, name, *_ in used if not name.startswith("@")}
    needed, left = set(), [module for module, *_ in roots]
    while left:
        module = left.pop()
        if module not in needed and module not in reach.OFFERED:
            needed.add(module)
            package_of, _, _ = module.rpartition(".")
            left += [package_of] if "." in package_of else []
            left += imports.find_modules_directly_imported_by(module)
            # A package that hands names on imports the modules of those that are used.
            if hasattr(importlib.import_module(module), "_HOMES"):
                left += [one for one in classes if one.startswith(f"{module}.")]
    assert {module for module, *_ in roots} <= classes <= needed
    files = {module: reach._files()[module] for module in sorted(imports.modules - {"fedsdg"})}
    texts = {module: file.read_text() for module, file in files.items()}
    # Of a module whose constants alone are used, functions do not count.
    several = sorted(
        {m for m, name, *_ in used if re.search(rf"^(def|class) {name}\b", texts.get(m, ""), re.M)}
    )
    for module in several[:: max(1, len(several) // 3)]:
        files[module].write_text(edited(texts[module]))
        forget()
        assert reach.code_of(*doors) != before, module
        files[module].write_text(texts[module])
    for module, file in files.items():
        words = f"# edited\n{texts[module]}"
        file.write_text(words if module in needed else edited(texts[module]))
    forget()
    assert reach.code_of(*doors) == before
    for module, file in files.items():
        file.write_text(texts[module])
    forget()


def test_a_rule_that_reads_what_things_are_called_depends_on_it(package):
    _, forget = package

    def reads(doors: list[str]) -> bool:
        roots = [tuple(door.split(":")) for door in doors]
        used = reach.used_by(roots, reach.OFFERED)
        return any(module == "fedsdg.files.declarations" for module, *_ in used)

    forget()
    reading = {stage for stage, doors in common()["CODE"].items() if reads(doors)}
    assert reading == set(common()["READ"]) >= {"summarise"}
