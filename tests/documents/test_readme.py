"""README and findings lead to what they speak of; `fedsdg verify` compares what they say."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_that_the_readme_links_to_is_there():
    readme = (ROOT / "README.md").read_text()
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", readme) if not t.startswith("http")]
    assert len(links) > 5
    assert [target for target in links if not (ROOT / target).exists()] == []


def test_every_figure_of_the_extended_experiments_has_its_paragraph():
    page = (ROOT / "docs/findings.md").read_text()
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", page) if not t.startswith("http")]
    assert [target for target in links if not (ROOT / "docs" / target).exists()] == []
    extended = {file.stem for file in (ROOT / "config/extended").glob("*.yaml")}
    drawn = [f for f in (ROOT / "paper_figures").glob("*/*.png") if f.parent.name in extended]
    assert {f.parent.name for f in drawn} == extended
    assert [f for f in drawn if f"../{f.relative_to(ROOT)}" not in links] == []
