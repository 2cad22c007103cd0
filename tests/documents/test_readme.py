"""README and findings lead to what they speak of; `fedsdg verify` compares what they say."""

import re

import pandas as pd
import pytest

from fedsdg.config.layers import load
from fedsdg.files.places import ARENAS
from fedsdg.methods.families import METHODS
from tests.documents.pages import ROOT, pages

README = (ROOT / "README.md").read_text()
MADE = ("docs/config.md", "docs/methods.md", "docs/claims.md")


def words(text: str) -> int:
    """The words that a reader meets: no slots, comments, or bars of tables."""
    text = re.sub(r"<!-- table .*?<!-- / -->|<!--.*?-->", "", text, flags=re.DOTALL)
    return sum(re.search(r"\w", word) is not None for word in text.split())


@pytest.mark.parametrize("page", [page for page in pages() if page not in MADE])
def test_every_file_that_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    files = [target for target in links if not target.startswith("http")]
    assert [file for file in files if not ((ROOT / page).parent / file).exists()] == []


def test_readme_and_documents_are_short():
    assert len(README.splitlines()) <= 70 and words(README.rpartition("\n| for |")[0]) <= 450
    written = [page for page in (*pages(), "config/README.md") if page not in MADE]
    assert sum(words((ROOT / page).read_text()) for page in written) <= 9000


def test_it_counts_methods_and_rows_as_they_are():
    assert int(re.search(r"(\d+) methods", README)[1]) == len(METHODS)
    counted = re.findall(r"(\d+) rows\]\((results/reference/[\w-]+)/main\.md\)", README)
    for count, record in counted:
        methods = pd.read_parquet(ROOT / record / "runs.parquet", columns=["method"])
        assert int(count) == methods["method"].nunique(), record
    assert counted


@pytest.mark.parametrize("arena", ARENAS)
def test_the_reproduced_rows_are_rows_of_the_arena(arena):
    whole, made = load([arena]), load([arena, "reproduced"])
    assert [whole.method(entry.label) for entry in made.methods] == [*made.methods]


def test_every_method_with_a_record_in_an_arena_is_one_of_the_package():
    for arena in ARENAS:
        assert {entry.type for entry in load([arena]).methods} <= set(METHODS)


def test_every_source_file_that_a_page_names_is_there():
    sources = [file.as_posix() for file in ROOT.glob("*/**/*.py") if ".venv" not in file.parts]
    for page in (ROOT / "docs/maintainers").glob("*.md"):
        named = set(re.findall(r"`[^`\n]*?([\w/]+\.py)`", page.read_text()))
        lost = [name for name in named if not any(file.endswith(f"/{name}") for file in sources)]
        assert lost == [], page.name
