"""`make everything` leaves out no grid behind a published figure, table or claim."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedsdg.analysis.claims import read_claims
from fedsdg.files.places import ARENAS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def experiments() -> set[str]:
    """The experiments whose grids the command would run, as their configs name them."""
    told = subprocess.run(
        ["make", "--dry-run", "everything"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    told = told.replace("\\\n", " ")
    files = set(re.findall(r"config/[\w/-]+\.yaml", told))
    for names, loop in re.findall(r"for name in ([^;]*); do(.*?)done", told, re.DOTALL):
        for pattern in re.findall(r"config/\S*\$name\.yaml", loop):
            files |= {pattern.replace("$name", name) for name in names.split()}
    for pattern in re.findall(r"for file in (\S+); do", told):
        files |= {str(file.relative_to(ROOT)) for file in ROOT.glob(pattern)}
    for names in re.findall(r"--grid ((?:[\w/-]+ )*[\w/-]+)(?= |$)", told, re.MULTILINE):
        files.add(f"config/{names.split()[-1]}.yaml")
    return {yaml.safe_load((ROOT / file).read_text())["experiment"] for file in files}


def test_every_record_figure_and_claim_has_its_grid():
    made = experiments()
    records = {file.parent.name for file in ROOT.glob("results/reference/*/runs.parquet")}
    # Those across arenas are made of the arenas' records.
    figures = {file.parent.name for file in ROOT.glob("paper_figures/*/*.json")} - {"across"}
    configs = [*ROOT.glob("config/extended/*.yaml"), *ROOT.glob("config/claims/*.yaml")]
    behind = {yaml.safe_load(file.read_text())["experiment"] for file in configs}
    assert records and figures and behind
    assert records | figures | behind <= made
    claimed = {
        key.split("/")[0]
        for claim in read_claims(ROOT / "claims.yaml")
        for name in claim.of
        for key in name.split(" + ")
    }
    studied = {file.stem for file in ROOT.glob("config/cross-*.yaml")}
    # Of others nobody has made a run yet.
    assert claimed & records and claimed & records <= made | studied


def test_the_arenas_are_whole():
    assert {"label-skew", *ARENAS, "cifar100", "cifar100-needs"} <= experiments()
