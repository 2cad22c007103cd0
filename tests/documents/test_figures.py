"""Pictures of documents: each is there, and each committed figure is shown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shown() -> dict[Path, list[str]]:
    """The local pictures that documents show or link to, and the documents that do."""
    found: dict[Path, list[str]] = {}
    for page in (ROOT / "README.md", *ROOT.rglob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#\s]+\.png)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                found.setdefault((page.parent / target).resolve(), []).append(page.name)
    return found


def test_every_picture_that_a_document_shows_exists() -> None:
    assert {file: pages for file, pages in shown().items() if not file.is_file()} == {}


def test_every_committed_figure_is_shown_by_a_document() -> None:
    figures = {file.resolve() for file in ROOT.glob("paper_figures/*/*.png")}
    assert sorted(map(str, figures - shown().keys())) == []
