"""The documentation as pages: built strictly, whole without a network, all that is declared."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from fedsdg.config.reference import default_of
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA
from fedsdg.methods.families import METHODS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages."""
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not said is not counted, and nothing would be strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def words(page):
    """Return what a reader of a page sees, in one line."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_every_page_is_there_and_none_asks_the_network_for_anything(site):
    folder = ROOT / "docs"
    pages = {one.relative_to(folder).with_suffix(".html") for one in folder.rglob("*.md")}
    assert pages <= {one.relative_to(site) for one in site.rglob("*.html")}
    asked = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//([^">]+)')
    assert [p for p in site.rglob("*.html") if asked.search(p.read_text("utf-8"))] == []


def test_every_link_and_picture_leads_to_a_file(site):
    lost = []
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="?([^"\s>]+)', page.read_text("utf-8")):
            place = unquote(urldefrag(html.unescape(target)).url)
            here = place and not re.match(r"[a-z]+:|/", place)
            if here and page.name != "404.html" and not (page.parent / place).exists():
                lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


def test_docstrings_and_columns_are_shown_as_tables(site):
    api = words(site / "api.html")
    assert ":::" not in api and "Args:" not in api and "on_nonfinite" in api
    columns = words(site / "maintainers/records.html")
    assert [
        name for name in (*ROUNDS_SCHEMA.names, *CLIENTS_SCHEMA.names) if name not in columns
    ] == []


def test_a_method_has_a_page_with_all_that_it_declares(site):
    for name, row in METHODS.items():
        seen = words(site / "methods" / f"{name}.html")
        cells = [row.title, row.formula, row.source]
        for key, info in row.parameters.items():
            cells += [key, default_of(info), (info.description or "").replace("`", "")]
        assert [cell for cell in cells if " ".join(cell.split()) not in seen] == [], name
    arena = "reference/needs/main.html"
    assert arena in (site / "methods/fedsdg.html").read_text("utf-8")


def test_the_picture_says_the_bytes_of_the_record(site):
    """SCAFFOLD sends two vectors, FedAvg one: 22,154 numbers of 4 bytes, a little around them."""
    for name, vectors in (("fedavg", 1), ("scaffold", 2)):
        text = (site / f"methods/{name}.html").read_text("utf-8")
        sent = int(re.search(r">up: ([\d,]+) bytes<", text)[1].replace(",", ""))
        assert 22154 * 4 * vectors < sent < 22154 * 4 * vectors + 8192
