"""The lists of sources behind the rules are complete: what a rule imports re-runs it."""

import re
from pathlib import Path

import grimp
import pytest
import yaml

from fedsdg.analysis.plots import FIGURES, USUAL_FIGURES
from fedsdg.analysis.tables import TABLES, USUAL_TABLES

ROOT = Path(__file__).resolve().parents[2]
# What the command of each rule imports first. Training is not among them: `reach` finds out.
DOORS = {
    "partition": [
        "fedsdg.data.datasets",
        "fedsdg.data.partition",
        "fedsdg.data.partition_files",
        "fedsdg.experiment.loading",
        "fedsdg.rng",
    ],
    "pretrain": ["fedsdg.experiment.backbones.pretraining"],
    "summarise": ["fedsdg.analysis.summarise"],
    "tables": ["fedsdg.analysis.tables"],
    "figures": ["fedsdg.analysis.plots"],
    "claims": ["fedsdg.analysis.claims"],
    "measure": [
        "fedsdg.aggregation.engines.backends",
        "fedsdg.aggregation.rule_table",
        "fedsdg.aggregation.types",
        "fedsdg.files",
    ],
    "kernels": ["fedsdg.analysis.kernels"],
}


def common() -> dict:
    """The constants of common.smk, which is Python but for its directives."""
    text = (ROOT / "workflow/rules/common.smk").read_text()
    names: dict = {}
    for name in ("SOURCES", "TABLES", "FIGURES", "USUAL_TABLES", "USUAL_FIGURES"):
        (value,) = re.findall(rf"^{name} = ([\[{{].*?[\]}}])$", text, re.DOTALL | re.MULTILINE)
        names[name] = eval(value)
    return names


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("fedsdg", cache_dir=None)


@pytest.mark.parametrize("stage", sorted(DOORS))
def test_a_rule_lists_whatever_its_command_imports(stage, imports):
    """Directly or not; importing a module also runs the packages around it."""
    package = ROOT / "fedsdg"
    listed = {f for pattern in common()["SOURCES"][stage] for f in package.glob(pattern)}
    needed, left = set(), [*DOORS[stage]]
    while left:
        module = left.pop()
        if module not in needed:
            needed.add(module)
            package_of, _, _ = module.rpartition(".")
            left += [package_of] if "." in package_of else []
            left += imports.find_modules_directly_imported_by(module)
    files = {}
    for module in needed:
        place = ROOT.joinpath(*module.split("."))
        files[module] = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    missing = {m: f for m, f in files.items() if f not in listed}
    assert missing == {}, f"add them to SOURCES[{stage!r}] of workflow/rules/common.smk"


def test_every_pattern_finds_a_file():
    for stage, patterns in common()["SOURCES"].items():
        for pattern in patterns:
            assert list((ROOT / "fedsdg").glob(pattern)), f"{stage}: {pattern} finds nothing"


def test_every_table_and_figure_of_the_package_is_made():
    assert common()["TABLES"] == list(TABLES)
    assert common()["FIGURES"] == list(FIGURES)
    assert common()["USUAL_TABLES"] == list(USUAL_TABLES)
    assert common()["USUAL_FIGURES"] == list(USUAL_FIGURES)


def test_a_config_may_name_every_table_and_figure():
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    assert schema["properties"]["tables"]["items"]["enum"] == list(TABLES)
    assert schema["properties"]["figures"]["items"]["enum"] == list(FIGURES)
