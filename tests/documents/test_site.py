"""The documentation as pages: built strictly, whole without a network, all that is declared."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pandas as pd
import pytest

from fedsdg.files.places import ARENAS
from fedsdg.methods.declared import methods
from fedsdg.methods.markdown import default_of

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout
    return folder


def build(place, folder):
    # Not --quiet: what is not said is not counted, and nothing would be strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=place,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def words(page):
    """What a reader of a page sees, in one line."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_every_page_is_there(site):
    pages = {f"{one.stem}.html" for one in (ROOT / "docs").glob("*.md")}
    assert pages <= {one.name for one in site.glob("*.html")}
    notebook = "quickstart.ipynb"
    assert (site / notebook).read_bytes() == (ROOT / "docs" / notebook).read_bytes()


def test_no_page_asks_the_network_for_anything(site):
    asked = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//([^">]+)')
    found = {
        (page.name, match[1])
        for page in site.rglob("*.html")
        for match in asked.finditer(page.read_text("utf-8"))
    }
    assert found == set()
    assert not re.search(r"@import|url\((?:https?:)?//", (site / "assets/extra.css").read_text())


def test_every_link_and_picture_leads_to_a_file(site):
    lost = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for target in re.findall(r'(?:href|src)="?([^"\s>]+)', page.read_text("utf-8")):
            place = unquote(urldefrag(html.unescape(target)).url)
            if place and not re.match(r"[a-z]+:|/", place) and not (page.parent / place).exists():
                lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


@pytest.mark.parametrize("name", methods())
def test_a_method_has_a_page_with_all_that_it_declares(site, name):
    row, page = methods()[name], site / "methods" / f"{name}.html"
    seen = words(page)
    for said in (row.title, row.formula, row.source, row.rule, *row.terms):
        assert " ".join(said.split()) in seen
    travels = (f"down: {row.down}" in seen, f"up: {row.up}" in seen)
    assert all(travels) or row.up == row.down == "0"
    for key, one in row.parameters.items():
        cells = (key, default_of(one), one.meaning.replace("`", ""))
        assert all(" ".join(cell.split()) in seen for cell in cells), key
    assert f"methods/{name}.html" in unquote((site / "methods.html").read_text("utf-8"))


@pytest.mark.parametrize("arena", ARENAS)
def test_methods_of_an_arena_have_its_line_and_no_others(site, arena):
    runs = pd.read_parquet(
        ROOT / "results/reference" / arena / "runs.parquet", columns=["method", "type"]
    )
    there = set(runs["method"]) | set(runs["type"])
    pages = {name: (site / f"methods/{name}.html").read_text("utf-8") for name in methods()}
    listed = {name for name, text in pages.items() if f"reference/{arena}/main.html" in text}
    assert listed == there & set(methods())


def test_the_picture_says_the_bytes_of_the_record(site):
    """SCAFFOLD sends two vectors, FedAvg one: 22,154 numbers of 4 bytes, a little around them."""
    for name, vectors in (("fedavg", 1), ("scaffold", 2)):
        text = (site / f"methods/{name}.html").read_text("utf-8")
        said = re.search(r">up: \w+</text><text[^>]*>([\d,]+) bytes<", text)
        sent = int(said[1].replace(",", ""))
        assert 22154 * 4 * vectors < sent < 22154 * 4 * vectors + 8192


def test_what_lies_outside_the_folder_of_pages_is_on_the_site(site):
    main = words(site / "repository/results/reference/cross-needs/main.html")
    assert "FedAvg (uniform)" in main and "95 %" in main
    assert "experiment: cross-needs" in words(site / "repository/config/cross-needs.yaml.html")


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path):
    """Two pages as the others are built, one of them with a wrong link of each kind."""
    right = "[a](other.md#training) [b](../config/cross-needs.yaml)"
    wrong = "[c](nowhere.md) [d](../config/none.yaml) [e](other.md#no)"
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "other.md").write_text("# Another\n\n## Training\n")
    hooks = [str(ROOT / "docs/hooks" / name) for name in ("outside.py", "dialect.py")]
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(pages), "hooks": hooks}
    settings |= {"nav": ["index.md", "other.md"], "plugins": ["search"]}
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings))
    for text, status in ((right, 0), (f"{right} {wrong}", 1)):
        (pages / "index.md").write_text(f"# A page\n\n{text}\n")
        done = build(tmp_path, tmp_path / "site")
        assert done.returncode == status, done.stdout
    for target in ("nowhere.md", "../config/none.yaml", "#no"):
        assert target in done.stdout
    assert "#training" not in done.stdout and "cross-needs.yaml" not in done.stdout


def test_search_finds_a_page_that_was_opened_from_disk(site):
    if shutil.which("chromium") is None:
        pytest.skip("no browser: install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        faults, asked = [], []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("request", lambda one: asked.append(one.url) if "://" in one.url else None)
        page.goto((site / "index.html").as_uri())
        found = page.locator(".md-search-result__link[href*='scaffold.html']").first
        # The field listens to keys; `fill` presses none.
        page.locator(".md-search__input").press_sequentially("scaffold control variates")
        found.wait_for(state="attached", timeout=120_000)
        assert found.count() == 1
        browser.close()
    assert faults == []
    assert [url for url in asked if not url.startswith("file://")] == []
